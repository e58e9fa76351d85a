// The log decay of a token, as the mixer of the call says.
#pragma once

#include "core/arith.h"
#include "core/params.h"

namespace ringfold::cuda {

/// `expA` is exp_A of the head's A_log. `Params` has the gate's parameters by the names of RecurrenceParams.
template <class Params>
__device__ inline float log_decay_of(const Params& p, float a, float dt_bias, float expA) {
  using S = arith::Scalar;
  return p.safe_gate ? arith::safe_gate<S>(a, dt_bias, expA, p.lower_bound)
                     : arith::softplus_gate<S>(a, dt_bias, expA, p.softplus_beta, p.softplus_threshold);
}
/// `k` is 0 for GDN, whose a and dt_bias have one value for each head. `dt_bias` is that of the layer.
__device__ inline float log_decay(const detail::RecurrenceParams& p, const float* dt_bias, int hv, int k, float a,
                                  float expA) {
  return log_decay_of(p, a, dt_bias ? dt_bias[hv * p.dt_bias_head_stride + k] : 0.0f, expA);
}
__device__ inline float log_decay(const detail::RecurrenceParams& p, int64_t layer, int hv, int k, float a) {
  return log_decay(p, p.dt_bias_of(layer), hv, k, a, arith::exp_A<arith::Scalar>(p.A_log_of(layer)[hv]));
}

}  // namespace ringfold::cuda
