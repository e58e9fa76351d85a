// The fp64 oracle: the textbook recurrences in double, one token at a time. It has no window, no ring, no slots, no
// rounding, and shares no code with what it judges. Arrays are packed, row-major, and hold plain doubles.
#pragma once

#include <optional>
#include <vector>

#include "ringfold/types.h"

namespace ringfold::oracle {

using Doubles = std::vector<double>;

struct Layer {
  MixerKind kind = MixerKind::gdn;
  int64_t H = 0, HV = 0, K = 0, V = 0;
  Doubles A_log;    ///< [HV]
  Doubles dt_bias;  ///< [HV] (GDN) or [HV,K] (KDA)
  double softplus_beta = 1, softplus_threshold = 20;
  std::optional<double> lower_bound;  ///< KDA safe gate
  std::optional<double> scale;        ///< K^-0.5 when absent
  bool qk_l2norm = true;
};

/// Raw inputs of one token.
struct Token {
  Doubles q, k;  ///< [H,K]
  Doubles v;     ///< [HV,V]
  Doubles a;     ///< [HV] (GDN) or [HV,K] (KDA)
  Doubles b;     ///< [HV]
};

/// What the recurrence of one value head used for its last token; for error analysis.
struct HeadStep {
  Doubles q, k;           ///< [K], after l2norm and scale
  Doubles gate, decay;    ///< [K]: log decay, and its exponential (GDN: all equal)
  Doubles gate_argument;  ///< [K]: what went into softplus or sigmoid
  double beta = 0;
};

double sigmoid(double x);
double softplus(double x, double beta, double threshold);

/// Log decay of one channel, and the argument of its softplus or sigmoid.
double log_decay(const Layer& layer, int64_t hv, int64_t k, double a, double* argument = nullptr);

/// Normalised, scaled and gated inputs of one value head.
HeadStep prepare(const Layer& layer, const Token& token, int64_t hv);

/// Decay the state, correct it towards v, add, read:
///   S = S diag(decay);  u = beta (v - S k);  S = S + u k^T;  o = S q.
class Recurrence {
 public:
  Recurrence(Layer layer, Doubles state);  ///< state [HV,V,K]
  /// One token; returns o [HV,V].
  Doubles step(const Token& token);
  const Doubles& state() const { return state_; }
  const Layer& layer() const { return layer_; }

 private:
  Layer layer_;
  Doubles state_;
};

/// y[t,c] = act(bias[c] + sum_j w[c,j] x[t-(W-1)+j,c]) over x [tokens,C]; earlier inputs come from `history` [W-1,C],
/// oldest first. bias may be empty.
Doubles short_conv(const Doubles& x, const Doubles& history, const Doubles& weight, const Doubles& bias, int64_t C,
                   int64_t W, bool silu);

/// y = x / sqrt(mean(x^2) + eps) * weight * gate(z), per row of `weight.size()` elements.
Doubles gated_norm(const Doubles& x, const Doubles& z, const Doubles& weight, double eps, NormGate gate);

}  // namespace ringfold::oracle
