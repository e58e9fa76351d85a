// What the kernels of `fast` numerics are told, at run time and at compile time.
#pragma once

#include "cuda/common/convert.cuh"
#include "cuda/common/divisor.h"
#include "cuda/common/gate.cuh"
#include "cuda/common/judging.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/tuning.h"

namespace ringfold::cuda::fast {

constexpr int kGroup = arith::kGroup;

/// An array's address and the distances in bytes between its rows (dense windows, slots) or tokens (ragged windows),
/// its heads and its tokens. 32 bits but for the address: 64-bit products would be a good part of the kernel.
struct Place {
  std::byte* data = nullptr;
  int32_t row = 0, head = 0, token = 0;

  __device__ __forceinline__ std::byte* at(int index, int which_head, int more = 0) const {
    return data + static_cast<int64_t>(index) * row + (which_head * head + more);
  }
};

struct FastParams : RecurrenceParams {
  Place at_q, at_k, at_v, at_a, at_b, at_out, at_state, at_ring_k, at_ring_v, at_ring_gate, at_ring_beta, at_ring_u;
  Divisor by_parts, by_heads_of_key;  // of V; of a key head
  int heads_of_key = 1;
  int heads_of_block = 1;
  int slot_id_stride = 1;
  uint32_t zero = 0;      // which the compiler does not know
  int state_row = 0;      // bytes between rows of V of a state
  bool out_wide = false;  // rows of `out` are aligned to 16 bytes
};

/// What is known at compile time. Tokens: 4, 8 or 16, at least those of any row. Tiles: of 16 rows of V, in a warp.
/// Blocks: that share a multiprocessor. History: of up to 32 rows, read by their u.
template <int K_, DType State, bool Kda, int Tokens, int Tiles, int Warps, int Blocks, bool History = false>
struct Traits {
  static constexpr int K = K_, kTokens = Tokens, kTiles = Tiles, kWarps = Warps, kBlocks = Blocks;
  static constexpr DType kState = State;
  static constexpr bool kKda = Kda, kHistory = History;
  static constexpr bool kSplit = State != DType::bf16;  // the state too has high and low parts
  static constexpr int kStateBytes = State == DType::f32 ? 4 : 2;
  static constexpr int kThreads = Warps * 32;
  static constexpr int kBlockRows = Warps * Tiles * 16;
  static constexpr int kStateTiles = Tiles * 2;         // of 8 rows of V, in a warp
  static constexpr int kLaneRows = kStateTiles * 2;     // of v and o: neighbours
  static constexpr int kVectorTiles = Tokens / 4;       // of 8 vectors: k and q of four tokens
  static constexpr int kOctets = (Tokens + 7) / 8;      // of tokens: the rows of M in one factor
  static constexpr int kVectors = Tokens * 2;           // vector 2t is k_t, 2t+1 is q_t
  static constexpr int kChunks = K * kStateBytes / 64;  // 16-byte loads of a lane and row
  static constexpr int kGroups = K / kGroup;            // of a vector
  static constexpr int kItems =
      (kVectors * kGroups + kThreads - 1) / kThreads;         // groups of vectors that a thread prepares
  static constexpr int kItemTokens = kThreads / kGroups / 2;  // of which all threads together prepare k and q at once
  // KDA: a thread has one k and every kGateStep-th token; in the sums over K, a lane has two k's, a warp 64.
  static constexpr int kGateStep = kThreads / K;
  static constexpr int kGates = Tokens / kGateStep;  // of a thread
  static constexpr int kGatesAtOnce = kGates < 4 ? kGates : 4;
  static constexpr int kParts = Kda ? K / 64 : 1;  // partial sums of a coefficient
  // Four tokens: each warp forms the coefficients for itself (GDN).
  static constexpr bool kAlone = Tokens == 4 && !Kda;
  // A block may take several value heads of a key head, one after the other: their k and q are the same. (Not beside 16
  // tokens, for want of registers: the next head's state is on its way while outputs are formed.)
  static constexpr int kMostHeads = !Kda && kBlockRows == 128 && Tokens <= 8 ? kFastHeadsOfBlock : 1;
  static constexpr bool kDecayedFactors = !Kda && kMostHeads == 1;  // where GDN's w_j goes: to W, or to u

  // Shared memory, in bytes.
  static constexpr int kSteps = K / 16;
  static constexpr int kStepBytes = 512;                // a vector tile's part of one step: 16 bytes for each lane
  static constexpr int kCoefficientPitch = Tokens + 4;  // floats
  static constexpr int kCoefficientSize = kVectors * kCoefficientPitch;
  static constexpr int kCoefficients = kVectorTiles * kSteps * kStepBytes;
  static constexpr int kFragments = kCoefficients + (kAlone ? Warps : kParts) * kCoefficientSize * 4;
  static constexpr int kFragmentCount = kOctets * (kOctets + 1) / 2;
  static constexpr int kBeta = kFragments + (Tokens == 16 ? (History ? 2 : 1) * kFragmentCount * 512 : 0);
  static constexpr int kHeadLogs = kBeta + kMostHeads * Tokens * 4;
  static constexpr int kVerdict = kHeadLogs + kMostHeads * Tokens * 4;
  static constexpr int kBegin = kVerdict + 4;
  static constexpr int kRatioPitch = Tokens + 1;  // r_t0 .., E_t
  static constexpr int kSlot = kBegin + 4;
  static constexpr int kRatios = kSlot + 4;
  static constexpr int kPlain = (kRatios + (Kda ? 0 : kMostHeads * Tokens * kRatioPitch * 4) + 15) / 16 * 16;
  static constexpr int kDecays = kPlain + (Kda ? kVectors * K * 4 : 0);
  static constexpr int kLogs = kDecays + (Kda ? Tokens * K * 4 : 0);
  static constexpr int kRawVectors = kLogs + (Kda ? Tokens * K * 4 : 0);
  static constexpr int kRawV = kRawVectors + kItems * kThreads * 16;
  // For each warp pending, base, live, and (GDN) the log decays of a history's rows. Of the history besides: raw keys,
  // u (the 16-byte chunks of a row permuted by exclusive or, against bank conflicts), W of a vector tile and eight
  // rows, and for KDA the rows' log decays, the decay of all of them, and what the gate adds to a raw `a`.
  static constexpr int kHistoryRows = History ? 32 : 0, kHeadRows = Kda ? 0 : kHistoryRows;
  static constexpr int kKeyPitch = K * 2 + 32;
  static constexpr int kOfWarp = kRawV + kVectorTiles * kThreads * kStateTiles * 4;
  static constexpr int kHistoryKeys = kOfWarp + Warps * (4 + kHeadRows) * 4;
  static constexpr int kHistoryU = kHistoryKeys + kHistoryRows * kKeyPitch;
  static constexpr int kHistoryFactors = kHistoryU + kHistoryRows * kBlockRows * 4;
  static constexpr int kHistoryLogs = kHistoryFactors + kVectorTiles * kHistoryRows / 8 * 256;
  static constexpr int kLogPitch =
      K * 4 + (kStateBytes == 2 ? 16 : 64);  // as bank conflicts of 16-byte loads will have
  static constexpr int kHistoryDecay = kHistoryLogs + (Kda ? kHistoryRows : 0) * kLogPitch;
  static constexpr int kHistoryGate = kHistoryDecay + (Kda && History ? K * 4 : 0);
  static constexpr int kSharedBytes = kHistoryGate + (Kda && History ? K * 4 + 16 : 0);
  static constexpr int u_chunk(int row, int chunk) { return chunk ^ (row / 2 % 4) << (Tiles == 1 ? 2 : 0); }
};

__device__ __forceinline__ uint32_t pack(float first, float second) { return narrow_2(DType::bf16, first, second); }
__device__ __forceinline__ float first_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float second_of(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

/// x = high + low, each rounded to nearest; what is lost is below 2^-18 |x|.
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack(x, y);
  low = pack(S::sub(x, first_of(high)), S::sub(y, second_of(high)));
}
/// The same with the high parts cut off: below 2^-16 |x|, and no finite x becomes infinite.
__device__ __forceinline__ void cut(float x, float y, uint32_t& high, uint32_t& low) {
  high = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
  low = pack(S::sub(x, first_of(high)), S::sub(y, second_of(high)));
}

}  // namespace ringfold::cuda::fast
