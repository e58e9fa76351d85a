// Rings keyed by request row, through the C ABI: a pool with fewer rings than slots, and tensors of one's own.
#include <gmock/gmock.h>

#include "capi/bridge.h"
#include "ringfold/ringfold.h"

namespace ringfold::test {
namespace {

constexpr int64_t kLayers = 2, kSlots = 5, kRings = 2, kRows = 4, H = 1, HV = 2, K = 9, V = 5, T = 3, W = 3;
constexpr int64_t C = 2 * H * K + HV * V;

/// verify_layer of two rows on slots 4 and 1, in rings 0 and 1.
LayerArgs window_of(Side& side, uint64_t seed) {
  LayerArgs a;
  a.mixer.A_log = side.floats(DType::f32, {HV});
  a.qkv = side.floats(DType::f32, {2, T, C});
  a.window.a = side.floats(DType::f32, {2, T, HV});
  a.window.b = side.floats(DType::f32, {2, T, HV});
  a.window.slot_ids = side.ints({4, 1});
  a.window.ring_ids = side.ints({0, 1});
  a.conv_weight = side.floats(DType::f32, {C, W});
  a.z = side.floats(DType::f32, {2, T, HV, V});
  a.norm_weight = side.floats(DType::f32, {V});
  a.out = side.poisoned(DType::f32, {2, T, HV, V});
  fill_normal(a.qkv, seed);
  return a;
}

TensorView tensor(const ringfold_pool* pool, int32_t which) {
  const DLTensor* t = nullptr;
  EXPECT_TRUE(done(ringfold_pool_tensor(pool, which, RINGFOLD_ALL_LAYERS, &t)));
  return view_of(t);
}

TEST(RingCapi, APoolHasFewerRingsThanSlots) {
  PoolConfig twin{.layers = kLayers, .slots = kSlots, .H = H, .HV = HV, .K = K, .V = V, .ring_rows = kRows};
  twin.rings = kRings, twin.conv_channels = C, twin.conv_width = W;
  auto config = made<ringfold_pool_config>();
  config.layers = kLayers, config.slots = kSlots, config.H = H, config.HV = HV, config.K = K, config.V = V;
  config.ring_rows = kRows, config.rings = kRings, config.conv_channels = C, config.conv_width = W;
  std::unique_ptr<Pool> plus;
  ringfold_pool* c = nullptr;
  ASSERT_TRUE(succeeded(Pool::create(twin, &plus)));
  ASSERT_TRUE(done(ringfold_pool_create(&config, &c)));
  auto read = made<ringfold_pool_config>();
  ASSERT_TRUE(done(ringfold_pool_get_config(c, &read)));
  EXPECT_EQ(read.rings, kRings);
  auto bytes = made<ringfold_pool_bytes>();
  ASSERT_TRUE(done(ringfold_pool_get_bytes(c, &bytes)));
  EXPECT_EQ(bytes.total, plus->bytes().total());
  Slot slots[kSlots];
  ringfold_slot c_slots[kSlots];
  ASSERT_TRUE(succeeded(plus->acquire(slots)));
  ASSERT_TRUE(done(ringfold_pool_acquire(c, c_slots, kSlots)));

  Arena arena;
  Side side(Buffer::Pitch::padded);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    Side plus_side(Buffer::Pitch::packed), c_side(Buffer::Pitch::packed);
    LayerArgs args = window_of(plus_side, 5 + static_cast<uint64_t>(layer));
    ringfold_layer_args on_pool = arena.c(window_of(c_side, 5 + static_cast<uint64_t>(layer)));
    plus->bind(layer, &args);
    on_pool.pool = c, on_pool.layer = layer;
    ASSERT_TRUE(succeeded(verify_layer(args)));
    ASSERT_TRUE(done(ringfold_verify_layer(&on_pool)));
    EXPECT_TRUE(plus_side.equals(c_side));
  }
  EXPECT_EQ(ints(tensor(c, RINGFOLD_POOL_SLOT_OF_RING)), (std::vector<int32_t>{4, 1, 4, 1}));
  EXPECT_EQ(changed(tensor(c, RINGFOLD_POOL_RING_OF_SLOT), pack(plus->owners().ring_of_slot)), "");
  EXPECT_EQ(changed(tensor(c, RINGFOLD_POOL_CONV_SLOT_OF_RING), pack(plus->conv_owners().slot_of_ring)), "");
  EXPECT_EQ(changed(tensor(c, RINGFOLD_POOL_CONV_RING_OF_SLOT), pack(plus->conv_owners().ring_of_slot)), "");
  EXPECT_EQ(changed(tensor(c, RINGFOLD_POOL_RING_K), pack(plus->ring().k)), "");
  EXPECT_EQ(changed(tensor(c, RINGFOLD_POOL_CONV_RING), pack(plus->conv_ring())), "");

  CommitArgs commit_args;
  commit_args.slot_ids = side.ints({1, 4, 4}), commit_args.num_accepted = side.ints({2, 1, 1});
  const ringfold_commit_args without = arena.c(commit_args);
  EXPECT_TRUE(refused(ringfold_commit(c, &without), RINGFOLD_INVALID_ARGUMENT, "ring_ids: expected i32 [B]"));
  commit_args.slot_ids = side.ints({1, 4}), commit_args.num_accepted = side.ints({2, 1});
  commit_args.ring_ids = side.ints({1, 1}), commit_args.row_status = side.ints({77, 77});
  ringfold_commit_args c_commit = arena.c(commit_args);
  ASSERT_TRUE(done(ringfold_commit(c, &c_commit)));
  EXPECT_EQ(ints(commit_args.row_status), (std::vector<int32_t>{RINGFOLD_ROW_DONE, RINGFOLD_ROW_WINDOW_NOT_IN_RING}));
  ASSERT_TRUE(succeeded(commit(*plus, commit_args)));
  commit_args.ring_ids = side.ints({7, 0});
  c_commit = arena.c(commit_args);
  ASSERT_TRUE(done(ringfold_commit(c, &c_commit)));
  EXPECT_EQ(ints(commit_args.row_status), (std::vector<int32_t>{RINGFOLD_ROW_RING_OUT_OF_RANGE, RINGFOLD_ROW_DONE}));
  ASSERT_TRUE(succeeded(commit(*plus, commit_args)));
  EXPECT_EQ(changed(tensor(c, RINGFOLD_POOL_STATE), pack(plus->state())), "");
  EXPECT_EQ(changed(tensor(c, RINGFOLD_POOL_CONV_STATE), pack(plus->conv_state())), "");
  EXPECT_STREQ(ringfold_row_status_name(RINGFOLD_ROW_DUPLICATE_RING), "duplicate_ring");
  EXPECT_STREQ(ringfold_row_status_name(RINGFOLD_ROW_WINDOW_NOT_IN_RING), "window_not_in_ring");
  ringfold_pool_destroy(c);
  config.rings = -1;
  EXPECT_TRUE(refused(ringfold_pool_create(&config, &c), RINGFOLD_INVALID_ARGUMENT, "rings: expected 0.."));
}

/// verify, conv_verify, fold and conv_commit on tensors of one's own.
TEST(RingCapi, TensorsOfOnesOwn) {
  struct Calls {
    VerifyArgs verify;
    FoldArgs fold;
    ConvArgs conv;
    ConvCommitArgs conv_commit;
  };
  const auto make = [](Side& side) {
    Calls calls;
    const TensorView slots = side.ints({3, 0}), rings = side.ints({1, 0}), counts = side.ints({2, 3});
    const auto owners = [&] {
      return RingOwners{side.poisoned(DType::i32, {kRings}), side.poisoned(DType::i32, {kSlots})};
    };
    VerifyArgs& v = calls.verify;
    v.mixer.A_log = side.floats(DType::f32, {HV});
    v.window = {.q = side.floats(DType::f32, {2, T, H, K}),
                .k = side.floats(DType::f32, {2, T, H, K}),
                .v = side.floats(DType::f32, {2, T, HV, V}),
                .a = side.floats(DType::f32, {2, T, HV}),
                .b = side.floats(DType::f32, {2, T, HV}),
                .slot_ids = slots,
                .ring_ids = rings};
    v.state = side.floats(DType::f32, {kSlots, HV, V, K});
    v.ring.k = side.floats(DType::f32, {kRings, kRows, H, K});
    v.ring.v = side.floats(DType::f32, {kRings, kRows, HV, V});
    v.ring.g = side.floats(DType::f32, {kRings, kRows, HV});
    v.ring.beta = side.floats(DType::f32, {kRings, kRows, HV});
    v.pending = side.ints(std::vector<int32_t>(kSlots, kNoWindow));
    v.owners = owners();
    v.out = side.poisoned(DType::f32, {2, T, HV, V});
    FoldArgs& f = calls.fold;
    f.state = v.state, f.ring = v.ring, f.pending = v.pending, f.owners = v.owners;
    f.slot_ids = slots, f.ring_ids = rings, f.num_accepted = counts;
    ConvArgs& c = calls.conv;
    c.x = side.floats(DType::f32, {2, T, C}), c.out = side.poisoned(DType::f32, {2, T, C});
    c.weight = side.floats(DType::f32, {C, W});
    c.conv_state = side.floats(DType::f32, {kSlots, C, W - 1}),
    c.conv_ring = side.floats(DType::f32, {kRings, kRows, C});
    c.slot_ids = slots, c.ring_ids = rings;
    c.pending = side.ints(std::vector<int32_t>(kSlots, kNoWindow)), c.owners = owners();
    ConvCommitArgs& m = calls.conv_commit;
    m.conv_state = c.conv_state, m.conv_ring = c.conv_ring;
    m.slot_ids = slots, m.ring_ids = rings, m.num_accepted = counts;
    return calls;
  };
  Side plus(Buffer::Pitch::padded), c(Buffer::Pitch::padded);
  const Calls args = make(plus), twin = make(c);
  Arena arena;
  const ringfold_verify_args c_verify = arena.c(twin.verify);
  const ringfold_conv_args c_conv = arena.c(twin.conv);
  const ringfold_fold_args c_fold = arena.c(twin.fold);
  const ringfold_conv_commit_args c_conv_commit = arena.c(twin.conv_commit);
  const Bytes before = pack(args.fold.state), windows = pack(args.conv.conv_state);
  ASSERT_TRUE(succeeded(verify(args.verify)));
  ASSERT_TRUE(done(ringfold_verify(&c_verify)));
  ASSERT_TRUE(succeeded(conv_verify(args.conv)));
  ASSERT_TRUE(done(ringfold_conv_verify(&c_conv)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_EQ(ints(twin.verify.owners.slot_of_ring), (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(ints(twin.conv.owners.slot_of_ring), (std::vector<int32_t>{0, 3}));
  ASSERT_TRUE(succeeded(fold(args.fold)));
  ASSERT_TRUE(done(ringfold_fold(&c_fold)));
  ASSERT_TRUE(succeeded(conv_commit(args.conv_commit)));
  ASSERT_TRUE(done(ringfold_conv_commit(&c_conv_commit)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_NE(pack(args.fold.state), before);
  EXPECT_NE(pack(args.conv.conv_state), windows);
  ringfold_verify_args no_owners = c_verify;
  no_owners.owners = nullptr;
  EXPECT_TRUE(refused(ringfold_verify(&no_owners), RINGFOLD_INVALID_ARGUMENT, "owners.slot_of_ring: "));
}

}  // namespace
}  // namespace ringfold::test
