// What the direct kernels are told, at run time and at compile time, and their shared memory.
#pragma once

#include "core/judge.h"
#include "cuda/common/divisor.h"
#include "cuda/recurrence/exact_types.cuh"
#include "cuda/tuning.h"

namespace ringfold::cuda::direct {

using exact::kGroup, exact::Scalars;

/// Where an array is, and the bytes between its rows (of a dense window; tokens of a ragged one; slots of a state or a
/// ring), its heads and its tokens.
struct Place {
  std::byte* data = nullptr;
  uint64_t row = 0;
  int32_t head = 0, token = 0;

  /// Few instructions where the compiler does not know that a number is not negative; `index` is not.
  __device__ __forceinline__ std::byte* at(int index, int which_head, int which_token = 0) const {
    return data + static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(index)) * row) +
           static_cast<int64_t>(which_head) * head + static_cast<int64_t>(which_token) * token;
  }
};

/// Of an array of the call. `ragged`: its rows are tokens.
inline Place place_of(const detail::Array& array, bool ragged = false) {
  if (!array) return {};
  const auto size = static_cast<int64_t>(size_of(array.dtype));
  return {array.data, static_cast<uint64_t>((ragged ? array.token_stride : array.row_stride) * size),
          static_cast<int32_t>(array.head_stride * size), static_cast<int32_t>(array.token_stride * size)};
}

/// Little, and in the order in which it is read: a cold line of parameters makes a warp wait.
struct DirectParams {
  detail::Ints slot_ids, cu_seqlens;  // with strides of 32 bits
  uint32_t zero = 0;                  // which the compiler does not know
  int32_t window = 0, heads_per_key = 1;
  Divisor by_heads_per_key;
  int32_t slots = 0, total_tokens = 0, longest = 0;
  int32_t V = 0;
  Place k, q, v, state;
  Place a, b;
  const float *A_log = nullptr, *dt_bias = nullptr;
  int32_t dt_bias_head = 0;  // in bytes
  DType act_dtype = DType::bf16, a_dtype = DType::f32, b_dtype = DType::f32, out_dtype = DType::f32,
        state_dtype = DType::f32;
  bool qk_l2norm = true, safe_gate = false;
  bool records = false, raw_gate = false, write_state = false;
  bool rounds = false;  // the state, after each token
  detail::CursorMove move = detail::CursorMove::keep;
  float softplus_beta = 1, softplus_threshold = 20, lower_bound = 0, scale = 1;
  detail::Cursors pending;
  Place out, ring_k, ring_v, ring_gate, ring_beta;
  detail::Ints row_status;
  detail::Ints ring_ids;  // where rings are keyed by request row
  int32_t rings = 0;
  detail::OwnerParams owners;

  /// What a row is judged by and settled with.
  __device__ __forceinline__ detail::Rows rows() const {
    detail::Rows r;
    r.slots = slots, r.window = window, r.total_tokens = total_tokens, r.longest = longest;
    r.slot_ids = slot_ids, r.cu_seqlens = cu_seqlens, r.pending = pending, r.row_status = row_status;
    r.move = move;
    r.ring_ids = ring_ids, r.rings = rings, r.owners = owners;
    return r;
  }
};

/// Of a call that direct_refusal() accepts.
DirectParams params_of(const detail::RecurrenceParams& p);

/// What is known at compile time. The token vectors are KDA's k, q times decay, k, decay; and GDN's k and q alone,
/// which are multiplied where they are used: so that nobody waits for the gate before that.
template <int K_, int StateBytes, bool Kda, int Warps = kDirectWarps>
struct Traits : exact::Traits<K_, StateBytes, Kda, exact::Source::window, kDirectWarpRows> {
  static constexpr bool kHasKd = Kda, kReuses = !Kda;
  static constexpr int kKd = 0, kKey = Kda ? 1 : 0, kQd = 2, kQuery = 1, kDecay = 3;
  static constexpr int kFirstDot = Kda ? kKd : kKey, kSecondDot = Kda ? kQd : kQuery;
  static constexpr int kVectors = Kda ? 4 : 2;
  static constexpr int kTokenFloats = kVectors * K_ + 4;  // and a Scalars
  static constexpr int kWarps = Warps;                    // of a block, at most, beside the head's
  static constexpr int kPreparing = Warps < kDirectTokens ? Warps : kDirectTokens;  // of them
  static constexpr int kTurns = kDirectTokens / kPreparing;                         // tokens that a warp prepares
  static constexpr int kBlocks = Warps > kDirectWarps ? 1 : Kda ? 3 : 4;  // that a multiprocessor has registers for
};

template <class T>
struct alignas(16) Shared {
  float tokens[kDirectTokens][T::kTokenFloats];
  uint4 raw[T::kTurns][T::kPreparing * 32];               // of k and q, a thread reads its own alone
  uint16_t v[kDirectTokens][T::kWarps][kDirectWarpRows];  // a warp reads its own alone
  float out[kDirectTokens][T::kWarps][kDirectWarpRows];   // of the rows
  RowStatus status;                                       // of the row

  __device__ Scalars& scalars(int t) { return *reinterpret_cast<Scalars*>(tokens[t] + T::kVectors * T::K); }
};

}  // namespace ringfold::cuda::direct
