// Gated RMSNorm of one head of one token, by one warp: for the norm's own kernel and for whole layers.
#pragma once

#include "core/params.h"
#include "core/scalar_io.h"
#include "cuda/common/warp.cuh"

namespace ringfold::cuda {

using namespace detail;

/// What a head is divided by, in every lane. Lane c has group c of V in x, zeros behind the last value.
__device__ inline float norm_divisor(const NormParams& p, const float (&x)[arith::kGroup], int lane) {
  const int n = max(0, min(arith::kGroup, p.V - lane * arith::kGroup));
  const float sum = tree_to_all(group_sum(x, x, n), (p.V + arith::kGroup - 1) / arith::kGroup, lane);
  return arith::rms_divisor<S>(sum, static_cast<float>(p.V), p.eps);
}

/// Lane c has group c of V in x, zeros behind the last value.
__device__ inline void norm_head(const NormParams& p, const float (&x)[arith::kGroup], const std::byte* gate,
                                 std::byte* to, int lane) {
  const float divisor = norm_divisor(p, x, lane);
#pragma unroll
  for (int i = 0; i < arith::kGroup; ++i) {
    const int v = lane * arith::kGroup + i;
    if (v >= p.V) continue;
    const float weight = load(p.weight_dtype, p.weight, v), z = load(p.z.dtype, gate, v);
    store(p.out.dtype, to, v, arith::gated<S>(x[i], divisor, weight, z, p.silu_gate));
  }
}

}  // namespace ringfold::cuda
