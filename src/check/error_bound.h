// How far fp32 results may lie from the fp64 oracle: a running error analysis, so that every tolerance is derived from
// the inputs of the very computation that it judges. u is the unit roundoff 2^-24; terms of order u^2 are covered by a
// factor of 1.01 at the end (n u < 0.001 for every n here).
#pragma once

#include "check/check.h"
#include "ref/oracle.h"

namespace ringfold::check {

inline constexpr double kUnit = 0x1p-24;

/// Relative error of an fp32 sigmoid: exp and the quotient within 2 ulp each (4 u each), the sum 1 + exp one rounding.
inline constexpr double kSigmoidError = 9 * kUnit;

/// Gates smaller than this have lost relative accuracy to underflow: exp(y) is denormal from e^-87 on. A decay of
/// exp(-1e-36) is 1 either way.
inline constexpr double kTinyGate = 1e-36;

/// Relative error of g. Softplus: y carries the roundings of a + dt_bias and of the product with softplus_beta, 2u|y|,
/// which exp turns into a relative error of the same size; exp 4u, log1p 4u (its condition number is at most 1), the
/// division by softplus_beta, exp(A_log) 4u and the product: (14 + 2|y|) u. Safe gate: exp(A_log) 4u, the sum and the
/// product 2u, hence 6u|z| through the sigmoid (condition number at most |z|), the sigmoid 9u and the product: (10 +
/// 6|z|) u. This is above both.
inline double gate_tolerance(double argument) { return (14 + 6 * (argument < 0 ? -argument : argument)) * kUnit; }

/// Half a unit in the last place of a dtype, relative (normal numbers) and absolute (denormals).
double rounding_of(DType type, double magnitude);

/// Follows one value head beside the oracle and bounds the error of every state element and output.
class ErrorBound {
 public:
  ErrorBound(const oracle::Layer& layer, DType state, StateRounding rounding);
  /// To be called with the oracle's state *before* the token. Returns the bounds of o, [HV,V], before rounding to its
  /// dtype.
  oracle::Doubles step(const oracle::Token& token, const oracle::Doubles& state_before);
  /// Bounds of the state, [HV,V,K], against the oracle's state (given, for the final rounding).
  oracle::Doubles state_bounds(const oracle::Doubles& state) const;

 private:
  oracle::Layer layer_;
  DType state_;
  StateRounding rounding_;
  oracle::Doubles error_;
};

/// Bounds of short_conv and gated_norm outputs before rounding to their dtype.
oracle::Doubles conv_bounds(const oracle::Doubles& x, const oracle::Doubles& history, const oracle::Doubles& weight,
                            const oracle::Doubles& bias, int64_t C, int64_t W, bool silu);
double gated_norm_relative_bound(int64_t V);

}  // namespace ringfold::check
