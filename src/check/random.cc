// Values from seeds.
#include "check/support.h"

namespace ringfold::check {

uint64_t Rng::next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

float Rng::uniform(float low, float high) { return low + (high - low) * (static_cast<float>(next() >> 40) * 0x1p-24f); }

float Rng::normal() {
  const uint64_t bits = next();
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xFFFFu) * 0x1p-16f;
  return (sum - 2.0f) * 1.7320508f;  // a uniform has variance 1/12, four have 1/3
}

std::vector<int32_t> Rng::permutation(int64_t n) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t j = below(i + 1);
    order[i] = order[j];
    order[j] = static_cast<int32_t>(i);
  }
  return order;
}

uint64_t mix(std::initializer_list<int64_t> parts) {
  uint64_t seed = 0x243F6A8885A308D3ull;
  for (int64_t part : parts) seed = Rng(seed ^ static_cast<uint64_t>(part)).next();
  return seed;
}

}  // namespace ringfold::check
