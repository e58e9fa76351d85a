#include "engine/sampling.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace ringfold::engine {

namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

}  // namespace

double uniform(uint64_t seed, int64_t position, int32_t token) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  uint64_t x = mix(seed + kGolden);
  x = mix(x + kGolden * (static_cast<uint64_t>(position) + 1));
  x = mix(x + kGolden * (static_cast<uint64_t>(token) + 1));
  return (static_cast<double>(x >> 12) + 0.5) * 0x1p-52;
}

Status check(const SamplerOptions& o) {
  if (!(o.temperature >= 0 && o.temperature <= 100)) {
    return {Code::invalid_argument, fmt::format("temperature: expected 0 to 100, found {}", o.temperature)};
  }
  if (o.top_k < 0) return {Code::invalid_argument, fmt::format("top_k: expected 0 or more, found {}", o.top_k)};
  if (!(o.top_p > 0 && o.top_p <= 1)) {
    return {Code::invalid_argument, fmt::format("top_p: expected more than 0 and at most 1, found {}", o.top_p)};
  }
  return {};
}

const std::vector<std::pair<int32_t, double>>& Sampler::distribution(std::span<const float> logits) {
  kept_.clear();
  for (size_t i = 0; i < logits.size(); ++i) kept_.emplace_back(static_cast<int32_t>(i), logits[i]);
  const auto before = [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  };
  size_t keep = kept_.size();
  if (options_.temperature == 0) {
    keep = 1;
  } else if (options_.top_k > 0) {
    keep = std::min(keep, static_cast<size_t>(options_.top_k));
  }
  std::partial_sort(kept_.begin(), kept_.begin() + static_cast<int64_t>(keep), kept_.end(), before);
  kept_.resize(keep);
  const double temperature = options_.temperature == 0 ? 1.0 : options_.temperature, most = kept_[0].second;
  double sum = 0;
  for (auto& [id, value] : kept_) sum += value = std::exp((value - most) / temperature);
  if (options_.top_p < 1) {
    double reached = 0;
    keep = 0;
    while (keep < kept_.size() && reached < options_.top_p * sum) reached += kept_[keep++].second;
    kept_.resize(std::max<size_t>(keep, 1));
    sum = 0;
    for (const auto& [id, value] : kept_) sum += value;
  }
  for (auto& [id, value] : kept_) value /= sum;
  return kept_;
}

int32_t Sampler::pick(std::span<const float> logits, int64_t position) {
  if (options_.temperature == 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  int32_t best = 0;
  double best_value = -INFINITY;
  const auto consider = [&](int32_t id, double log_weight) {
    const double value = log_weight - std::log(-std::log(uniform(options_.seed, position, id)));
    if (value > best_value || (value == best_value && id < best)) best = id, best_value = value;
  };
  if (options_.top_k == 0 && options_.top_p >= 1) {
    for (size_t i = 0; i < logits.size(); ++i)
      consider(static_cast<int32_t>(i), static_cast<double>(logits[i]) / options_.temperature);
  } else {
    for (const auto& [id, probability] : distribution(logits)) consider(id, std::log(probability));
  }
  return best;
}

}  // namespace ringfold::engine
