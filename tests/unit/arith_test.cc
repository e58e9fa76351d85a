// The scalar arithmetic against double, and the 16-bit formats against an independent rounding.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/arith.h"

namespace ringfold::arith {
namespace {

using S = Scalar;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Spacing of floats around the magnitude of `exact`, which may be subnormal.
double ulp(double exact) {
  int e = 0;
  std::frexp(exact, &e);
  return std::ldexp(1.0, std::max(e - 24, -149));
}

// Largest error in ulp of `ours` against `exact` over every `step`-th float in [lo, hi], subnormals of both signs
// included. Doubles carry 29 bits more than a float, so their own error does not show. Results beyond FLT_MAX must be
// infinite.
template <class Ours, class Exact>
double worst_ulp(Ours ours, Exact exact, double lo, double hi, uint32_t step) {
  double worst = 0;
  for (uint64_t i = 0; i <= 0xffffffffu; i += step) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(i));
    if (!(x >= lo && x <= hi)) continue;
    const double want = exact(static_cast<double>(x));
    const float got = ours(x);
    // Half a step above FLT_MAX rounds to infinity; one ulp of FLT_MAX on both sides of it is a matter of the error
    // bound.
    if (std::isinf(got) && std::abs(want) > 0x1.fffffdp+127) continue;
    worst = std::max(worst, std::abs(static_cast<double>(got) - want) / ulp(want));
  }
  return worst;
}

// A prime, so that every residue of the low mantissa bits is met; about 4 million points a function.
constexpr uint32_t kStep = 1009;

// The bounds are what an exhaustive run over every 7th float measured, rounded up; the contract is 2.
TEST(Arith, ExpIsWithinItsBound) {
  EXPECT_LE(worst_ulp([](float x) { return exp<S>(x); }, [](double x) { return std::exp(x); }, -1e30, 1e30, kStep),
            1.1);
}

TEST(Arith, Log1pIsWithinItsBound) {
  EXPECT_LE(worst_ulp([](float x) { return log1p<S>(x); }, [](double x) { return std::log1p(x); }, 0, 3.5e38, kStep),
            1.5);
  EXPECT_LE(
      worst_ulp([](float x) { return log1p<S>(x); }, [](double x) { return std::log1p(x); }, -0.99999994, 0, kStep),
      1.5);
}

TEST(Arith, SigmoidIsWithinItsBound) {
  // exp(-x) of a double overflows below -709; the result is 0 there in any case.
  EXPECT_LE(worst_ulp([](float x) { return sigmoid<S>(x); }, [](double x) { return 1 / (1 + std::exp(-x)); }, -700,
                      3.5e38, kStep),
            1.7);
}

TEST(Arith, SpecialValues) {
  EXPECT_EQ(exp<S>(0.0f), 1.0f);
  EXPECT_EQ(exp<S>(-0.0f), 1.0f);
  EXPECT_EQ(exp<S>(kInf), kInf);
  EXPECT_EQ(exp<S>(-kInf), 0.0f);
  EXPECT_EQ(exp<S>(1e30f), kInf);
  EXPECT_EQ(exp<S>(-1e30f), 0.0f);
  EXPECT_TRUE(std::isnan(exp<S>(kNaN)));
  EXPECT_EQ(exp<S>(1e-45f), 1.0f);
  EXPECT_EQ(log1p<S>(0.0f), 0.0f);
  EXPECT_EQ(log1p<S>(1e-45f), 1e-45f);
  EXPECT_EQ(log1p<S>(kInf), kInf);
  EXPECT_EQ(log1p<S>(-1.0f), -kInf);
  EXPECT_TRUE(std::isnan(log1p<S>(-1.5f)));
  EXPECT_TRUE(std::isnan(log1p<S>(kNaN)));
  EXPECT_EQ(sigmoid<S>(kInf), 1.0f);
  EXPECT_EQ(sigmoid<S>(-kInf), 0.0f);
  EXPECT_EQ(sigmoid<S>(0.0f), 0.5f);
  EXPECT_TRUE(std::isnan(sigmoid<S>(kNaN)));
  EXPECT_EQ(exp_A<S>(100.0f), std::numeric_limits<float>::max());
}

TEST(Arith, GatesOfFiniteInputsAreNumbers) {
  const float values[] = {0.0f,  -0.0f,   1e-45f, -1e-45f, 1.0f,    -1.0f,    19.99f, 20.0f,  20.01f,
                          88.0f, -104.0f, 1e4f,   -1e4f,   3.4e38f, -3.4e38f, 200.0f, -200.0f};
  for (const float a : values) {
    for (const float dt : values) {
      for (const float A_log : {0.0f, 100.0f, -200.0f, 3.4e38f, -3.4e38f}) {
        const float g = softplus_gate<S>(a, dt, exp_A<S>(A_log), 1.0f, 20.0f);
        EXPECT_LE(g, 0.0f) << a << " " << dt << " " << A_log;
        const float safe = safe_gate<S>(a, dt, exp_A<S>(A_log), -5.0f);
        EXPECT_TRUE(safe <= 0.0f && safe >= -5.0f) << a << " " << dt << " " << A_log;
      }
    }
  }
}

// Nearest value of a format with `bits` of mantissa (after the leading one), least exponent `emin`, ties to even.
double nearest(double x, int bits, int emin) {
  if (x == 0 || std::isinf(x)) return x;
  int e = 0;
  std::frexp(x, &e);
  const double unit = std::ldexp(1.0, std::max(e - 1, emin) - bits);
  return std::nearbyint(x / unit) * unit;  // x / unit is exact: a power of two
}

TEST(Arith, SixteenBitFormatsRoundToNearestEven) {
  for (uint64_t i = 0; i <= 0xffffffffu; i += 509) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(i));
    if (std::isnan(x)) {
      EXPECT_EQ(to_bf16<S>(x), 0x7fff);
      EXPECT_EQ(to_f16<S>(x), 0x7fff);
      continue;
    }
    const double b = nearest(x, 7, -126), h = nearest(x, 10, -14);
    ASSERT_EQ(round_bf16<S>(x), static_cast<float>(b))
        << x;  // beyond the largest bf16, b does not fit a float: infinity
    ASSERT_EQ(round_f16<S>(x), std::abs(h) >= 65536.0 ? std::copysign(kInf, x) : static_cast<float>(h)) << x;
  }
}

TEST(Arith, SixteenBitFormatsSurviveTheRoundTrip) {
  for (int32_t h = 0; h <= 0xffff; ++h) {
    if (const float f = from_bf16<S>(h); !std::isnan(f)) {
      ASSERT_EQ(to_bf16<S>(f), h);
    }
    if (const float f = from_f16<S>(h); !std::isnan(f)) {
      ASSERT_EQ(to_f16<S>(f), h);
    }
  }
}

// The halving tree, spelt out: groups 0..2 of 8 and one of 3.
TEST(Arith, CanonicalSum) {
  float a[27], b[27];
  for (int i = 0; i < 27; ++i) {
    a[i] = 1.0f + 0.37f * static_cast<float>(i);
    b[i] = 1.0f / (1.0f + static_cast<float>(i));
  }
  float group[4];
  for (int g = 0; g < 4; ++g) {
    float chain = a[8 * g] * b[8 * g];
    for (int i = 8 * g + 1; i < std::min(27, 8 * g + 8); ++i) chain = std::fma(a[i], b[i], chain);
    group[g] = chain;
  }
  EXPECT_EQ(dot(a, b, 27), (group[0] + group[2]) + (group[1] + group[3]));
  EXPECT_EQ(dot(a, b, 24), (group[0] + group[2]) + group[1]);
  EXPECT_EQ(dot(a, b, 8), group[0]);
  // Nothing may be added where there is nothing: a sum of negative zeros stays one.
  const float zero[9] = {-0.0f, 0, 0, 0, 0, 0, 0, 0, 0}, one[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_TRUE(std::signbit(dot(zero, one, 1)));
}

// The unrolled trees of 8 and 16 groups are the general one.
TEST(Arith, UnrolledTrees) {
  for (const int groups : {8, 16}) {
    float x[16], y[16];
    for (int i = 0; i < 16; ++i) x[i] = y[i] = 1.0f / (3.0f + static_cast<float>(i));
    for (int s = groups / 2; s >= 1; s /= 2) {
      for (int g = 0; g < s; ++g) y[g] = y[g] + y[g + s];
    }
    EXPECT_EQ(tree_sum<S>(x, groups, 1), y[0]);
  }
}

}  // namespace
}  // namespace ringfold::arith
