// Choosing a token from logits, in a way that drafts cannot influence.
//
// The rule of acceptance. The usual one accepts a draft x with probability min(1, p(x)/q(x)) and otherwise draws from
// what is left of p. That keeps the distribution of the text but not the text: the random numbers that are used depend
// on the drafts. Here the token of every position is drawn from p alone, with random numbers that are a function of
// (seed, position, token id) and of nothing else; a draft is accepted if it equals the token that was drawn. Each token
// is then an exact draw from p given the tokens before it, whatever the drafts were, so the rule is lossless in the
// strictest sense: with and without drafts, the same seed gives the same bytes. For a drafter that proposes one token
// for certain (prompt lookup) the chance of acceptance, p(x), is the best that any lossless rule has. For a draft model
// the usual rule accepts a little more (1 - TV(p, q), where TV is the total variation distance); sharing the random
// numbers with the draft model keeps at least (1 - TV) / (1 + TV) of it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ringfold/status.h"

namespace ringfold::engine {

struct SamplerOptions {
  float temperature = 0;  ///< 0: greedy; otherwise logits are divided by it
  int64_t top_k = 0;      ///< keep the k most likely tokens; 0: all
  float top_p = 1;        ///< then the fewest most likely ones whose probabilities reach top_p; 1: all
  uint64_t seed = 0;
};

/// invalid_argument when a value is outside of its range: temperature 0 .. 100, top_k >= 0, 0 < top_p <= 1.
Status check(const SamplerOptions& options);

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options) {}
  const SamplerOptions& options() const { return options_; }

  /// The token at `position` (index in the whole text). Greedy: the largest logit, the lowest id among equals.
  /// Sampling: the kept token with the largest logit / temperature + Gumbel noise, which is an exact draw from the
  /// softmax over kept tokens.
  int32_t pick(std::span<const float> logits, int64_t position);

  /// The tokens that top-k and top-p keep, most likely first (the lowest id first among equals), with their
  /// probabilities, which sum to 1. Greedy: one token.
  const std::vector<std::pair<int32_t, double>>& distribution(std::span<const float> logits);

 private:
  SamplerOptions options_;
  std::vector<std::pair<int32_t, double>> kept_;
};

/// Uniform in (0, 1), a function of its arguments alone.
double uniform(uint64_t seed, int64_t position, int32_t token);

}  // namespace ringfold::engine
