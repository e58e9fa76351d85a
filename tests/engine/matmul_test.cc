// The matrix product and the vector operations: right, and the same bits whatever the grouping.
#include "engine/matmul.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "engine/sampling.h"
#include "engine/vector_ops.h"
#include "ringfold/registry.h"

namespace ringfold::engine {
namespace {

std::vector<float> random_floats(int64_t n, uint64_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>(2 * uniform(seed, i, 0) - 1));
  return values;
}

/// A random matrix, as stored and widened.
struct Stored {
  std::vector<float> wide;
  std::vector<uint16_t> narrow;
  Matrix m;

  Stored(int64_t rows, int64_t cols, DType dtype, uint64_t seed) : wide(random_floats(rows * cols, seed)) {
    m = {wide.data(), dtype, rows, cols};
    if (dtype == DType::f32) return;
    for (float& v : wide) {
      if (dtype == DType::bf16) {
        narrow.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16));
        v = std::bit_cast<float>(static_cast<uint32_t>(narrow.back()) << 16);
      } else {
        // 2^-4 .. 2^0 with 10 bits of fraction: normal numbers in fp16, whose bits follow from those of fp32.
        v = std::bit_cast<float>((std::bit_cast<uint32_t>(std::copysign(0.0625f + 0.9f * std::abs(v), v))) &
                                 0xFFFFE000u);
        const uint32_t bits = std::bit_cast<uint32_t>(v);
        narrow.push_back(
            static_cast<uint16_t>((bits >> 16 & 0x8000u) | ((bits >> 23 & 255u) - 112) << 10 | (bits >> 13 & 1023u)));
      }
    }
    m.data = narrow.data();
  }
};

std::vector<float> product(const Matrix& w, const std::vector<float>& x, int64_t tokens) {
  std::vector<float> y(static_cast<size_t>(tokens * w.rows), NAN);
  const Product p{w, y.data(), w.rows, false};
  matmul({&p, 1}, x.data(), w.cols, tokens);
  return y;
}

/// Runs f once per instruction set of this machine and puts the choice back.
template <class F>
void on_every_target(F&& f) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    f();
  }
  hwy::SetSupportedTargetsForTest(0);
}

bool same_bits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

class MatmulTest : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(DTypes, MatmulTest, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& test) { return to_string(test.param); });

TEST_P(MatmulTest, IsTheDefinedSum) {
  for (const int64_t cols : {1, 7, 8, 44, 256}) {
    const Stored w(37, cols, GetParam(), 3);
    const std::vector<float> x = random_floats(5 * cols, 4);
    const std::vector<float> y = product(w.m, x, 5);
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t n = 0; n < 37; ++n) {
        float p[8] = {};
        for (int64_t k = 0; k < (cols + 7) / 8 * 8; ++k) {
          const bool inside = k < cols;
          p[k % 8] = std::fma(inside ? w.wide[static_cast<size_t>(n * cols + k)] : 0.0f,
                              inside ? x[static_cast<size_t>(t * cols + k)] : 0.0f, p[k % 8]);
        }
        const float sum = ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
        ASSERT_EQ(sum, y[static_cast<size_t>(t * 37 + n)]) << "cols " << cols << " token " << t << " row " << n;
      }
    }
  }
}

TEST_P(MatmulTest, BitsDoNotDependOnTokensThreadsOrInstructionSet) {
  constexpr int64_t kRows = 133, kCols = 92, kTokens = 32;
  const Stored w(kRows, kCols, GetParam(), 5);
  const std::vector<float> x = random_floats(kTokens * kCols, 6);
  const std::vector<float> expected = product(w.m, x, kTokens);
  const int threads = num_threads();
  on_every_target([&] {
    for (const int n : {1, 2, 3}) {
      set_num_threads(n);
      for (int64_t tokens = 1; tokens <= kTokens; tokens += n == 1 ? 1 : 13) {
        const std::vector<float> first(x.begin(), x.begin() + tokens * kCols);
        ASSERT_TRUE(same_bits(product(w.m, first, tokens).data(), expected.data(), tokens * kRows))
            << tokens << " tokens";
        const std::vector<float> last(x.end() - tokens * kCols, x.end());
        ASSERT_TRUE(
            same_bits(product(w.m, last, tokens).data(), expected.data() + (kTokens - tokens) * kRows, tokens * kRows))
            << tokens << " tokens";
      }
    }
  });
  set_num_threads(threads);
}

TEST(Matmul, SeveralProductsWithStridesAndSums) {
  const Stored v(9, 20, DType::bf16, 7), w(70, 20, DType::bf16, 8);
  const std::vector<float> x = random_floats(3 * 25, 9);  // row stride 25
  std::vector<float> y(3 * 100, 0.5f);                    // v at 0, w at 10
  const Product both[] = {{v.m, y.data(), 100, true}, {w.m, y.data() + 10, 100, false}};
  matmul(both, x.data(), 25, 3);
  for (int64_t t = 0; t < 3; ++t) {
    const std::vector<float> row(x.begin() + t * 25, x.begin() + t * 25 + 20);
    const std::vector<float> a = product(v.m, row, 1), b = product(w.m, row, 1);
    for (size_t i = 0; i < 9; ++i) EXPECT_EQ(y[static_cast<size_t>(t) * 100 + i], 0.5f + a[i]);
    for (size_t i = 0; i < 70; ++i) EXPECT_EQ(y[static_cast<size_t>(t) * 100 + 10 + i], b[i]);
    EXPECT_EQ(y[static_cast<size_t>(t) * 100 + 9], 0.5f);
    EXPECT_EQ(y[static_cast<size_t>(t) * 100 + 80], 0.5f);
  }
}

TEST(VectorOps, SameBitsOnEveryInstructionSet) {
  constexpr int64_t kN = 61;
  const std::vector<float> x = random_floats(kN, 1), y = random_floats(kN, 2);
  std::vector<std::vector<float>> norms, gates;
  on_every_target([&] {
    std::vector<float> out(kN);
    rms_norm(x.data(), y.data(), kN, 1e-6f, out.data());
    norms.push_back(out);
    silu_mul(x.data(), y.data(), kN, out.data());
    sigmoid_gate(x.data(), kN, out.data());
    gates.push_back(out);
    EXPECT_EQ(norms.back(), norms.front());
    EXPECT_EQ(gates.back(), gates.front());
  });
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v) * v;
  for (size_t i = 0; i < kN; ++i) {
    // The sum of 61 squares is off by at most 8 roundings of its chains and 3 of the tree, halved by the root; two
    // products.
    const double norm = x[i] / std::sqrt(squares / kN + 1e-6) * y[i];
    EXPECT_NEAR(norms[0][i], norm, std::abs(norm) * (11.0 / 2 + 5) * 0x1p-24);
    // exp within 2e-7, then a sum, a division and three products, twice.
    const double s = 1 / (1 + std::exp(-static_cast<double>(x[i])));
    const double gate = x[i] * s * y[i] * s;
    EXPECT_NEAR(gates[0][i], gate, std::abs(gate) * 2 * (2e-7 + 5 * 0x1p-24));
  }
}

TEST(VectorOps, SiluOfExtremeValuesIsFinite) {
  std::vector<float> x = {-3e38f, -1000, -88, -87, 0, 87, 88, 1000, 3e38f}, y(x.size());
  const std::vector<float> one(x.size(), 1.0f);
  silu_mul(x.data(), one.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_TRUE(std::isfinite(y[i])) << x[i];
    if (x[i] >= 87) {
      EXPECT_EQ(y[i], x[i]);
    }
  }
  EXPECT_EQ(y[4], 0.0f);
}

TEST(Attention, EqualsTheTextbookAndDoesNotDependOnTheWindow) {
  constexpr int64_t kLength = 45, kDim = 20, kLd = kLength + 8;
  const std::vector<float> q = random_floats(kLength * kDim, 1), k = random_floats(kLength * kDim, 2),
                           v = random_floats(kLength * kDim, 3);
  std::vector<float> expected;
  on_every_target([&] {
    for (const int64_t window : {1, 2, 3, 4, 5, 9, 32}) {
      std::vector<float> out(kLength * kDim, NAN), scores(static_cast<size_t>(window * kLd), NAN);
      for (int64_t begin = 0; begin < kLength; begin += window) {
        HeadAttention a;
        a.tokens = std::min(window, kLength - begin);
        a.length = begin + a.tokens;
        a.q = q.data() + begin * kDim;
        a.ldq = a.ldo = a.dim = kDim;
        a.keys = k.data();
        a.values = v.data();
        a.scale = 0.4f;
        a.scores = scores.data();
        a.ld_scores = kLd;
        a.out = out.data() + begin * kDim;
        attend(a);
      }
      if (expected.empty()) expected = out;
      EXPECT_TRUE(same_bits(out.data(), expected.data(), kLength * kDim)) << "window " << window;
    }
  });
  for (int64_t t = 0; t < kLength; ++t) {
    std::vector<double> p(static_cast<size_t>(t + 1));
    double sum = 0;
    for (int64_t j = 0; j <= t; ++j) {
      double dot = 0;
      for (int64_t d = 0; d < kDim; ++d)
        dot += static_cast<double>(q[static_cast<size_t>(t * kDim + d)]) * k[static_cast<size_t>(j * kDim + d)];
      sum += p[static_cast<size_t>(j)] = std::exp(0.4f * dot);
    }
    for (int64_t d = 0; d < kDim; ++d) {
      double o = 0;
      for (int64_t j = 0; j <= t; ++j) o += p[static_cast<size_t>(j)] / sum * v[static_cast<size_t>(j * kDim + d)];
      // |values| <= 1 and weights sum to 1. A weight is off by its score's error (|q.k| <= 20: under 25 roundings of at
      // most 20, times the scale), exp's 2e-7 and the sum's; then a chain of at most 45 roundings.
      EXPECT_NEAR(expected[static_cast<size_t>(t * kDim + d)], o, 2 * (0.4 * 25 * 20 + 45) * 0x1p-24 + 4e-7);
    }
  }
}

}  // namespace
}  // namespace ringfold::engine
