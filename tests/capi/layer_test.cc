// Whole layers of the ABI: beside the same call of the C++ API, byte for byte, and what is refused.
#include "capi/bridge.h"

namespace ringfold::test {
namespace {

constexpr int64_t B = 3, T = 3, H = 2, HV = 4, K = 16, V = 8, C = 2 * H * K + HV * V, W = 4, kSlots = 4, kRows = 5;

struct Case {
  const char* name;
  MixerKind kind;
  DType act, state;
  Buffer::Pitch pitch;
  bool ragged, views;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Layer : public ::testing::TestWithParam<Case> {
 protected:
  const Case& param() const { return GetParam(); }

  std::vector<int64_t> lead(std::initializer_list<int64_t> rest) const {
    std::vector<int64_t> shape = param().ragged ? std::vector<int64_t>{B * T} : std::vector<int64_t>{B, T};
    shape.insert(shape.end(), rest);
    return shape;
  }

  /// Everything but states, rings and cursors.
  LayerArgs inputs(Side& side) const {
    const bool kda = param().kind == MixerKind::kda;
    LayerArgs a;
    a.mixer.kind = param().kind;
    a.mixer.A_log = side.floats(DType::f32, {HV});
    a.mixer.dt_bias = kda ? side.floats(DType::f32, {HV, K}) : side.floats(DType::f32, {HV});
    if (param().views) {
      a.window.q = side.floats(param().act, lead({H, K}));
      a.window.k = side.floats(param().act, lead({H, K}));
      a.window.v = side.floats(param().act, lead({HV, V}));
    } else {
      a.qkv = side.floats(param().act, lead({C}));
    }
    a.window.a = kda ? side.floats(param().act, lead({HV, K})) : side.floats(DType::f32, lead({HV}));
    a.window.b = side.floats(DType::bf16, lead({HV}));
    a.window.slot_ids = side.ints({2, -1, 0});
    if (param().ragged) a.window.cu_seqlens = side.ints({0, 3, 5, 8}), a.window.max_window = 3;
    a.conv_weight = side.floats(DType::f32, {C, W});
    if (!param().views) a.conv_bias = side.floats(DType::f16, {C});
    a.conv_silu = !param().ragged;
    a.z = side.floats(DType::f16, lead({HV, V}));
    a.norm_weight = side.floats(DType::f32, {V});
    if (param().ragged) a.norm_gate = NormGate::sigmoid, a.norm_eps = 0.25f;
    a.mixer_out = param().views ? param().act : DType::f32;
    a.out = side.poisoned(param().act, lead({HV, V}));
    a.row_status = side.ints({77, 77, 77});
    return a;
  }

  LayerArgs layer_args(Side& side) const {
    const bool kda = param().kind == MixerKind::kda;
    LayerArgs a = inputs(side);
    a.conv_state = side.floats(param().act, {kSlots, C, W - 1});
    a.conv_ring = side.floats(param().act, {kSlots, kRows, C});
    a.conv_pending = side.ints({kNoWindow, kNoWindow, 4, kNoWindow});
    a.state = side.floats(param().state, {kSlots, HV, V, K});
    a.ring.k = side.floats(param().act, {kSlots, kRows, H, K});
    a.ring.v = side.floats(param().act, {kSlots, kRows, HV, V});
    a.ring.g = kda ? side.floats(DType::f32, {kSlots, kRows, HV, K}) : side.floats(DType::f32, {kSlots, kRows, HV});
    a.ring.beta = side.floats(DType::f32, {kSlots, kRows, HV});
    a.pending = side.ints({kNoWindow, kNoWindow, 4, kNoWindow});
    if (param().kind == MixerKind::kda) a.state_rounding = StateRounding::per_token;
    return a;
  }

  Side plus{param().pitch}, c{param().pitch};
  Arena arena;
};

TEST_P(Layer, Verify) {
  const LayerArgs args = layer_args(plus);
  const ringfold_layer_args given = arena.c(layer_args(c));
  const Bytes before = pack(args.out), ring = pack(args.ring.k), conv_ring = pack(args.conv_ring);
  ASSERT_TRUE(succeeded(verify_layer(args)));
  ASSERT_FALSE(plus.equals(c));
  ASSERT_TRUE(done(ringfold_verify_layer(&given)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_NE(pack(args.out), before);
  EXPECT_NE(pack(args.ring.k), ring);
  EXPECT_NE(pack(args.conv_ring), conv_ring);
  EXPECT_EQ(ints(args.row_status), (std::vector<int32_t>{RINGFOLD_ROW_DONE, RINGFOLD_ROW_NULL, RINGFOLD_ROW_DONE}));
  EXPECT_EQ(ints(args.conv_pending)[2], 3);
}

TEST_P(Layer, VerifyBehindAHistory) {
  const auto make = [&](Side& side) {
    LayerArgs args = layer_args(side);
    args.history = a_history(side);
    return args;
  };
  const LayerArgs args = make(plus);
  const ringfold_layer_args given = arena.c(make(c));
  const Bytes before = pack(args.state);
  ASSERT_TRUE(succeeded(verify_layer(args)));
  ASSERT_TRUE(done(ringfold_verify_layer(&given)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_NE(pack(args.state), before);  // the history was folded
}

TEST_P(Layer, Decode) {
  const LayerArgs args = layer_args(plus);
  const ringfold_layer_args given = arena.c(layer_args(c));
  const Bytes state = pack(args.state), conv = pack(args.conv_state);
  ASSERT_TRUE(succeeded(decode_layer(args)));
  ASSERT_TRUE(done(ringfold_decode_layer(&given)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_NE(pack(args.state), state);
  EXPECT_NE(pack(args.conv_state), conv);
}

INSTANTIATE_TEST_SUITE_P(Capi, Layer,
                         ::testing::Values(Case{"gdn_f32", MixerKind::gdn, DType::f32, DType::f32,
                                                Buffer::Pitch::packed, false, false},
                                           Case{"gdn_f16_ragged", MixerKind::gdn, DType::f16, DType::f32,
                                                Buffer::Pitch::padded, true, false},
                                           Case{"kda_bf16_views", MixerKind::kda, DType::bf16, DType::bf16,
                                                Buffer::Pitch::padded, false, true}),
                         [](const auto& tested) { return std::string(tested.param.name); });

/// A verify_layer and a commit on a pool of each API, then a decode_layer of the next tokens.
TEST_P(Layer, OnAPool) {
  const PoolConfig of_cpp = {.layers = 2,
                             .slots = 4,
                             .H = H,
                             .HV = HV,
                             .K = K,
                             .V = V,
                             .kind = param().kind,
                             .state_dtype = param().state,
                             .act_dtype = param().act,
                             .ring_rows = T,
                             .conv_channels = C,
                             .conv_width = W};
  std::unique_ptr<Pool> cpp;
  ASSERT_TRUE(succeeded(Pool::create(of_cpp, &cpp)));
  auto config = made<ringfold_pool_config>();
  config.layers = 2, config.slots = 4, config.H = H, config.HV = HV, config.K = K, config.V = V, config.ring_rows = T;
  config.conv_channels = C;
  config.kind = static_cast<int32_t>(param().kind);
  config.state_dtype = static_cast<int32_t>(param().state), config.act_dtype = static_cast<int32_t>(param().act);
  ringfold_pool* pool = nullptr;
  ASSERT_TRUE(done(ringfold_pool_create(&config, &pool)));
  Slot slots[3];
  ringfold_slot handles[3];
  ASSERT_TRUE(succeeded(cpp->acquire(slots)));
  ASSERT_TRUE(done(ringfold_pool_acquire(pool, handles, 3)));

  LayerArgs args = inputs(plus);
  cpp->bind(1, &args);
  ringfold_layer_args given = arena.c(inputs(c));
  given.pool = pool;
  given.layer = 1;
  ASSERT_TRUE(succeeded(verify_layer(args)));
  ASSERT_TRUE(done(ringfold_verify_layer(&given)));
  // commit is of all layers, so the other one gets the same window.
  cpp->bind(0, &args);
  given.layer = 0;
  ASSERT_TRUE(succeeded(verify_layer(args)));
  ASSERT_TRUE(done(ringfold_verify_layer(&given)));
  const auto accept = [&](Side& side) {
    CommitArgs a;
    a.slot_ids = side.ints({2, -1, 0});
    a.num_accepted = side.ints({2, 0, 3});
    return a;
  };
  const CommitArgs commits = accept(plus);
  const ringfold_commit_args given_commits = arena.c(accept(c));
  ASSERT_TRUE(succeeded(commit(*cpp, commits)));
  ASSERT_TRUE(done(ringfold_commit(pool, &given_commits)));
  ASSERT_TRUE(succeeded(decode_layer(args)));
  ASSERT_TRUE(done(ringfold_decode_layer(&given)));
  EXPECT_TRUE(plus.equals(c));
  for (const Slot& slot : slots) {
    std::vector<std::byte> mine(cpp->export_size()), theirs(cpp->export_size());
    ASSERT_TRUE(succeeded(cpp->export_slot(slot, mine)));
    ASSERT_TRUE(done(ringfold_pool_export_slot(pool, {slot.id, slot.generation}, theirs.data(), theirs.size())));
    EXPECT_TRUE(mine == theirs);
  }
  ringfold_pool_destroy(pool);
}

TEST_P(Layer, Refusals) {
  ringfold_layer_args given = arena.c(layer_args(c));
  const auto untouched = c.bytes();
  const auto refuses = [&](const ringfold_layer_args& args, const std::string& begin) {
    for (const auto call : {ringfold_verify_layer, ringfold_decode_layer}) {
      EXPECT_TRUE(refused(call(&args), RINGFOLD_INVALID_ARGUMENT, begin));
    }
    EXPECT_TRUE(c.bytes() == untouched) << begin;
  };
  const auto with = [&](auto ringfold_layer_args::*field, auto value) {
    ringfold_layer_args bad = given;
    bad.*field = value;
    return bad;
  };
  using Args = ringfold_layer_args;
  const DLTensor* none = nullptr;
  refuses(with(&Args::mixer, nullptr), "mixer: expected a struct, found NULL");
  refuses(with(&Args::window, nullptr), "window: expected a struct, found NULL");
  for (const auto& [name, field] : {std::pair("conv_weight: ", &Args::conv_weight),
                                    {"conv_state: ", &Args::conv_state},
                                    {"state: ", &Args::state},
                                    {"z: ", &Args::z},
                                    {"out: ", &Args::out},
                                    {"norm_weight: ", &Args::norm_weight}}) {
    refuses(with(field, none), name);
  }
  refuses(with(&Args::conv_pending, none), "conv_pending: expected a tensor, as pending is given");
  if (given.qkv != nullptr) {
    refuses(with(&Args::qkv, none), "qkv: expected ");
    refuses(with(&Args::qkv, given.z), "qkv: expected ");
  } else {
    refuses(with(&Args::qkv, given.z), "qkv: expected nothing beside window.q");
  }
  for (const int32_t value : {-1, 3}) {
    refuses(with(&Args::mixer_out, value), "mixer_out: expected 0 .. 2, found ");
    refuses(with(&Args::norm_gate, value), "norm_gate: expected 0 .. 1, found ");
    refuses(with(&Args::conv_activation, value), "conv_activation: expected 0 .. 1, found ");
    refuses(with(&Args::numerics, value), "numerics: expected 0 .. 1, found ");
    refuses(with(&Args::state_rounding, value), "state_rounding: expected 0 .. 1, found ");
  }
  refuses(with(&Args::norm_eps, -1.0f), "norm_eps: ");
  refuses(with(&Args::layer, 1), "layer: expected 0 without a pool, found 1");
  auto config = made<ringfold_pool_config>();
  config.slots = 4, config.H = H, config.HV = HV, config.K = K, config.V = V, config.ring_rows = T;
  config.kind = static_cast<int32_t>(param().kind);
  config.state_dtype = static_cast<int32_t>(param().state), config.act_dtype = static_cast<int32_t>(param().act);
  ringfold_pool* pool = nullptr;
  ASSERT_TRUE(done(ringfold_pool_create(&config, &pool)));
  given.pool = pool;
  for (const auto& [name, field] : {std::pair("state", &Args::state),
                                    {"pending", &Args::pending},
                                    {"conv_state", &Args::conv_state},
                                    {"conv_ring", &Args::conv_ring},
                                    {"conv_pending", &Args::conv_pending}}) {
    ringfold_layer_args only = given;
    only.ring = nullptr;
    for (const auto other : {&Args::state, &Args::pending, &Args::conv_state, &Args::conv_ring, &Args::conv_pending}) {
      if (other != field) only.*other = nullptr;
    }
    refuses(only, std::string(name) + ": expected NULL beside a pool");
  }
  given.state = given.pending = given.conv_state = given.conv_ring = given.conv_pending = nullptr;
  given.ring = nullptr;
  refuses(given, "conv_state: ");  // this pool has no short conv
  ringfold_pool_destroy(pool);
}

}  // namespace
}  // namespace ringfold::test
