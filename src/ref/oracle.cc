#include "ref/oracle.h"

#include <cmath>
#include <limits>
#include <utility>

namespace ringfold::oracle {

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

double softplus(double x, double beta, double threshold) {
  return beta * x > threshold ? x : std::log1p(std::exp(beta * x)) / beta;
}

double log_decay(const Layer& layer, int64_t hv, int64_t k, double a, double* argument) {
  const bool per_channel = layer.kind == MixerKind::kda;
  const int64_t at = per_channel ? hv * layer.K + k : hv;
  const double x = a + (layer.dt_bias.empty() ? 0 : layer.dt_bias[at]);
  // The specification lets exp(A_log) saturate at the largest float.
  const double rate = std::fmin(std::exp(layer.A_log[hv]), std::numeric_limits<float>::max());
  if (layer.lower_bound) {
    if (argument) *argument = rate * x;
    return *layer.lower_bound * sigmoid(rate * x);
  }
  if (argument) *argument = layer.softplus_beta * x;
  return -rate * softplus(x, layer.softplus_beta, layer.softplus_threshold);
}

namespace {

Doubles normalised(const double* x, int64_t n, bool l2norm) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const double length = l2norm ? std::sqrt(squares + 1e-6) : 1;
  Doubles y(x, x + n);
  for (double& value : y) value /= length;
  return y;
}

}  // namespace

HeadStep prepare(const Layer& layer, const Token& token, int64_t hv) {
  const int64_t K = layer.K, h = hv / (layer.HV / layer.H);
  HeadStep step;
  step.q = normalised(token.q.data() + h * K, K, layer.qk_l2norm);
  step.k = normalised(token.k.data() + h * K, K, layer.qk_l2norm);
  const double scale = layer.scale.value_or(1 / std::sqrt(static_cast<double>(K)));
  for (double& value : step.q) value *= scale;
  step.gate.resize(K);
  step.decay.resize(K);
  step.gate_argument.resize(K);
  for (int64_t k = 0; k < K; ++k) {
    const double a = token.a[layer.kind == MixerKind::kda ? hv * K + k : hv];
    step.gate[k] = log_decay(layer, hv, k, a, &step.gate_argument[k]);
    step.decay[k] = std::exp(step.gate[k]);
  }
  step.beta = sigmoid(token.b[hv]);
  return step;
}

Recurrence::Recurrence(Layer layer, Doubles state) : layer_(std::move(layer)), state_(std::move(state)) {}

Doubles Recurrence::step(const Token& token) {
  const int64_t HV = layer_.HV, K = layer_.K, V = layer_.V;
  Doubles out(HV * V);
  for (int64_t hv = 0; hv < HV; ++hv) {
    const HeadStep in = prepare(layer_, token, hv);
    for (int64_t v = 0; v < V; ++v) {
      double* S = state_.data() + (hv * V + v) * K;
      double predicted = 0, read = 0;
      for (int64_t k = 0; k < K; ++k) S[k] *= in.decay[k];
      for (int64_t k = 0; k < K; ++k) predicted += S[k] * in.k[k];
      const double u = in.beta * (token.v[hv * V + v] - predicted);
      for (int64_t k = 0; k < K; ++k) S[k] += u * in.k[k];
      for (int64_t k = 0; k < K; ++k) read += S[k] * in.q[k];
      out[hv * V + v] = read;
    }
  }
  return out;
}

Doubles short_conv(const Doubles& x, const Doubles& history, const Doubles& weight, const Doubles& bias, int64_t C,
                   int64_t W, bool silu) {
  const auto tokens = static_cast<int64_t>(x.size()) / C;
  Doubles y(x.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < C; ++c) {
      double sum = bias.empty() ? 0 : bias[c];
      for (int64_t j = 0; j < W; ++j) {
        const int64_t from = t - (W - 1) + j;
        sum += weight[c * W + j] * (from < 0 ? history[(from + W - 1) * C + c] : x[from * C + c]);
      }
      y[t * C + c] = silu ? sum * sigmoid(sum) : sum;
    }
  }
  return y;
}

Doubles gated_norm(const Doubles& x, const Doubles& z, const Doubles& weight, double eps, NormGate gate) {
  const size_t V = weight.size();
  Doubles y(x.size());
  for (size_t row = 0; row < x.size(); row += V) {
    double squares = 0;
    for (size_t i = row; i < row + V; ++i) squares += x[i] * x[i];
    const double length = std::sqrt(squares / static_cast<double>(V) + eps);
    for (size_t i = row; i < row + V; ++i) {
      const double opened = gate == NormGate::silu ? z[i] * sigmoid(z[i]) : sigmoid(z[i]);
      y[i] = x[i] / length * weight[i - row] * opened;
    }
  }
  return y;
}

}  // namespace ringfold::oracle
