// Sums over the lanes of a warp, in the canonical order.
#pragma once

#include "core/arith.h"

namespace ringfold::cuda {

using S = arith::Scalar;

inline constexpr unsigned kAllLanes = 0xffffffffu;

/// The canonical sum's tree over `groups` (1 .. 32) partial sums, lane g holding group g. The result is in lane 0;
/// groups that do not exist take no part.
__device__ inline float tree_to_lane_0(float x, int groups, int lane) {
#pragma unroll
  for (int s = 16; s >= 1; s /= 2) {
    const float other = __shfl_down_sync(kAllLanes, x, s);
    if (lane < s && lane + s < groups) x = S::add(x, other);
  }
  return x;
}

/// The same, in every lane.
__device__ inline float tree_to_all(float x, int groups, int lane) {
  return __shfl_sync(kAllLanes, tree_to_lane_0(x, groups, lane), 0);
}

/// Partial sum of one group of `n` (0 .. 8) products.
__device__ inline float group_sum(const float* a, const float* b, int n) {
  float chain = 0;
#pragma unroll
  for (int i = 0; i < arith::kGroup; ++i) {
    if (i < n) chain = arith::group_step<S>(i == 0, a[i], b[i], chain);
  }
  return chain;
}

/// x[i] = x[i] / d, each correctly rounded, for d between 2^-60 and 2^60. One division makes the reciprocal y; then
/// q = x y, and twice the remainder, which is exact, brings q to the rounded quotient (Markstein 1990: from a faithful
/// quotient and a correctly rounded reciprocal this step rounds correctly). Very small and very large x, where the
/// remainder is not exact, are divided one by one.
__device__ __forceinline__ void divide_all(float (&x)[arith::kGroup], float d) {
  const float y = S::div(1.0f, d);
  // Of the bits of |x|, which are in the order of |x|, the largest; and the smallest less one, where 0 is the largest.
  uint32_t largest = 0, smallest = UINT32_MAX;
#pragma unroll
  for (int i = 0; i < arith::kGroup; ++i) {
    const auto bits = static_cast<uint32_t>(S::bits(S::abs(x[i])));
    largest = max(largest, bits), smallest = min(smallest, bits - 1);
  }
  const auto bits_of = [](float limit) { return static_cast<uint32_t>(S::bits(limit)); };
  if (d < 0x1p60f && largest < bits_of(0x1p60f) && smallest >= bits_of(0x1p-60f)) {
#pragma unroll
    for (int i = 0; i < arith::kGroup; ++i) {
      float q = S::mul(x[i], y);
      q = S::fma(S::fma(S::neg(q), d, x[i]), y, q);
      q = S::fma(S::fma(S::neg(q), d, x[i]), y, q);
      x[i] = x[i] == 0 ? x[i] : q;
    }
  } else {
#pragma unroll
    for (int i = 0; i < arith::kGroup; ++i) x[i] = S::div(x[i], d);
  }
}

}  // namespace ringfold::cuda
