#include "check/error_bound.h"

#include <cmath>

namespace ringfold::check {
namespace {

/// Roundings on the way of one term through a canonical sum over n elements: at most 8 in its group (product and fma
/// chain), then one for each level of the halving tree.
double sum_depth(int64_t n) {
  double depth = 8;
  for (int64_t groups = (n + 7) / 8; groups > 1; groups = (groups + 1) / 2) ++depth;
  return depth;
}

constexpr double kSecondOrder = 1.01;

}  // namespace

double rounding_of(DType type, double magnitude) {
  switch (type) {
    case DType::bf16: return std::fabs(magnitude) * 0x1p-8 + 0x1p-134;
    case DType::f16: return std::fabs(magnitude) * 0x1p-11 + 0x1p-25;
    default: return std::fabs(magnitude) * 0x1p-24 + 0x1p-150;
  }
}

ErrorBound::ErrorBound(const oracle::Layer& layer, DType state, StateRounding rounding)
    : layer_(layer), state_(state), rounding_(rounding), error_(layer.HV * layer.V * layer.K, 0.0) {}

oracle::Doubles ErrorBound::step(const oracle::Token& token, const oracle::Doubles& state_before) {
  const int64_t K = layer_.K, V = layer_.V;
  const double depth = sum_depth(K);
  // l2norm: the sum of squares (depth roundings plus eps) halves under the root; root, quotient, scale and its own
  // rounding.
  const double unit_error = (layer_.qk_l2norm ? (depth + 1) / 2 + 2 : 0) * kUnit;
  const double key_error = unit_error, query_error = unit_error + 2 * kUnit;
  oracle::Doubles out(layer_.HV * V);
  for (int64_t hv = 0; hv < layer_.HV; ++hv) {
    const oracle::HeadStep in = oracle::prepare(layer_, token, hv);
    oracle::Doubles decay_error(K);  // relative: the error of g, and exp within 2 ulp
    double kq = 0, kq_error = 0;
    for (int64_t k = 0; k < K; ++k) {
      decay_error[k] = std::fabs(in.gate[k]) * gate_tolerance(in.gate_argument[k]) + 4 * kUnit;
      kq += in.k[k] * in.q[k];
      kq_error += std::fabs(in.k[k] * in.q[k]) * (key_error + query_error + depth * kUnit);
    }
    for (int64_t v = 0; v < V; ++v) {
      const double* S = state_before.data() + (hv * V + v) * K;
      double* E = error_.data() + (hv * V + v) * K;
      double p = 0, w = 0, p_error = 0, w_error = 0;
      for (int64_t k = 0; k < K; ++k) {
        const double size = std::fabs(S[k]) + E[k];
        const double kd = in.k[k] * in.decay[k], qd = in.q[k] * in.decay[k];
        p += S[k] * kd;
        w += S[k] * qd;
        p_error += E[k] * std::fabs(kd) + size * std::fabs(kd) * (key_error + decay_error[k] + (1 + depth) * kUnit);
        w_error += E[k] * std::fabs(qd) + size * std::fabs(qd) * (query_error + decay_error[k] + (1 + depth) * kUnit);
      }
      const double gap = token.v[hv * V + v] - p, u = in.beta * gap;
      const double u_error = in.beta * (p_error + kUnit * std::fabs(gap)) + std::fabs(u) * (kSigmoidError + kUnit);
      const double o = w + u * kq;
      out[hv * V + v] =
          kSecondOrder * (w_error + std::fabs(kq) * u_error + std::fabs(u) * kq_error + kUnit * std::fabs(o)) + 1e-37;
      for (int64_t k = 0; k < K; ++k) {
        const double next = S[k] * in.decay[k] + u * in.k[k];
        E[k] = kSecondOrder *
                   (in.decay[k] * E[k] + std::fabs(S[k]) * in.decay[k] * (decay_error[k] + kUnit) +
                    u_error * std::fabs(in.k[k]) + std::fabs(u * in.k[k]) * key_error + kUnit * std::fabs(next)) +
               1e-37;  // underflow
        if (rounding_ == StateRounding::per_token) E[k] += rounding_of(state_, std::fabs(next) + E[k]);
      }
    }
  }
  return out;
}

oracle::Doubles ErrorBound::state_bounds(const oracle::Doubles& state) const {
  oracle::Doubles bounds = error_;
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] += rounding_of(state_, std::fabs(state[i]) + bounds[i]);
  return bounds;
}

oracle::Doubles conv_bounds(const oracle::Doubles& x, const oracle::Doubles& history, const oracle::Doubles& weight,
                            const oracle::Doubles& bias, int64_t C, int64_t W, bool silu) {
  // The chain rounds W times (+1 for the bias it starts from): error <= (W + 1) u sum |terms|. SiLU has a slope of at
  // most 1.1 and adds its own sigmoid and product.
  const auto absolute = [](oracle::Doubles values) {
    for (double& value : values) value = std::fabs(value);
    return values;
  };
  oracle::Doubles bounds =
      oracle::short_conv(absolute(x), absolute(history), absolute(weight), absolute(bias), C, W, false);
  for (double& bound : bounds) {
    const double sum = bound;
    bound = kSecondOrder * static_cast<double>(W + 1) * kUnit * sum;
    if (silu) bound = kSecondOrder * (1.1 * bound + (kSigmoidError + kUnit) * sum);
    bound += 1e-37;
  }
  return bounds;
}

double gated_norm_relative_bound(int64_t V) {
  // Sum of squares, division by V and eps: (depth + 2) u, halved by the root; root, quotient, weight and gate products:
  // 5; the sigmoid.
  return kSecondOrder * (((sum_depth(V) + 2) / 2 + 5) * kUnit + kSigmoidError);
}

}  // namespace ringfold::check
