// Gates, norms, overflow and rounding: public reports 66 to 80. Expected values are computed here, in double.
#include <cmath>

#include "faults/case.h"

namespace ringfold::test {
namespace {

constexpr double kUlp = 0x1p-23;  // spacing of floats relative to their size, at most

/// One token of a window argument [B,T,...], as [B,1,...].
TensorView token(const TensorView& view, int64_t t) {
  TensorView one = view;
  one.data = static_cast<std::byte*>(view.data) + t * view.stride[1] * static_cast<int64_t>(size_of(view.dtype));
  one.shape[1] = 1;
  return one;
}

/// decode, token by token.
void decode_each(const Case& c, std::string_view impl) {
  for (int64_t t = 0; t < c.n.T; ++t) {
    DecodeArgs args = c.decode(impl);
    for (TensorView* v : {&args.window.q, &args.window.k, &args.window.v, &args.window.a, &args.window.b, &args.out}) {
      *v = token(*v, t);
    }
    ASSERT_TRUE(succeeded(ringfold::decode(args)));
  }
}

/// verify + fold of all tokens against one-token decoding: the same bits, and no NaN.
void expect_replay_is_exact(const Case& c, std::string_view impl) {
  Case plain(c.n);
  for (const auto& [to, from] :
       {std::pair(&plain.q, &c.q), std::pair(&plain.k, &c.k), std::pair(&plain.v, &c.v), std::pair(&plain.a, &c.a),
        std::pair(&plain.b, &c.b), std::pair(&plain.A_log, &c.A_log), std::pair(&plain.dt_bias, &c.dt_bias),
        std::pair(&plain.state, &c.state)}) {
    check::copy(from->view(), to->view());
  }
  plain.mixer.lower_bound = c.mixer.lower_bound;
  ASSERT_TRUE(succeeded(ringfold::verify(c.verify(impl))));
  ASSERT_TRUE(succeeded(ringfold::fold(c.fold(impl))));
  decode_each(plain, impl);
  EXPECT_TRUE(same(c.out.view(), plain.out.view()));
  EXPECT_TRUE(same(c.state.view(), plain.state.view()));
  for (const Buffer* result : {&c.out, &c.state}) {
    for (float x : floats(result->view())) ASSERT_TRUE(std::isfinite(x));
  }
}

/// The log decays that verify records for these gate inputs, dt_bias 0.
std::vector<float> gates(const std::vector<float>& x, float A_log, std::string_view impl,
                         std::optional<float> lower_bound, float softplus_beta = 1) {
  Case c({.kind = MixerKind::kda, .K = static_cast<int64_t>(x.size()), .V = 1});
  for (size_t i = 0; i < x.size(); ++i) static_cast<float*>(c.a.view().data)[i] = x[i];
  c.set(c.A_log, A_log);
  c.mixer.dt_bias = {};
  c.mixer.lower_bound = lower_bound;
  c.mixer.softplus_beta = softplus_beta;
  EXPECT_TRUE(succeeded(ringfold::verify(c.verify(impl))));
  for (float o : floats(c.out.view())) EXPECT_TRUE(std::isfinite(o));
  return floats(c.ring_g.view());
}

TEST(Fault66, TheSafeGateIsASigmoid) {
  const std::vector<float> x = {-20, -5, -1, 0, 1, 5, 20};
  const double table[] = {-1.03e-8, -0.03346, -1.3447, -2.5, -3.6553, -4.9665, -5.0};
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    const std::vector<float> g = gates(x, 0, impl, -5.0f);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = -5.0 / (1 + std::exp(-static_cast<double>(x[i])));
      EXPECT_NEAR(want, table[i], 2e-3 * -table[i]);  // the digits of the report
      // sigmoid within 2 ulp, and one rounded product.
      EXPECT_NEAR(g[i], want, 3 * kUlp * -want) << x[i];
    }
  }
}

TEST(Fault67, FoldUsesTheGateOfVerify) {
  for (std::string_view impl : impls()) {
    for (int gate = 0; gate < 3; ++gate) {
      for (DType gates_dtype : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(std::string(impl) + ", gate " + std::to_string(gate) + " " + to_string(gates_dtype));
        Case c({.kind = gate == 0 ? MixerKind::gdn : MixerKind::kda,
                .HV = 2,
                .K = 20,
                .V = 12,
                .B = 2,
                .T = 8,
                .slots = 2,
                .gates = gates_dtype});
        if (gate == 2) c.mixer.lower_bound = -5.0f;
        Rng rng(67);
        fill(c.a.view(), [&] { return rng.uniform(-30, 30); });
        fill(c.b.view(), [&] { return rng.uniform(-30, 30); });
        expect_replay_is_exact(c, impl);
      }
    }
  }
}

TEST(Fault68, BetaIsNeverRoundedTo16Bits) {
  const double beta = 1 / (1 + std::exp(-0.5));
  for (std::string_view impl : impls()) {
    for (int64_t T : {1, 3}) {
      SCOPED_TRACE(std::string(impl) + ", T " + std::to_string(T));
      Case c({.T = T, .act = DType::bf16, .gates = DType::bf16});
      c.set(c.state, 0);
      c.set(c.k, 0);
      c.set(c.v, 1);
      c.set(c.b, 0.5f);
      c.no_decay();
      c.mixer.qk_l2norm = false;
      for (int64_t t = 0; t < T; ++t) check::store(DType::bf16, token(c.k.view(), t).data, t == 0 ? 1.0f : 0.0f);
      // u = beta * (1 - 0), stored through k = 1: the state is beta itself, which has an error of at most 2 ulp.
      const auto expect_beta = [&](const char* path) {
        for (int64_t v = 0; v < 8; ++v)
          EXPECT_NEAR(static_cast<const float*>(c.state.view().data)[v * 8], beta, 2 * kUlp) << path;
        c.set(c.state, 0);
      };
      ASSERT_TRUE(succeeded(ringfold::verify(c.verify(impl))));
      ASSERT_TRUE(succeeded(ringfold::fold(c.fold(impl))));
      expect_beta("fold");
      ASSERT_TRUE(succeeded(ringfold::decode(c.decode(impl))));
      expect_beta("decode");
      decode_each(c, impl);
      expect_beta("decode one by one");
    }
  }
}

TEST(Fault70, EpsilonIsAddedToTheSumOfSquares) {
  for (std::string_view impl : impls()) {
    for (double x : {1e-3, 1e-4, 1e-6, 0.0}) {
      SCOPED_TRACE(std::string(impl) + ", k " + std::to_string(x));
      Case c({.K = 128, .V = 2});
      c.set(c.state, 0);
      c.set(c.k, static_cast<float>(x));
      c.set(c.q, static_cast<float>(x));
      c.set(c.v, 1);
      c.set(c.b, 200);  // beta is 1
      ASSERT_TRUE(succeeded(ringfold::decode(c.decode(impl))));
      const double in = static_cast<float>(x);
      const double want = in / std::sqrt(128 * in * in + 1e-6);
      // A sum of 128 positive terms passes 8 + 4 roundings, the square root halves that; then sqrt, quotient, beta,
      // product.
      for (float s : floats(c.state.view())) EXPECT_NEAR(s, want, (12 / 2 + 4) * kUlp * want);
    }
  }
}

TEST(Fault71, NaNStaysInItsRow) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Case c({.HV = 2, .B = 3, .T = 3, .slots = 3}), clean({.HV = 2, .B = 3, .T = 3, .slots = 3});
    const Bytes before = pack(c.state.view().at(1));
    static_cast<float*>(token(c.k.view(), 1).data)[c.k.view().stride[0]] = NAN;  // row 1, token 1
    set_ints(c.accept.view(), {3, 0, 3});
    for (Case* one : {&c, &clean}) {
      ASSERT_TRUE(succeeded(ringfold::verify(one->verify(impl))));
      ASSERT_TRUE(succeeded(ringfold::fold(one->fold(impl))));
    }
    for (int64_t r : {0, 2}) {
      EXPECT_TRUE(same(c.out.view().at(r), clean.out.view().at(r)));
      EXPECT_TRUE(same(c.state.view().at(r), clean.state.view().at(r)));
    }
    EXPECT_TRUE(unchanged(c.state.view().at(1), before));
    set_ints(c.accept.view(), {0, 1, 0});  // the token before the NaN is as good as any
    ASSERT_TRUE(succeeded(ringfold::fold(c.fold(impl))));
    for (float s : floats(c.state.view())) EXPECT_TRUE(std::isfinite(s));
  }
}

TEST(Fault73, SoftplusAtItsEdges) {
  const std::vector<float> x = {19.99f, 20.0f, 20.01f, 40.0f,  40.02f,  88.0f, 89.0f,
                                1e4f,   3e38f, -20.0f, -88.0f, -104.0f, -1e4f, -3e38f};
  for (std::string_view impl : impls()) {
    for (float beta : {1.0f, 0.5f}) {
      SCOPED_TRACE(std::string(impl) + ", softplus beta " + std::to_string(beta));
      const std::vector<float> g = gates(x, 0, impl, {}, beta);
      for (size_t i = 0; i < x.size(); ++i) {
        const double y = static_cast<double>(beta) * x[i];
        const double want = y > 20 ? x[i] : std::log1p(std::exp(y)) / beta;
        // exp and log1p within 2 ulp each, quotient and product; subnormal results within 4 steps of 2^-149.
        EXPECT_NEAR(-static_cast<double>(g[i]), want, 6 * kUlp * want + 4 * 0x1p-149) << x[i];
      }
    }
    EXPECT_EQ(gates({20.01f}, 0, impl, {})[0], -20.01f);
    // Saturated exp(A_log) with a gate that underflows: 0 times the largest float, not 0 times infinity.
    for (float bound : {0.0f, -5.0f}) {
      for (float g : gates({-200.0f, 0.0f, 200.0f}, 100.0f, impl, bound < 0 ? std::optional(bound) : std::nullopt)) {
        EXPECT_FALSE(std::isnan(g));
        EXPECT_LE(g, 0.0f);
      }
    }
  }
}

TEST(Fault74, StrongAndAbsentDecaySideBySide) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Case heads({.HV = 2, .K = 16, .V = 8, .T = 16});
    heads.mixer.dt_bias = {};
    heads.set(heads.dt_bias, 0);
    heads.set(heads.a, 20);  // g = -20 per token, -320 in all
    static_cast<float*>(heads.A_log.view().data)[0] = 0;
    static_cast<float*>(heads.A_log.view().data)[1] = -200;  // g = 0
    expect_replay_is_exact(heads, impl);
    Case channels({.kind = MixerKind::kda, .HV = 1, .K = 16, .V = 8, .T = 16});
    channels.set(channels.dt_bias, 0);
    channels.set(channels.A_log, 0);
    int64_t i = 0;
    fill(channels.a.view(), [&] { return i++ % 2 == 0 ? 80.0f : -1e4f; });  // g = -80 and 0, by turns
    expect_replay_is_exact(channels, impl);
  }
}

TEST(Fault76, OutputsPastTheRangeOfHalf) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    for (DType out : {DType::f32, DType::f16}) {
      Case c({.K = 128, .V = 4, .act = DType::f16, .out = out});
      c.set(c.state, 1e5f);
      c.set(c.q, 1);
      c.set(c.b, -200);
      c.no_decay();
      ASSERT_TRUE(succeeded(ringfold::verify(c.verify(impl))));
      for (float o : floats(c.out.view())) {
        if (out == DType::f16) {
          EXPECT_TRUE(std::isinf(o));  // rounded as IEEE says; ask for f32 outputs where states grow
        } else {
          // Sum of squares 10 ulp as above, scale 1, and a second sum of 128 positive terms 12.
          EXPECT_NEAR(o, 1e5, 1e5 * 25 * kUlp);
        }
      }
    }
  }
}

TEST(Fault77, SmallStepsSurviveIn32BitStates) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    float state = 1;
    Case c({.K = 1, .V = 1, .act = DType::bf16, .out = DType::f32}),
        other({.K = 1, .V = 1, .act = DType::bf16, .out = DType::bf16});
    c.set(c.state, state);
    for (Case* one : {&c, &other}) {
      one->set(one->k, 0.03125f);
      one->set(one->v, 0.0625f);
      one->set(one->b, 0);  // beta is 1/2
      one->no_decay();
      one->mixer.qk_l2norm = false;
    }
    for (int step = 0; step < 8; ++step) {  // output dtypes by turns, one state
      DecodeArgs args = (step % 2 == 0 ? c : other).decode(impl);
      args.state = c.state.view();
      ASSERT_TRUE(succeeded(ringfold::decode(args)));
      const float u = 0.5f * (0.0625f - state * 0.03125f);
      state = std::fma(u, 0.03125f, state);
      EXPECT_EQ(floats(c.state.view())[0], state) << "step " << step;
    }
    EXPECT_GT(state, 1.003f);
    EXPECT_LT(state, 1.004f);  // eight steps of about 5e-4, each lost if the state were bf16
  }
}

TEST(Fault80, TheConvWindowFollowsTheAcceptedRows) {
  for (std::string_view impl : impls()) {
    for (int32_t before = 0; before <= 3; ++before) {  // a fresh sequence of this length: zeros on the left
      for (int32_t accept = 0; accept <= 5; ++accept) {
        SCOPED_TRACE(std::string(impl) + ", " + std::to_string(before) + " before, accept " + std::to_string(accept));
        constexpr int64_t C = 3, T = 5, W = 4;
        Buffer x(DType::f32, {1, T, C}), out(DType::f32, {1, T, C}), weight(DType::f32, {C, W}),
            window(DType::f32, {1, C, W - 1});
        Buffer ring(DType::f32, {1, T, C});
        fill_normal(weight.view(), 80);
        check::fill_zero(window.view());
        std::vector<std::vector<float>> inputs(3, std::vector<float>(C, 0.0f));  // what lies before the sequence
        const auto value = [](int64_t t, int64_t ch) { return static_cast<float>(100 * (ch + 1) + t); };
        for (int64_t t = 0; t < before; ++t) {
          inputs.push_back({});
          for (int64_t ch = 0; ch < C; ++ch) inputs.back().push_back(-value(t, ch));
        }
        for (int64_t ch = 0; ch < C; ++ch) {
          for (int64_t j = 0; j < 3; ++j) {
            static_cast<float*>(window.view().data)[ch * 3 + j] =
                inputs[inputs.size() - 3 + static_cast<size_t>(j)][ch];
          }
          for (int64_t t = 0; t < T; ++t) static_cast<float*>(x.view().data)[t * C + ch] = value(t, ch);
        }
        const Bytes old = pack(window.view());
        const int32_t slot = 0;
        ConvArgs args;
        args.x = x.view();
        args.weight = weight.view();
        args.conv_state = window.view();
        args.conv_ring = ring.view();
        args.out = out.view();
        args.slot_ids = TensorView(&slot, DType::i32, {1});
        args.impl = impl;
        ASSERT_TRUE(succeeded(conv_verify(args)));
        EXPECT_EQ(pack(window.view()), old);
        ConvCommitArgs commit_args;
        commit_args.conv_state = window.view();
        commit_args.conv_ring = ring.view();
        commit_args.slot_ids = args.slot_ids;
        commit_args.num_accepted = TensorView(&accept, DType::i32, {1});
        commit_args.impl = impl;
        ASSERT_TRUE(succeeded(conv_commit(commit_args)));
        for (int64_t t = 0; t < accept; ++t) {
          inputs.push_back({});
          for (int64_t ch = 0; ch < C; ++ch) inputs.back().push_back(value(t, ch));
        }
        for (int64_t ch = 0; ch < C; ++ch) {
          for (int64_t j = 0; j < 3; ++j) {
            EXPECT_EQ(static_cast<const float*>(window.view().data)[ch * 3 + j],
                      inputs[inputs.size() - 3 + static_cast<size_t>(j)][ch]);
          }
        }
        EXPECT_TRUE(intact(window) && intact(ring) && intact(out));
      }
    }
  }
}

}  // namespace
}  // namespace ringfold::test
