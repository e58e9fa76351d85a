// Every instruction set's vector arithmetic has the bits of the scalar one, the emulated fused multiply-add included,
// and so have the conversions inside transpositions.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/vector_arith_test.cc"
#include "cpu/targets.h"
#include "hwy/foreach_target.h"

#include "cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::cpu {
namespace HWY_NAMESPACE {

using S = arith::Scalar;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
  return x ^ (x >> 33);
}

bool Same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Compares vector(x, y, z) with scalar(x, y, z) lane by lane over `rounds` vectors of random bit patterns.
template <class VectorF, class ScalarF>
void Compare(const char* what, int rounds, VectorF vector, ScalarF scalar) {
  const Vector::D d;
  alignas(64) float x[Vector::kLanes], y[Vector::kLanes], z[Vector::kLanes], got[Vector::kLanes];
  for (int r = 0; r < rounds; ++r) {
    for (int i = 0; i < Vector::kLanes; ++i) {
      const uint64_t n = static_cast<uint64_t>(r) * Vector::kLanes + i;
      const auto bits_x = static_cast<uint32_t>(Mix(3 * n)), bits_y = static_cast<uint32_t>(Mix(3 * n + 1));
      x[i] = std::bit_cast<float>(bits_x);
      y[i] = std::bit_cast<float>(bits_y);
      z[i] = std::bit_cast<float>(static_cast<uint32_t>(Mix(3 * n + 2)));
      // Half of the time numbers of like size, and then sums that cancel, where rounding once matters most.
      if (r % 2 == 1) {
        x[i] = std::bit_cast<float>((bits_x & 0x807fffffu) | ((120 + bits_x % 16) << 23));
        y[i] = std::bit_cast<float>((bits_y & 0x807fffffu) | ((120 + bits_y % 16) << 23));
        z[i] = -x[i] * y[i] * (1.0f + static_cast<float>(static_cast<int>(n % 7) - 3) * 0x1p-22f);
      }
    }
    hn::Store(vector(hn::Load(d, x), hn::Load(d, y), hn::Load(d, z)), d, got);
    for (int i = 0; i < Vector::kLanes; ++i) {
      const float want = scalar(x[i], y[i], z[i]);
      ASSERT_TRUE(Same(got[i], want)) << what << "(" << x[i] << ", " << y[i] << ", " << z[i] << ") = " << got[i]
                                      << ", scalar " << want << " on " << hwy::TargetName(HWY_TARGET);
    }
  }
}

using F = Vector::F;

// Pairs narrowed eight vectors at a time, with and without NaN and infinities of both signs among them.
template <DType kType>
void ComparePairs(int rounds) {
  const Vector::D d;
  alignas(64) float x[8][Vector::kLanes], got[4][Vector::kLanes];
  for (int r = 0; r < rounds; ++r) {
    Vector::F in[8];
    for (int i = 0; i < 8; ++i) {
      for (int lane = 0; lane < Vector::kLanes; ++lane) {
        const uint64_t n = (static_cast<uint64_t>(r) * 8 + i) * Vector::kLanes + lane;
        auto bits = static_cast<uint32_t>(Mix(n));
        if (r % 4 == 0) bits &= 0xbfffffffu;  // no NaN, no infinity
        if (r % 4 == 1 && bits % 16 == 0) bits = bits % 32 == 0 ? 0x7f800000u : 0xff800000u;
        if (r % 4 == 2 && i == 3 && lane == 1) bits = 0xffc00001u;                       // one alone
        if (n % 5 == 0) bits = (bits & 0xffff0000u) | (n % 2 == 0 ? 0x8000u : 0x7fffu);  // ties, and just below
        x[i][lane] = std::bit_cast<float>(bits);
      }
      in[i] = hn::Load(d, x[i]);
    }
    const Four pairs = NarrowPairs<kType>(in);
    hn::Store(pairs.v0, d, got[0]);
    hn::Store(pairs.v1, d, got[1]);
    hn::Store(pairs.v2, d, got[2]);
    hn::Store(pairs.v3, d, got[3]);
    for (int i = 0; i < 8; ++i) {
      for (int lane = 0; lane < Vector::kLanes; ++lane) {
        const uint32_t half = std::bit_cast<uint32_t>(got[i / 2][lane]) >> (i % 2 * 16) & 0xffffu;
        const auto want =
            static_cast<uint32_t>(kType == DType::bf16 ? arith::to_bf16<S>(x[i][lane]) : arith::to_f16<S>(x[i][lane]));
        ASSERT_EQ(half, want) << "element " << i << ", lane " << lane << ": " << x[i][lane] << " on "
                              << hwy::TargetName(HWY_TARGET);
      }
    }
  }
}

template <DType kType, int i>
void CompareElements(const Tile<kType>& tile, const std::byte* rows, int64_t stride, int k) {
  if constexpr (i < Tile<kType>::kElements) {
    alignas(64) float got[Vector::kLanes];
    hn::Store(tile.template element<i>(), Vector::D(), got);
    for (int lane = 0; lane < Vector::kLanes; ++lane) {
      const float want = load(kType, rows + lane * stride, k + i);
      ASSERT_TRUE(Same(got[lane], want)) << "element " << k + i << " of row " << lane << ": " << got[lane] << ", not "
                                         << want << " on " << hwy::TargetName(HWY_TARGET);
    }
    CompareElements<kType, i + 1>(tile, rows, stride, k);
  }
}

// Elements of rows that lie evenly, of any bits.
template <DType kType>
void CompareTiles() {
  constexpr int kLength = 2048, kStride = (kLength + 8) * static_cast<int>(size_of(kType));
  alignas(64) static std::byte rows[Vector::kLanes * kStride];
  for (size_t i = 0; i < sizeof rows; ++i) rows[i] = static_cast<std::byte>(Mix(i));
  const EvenRows<const std::byte> even = {rows, kStride};
  for (int k = 0; k < kLength; k += Tile<kType>::kElements)
    CompareElements<kType, 0>(Tile<kType>::Load(even, k), rows, kStride, k);
}

void TestAll() {
  ComparePairs<DType::bf16>(4000);
  ComparePairs<DType::f16>(4000);
  CompareTiles<DType::f32>();
  CompareTiles<DType::bf16>();
  CompareTiles<DType::f16>();
  constexpr int kRounds = 40000;
  Compare(
      "fma", 4 * kRounds, [](F x, F y, F z) HWY_ATTR { return Vector::fma(x, y, z); },
      [](float x, float y, float z) { return S::fma(x, y, z); });
  Compare(
      "exp", kRounds, [](F x, F, F) HWY_ATTR { return exp<Vector>(x); },
      [](float x, float, float) { return arith::exp<S>(x); });
  Compare(
      "log1p", kRounds, [](F x, F, F) HWY_ATTR { return log1p<Vector>(x); },
      [](float x, float, float) { return arith::log1p<S>(x); });
  Compare(
      "sigmoid", kRounds, [](F x, F, F) HWY_ATTR { return sigmoid<Vector>(x); },
      [](float x, float, float) { return arith::sigmoid<S>(x); });
  Compare(
      "softplus_gate", kRounds,
      [](F x, F y, F z) HWY_ATTR { return softplus_gate<Vector>(x, y, exp_A<Vector>(z), 0.5f, 20.0f); },
      [](float x, float y, float z) { return arith::softplus_gate<S>(x, y, arith::exp_A<S>(z), 0.5f, 20.0f); });
  Compare(
      "safe_gate", kRounds, [](F x, F y, F z) HWY_ATTR { return safe_gate<Vector>(x, y, exp_A<Vector>(z), -5.0f); },
      [](float x, float y, float z) { return arith::safe_gate<S>(x, y, arith::exp_A<S>(z), -5.0f); });
  Compare(
      "gated", kRounds, [](F x, F y, F z) HWY_ATTR { return gated<Vector>(x, y, z, x, true); },
      [](float x, float y, float z) { return arith::gated<S>(x, y, z, x, true); });
  Compare(
      "bf16", kRounds, [](F x, F, F) HWY_ATTR { return round_bf16<Vector>(x); },
      [](float x, float, float) { return arith::round_bf16<S>(x); });
  Compare(
      "f16", kRounds, [](F x, F, F) HWY_ATTR { return round_f16<Vector>(x); },
      [](float x, float, float) { return arith::round_f16<S>(x); });
}

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfold::cpu {
namespace {

using TestFn = void (*)();
TestFn test_for(int64_t target) { RINGFOLD_CHOOSE_TARGET(target, TestAll); }

TEST(VectorArith, EveryInstructionSetHasTheScalarBits) {
  int tested = 0;
  for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4, HWY_SSSE3, HWY_NEON}) {
    const TestFn test = test_for(target);
    if (test == nullptr || (hwy::SupportedTargets() & target) == 0) continue;
    test();
    ++tested;
  }
  EXPECT_GT(tested, 0) << "no instruction set that this machine runs was compiled";
}

}  // namespace
}  // namespace ringfold::cpu
#endif
