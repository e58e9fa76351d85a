// The judge's own tools: they must notice what they are for.
#include "support/buffers.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "ref/oracle.h"

namespace ringfold::test {
namespace {

TEST(Conversion, HalvesGoThroughFloatUnchanged) {
  for (DType type : {DType::f16, DType::bf16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      const float value = load(type, &half);
      if (std::isnan(value)) continue;
      uint16_t back = 0;
      store(type, &back, value);
      ASSERT_EQ(back, half) << to_string(type) << " " << bits;
    }
  }
}

TEST(Conversion, RoundsToNearestEven) {
  const auto through = [](DType type, float value) {
    uint16_t half = 0;
    store(type, &half, value);
    return load(type, &half);
  };
  EXPECT_EQ(through(DType::bf16, 1.0f + 0x1p-8f), 1.0f);                // tie, to even
  EXPECT_EQ(through(DType::bf16, 1.0f + 3 * 0x1p-8f), 1.0f + 0x1p-6f);  // tie, to even, upwards
  EXPECT_EQ(through(DType::bf16, 1.0f + 0x1.01p-8f), 1.0f + 0x1p-7f);
  EXPECT_EQ(through(DType::f16, 1.0f + 0x1p-11f), 1.0f);
  EXPECT_EQ(through(DType::f16, 1.0f + 3 * 0x1p-11f), 1.0f + 0x1p-9f);
  EXPECT_EQ(through(DType::f16, 0x1p-25f), 0.0f);
  EXPECT_EQ(through(DType::f16, 0x1.8p-24f), 0x1p-23f);
  EXPECT_EQ(through(DType::f16, 0x1.ff8p-15f), 0x1.ff8p-15f);  // the largest subnormal
  EXPECT_EQ(through(DType::f16, 0x1.ffcp-15f), 0x1p-14f);
  EXPECT_EQ(through(DType::f16, 0.0f), 0.0f);
  EXPECT_EQ(through(DType::f16, 65519.0f), 65504.0f);
  EXPECT_EQ(through(DType::f16, -65520.0f), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(through(DType::f16, std::nanf(""))));
  EXPECT_TRUE(std::isnan(through(DType::bf16, std::nanf(""))));
}

TEST(Buffer, IsPoisonedAndNoticesEveryStray) {
  Buffer buffer(DType::f32, {3, 5, 7}, Buffer::Pitch::padded);
  EXPECT_TRUE(intact(buffer));
  for (float value : floats(buffer.view())) EXPECT_TRUE(std::isnan(value));
  fill_normal(buffer.view(), 1);
  EXPECT_TRUE(intact(buffer)) << "writing the view is allowed";
  const TensorView row = buffer.view().at(1).at(2);
  auto* past = static_cast<float*>(row.data) + row.shape[0];
  const float saved = *past;
  *past = 0;
  EXPECT_FALSE(intact(buffer)) << "a gap between rows";
  *past = saved;
  EXPECT_TRUE(intact(buffer));
  buffer.data()[-1] = std::byte{0};
  EXPECT_FALSE(intact(buffer)) << "the guard words before";
}

TEST(Compare, FindsTheFirstDifference) {
  Buffer a(DType::bf16, {2, 3}), b(DType::bf16, {2, 3}, Buffer::Pitch::padded);
  fill_normal(a.view(), 5);
  copy(a.view(), b.view());
  EXPECT_TRUE(same(a.view(), b.view()));
  EXPECT_EQ(hash(a.view()), hash(b.view()));
  const float zero = 0, minus_zero = -0.0f;
  store(DType::bf16, b.view().at(1).data, zero);
  copy(b.view(), a.view());
  store(DType::bf16, a.view().at(1).data, minus_zero);
  EXPECT_NE(difference(a.view(), b.view()).find("[1,0]"), std::string::npos);
  EXPECT_NE(hash(a.view()), hash(b.view()));
}

TEST(Compare, AnyNanEqualsAnyNanUnlessMemoryMustBeUntouched) {
  Buffer a(DType::f32, {2}), b(DType::f32, {2});
  fill_zero(a.view());
  fill_zero(b.view());
  const uint32_t one = 0x7FC00000u, other = 0xFFC01234u;
  std::memcpy(a.data(), &one, 4);
  std::memcpy(b.data(), &other, 4);
  EXPECT_TRUE(same(a.view(), b.view()));
  EXPECT_FALSE(unchanged(a.view(), pack(b.view())));
}

TEST(Views, MergeAndSliceKeepElements) {
  Buffer buffer(DType::i32, {2, 3, 4});
  std::vector<int32_t> values(24);
  for (int i = 0; i < 24; ++i) values[i] = i;
  set_ints(buffer.view(), values);
  EXPECT_EQ(ints(merge(buffer.view(), 0, 2)), values);
  EXPECT_EQ(ints(merge(buffer.view(), 1, 2).at(1)), std::vector<int32_t>(values.begin() + 12, values.end()));
  EXPECT_EQ(ints(slice(buffer.view().at(1), 2, 1)), (std::vector<int32_t>{20, 21, 22, 23}));
}

// Two tokens by hand: H = HV = K = V = 1, no l2norm, scale 1, A_log = 0, dt_bias = 0.
TEST(Oracle, AgreesWithTwoTokensByHand) {
  oracle::Layer layer;
  layer.H = layer.HV = layer.K = layer.V = 1;
  layer.A_log = {0};
  layer.dt_bias = {0};
  layer.scale = 1;
  layer.qk_l2norm = false;
  oracle::Recurrence recurrence(layer, {2});
  // The tolerance of these and of the gates below: a handful of double operations on values up to 5, each within 2^-53
  // of its size, and exp and log1p within an ulp; 1e-14 is about ten ulp of 5. a = 0: softplus = ln 2, decay = 1/2; b =
  // 0: beta = 1/2. S = 1, u = (4 - 1*1)/2 = 1.5, S = 2.5, o = 2.5 * 2 = 5.
  EXPECT_NEAR(recurrence.step({{2}, {1}, {4}, {0}, {0}})[0], 5, 1e-14);
  // k = 2: S = 1.25, u = (0.5 - 2.5)/2 = -1, S = 1.25 - 2 = -0.75, o = -0.75 * 1.
  EXPECT_NEAR(recurrence.step({{1}, {2}, {0.5}, {0}, {0}})[0], -0.75, 1e-14);
  EXPECT_NEAR(recurrence.state()[0], -0.75, 1e-14);
}

TEST(Oracle, SafeGateAndHeadMap) {
  oracle::Layer layer;
  layer.kind = MixerKind::kda;
  layer.H = 2, layer.HV = 4, layer.K = 2, layer.V = 1;
  layer.A_log = {0, 0, 0, 0};
  layer.lower_bound = -5;
  layer.qk_l2norm = false;
  EXPECT_NEAR(oracle::log_decay(layer, 0, 0, 0), -2.5, 1e-14);
  EXPECT_NEAR(oracle::log_decay(layer, 0, 0, -1000), 0, 1e-14);
  EXPECT_NEAR(oracle::log_decay(layer, 0, 0, 1000), -5, 1e-14);
  oracle::Token token;
  token.q = {1, 2, 3, 4}, token.k = {5, 6, 7, 8}, token.v = {0, 0, 0, 0}, token.a.assign(8, 0), token.b.assign(4, 0);
  EXPECT_EQ(oracle::prepare(layer, token, 1).k, (oracle::Doubles{5, 6})) << "value heads 0 and 1 share key head 0";
  EXPECT_EQ(oracle::prepare(layer, token, 2).k, (oracle::Doubles{7, 8}));
}

}  // namespace
}  // namespace ringfold::test
