// Sums over the lanes of a warp, in the canonical order.
#pragma once

#include "core/arith.h"

namespace ringfold::cuda {

using S = arith::Scalar;

inline constexpr unsigned kAllLanes = 0xffffffffu;

/// The canonical sum's tree over `groups` (1 .. 32) partial sums, lane g holding group g. The result is in lane 0; groups
/// that do not exist take no part.
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

}  // namespace ringfold::cuda
