// Compile test: every function of the arithmetic in device code.
#include "core/arith.h"

namespace ringfold::arith {

__global__ void all_of_it(const float* in, float* out, int n) {
  using S = Scalar;
  const float x = in[0], y = in[1];
  float s[16];
  for (int i = 0; i < 16; ++i) s[i] = in[i];
  out[0] = exp<S>(x) + log1p<S>(x) + sigmoid<S>(x) + silu<S>(x);
  out[1] = softplus_gate<S>(x, y, exp_A<S>(y), 1.0f, 20.0f) + safe_gate<S>(x, y, exp_A<S>(y), -5.0f);
  out[2] = l2_divisor<S>(x) + rms_divisor<S>(x, 128.0f, 1e-6f) + gated<S>(x, y, x, y, true);
  out[3] = output<S>(correction<S>(x, y, x), y, x) + updated<S>(x, y, x, y);
  out[4] = tree_sum<S>(s, n, 1) + dot(in, in + 256, n);
  out[5] = round_bf16<S>(x) + round_f16<S>(y);
}

}  // namespace ringfold::arith
