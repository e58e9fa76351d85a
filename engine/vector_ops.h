// What lies between the matrix products: norms, gates, rotary embedding, attention. All fp32, all with a fixed order of
// operations per token, so that a token's bits do not depend on the other tokens of its window.
#pragma once

#include <cstdint>

namespace ringfold::engine {

/// y[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i], i < n; y may be x. `weight` is the factor itself (1 + w in the
/// checkpoints).
void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y);

/// y[i] = silu(gate[i]) * up[i]; y may be either.
void silu_mul(const float* gate, const float* up, int64_t n, float* y);

/// y[i] = y[i] * sigmoid(gate[i]).
void sigmoid_gate(const float* gate, int64_t n, float* y);

/// Rotary embedding of one head at one position, in place on the first 2 * half elements: pairs (i, i + half).
void rope(float* head, const float* cosine, const float* sine, int64_t half);

/// Causal softmax attention of one query head over one KV head, for the `tokens` last positions of a sequence.
struct HeadAttention {
  const float* q = nullptr;  ///< [tokens, dim], row stride ldq, not yet scaled
  int64_t ldq = 0;
  const float* keys = nullptr;    ///< [length, dim]
  const float* values = nullptr;  ///< [length, dim]
  int64_t length = 0;  ///< positions in the cache, the window included; token t sees the first length-tokens+t+1
  int64_t tokens = 0;  ///< 1 .. kMaxWindow
  int64_t dim = 0;
  float scale = 0;
  float* scores = nullptr;  ///< scratch, [tokens, ld_scores]
  int64_t ld_scores = 0;    ///< at least length + 7
  float* out = nullptr;     ///< [tokens, dim], row stride ldo
  int64_t ldo = 0;
};
/// Scores and their maximum; exp and its sum (eight partial sums by position mod 8, then a halving tree); the values
/// weighted in ascending position, one chain of fused multiply-adds per dimension; division by the sum last.
void attend(const HeadAttention& args);

}  // namespace ringfold::engine
