// What the exact kernels are parameterised by, and the layout of their shared memory.
#pragma once

#include <cstddef>

#include "core/arith.h"
#include "core/params.h"
#include "cuda/common/ptx.cuh"
#include "cuda/tuning.h"

namespace ringfold::cuda::exact {

using detail::RecurrenceParams;

constexpr int kGroup = arith::kGroup;
constexpr int kLineBuffers = 3;  // of the heads that are computed, prepared and fetched at a time
constexpr int kArrivals = 32;    // of a warp at a barrier: each lane, since racecheck sees no order through another one

/// Distances in bytes between the heads and the tokens of an array.
struct Pitch {
  int32_t head = 0, token = 0;
};

/// A row of a layer has an address in each array, which is one of these numbers in a Line.
enum Address {
  kInQ,
  kInK,
  kInV,
  kInA,
  kInB,
  kOut,
  kRingK,  // from here on to kState: in the ring
  kRingV,
  kRingGate,
  kRingBeta,
  kState,
  kTarget,
  kTrack,
  kAddresses
};

/// Where an array's rows are, in bytes: data + layer * layer_stride + row * row_stride + token * token_stride, and for
/// row v of V v * v_stride more.
struct Origin {
  std::byte* data = nullptr;
  int64_t layer = 0, row = 0, token = 0, v = 0;
};

/// How a call is cut into blocks, and its arrays' origins, so that a warp's lanes find one address each. Behind the
/// other params: with longer offsets to what the loop of heads reads, ptxas runs out of registers.
struct Cut {
  ExactTiles tiles;
  Origin origins[kAddresses];
};

/// The params of the call, and its arrays' pitches in 32 bits: 64-bit products would be a good part of the kernel.
struct ExactParams : RecurrenceParams {
  Pitch q_at, k_at, v_at, a_at, b_at, out_at;              // of the window
  Pitch ring_k_at, ring_v_at, ring_gate_at, ring_beta_at;  // of the ring, read or written
  int32_t state_head = 0;                                  // bytes between the heads of a state
  int32_t most_steps = 1;                                  // of a row
  int32_t heads_per_key = 1;                               // HV / H
};

/// Where the tokens come from: the ring alone (fold), a window, or a window behind a history in the ring.
enum class Source { ring, window, history };

/// What is known at compile time. StateBytes: 4, or 2 for bf16 and f16. WarpRows: of V, in a warp.
template <int K_, int StateBytes, bool Kda, Source From, int WarpRows = 16>
struct Traits {
  static constexpr int K = K_;
  static constexpr int kStateBytes = StateBytes;
  static constexpr bool kKda = Kda, kFromRing = From == Source::ring, kHistory = From == Source::history,
                        kWindow = From == Source::window;
  static constexpr int kLanes = K / 16;      // that share a row
  static constexpr int kSide = 32 / kLanes;  // row groups of a warp; lane = c * kSide + side
  static constexpr int kWarpRows = WarpRows;
  static constexpr int kRows = kWarpRows / kSide;          // of V, in one thread
  static constexpr int kHalves = StateBytes == 4 ? 2 : 1;  // 16-byte chunks of a group
  static constexpr int kChunks = kRows * 2 * kHalves;      // of a thread
  static constexpr int kRowBytes = K * StateBytes;         // of a row in memory
  static constexpr int kRowChunks = kRowBytes / 16;
  // Token vectors. A GDN window keeps q for the other value heads of the key head (a KDA model has one for each). From
  // the ring alone GDN has only the key: k * decay is formed where it is used, and a long history has room.
  static constexpr bool kHasKd = !kFromRing || Kda;
  static constexpr int kKd = 0, kKey = kHasKd ? 1 : 0, kQd = 2, kQuery = 3, kDecay = kFromRing ? 2 : 3;
  static constexpr int kVectors = !kFromRing ? 4 : Kda ? 3 : 1;
  static constexpr int kTokenFloats = kVectors * K + 4;  // and a Scalars
  static constexpr bool kReuses = !Kda;                  // k (and q) of the value head before

  /// The warp's 16 rows lie in shared memory as in the pool, but the 16-byte chunks of each 128 bytes are permuted by
  /// exclusive or with this, so that lanes of one row group and of all sides read without bank conflicts. (Both halves
  /// of a 32-byte sector stay within 128 bytes; where they do not, the copy fetches the sector twice.)
  static constexpr int swizzle(int row) {
    const int side = row / kRows;
    if constexpr (kLanes == 4) return side;
    return kStateBytes == 4 ? (side >> 1) << 2 | (side & 1) : side << 1;
  }
};

/// beta and decay (GDN) of one token of one value head.
struct alignas(8) Gates {
  float beta, decay;
};

/// What follows the vectors of a token of a head.
struct alignas(16) Scalars {
  float beta, decay, kq;
};

/// A row of a layer: its arrays' addresses at head 0, token 0, in the order of Address; those with rows of V at the
/// block's first. Not `live`: nothing to do but zero outputs. Without a window `a` and `b` are the layer's A_log and
/// dt_bias.
struct alignas(16) Line {
  const std::byte *q, *k, *v, *a, *b;
  std::byte *out, *ring_k, *ring_v, *ring_gate, *ring_beta;
  std::byte *state, *target, *track;
  int32_t count;  // steps
  int32_t first_hv;
  uint32_t rounds;             // bit i: a commit ended with step i
  int16_t history, first_row;  // steps of the history; ring row of step 0
  int16_t track_step;          // after which the state goes to `track`; -1: none
  bool live;
  int32_t index;  // of the block's lines in the call, of which it has consecutive ones

  __device__ std::byte*& address(int i) { return reinterpret_cast<std::byte**>(this)[i]; }
};

static_assert(sizeof(Line) == kExactLineBytes && offsetof(Line, count) == kAddresses * sizeof(std::byte*));

/// Shared memory of a block, carved from one array. The order and the sizes are those of exact_shared_bytes().
template <class T>
struct Shared {
  std::byte* base;
  int threads, window, heads, buffers, raw_steps;  // heads: of a line, at most; buffers: of token vectors

  __device__ std::byte* state() const { return base; }
  __device__ float* vector(int buffer, int t, int which) const {
    float* vectors = reinterpret_cast<float*>(base + threads * T::kChunks * 16);
    return vectors + (buffer * window + t) * T::kTokenFloats + which * T::K;
  }
  __device__ Scalars& scalars(int buffer, int t) const {
    return *reinterpret_cast<Scalars*>(vector(buffer, t, T::kVectors));
  }
  /// The block's rows of v of a token: two bytes each, `threads` bytes. A warp copies and reads only its own 32 bytes.
  __device__ std::byte* v(int buffer, int t) const {
    return reinterpret_cast<std::byte*>(vector(buffers, 0, 0)) + (buffer * window + t) * threads;
  }
  /// Raw q and k of step `past` after the first that a warp prepares, a multiple of the warps below raw_steps: 16 bytes
  /// for each thread.
  __device__ uint4& raw(int past) const { return reinterpret_cast<uint4*>(v(2, 0))[past * 32 + threadIdx.x]; }
  __device__ Line& line(int buffer) const { return reinterpret_cast<Line*>(v(2, 0) + raw_steps * 512)[buffer]; }
  /// Barriers of a buffer of token vectors: all warps have made their part of it; all warps have read it.
  __device__ uint32_t made(int buffer) const { return barrier(2 * buffer); }
  __device__ uint32_t read(int buffer) const { return barrier(2 * buffer + 1); }
  __device__ uint32_t barrier(int i) const { return ptx::shared_address(barriers() + i); }
  __device__ int barrier_count() const { return 2 * buffers; }
  __device__ Gates* gates(int buffer, int head) const {
    return reinterpret_cast<Gates*>(barriers() + barrier_count()) + (buffer * heads + head) * window;
  }

 private:
  __device__ uint64_t* barriers() const { return reinterpret_cast<uint64_t*>(&line(kLineBuffers)); }
};

/// Element e of group g of a token vector: halves of groups lie together, so that 16-byte accesses have no conflicts.
template <class T>
__device__ __forceinline__ int at_half(int group, int half) {
  return half * (T::K / 2) + group * 4;
}
template <class T>
__device__ __forceinline__ void store_group(float* vector, int group, const float (&x)[kGroup]) {
  *reinterpret_cast<float4*>(vector + at_half<T>(group, 0)) = {x[0], x[1], x[2], x[3]};
  *reinterpret_cast<float4*>(vector + at_half<T>(group, 1)) = {x[4], x[5], x[6], x[7]};
}
template <class T>
__device__ __forceinline__ void read_group(const float* vector, int group, float (&x)[kGroup]) {
  const float4 low = *reinterpret_cast<const float4*>(vector + at_half<T>(group, 0));
  const float4 high = *reinterpret_cast<const float4*>(vector + at_half<T>(group, 1));
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

}  // namespace ringfold::cuda::exact
