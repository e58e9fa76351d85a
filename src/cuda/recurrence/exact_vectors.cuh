// How a warp makes the vectors of one step (or of several at once): its lower 16 lanes have the groups of k, the upper
// ones those of q.
#pragma once

#include "cuda/common/convert.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/recurrence/exact_types.cuh"

namespace ringfold::cuda::exact {

template <class T>
struct Preparation {
  const int lane;

  __device__ int prepared_group() const { return lane % 16; }
  __device__ bool prepares_q() const { return lane >= 16; }
  __device__ bool prepares() const { return prepared_group() < T::K / kGroup && !(T::kFromRing && prepares_q()); }
  /// Of KDA's decays the k lane makes the first four of a group, the q lane of the same group the others.
  __device__ int first_decay() const { return prepared_group() * kGroup + (prepares_q() ? 4 : 0); }

  /// The tree over the K/8 groups, lane g of 16 holding group g; the result in all of them.
  static __device__ float tree_16(float x) {
#pragma unroll
    for (int s = T::K / 16; s >= 1; s /= 2) x = S::add(x, __shfl_xor_sync(kAllLanes, x, s));
    return x;
  }

  /// l2norm and scale of this lane's group of k or q of each of N steps, and k.q. Zeros in lanes that have none.
  template <int N, class Params>
  __device__ __forceinline__ void normalise(const Params& p, float (&x)[N][kGroup], float (&kq)[N]) const {
    if (p.qk_l2norm) {
      float norm[N];
#pragma unroll
      for (int n = 0; n < N; ++n) norm[n] = arith::l2_divisor<S>(tree_16(group_sum(x[n], x[n], kGroup)));
#pragma unroll
      for (int n = 0; n < N; ++n) divide_all(x[n], norm[n]);
    }
    if constexpr (!T::kFromRing) {
      const float scale = prepares_q() ? p.scale : 1.0f;  // a product with 1 is exact
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float other[kGroup];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          x[n][i] = S::mul(x[n][i], scale);
          other[i] = __shfl_xor_sync(kAllLanes, x[n][i], 16);
        }
        kq[n] = tree_16(group_sum(x[n], other, kGroup));
      }
    }
  }

  /// Decays of this lane's eight k's, from those that it and its partner have made.
  __device__ __forceinline__ void share_decays(float (&mine)[4], float (&decay)[kGroup]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, mine[i], 16);
      decay[i] = prepares_q() ? other : mine[i];
      decay[i + 4] = prepares_q() ? mine[i] : other;
    }
  }

  /// The vectors of a step that k or q, after l2norm and scale, is part of. Of lanes that prepare.
  __device__ __forceinline__ void write(float* vectors, float (&x)[kGroup], const float (&decay)[kGroup]) const {
    const int group = prepared_group();
    const auto store = [&](int which, const float(&of)[kGroup]) { store_group<T>(vectors + which * T::K, group, of); };
    if (!prepares_q()) {
      store(T::kKey, x);
    } else if (T::kReuses) {
      store(T::kQuery, x);
    }
    if constexpr (T::kHasKd) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = S::mul(x[i], decay[i]);
      store(prepares_q() ? T::kQd : T::kKd, x);
    }
    if (T::kKda && !prepares_q()) store(T::kDecay, decay);
  }
};

}  // namespace ringfold::cuda::exact
