// Every compute call of the ABI beside the same call of the C++ API, on twin buffers: afterwards all bytes are equal.
// The program has both libraries in it, the shared one through c_api.h and the static one through the C++ headers.
#include <dlfcn.h>

#include "capi/bridge.h"
#include "check/mirror.h"

namespace ringfold::test {
namespace {

constexpr int64_t B = 3, T = 3, H = 2, HV = 4, K = 16, V = 8, kSlots = 4, kRows = 5, kLayers = 2, C = 6, W = 4;

struct Case {
  const char* name;
  MixerKind kind;
  DType act, state;
  Buffer::Pitch pitch;
  bool ragged;
  StateRounding rounding;
  bool cuda = false;  // the ABI's call works on a device, the other one on the CPU
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Compute : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (param().cuda && implementations(Device::cuda).empty()) GTEST_SKIP() << "no CUDA implementation serves here";
  }
  const Case& param() const { return GetParam(); }

  /// The ABI's call.
  template <class Call, class Args>
  ::testing::AssertionResult abi(Call call, const Args& args) {
    if (!param().cuda) {
      const auto given = arena.c(args);
      return done(call(&given));
    }
    DeviceBlock block(memory_of(Device::cuda));
    Mirror mirror(block, Device::cuda);
    mirror.add(args);
    require(mirror.upload(nullptr));
    const auto given = arena.c(mirror.on_device(args));
    ::testing::AssertionResult result = done(call(&given));
    require(mirror.download(nullptr));
    return result;
  }

  std::vector<int64_t> lead(std::initializer_list<int64_t> rest) const {
    std::vector<int64_t> shape = param().ragged ? std::vector<int64_t>{B * T} : std::vector<int64_t>{B, T};
    shape.insert(shape.end(), rest);
    return shape;
  }

  Mixer mixer(Side& side) const {
    const bool kda = param().kind == MixerKind::kda;
    Mixer m;
    m.kind = param().kind;
    m.A_log = side.floats(DType::f32, {HV});
    m.dt_bias = kda ? side.floats(DType::f32, {HV, K}) : side.floats(DType::f32, {HV});
    if (kda) m.lower_bound = -5.0f;
    if (param().ragged) m.scale = 0.5f, m.softplus_beta = 2.0f, m.softplus_threshold = 1.5f, m.qk_l2norm = false;
    return m;
  }

  Window window(Side& side) const {
    const bool kda = param().kind == MixerKind::kda;
    Window w;
    w.q = side.floats(param().act, lead({H, K}));
    w.k = side.floats(param().act, lead({H, K}));
    w.v = side.floats(param().act, lead({HV, V}));
    w.a = kda ? side.floats(param().act, lead({HV, K})) : side.floats(DType::f32, lead({HV}));
    w.b = side.floats(DType::bf16, lead({HV}));
    w.slot_ids = side.ints({2, -1, 0});
    if (param().ragged) w.cu_seqlens = side.ints({0, 4, 5, 8}), w.max_window = 3;
    return w;
  }

  Ring ring(Side& side, bool layered) const {
    const auto shape = [&](std::initializer_list<int64_t> rest) {
      std::vector<int64_t> s = layered ? std::vector<int64_t>{kLayers, kSlots, kRows} : std::vector{kSlots, kRows};
      s.insert(s.end(), rest);
      return s;
    };
    Ring r;
    r.k = side.floats(param().act, shape({H, K}));
    r.v = side.floats(param().act, shape({HV, V}));
    r.g =
        param().kind == MixerKind::kda ? side.floats(DType::f32, shape({HV, K})) : side.floats(DType::f32, shape({HV}));
    r.beta = side.floats(DType::f32, shape({HV}));
    fill_normal(r.g, 99, 0.1f, -1.0f);
    return r;
  }

  TensorView pending(Side& side) const { return side.ints({kNoWindow, kNoWindow, 4, kNoWindow}); }

  VerifyArgs verify_args(Side& side) const {
    VerifyArgs args;
    args.mixer = mixer(side);
    args.window = window(side);
    args.state = side.floats(param().state, {kSlots, HV, V, K});
    args.out = side.poisoned(param().ragged ? DType::f32 : param().act, lead({HV, V}));
    args.ring = ring(side, false);
    args.pending = pending(side);
    args.row_status = side.ints({77, 77, 77});
    args.state_rounding = param().rounding;
    args.impl = param().ragged && !param().cuda ? "reference" : "";
    return args;
  }

  Side plus{param().pitch}, c{param().pitch};
  Arena arena;
};

TEST_P(Compute, Verify) {
  const VerifyArgs args = verify_args(plus);
  const VerifyArgs given = verify_args(c);
  const Bytes before = pack(args.out);
  ASSERT_TRUE(succeeded(verify(args)));
  ASSERT_FALSE(plus.equals(c));
  ASSERT_TRUE(abi(ringfold_verify, given));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_NE(pack(args.out), before);
  const int32_t first = param().ragged ? RINGFOLD_ROW_WINDOW_TOO_LONG : RINGFOLD_ROW_DONE;
  EXPECT_EQ(ints(args.row_status), (std::vector<int32_t>{first, RINGFOLD_ROW_NULL, RINGFOLD_ROW_DONE}));
}

TEST_P(Compute, VerifyWithSnapshots) {
  const auto make = [&](Side& side) {
    VerifyArgs args = verify_args(side);
    args.ring = {};
    args.pending = {};
    args.snapshots = side.poisoned(param().state, lead({HV, V, K}));
    return args;
  };
  const VerifyArgs args = make(plus);
  const Bytes before = pack(args.snapshots);
  ASSERT_TRUE(succeeded(verify(args)));
  ASSERT_TRUE(abi(ringfold_verify, make(c)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_NE(pack(args.snapshots), before);
}

TEST_P(Compute, VerifyBehindAHistory) {
  const auto make = [&](Side& side) {
    VerifyArgs args = verify_args(side);
    if (param().ragged) set_ints(args.window.cu_seqlens, {0, 3, 5, 8});  // no longer than max_window
    args.history = a_history(side);
    return args;
  };
  const VerifyArgs args = make(plus);
  const Bytes before = pack(args.state);
  ASSERT_TRUE(succeeded(verify(args)));
  ASSERT_TRUE(abi(ringfold_verify, make(c)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_NE(pack(args.state), before);  // the history was folded
}

TEST_P(Compute, Decode) {
  const auto make = [&](Side& side) {
    DecodeArgs args;
    args.mixer = mixer(side);
    args.window = window(side);
    args.state = side.floats(param().state, {kSlots, HV, V, K});
    args.out = side.poisoned(param().act, lead({HV, V}));
    args.pending = pending(side);
    args.row_status = side.ints({77, 77, 77});
    args.state_rounding = param().rounding;
    return args;
  };
  const DecodeArgs args = make(plus);
  const Bytes before = pack(args.state);
  ASSERT_TRUE(succeeded(decode(args)));
  ASSERT_TRUE(abi(ringfold_decode, make(c)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_NE(pack(args.state), before);
}

TEST_P(Compute, Fold) {
  const std::vector<int32_t> layers = {1};
  for (const bool some : {false, true}) {
    Side plus_side(param().pitch), c_side(param().pitch);
    const auto make = [&](Side& side) {
      FoldArgs args;
      args.state = side.floats(param().state, {kLayers, kSlots, HV, V, K});
      args.ring = ring(side, true);
      if (some) args.layers = layers;
      args.slot_ids = side.ints({3, 0, -7});
      args.num_accepted = side.ints({4, 0, 2});
      args.track_slots = side.ints({1, -1, -1});
      args.track_steps = side.ints({2, -1, -1});
      args.row_status = side.ints({77, 77, 77});
      args.qk_l2norm = !some;
      args.state_rounding = param().rounding;
      return args;
    };
    const FoldArgs args = make(plus_side);
    const Bytes first = pack(args.state.at(0)), second = pack(args.state.at(1));
    ASSERT_TRUE(succeeded(fold(args)));
    ASSERT_TRUE(abi(ringfold_fold, make(c_side)));
    EXPECT_TRUE(plus_side.equals(c_side));
    EXPECT_EQ(pack(args.state.at(0)) == first, some);  // the list of layers arrived
    EXPECT_NE(pack(args.state.at(1)), second);
  }
}

TEST_P(Compute, FoldOfAHistory) {
  const auto make = [&](Side& side) {
    FoldArgs args;
    args.state = side.floats(param().state, {kSlots, HV, V, K});
    args.ring = ring(side, false);
    args.slot_ids = side.ints({2});
    args.num_accepted = side.ints({2});
    args.pending = side.ints({kNoWindow, kNoWindow, 3, kNoWindow});
    args.history = {.base = side.ints({0, 0, 3, 0}),
                    .live = side.ints({0, 0, 2, 0}),
                    .cuts = side.ints({0, 0, 16, 0}),
                    .policy = FoldPolicy::lazy,
                    .max_window = 3};
    args.state_rounding = param().rounding;
    return args;
  };
  const FoldArgs args = make(plus);
  ASSERT_TRUE(succeeded(fold(args)));
  ASSERT_TRUE(abi(ringfold_fold, make(c)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_EQ(ints(args.history.live)[2], 0);
}

TEST_P(Compute, ConvVerifyAndDecode) {
  for (const bool records : {true, false}) {
    Side plus_side(param().pitch), c_side(param().pitch);
    const auto make = [&](Side& side) {
      ConvArgs args;
      args.x = side.floats(param().act, lead({C}));
      args.weight = side.floats(DType::f32, {C, W});
      args.bias = side.floats(DType::f16, {C});
      args.silu = records;
      args.conv_state = side.floats(param().act, {kSlots, C, W - 1});
      if (records) args.conv_ring = side.floats(param().act, {kSlots, kRows, C});
      args.out = side.poisoned(param().act, lead({C}));
      args.slot_ids = side.ints({1, -1, 3});
      if (param().ragged) args.cu_seqlens = side.ints({0, 2, 5, 9});
      args.pending = pending(side);
      args.row_status = side.ints({77, 77, 77});
      return args;
    };
    const ConvArgs args = make(plus_side);
    const Bytes before = pack(args.conv_state);
    ASSERT_TRUE(succeeded(records ? conv_verify(args) : conv_decode(args)));
    ASSERT_TRUE(abi(records ? ringfold_conv_verify : ringfold_conv_decode, make(c_side)));
    EXPECT_TRUE(plus_side.equals(c_side));
    EXPECT_EQ(pack(args.conv_state) == before, records);
    EXPECT_EQ(ints(args.pending)[3], records ? (param().ragged ? 4 : 3) : kNoWindow);
  }
}

TEST_P(Compute, ConvCommit) {
  const auto make = [&](Side& side) {
    ConvCommitArgs args;
    args.conv_state = side.floats(param().act, {kLayers, kSlots, C, W - 1});
    args.conv_ring = side.floats(param().act, {kLayers, kSlots, kRows, C});
    args.slot_ids = side.ints({1, 3});
    args.num_accepted = side.ints({2, 5});
    args.track_slots = side.ints({-1, 0});
    args.track_steps = side.ints({-1, 1});
    args.row_status = side.ints({77, 77});
    return args;
  };
  const ConvCommitArgs args = make(plus);
  const Bytes before = pack(args.conv_state);
  ASSERT_TRUE(succeeded(conv_commit(args)));
  ASSERT_TRUE(abi(ringfold_conv_commit, make(c)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_NE(pack(args.conv_state), before);
}

TEST_P(Compute, GatedNorm) {
  for (const NormGate gate : {NormGate::silu, NormGate::sigmoid}) {
    Side plus_side(param().pitch), c_side(param().pitch);
    const auto make = [&](Side& side) {
      GatedNormArgs args;
      args.x = side.floats(param().act, {T, HV, V});
      args.z = side.floats(DType::f16, {T, HV, V});
      args.weight = side.floats(DType::f32, {V});
      args.out = side.poisoned(param().act, {T, HV, V});
      args.gate = gate;
      if (gate == NormGate::sigmoid) args.eps = 0.25f;
      return args;
    };
    const GatedNormArgs args = make(plus_side);
    ASSERT_TRUE(succeeded(gated_norm(args)));
    ASSERT_TRUE(abi(ringfold_gated_norm, make(c_side)));
    EXPECT_TRUE(plus_side.equals(c_side));
  }
}

INSTANTIATE_TEST_SUITE_P(Capi, Compute,
                         ::testing::Values(Case{"gdn_f32", MixerKind::gdn, DType::f32, DType::f32,
                                                Buffer::Pitch::packed, false, StateRounding::per_commit},
                                           Case{"gdn_f16_ragged", MixerKind::gdn, DType::f16, DType::f32,
                                                Buffer::Pitch::padded, true, StateRounding::per_commit},
                                           Case{"kda_bf16_padded", MixerKind::kda, DType::bf16, DType::bf16,
                                                Buffer::Pitch::padded, false, StateRounding::per_token},
                                           Case{"gdn_f32_cuda", MixerKind::gdn, DType::f32, DType::f32,
                                                Buffer::Pitch::packed, false, StateRounding::per_commit, true},
                                           Case{"gdn_f16_ragged_cuda", MixerKind::gdn, DType::f16, DType::f32,
                                                Buffer::Pitch::padded, true, StateRounding::per_commit, true},
                                           Case{"kda_bf16_padded_cuda", MixerKind::kda, DType::bf16, DType::bf16,
                                                Buffer::Pitch::padded, false, StateRounding::per_token, true}),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Capi, IsTheSharedLibrary) {
  Dl_info of_abi = {}, of_cpp = {};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&ringfold_verify), &of_abi), 0);
  ASSERT_NE(dladdr(reinterpret_cast<void*>(static_cast<Status (*)(const VerifyArgs&)>(&verify)), &of_cpp), 0);
  EXPECT_NE(std::string(of_abi.dli_fname).find("libringfold.so"), std::string::npos) << of_abi.dli_fname;
  EXPECT_STRNE(of_abi.dli_fname, of_cpp.dli_fname);
}

}  // namespace
}  // namespace ringfold::test
