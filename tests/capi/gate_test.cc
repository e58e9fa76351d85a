// The raw gate in the ring, through the C ABI: a pool with ring_a, and fold with a mixer.
#include <gmock/gmock.h>

#include "capi/bridge.h"
#include "ringfold/ringfold.h"

namespace ringfold::test {
namespace {

constexpr int64_t kLayers = 2, kSlots = 3, kRows = 4, H = 1, HV = 2, K = 9, V = 5, T = 3;

Mixer mixer_of(Side& side, uint64_t seed) {
  Mixer m;
  m.kind = MixerKind::kda;
  m.A_log = side.floats(DType::f32, {HV});
  m.dt_bias = side.floats(DType::f32, {HV, K});
  m.lower_bound = -5.0f;
  fill_normal(m.A_log, seed);
  fill_normal(m.dt_bias, seed + 1);
  return m;
}

void set_window(Side& side, int32_t slot, uint64_t seed, VerifyArgs* args) {
  args->window = {.q = side.floats(DType::bf16, {1, T, H, K}),
                  .k = side.floats(DType::bf16, {1, T, H, K}),
                  .v = side.floats(DType::bf16, {1, T, HV, V}),
                  .a = side.floats(DType::bf16, {1, T, HV, K}),
                  .b = side.floats(DType::f32, {1, T, HV}),
                  .slot_ids = side.ints({slot})};
  args->out = side.poisoned(DType::f32, {1, T, HV, V});
  fill_normal(args->window.a, seed, 1.5f);
}

ringfold_pool_config config() {
  auto c = made<ringfold_pool_config>();
  c.layers = kLayers, c.slots = kSlots, c.H = H, c.HV = HV, c.K = K, c.V = V, c.ring_rows = kRows;
  c.kind = RINGFOLD_KDA, c.act_dtype = RINGFOLD_BF16;
  c.ring_a = 1, c.a_dtype = RINGFOLD_BF16;
  return c;
}

TensorView tensor(const ringfold_pool* pool, int32_t which) {
  const DLTensor* t = nullptr;
  EXPECT_TRUE(done(ringfold_pool_tensor(pool, which, RINGFOLD_ALL_LAYERS, &t)));
  return view_of(t);
}

TEST(GateCapi, APoolKeepsTheRawGate) {
  const ringfold_pool_config c_config = config();
  ringfold_pool* c = nullptr;
  ASSERT_TRUE(done(ringfold_pool_create(&c_config, &c)));
  auto read = made<ringfold_pool_config>();
  ASSERT_TRUE(done(ringfold_pool_get_config(c, &read)));
  EXPECT_EQ(read.ring_a, 1);
  EXPECT_EQ(read.a_dtype, RINGFOLD_BF16);
  PoolConfig twin{.layers = kLayers, .slots = kSlots, .H = H, .HV = HV, .K = K, .V = V, .kind = MixerKind::kda};
  twin.act_dtype = DType::bf16, twin.ring_rows = kRows, twin.ring_a = DType::bf16;
  std::unique_ptr<Pool> plus;
  ASSERT_TRUE(succeeded(Pool::create(twin, &plus)));
  EXPECT_EQ(to_string(tensor(c, RINGFOLD_POOL_RING_A)), to_string(plus->ring().a));
  EXPECT_TRUE(tensor(c, RINGFOLD_POOL_RING_G).empty());

  Arena arena;
  Side side(Buffer::Pitch::padded);
  const std::vector<Mixer> mixers = {mixer_of(side, 11), mixer_of(side, 22)};
  const std::vector<ringfold_mixer> given = {*arena.c(mixers[0]), *arena.c(mixers[1])};
  Slot slot;
  ringfold_slot c_slot = {};
  ASSERT_TRUE(succeeded(plus->acquire(&slot)));
  ASSERT_TRUE(done(ringfold_pool_acquire(c, &c_slot, 1)));
  CommitArgs commit_args;
  commit_args.slot_ids = side.ints({slot.id}), commit_args.num_accepted = side.ints({2});
  const ringfold_commit_args c_commit = arena.c(commit_args);
  EXPECT_TRUE(refused(ringfold_commit(c, &c_commit), RINGFOLD_INVALID_ARGUMENT, "mixers: expected set_mixers"));
  EXPECT_TRUE(refused(ringfold_pool_set_mixers(c, given.data(), 1), RINGFOLD_INVALID_ARGUMENT, "mixers: expected 2"));
  EXPECT_TRUE(refused(ringfold_pool_set_mixers(c, nullptr, 2), RINGFOLD_INVALID_ARGUMENT, "mixers: expected 2"));
  EXPECT_TRUE(refused(ringfold_pool_set_mixers(nullptr, given.data(), 2), RINGFOLD_INVALID_ARGUMENT, "pool: "));
  ASSERT_TRUE(done(ringfold_pool_set_mixers(c, given.data(), given.size())));
  ASSERT_TRUE(succeeded(plus->set_mixers(mixers)));

  for (int64_t layer = 0; layer < kLayers; ++layer) {
    Side plus_side(Buffer::Pitch::packed), c_side(Buffer::Pitch::packed);
    VerifyArgs args, twin_args;
    // Another mixer than the pool's: the pool's is what counts, for verify as for commit.
    args.mixer = mixer_of(plus_side, 33), twin_args.mixer = mixer_of(c_side, 33);
    set_window(plus_side, slot.id, 5 + static_cast<uint64_t>(layer), &args);
    set_window(c_side, slot.id, 5 + static_cast<uint64_t>(layer), &twin_args);
    plus->bind(layer, &args);
    ringfold_verify_args on_pool = arena.c(twin_args);
    on_pool.pool = c, on_pool.layer = layer;
    ASSERT_TRUE(succeeded(verify(args)));
    ASSERT_TRUE(done(ringfold_verify(&on_pool)));
    EXPECT_TRUE(plus_side.equals(c_side));
    EXPECT_EQ(changed(slice(plus->ring(layer).a.at(slot.id), 0, T), pack(args.window.a.at(0))), "");
  }
  ASSERT_TRUE(succeeded(commit(*plus, commit_args)));
  ASSERT_TRUE(done(ringfold_commit(c, &c_commit)));
  EXPECT_EQ(changed(tensor(c, RINGFOLD_POOL_STATE), pack(plus->state())), "");
  EXPECT_EQ(changed(tensor(c, RINGFOLD_POOL_RING_A), pack(plus->ring().a)), "");
  const Bytes state = pack(plus->state());
  EXPECT_NE(state, Bytes(state.size()));
  ringfold_pool_destroy(c);
}

TEST(GateCapi, ConfigsThatContradictThemselves) {
  ringfold_pool* pool = nullptr;
  ringfold_pool_config bad = config();
  bad.ring_a = 0;
  EXPECT_TRUE(refused(ringfold_pool_create(&bad, &pool), RINGFOLD_INVALID_ARGUMENT, "a_dtype: expected 0 without"));
  bad = config(), bad.ring_a = 2;
  EXPECT_TRUE(refused(ringfold_pool_create(&bad, &pool), RINGFOLD_INVALID_ARGUMENT, "ring_a: expected 0 .. 1"));
  bad = config(), bad.kind = RINGFOLD_GDN;
  EXPECT_TRUE(refused(ringfold_pool_create(&bad, &pool), RINGFOLD_INVALID_ARGUMENT, "ring_a: expected nothing"));
}

TEST(GateCapi, FoldTakesTheMixer) {
  const auto make = [](Side& side, FoldArgs* fold) {
    VerifyArgs args;
    args.mixer = mixer_of(side, 7);
    set_window(side, 1, 9, &args);
    args.state = side.floats(DType::f32, {kSlots, HV, V, K});
    args.ring.k = side.floats(DType::bf16, {kSlots, kRows, H, K});
    args.ring.v = side.floats(DType::bf16, {kSlots, kRows, HV, V});
    args.ring.beta = side.floats(DType::f32, {kSlots, kRows, HV});
    args.ring.a = side.floats(DType::bf16, {kSlots, kRows, HV, K});
    fold->state = args.state, fold->ring = args.ring, fold->mixer = args.mixer;
    fold->slot_ids = args.window.slot_ids, fold->num_accepted = side.ints({2});
    return args;
  };
  Side plus(Buffer::Pitch::padded), c(Buffer::Pitch::padded);
  FoldArgs fold_args, twin;
  Arena arena;
  const VerifyArgs args = make(plus, &fold_args);
  const ringfold_verify_args given = arena.c(make(c, &twin));
  const ringfold_fold_args c_fold = arena.c(twin);
  ASSERT_TRUE(succeeded(verify(args)));
  ASSERT_TRUE(done(ringfold_verify(&given)));
  const Bytes before = pack(args.state);
  ASSERT_TRUE(succeeded(fold(fold_args)));
  ASSERT_TRUE(done(ringfold_fold(&c_fold)));
  EXPECT_TRUE(plus.equals(c));
  EXPECT_NE(pack(args.state), before);
  ringfold_fold_args without = c_fold;
  without.mixer = nullptr;
  EXPECT_TRUE(refused(ringfold_fold(&without), RINGFOLD_INVALID_ARGUMENT, "mixer.kind: expected kda, with ring.a"));
}

}  // namespace
}  // namespace ringfold::test
