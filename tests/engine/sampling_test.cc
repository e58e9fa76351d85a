// Sampling: the kept set, its probabilities, and draws that follow them.
#include "engine/sampling.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace ringfold::engine {
namespace {

/// Logits whose softmax at temperature 1 is `p`.
std::vector<float> logits_of(const std::vector<double>& p) {
  std::vector<float> logits;
  for (const double x : p) logits.push_back(static_cast<float>(std::log(x)));
  return logits;
}

TEST(Sampling, GreedyTakesTheLowestIdAmongEquals) {
  Sampler s({});
  const std::vector<float> logits = {1, 5, 2, 5, 5};
  EXPECT_EQ(s.pick(logits, 0), 1);
  EXPECT_EQ(s.pick(logits, 17), 1);
  ASSERT_EQ(s.distribution(logits).size(), 1u);
  EXPECT_EQ(s.distribution(logits)[0], (std::pair<int32_t, double>(1, 1.0)));
}

TEST(Sampling, TopKAndTopPRenormalise) {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.05, 0.3, 0.15});
  struct Case {
    int64_t top_k;
    float top_p;
    std::vector<int32_t> ids;
    std::vector<double> probabilities;
  };
  const Case cases[] = {
      {0, 1, {1, 3, 4, 0, 2}, {0.4, 0.3, 0.15, 0.1, 0.05}},
      {2, 1, {1, 3}, {4.0 / 7, 3.0 / 7}},
      {9, 1, {1, 3, 4, 0, 2}, {0.4, 0.3, 0.15, 0.1, 0.05}},
      {0, 0.6f, {1, 3}, {4.0 / 7, 3.0 / 7}},
      {0, 0.75f, {1, 3, 4}, {0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85}},
      {0, 1e-6f, {1}, {1.0}},
      // top-p works on what top-k left: 4/7 < 0.6, so both stay.
      {2, 0.6f, {1, 3}, {4.0 / 7, 3.0 / 7}},
      {2, 0.5f, {1}, {1.0}},
  };
  for (const Case& c : cases) {
    Sampler s({1.0f, c.top_k, c.top_p, 0});
    const auto& kept = s.distribution(logits);
    ASSERT_EQ(kept.size(), c.ids.size()) << c.top_k << " " << c.top_p;
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(kept[i].first, c.ids[i]);
      // Logits are fp32 of size below 4: off by 4 * 2^-25, and so is the probability, relatively; its normaliser as
      // well.
      EXPECT_NEAR(kept[i].second, c.probabilities[i], 4 * 0x1p-24);
    }
  }
}

TEST(Sampling, TemperatureSharpens) {
  Sampler s({0.5f, 0, 1.0f, 0});
  const auto& kept = s.distribution(std::vector<float>{0.0f, 1.0f});
  EXPECT_NEAR(kept[0].second, 1 / (1 + std::exp(-2.0)), 1e-12);
}

/// Chi-square of 40,000 draws against the distribution. 99.99 % quantiles: 23.5 for 4 degrees of freedom, 13.9 (rounded
/// up) for 1.
double chi_square(const SamplerOptions& options, const std::vector<float>& logits) {
  Sampler s(options);
  const auto kept = s.distribution(logits);
  constexpr int kDraws = 40000;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(s.pick(logits, i))];
  double chi = 0;
  int seen = 0;
  for (const auto& [id, p] : kept) {
    const double expected = p * kDraws, d = counts[static_cast<size_t>(id)] - expected;
    chi += d * d / expected;
    seen += counts[static_cast<size_t>(id)];
  }
  EXPECT_EQ(seen, kDraws) << "a token was drawn that is not kept";
  return chi;
}

TEST(Sampling, DrawsFollowTheDistribution) {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.05, 0.3, 0.15});
  for (const uint64_t seed : {1, 2, 3}) {
    EXPECT_LT(chi_square({1.0f, 0, 1.0f, seed}, logits), 23.5);
    EXPECT_LT(chi_square({0.7f, 0, 1.0f, seed}, logits), 23.5);
    EXPECT_LT(chi_square({1.0f, 2, 1.0f, seed}, logits), 15.2);
    EXPECT_LT(chi_square({1.0f, 0, 0.6f, seed}, logits), 15.2);
  }
}

TEST(Sampling, ADrawDependsOnSeedAndPositionAlone) {
  const std::vector<float> logits(50, 0.0f);
  Sampler a({1.0f, 0, 1.0f, 9}), b({1.0f, 0, 1.0f, 9}), c({1.0f, 0, 1.0f, 10});
  std::vector<int32_t> x, y, z;
  for (int64_t i = 0; i < 64; ++i) x.push_back(a.pick(logits, i));
  for (int64_t i = 64; i-- > 0;) y.insert(y.begin(), b.pick(logits, i));
  for (int64_t i = 0; i < 64; ++i) z.push_back(c.pick(logits, i));
  EXPECT_EQ(x, y);
  EXPECT_NE(x, z);
}

TEST(Sampling, SharedNoiseMakesSimilarDistributionsAgree) {
  // TV(p, q) = 0.1, so shared noise agrees at least (1 - 0.1) / (1 + 0.1) = 0.818 of the time. 20,000 draws: 5 sigma =
  // 0.014.
  const std::vector<float> p = logits_of({0.4, 0.3, 0.2, 0.1}), q = logits_of({0.3, 0.4, 0.2, 0.1});
  Sampler a({1.0f, 0, 1.0f, 4}), b({1.0f, 0, 1.0f, 4});
  int equal = 0;
  for (int64_t i = 0; i < 20000; ++i) equal += a.pick(p, i) == b.pick(q, i);
  EXPECT_GT(equal / 20000.0, 0.9 / 1.1 - 0.014);
}

TEST(Sampling, RefusesBadOptions) {
  EXPECT_TRUE(check(SamplerOptions{}).ok());
  EXPECT_EQ(check(SamplerOptions{-1, 0, 1, 0}).code(), Code::invalid_argument);
  EXPECT_EQ(check(SamplerOptions{NAN, 0, 1, 0}).code(), Code::invalid_argument);
  EXPECT_EQ(check(SamplerOptions{1, -1, 1, 0}).code(), Code::invalid_argument);
  EXPECT_EQ(check(SamplerOptions{1, 0, 0, 0}).code(), Code::invalid_argument);
  EXPECT_EQ(check(SamplerOptions{1, 0, 1.1f, 0}).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace ringfold::engine
