// A block of verify and decode: q, k and v are the call's, outputs go to its tensor.
#pragma once

#include "cuda/recurrence/direct.cuh"

namespace ringfold::cuda::direct {

template <class T>
class WindowBlock : public Body<T, WindowBlock<T>> {
  using Base = Body<T, WindowBlock<T>>;
  friend Base;

 public:
  using Base::Base;

 private:
  using Base::count, Base::hv, Base::key, Base::p, Base::row, Base::shared, Base::v0, Base::warp, Base::warps;
  using Base::has_rows, Base::kTurns, Base::lane, Base::prepared_group, Base::prepares, Base::prepares_q, Base::raw,
      Base::token;
  using typename Base::Channels;

  __device__ uint4& raw_v(int t) const { return *reinterpret_cast<uint4*>(shared.v[t][warp]); }

  /// Starts the copies of k and q that this thread reads, and of v of the warp's rows.
  __device__ __forceinline__ void fetch_inputs(int index) const {
    const Place& of = prepares_q() ? p.q : p.k;
    const std::byte* from = of.at(index, key, warp) + prepared_group() * kGroup * 2;
#pragma unroll
    for (int n = 0; n < kTurns; ++n) {
      if (prepares() && token(n) < count) {
        ptx::copy_async_16(ptx::shared_address(&raw(n)), from + n * warps * of.token);
      }
    }
    if (lane < count && has_rows()) {
      ptx::copy_async_16(ptx::shared_address(&raw_v(lane)), p.v.at(index, hv, lane) + v0 * 2);
    }
    ptx::commit_copies();
  }

  /// Nothing else was asked for that would have to arrive before the state is, nor is anything of the slot's.
  __device__ uint32_t arrived_inputs() const { return 0; }
  __device__ void fetch_of_slot(int) const {}
  __device__ void fetch_rest(int) const {}

  __device__ __forceinline__ void prepare(Channels& channels) const {
    if (token(1) < count) {
      prepare_tokens<2>(channels);
    } else if (token(0) < count) {
      prepare_tokens<1>(channels);
    }
  }
  template <int N>
  __device__ __forceinline__ void prepare_tokens(Channels& channels) const {
    float decay[N][kGroup] = {};
    if constexpr (T::kKda) this->template make_decays<N>(channels, decay);
    ptx::wait_copies<0>();
    this->template make_vectors<N>(decay);
  }

  /// What the head's warp copies to the ring, 16 bytes at a time: v of the block's rows, which is the token lane % 8
  /// and the warp lane / 8; and if the block speaks for its key head, k, group lane % 16 of every second token.
  struct Copies {
    uint4 v, k[kDirectTokens / 2];
  };
  __device__ int v_token() const { return lane % kDirectTokens; }
  __device__ int v_row() const { return (blockIdx.z * warps + lane / kDirectTokens) * kDirectWarpRows; }
  __device__ bool copies_v() const { return v_token() < count && lane / kDirectTokens < warps && v_row() < p.V; }
  __device__ int k_token(int i) const { return 2 * i + lane / 16; }
  __device__ bool copies_k(int i) const {
    return blockIdx.z == 0 && hv == key * p.heads_per_key && k_token(i) < count && prepared_group() < T::K / kGroup;
  }
  __device__ __forceinline__ void fetch_copies(Copies& copies, int index) const {
    if (copies_v()) copies.v = ptx::load_16(p.v.at(index, hv, v_token()) + v_row() * 2);
#pragma unroll
    for (int i = 0; i < kDirectTokens / 2; ++i) {
      if (!copies_k(i)) continue;
      copies.k[i] = ptx::load_16(p.k.at(index, key, k_token(i)) + prepared_group() * kGroup * 2);
    }
  }
  __device__ __forceinline__ void store_copies(const Copies& copies, int ring) const {
    if (copies_v()) *reinterpret_cast<uint4*>(p.ring_v.at(ring, hv, v_token()) + v_row() * 2) = copies.v;
#pragma unroll
    for (int i = 0; i < kDirectTokens / 2; ++i) {
      if (!copies_k(i)) continue;
      std::byte* to = p.ring_k.at(ring, key, k_token(i)) + prepared_group() * kGroup * 2;
      *reinterpret_cast<uint4*>(to) = copies.k[i];
    }
  }

  __device__ Rows rows() const { return p.rows(); }
  __device__ void look_at_slot(int) const {}
  __device__ RowStatus judge(const Rows& rows, const WindowFacts& facts) const {
    return judge_window(rows, facts, false);
  }
  __device__ void meet() const {}
  __device__ void settle(const Rows& rows, RowStatus status) const { settle_window(rows, row, status); }
  __device__ void close_head() const {}

  /// The last token's output is in registers, those before it in shared memory.
  __device__ __forceinline__ void deliver(int index, bool writes, int own_row, float last) const {
    if (writes) store_one(p.out_dtype, p.out.at(index, hv, count - 1), v0 + own_row, last);
    if (count == 1) return;
    __syncwarp();
    this->write_outputs(index, count - 1, [&](int t, int row) { return shared.out[t][warp][row]; });
  }
  __device__ void close(int) const {}
};

}  // namespace ringfold::cuda::direct
