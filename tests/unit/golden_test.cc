// Hashes of exact results. A changed bit anywhere in the arithmetic fails here, on any machine, with any
// implementation. After an intended change of arithmetic (with a note in docs/notes/), the failure message holds the
// new values.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/arith.h"
#include "core/scalar_io.h"
#include "ringfold/ringfold.h"

namespace ringfold {
namespace {

using S = arith::Scalar;

/// FNV-1a over 64 bits.
class Hash {
 public:
  void add(const std::byte* data, size_t n) {
    for (size_t i = 0; i < n; ++i) value_ = (value_ ^ static_cast<uint64_t>(data[i])) * 0x100000001b3u;
  }
  /// NaNs hash alike: their payloads are not defined.
  void add(float v) {
    const uint32_t bits = std::isnan(v) ? 0x7fc00000u : std::bit_cast<uint32_t>(v);
    add(reinterpret_cast<const std::byte*>(&bits), sizeof bits);
  }
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

template <class F>
std::string sweep(F f) {
  Hash hash;
  for (uint64_t i = 0; i <= 0xffffffffu; i += 4099) hash.add(f(std::bit_cast<float>(static_cast<uint32_t>(i))));
  return hash.text();
}

TEST(Golden, Functions) {
  EXPECT_EQ(sweep([](float x) { return arith::exp<S>(x); }), "2810835c32584749");
  EXPECT_EQ(sweep([](float x) { return arith::log1p<S>(x); }), "9e5d141fbd73bfa5");
  EXPECT_EQ(sweep([](float x) { return arith::sigmoid<S>(x); }), "089a538aeb95ef3f");
  EXPECT_EQ(sweep([](float x) { return arith::softplus_gate<S>(x, 0.25f, arith::exp_A<S>(0.5f), 1.0f, 20.0f); }),
            "dacbd8149b9f435f");
  EXPECT_EQ(sweep([](float x) { return arith::safe_gate<S>(x, 0.25f, arith::exp_A<S>(0.5f), -5.0f); }),
            "502f8e0c054d59c8");
}

// Uniform in (-1, 1).
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed) {}
  float operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
  }

 private:
  uint64_t state_;
};

struct Buffer {
  std::vector<std::byte> bytes;
  DType type;
  Buffer(DType t, int64_t n, Noise* noise, float scale) : bytes(n * size_of(t)), type(t) {
    for (int64_t i = 0; i < n; ++i) detail::store(t, bytes.data(), i, scale * (*noise)());
  }
};

struct Golden {
  const char* name;
  MixerKind kind;
  bool safe;
  int64_t H, HV, K, V;
  DType act, state;
  StateRounding rounding;
  const char* hash;
};

const Golden kGoldens[] = {
    {"gdn_f32", MixerKind::gdn, false, 2, 4, 128, 128, DType::bf16, DType::f32, StateRounding::per_commit,
     "c11eb7a663cdebd4"},
    {"gdn_bf16_token", MixerKind::gdn, false, 1, 3, 64, 64, DType::bf16, DType::bf16, StateRounding::per_token,
     "ae36dee1c58b5151"},
    {"gdn_f16_odd", MixerKind::gdn, false, 2, 2, 60, 36, DType::f16, DType::f16, StateRounding::per_commit,
     "f2392a1339d5168f"},
    {"kda_f32", MixerKind::kda, false, 2, 2, 128, 128, DType::bf16, DType::f32, StateRounding::per_commit,
     "ac7dbbc41f773111"},
    {"kda_safe_f32", MixerKind::kda, true, 1, 2, 96, 80, DType::f32, DType::f32, StateRounding::per_commit,
     "9b1e587eeef183d9"},
    {"kda_safe_bf16", MixerKind::kda, true, 2, 6, 5, 7, DType::f32, DType::bf16, StateRounding::per_token,
     "631714e523b142eb"},
};

// Three windows of 5 tokens with 5, 0 and 3 accepted, then one decoded token: outputs, ring and states hashed.
std::string trace(const Golden& c, std::string_view impl) {
  constexpr int64_t kSlots = 3, kRows = 2, kT = 5;
  const int64_t gates = c.kind == MixerKind::kda ? c.K : 1;
  Noise noise(7);
  Buffer state(c.state, kSlots * c.HV * c.V * c.K, &noise, 0.3f), A_log(DType::f32, c.HV, &noise, 1),
      dt(DType::f32, c.HV * gates, &noise, 1);
  Buffer ring_k(c.act, kSlots * kT * c.H * c.K, &noise, 1), ring_v(c.act, kSlots * kT * c.HV * c.V, &noise, 1);
  Buffer ring_g(DType::f32, kSlots * kT * c.HV * gates, &noise, 1),
      ring_beta(DType::f32, kSlots * kT * c.HV, &noise, 1);
  int32_t slots[kRows] = {2, 0};
  Hash hash;
  VerifyArgs args;
  args.impl = impl;
  args.state_rounding = c.rounding;
  args.mixer.kind = c.kind;
  if (c.safe) args.mixer.lower_bound = -5.0f;
  args.mixer.A_log = TensorView(A_log.bytes.data(), DType::f32, {c.HV});
  const bool kda = c.kind == MixerKind::kda;
  args.mixer.dt_bias =
      kda ? TensorView(dt.bytes.data(), DType::f32, {c.HV, c.K}) : TensorView(dt.bytes.data(), DType::f32, {c.HV});
  args.state = TensorView(state.bytes.data(), c.state, {kSlots, c.HV, c.V, c.K});
  args.ring.k = TensorView(ring_k.bytes.data(), c.act, {kSlots, kT, c.H, c.K});
  args.ring.v = TensorView(ring_v.bytes.data(), c.act, {kSlots, kT, c.HV, c.V});
  args.ring.g = kda ? TensorView(ring_g.bytes.data(), DType::f32, {kSlots, kT, c.HV, c.K})
                    : TensorView(ring_g.bytes.data(), DType::f32, {kSlots, kT, c.HV});
  args.ring.beta = TensorView(ring_beta.bytes.data(), DType::f32, {kSlots, kT, c.HV});
  args.window.slot_ids = TensorView(slots, DType::i32, {kRows});
  for (int step = 0; step < 4; ++step) {
    const int64_t T = step == 3 ? 1 : kT, n = kRows * T;
    Buffer q(c.act, n * c.H * c.K, &noise, 1), k(c.act, n * c.H * c.K, &noise, 1), v(c.act, n * c.HV * c.V, &noise, 1);
    Buffer a(c.act, n * c.HV * gates, &noise, 3), b(c.act, n * c.HV, &noise, 3), out(c.act, n * c.HV * c.V, &noise, 1);
    args.window.q = TensorView(q.bytes.data(), c.act, {kRows, T, c.H, c.K});
    args.window.k = TensorView(k.bytes.data(), c.act, {kRows, T, c.H, c.K});
    args.window.v = TensorView(v.bytes.data(), c.act, {kRows, T, c.HV, c.V});
    args.window.a = kda ? TensorView(a.bytes.data(), c.act, {kRows, T, c.HV, c.K})
                        : TensorView(a.bytes.data(), c.act, {kRows, T, c.HV});
    args.window.b = TensorView(b.bytes.data(), c.act, {kRows, T, c.HV});
    args.out = TensorView(out.bytes.data(), c.act, {kRows, T, c.HV, c.V});
    if (step == 3) {
      DecodeArgs decode_args;
      decode_args.mixer = args.mixer;
      decode_args.window = args.window;
      decode_args.state = args.state;
      decode_args.out = args.out;
      decode_args.state_rounding = args.state_rounding;
      decode_args.impl = impl;
      const Status s = decode(decode_args);
      EXPECT_TRUE(s.ok()) << s.message();
    } else {
      Status s = verify(args);
      EXPECT_TRUE(s.ok()) << s.message();
      int32_t accepted[kRows] = {step == 0 ? 5 : step == 1 ? 0 : 3, step == 0 ? 0 : 5};
      FoldArgs fold_args;
      fold_args.state = args.state;
      fold_args.ring = args.ring;
      fold_args.slot_ids = args.window.slot_ids;
      fold_args.num_accepted = TensorView(accepted, DType::i32, {kRows});
      fold_args.state_rounding = c.rounding;
      fold_args.impl = impl;
      s = fold(fold_args);
      EXPECT_TRUE(s.ok()) << s.message();
    }
    hash.add(out.bytes.data(), out.bytes.size());
  }
  for (const Buffer* buffer : {&state, &ring_k, &ring_v, &ring_g, &ring_beta})
    hash.add(buffer->bytes.data(), buffer->bytes.size());
  return hash.text();
}

class GoldenTrace : public testing::TestWithParam<Golden> {};

TEST_P(GoldenTrace, EveryImplementation) {
  for (const std::string_view impl : implementations()) EXPECT_EQ(trace(GetParam(), impl), GetParam().hash) << impl;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTrace, testing::ValuesIn(kGoldens), [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace ringfold
