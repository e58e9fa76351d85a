// The pool through the ABI beside a pool of the C++ API: the same acts, then the same bytes.
#include "ringfold/pool.h"

#include "capi/bridge.h"

namespace ringfold {
void PrintTo(FoldPolicy policy, std::ostream* out) { *out << to_string(policy); }
}  // namespace ringfold

namespace ringfold::test {
namespace {

constexpr int64_t kLayers = 2, kSlots = 4, H = 1, HV = 2, K = 8, V = 4, C = 6, T = 3;

ringfold_pool_config c_config(FoldPolicy policy) {
  auto config = made<ringfold_pool_config>();
  config.layers = kLayers;
  config.slots = kSlots;
  config.H = H, config.HV = HV, config.K = K, config.V = V;
  config.ring_rows = policy == FoldPolicy::on_commit ? T : 3 * T;
  config.max_window = policy == FoldPolicy::on_commit ? 0 : T;
  config.conv_channels = C;
  config.conv_width = 3;
  config.kind = RINGFOLD_KDA;
  config.state_dtype = RINGFOLD_BF16;
  config.act_dtype = RINGFOLD_F16;
  config.qk_norm = RINGFOLD_QK_AS_GIVEN;
  config.state_rounding = RINGFOLD_PER_TOKEN;
  config.fold_policy = static_cast<int32_t>(policy);
  return config;
}

PoolConfig cpp_config(FoldPolicy policy) {
  return {.layers = kLayers,
          .slots = kSlots,
          .H = H,
          .HV = HV,
          .K = K,
          .V = V,
          .kind = MixerKind::kda,
          .state_dtype = DType::bf16,
          .act_dtype = DType::f16,
          .ring_rows = policy == FoldPolicy::on_commit ? T : 3 * T,
          .max_window = policy == FoldPolicy::on_commit ? 0 : T,
          .conv_channels = C,
          .conv_width = 3,
          .qk_l2norm = false,
          .state_rounding = StateRounding::per_token,
          .fold_policy = policy};
}

TensorView tensor_of(const ringfold_pool* pool, int32_t which, int64_t layer = RINGFOLD_ALL_LAYERS) {
  const DLTensor* tensor = nullptr;
  EXPECT_TRUE(done(ringfold_pool_tensor(pool, which, layer, &tensor)));
  return view_of(tensor);
}

class Pools : public ::testing::TestWithParam<FoldPolicy> {
 protected:
  void SetUp() override {
    const ringfold_pool_config config = c_config(GetParam());
    ASSERT_TRUE(done(ringfold_pool_create(&config, &c)));
    ASSERT_TRUE(succeeded(Pool::create(cpp_config(GetParam()), &plus)));
  }
  void TearDown() override { ringfold_pool_destroy(c); }

  std::vector<TensorView> views_of_plus() const {
    const Ring ring = plus->ring();
    const History h = plus->history();
    return {plus->state(),
            ring.k,
            ring.v,
            ring.g,
            ring.beta,
            plus->pending(),
            h.base,
            h.live,
            h.cuts,
            plus->conv_state(),
            plus->conv_ring(),
            plus->conv_pending(),
            plus->generations()};
  }

  /// Every tensor of both pools has the same description and the same bytes.
  ::testing::AssertionResult equal() const {
    const auto want = views_of_plus();
    for (int32_t which = 0; which <= RINGFOLD_POOL_GENERATIONS; ++which) {
      const TensorView got = tensor_of(c, which);
      if (to_string(got) != to_string(want[which])) {
        return ::testing::AssertionFailure() << which << ": " << to_string(got) << " and " << to_string(want[which]);
      }
      if (got.empty()) continue;
      const std::string text = changed(got, pack(want[which]));
      if (!text.empty()) return ::testing::AssertionFailure() << "tensor " << which << ": " << text;
    }
    return ::testing::AssertionSuccess();
  }

  std::vector<ringfold_slot> acquire(size_t count) {
    std::vector<ringfold_slot> slots(count);
    std::vector<Slot> theirs(count);
    EXPECT_TRUE(done(ringfold_pool_acquire(c, slots.data(), count)));
    EXPECT_TRUE(succeeded(plus->acquire(theirs)));
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(theirs[i], cpp(slots[i]));
    return slots;
  }
  static Slot cpp(ringfold_slot slot) { return {slot.id, slot.generation}; }

  /// verify (or decode) and conv_verify (conv_decode) of all layers, in both pools; outputs must agree.
  void step(const ringfold_slot& slot, uint64_t seed, bool decodes) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      Side c_side(Buffer::Pitch::padded), plus_side(Buffer::Pitch::padded);
      const auto window = [&](Side& side, auto* args) {
        args->mixer.A_log = side.floats(DType::f32, {HV});
        args->window = {.q = side.floats(DType::f16, {1, T, H, K}),
                        .k = side.floats(DType::f16, {1, T, H, K}),
                        .v = side.floats(DType::f16, {1, T, HV, V}),
                        .a = side.floats(DType::f16, {1, T, HV, K}),
                        .b = side.floats(DType::f16, {1, T, HV}),
                        .slot_ids = side.ints({slot.id})};
        args->out = side.poisoned(DType::f16, {1, T, HV, V});
        fill_normal(args->window.v, mix({static_cast<int64_t>(seed), layer}));
      };
      const auto conv = [&](Side& side) {
        ConvArgs args;
        args.x = side.floats(DType::f16, {1, T, C});
        args.weight = side.floats(DType::f32, {C, 3});
        args.out = side.poisoned(DType::f16, {1, T, C});
        args.slot_ids = side.ints({slot.id});
        fill_normal(args.x, mix({static_cast<int64_t>(seed), layer, 7}));
        return args;
      };
      const auto on_pool = [&](auto args) {
        args.pool = c;
        args.layer = layer;
        return args;
      };
      Arena arena;
      ConvArgs conv_args = conv(plus_side);
      plus->bind(layer, &conv_args);
      const auto conv_given = on_pool(arena.c(conv(c_side)));
      if (decodes) {
        DecodeArgs args, twin;
        window(plus_side, &args);
        window(c_side, &twin);
        plus->bind(layer, &args);
        const auto given = on_pool(arena.c(twin));
        ASSERT_TRUE(succeeded(decode(args)));
        ASSERT_TRUE(done(ringfold_decode(&given)));
        ASSERT_TRUE(succeeded(conv_decode(conv_args)));
        ASSERT_TRUE(done(ringfold_conv_decode(&conv_given)));
      } else {
        VerifyArgs args, twin;
        window(plus_side, &args);
        window(c_side, &twin);
        plus->bind(layer, &args);
        const auto given = on_pool(arena.c(twin));
        ASSERT_TRUE(succeeded(verify(args)));
        ASSERT_TRUE(done(ringfold_verify(&given)));
        ASSERT_TRUE(succeeded(conv_verify(conv_args)));
        ASSERT_TRUE(done(ringfold_conv_verify(&conv_given)));
      }
      EXPECT_TRUE(plus_side.equals(c_side));
    }
  }

  void commit_both(const ringfold_slot& slot, int32_t accepted, int32_t track = -1) {
    Side side(Buffer::Pitch::packed);
    CommitArgs args;
    args.slot_ids = side.ints({slot.id});
    args.generations = side.ints({slot.generation});
    args.num_accepted = side.ints({accepted});
    if (track >= 0) args.track_slots = side.ints({track}), args.track_steps = side.ints({0});
    args.row_status = side.ints({77});
    Arena arena;
    const ringfold_commit_args given = arena.c(args);
    ASSERT_TRUE(succeeded(commit(*plus, args)));
    EXPECT_EQ(ints(args.row_status)[0], RINGFOLD_ROW_DONE);
    set_ints(args.row_status, {77});
    ASSERT_TRUE(done(ringfold_commit(c, &given)));
    EXPECT_EQ(ints(args.row_status)[0], RINGFOLD_ROW_DONE);
  }

  ringfold_pool* c = nullptr;
  std::unique_ptr<Pool> plus;
};

TEST_P(Pools, Life) {
  EXPECT_TRUE(equal());
  const auto slots = acquire(3);
  EXPECT_TRUE(equal());
  step(slots[0], 1, true);
  step(slots[1], 2, false);
  EXPECT_TRUE(equal());
  const Bytes before = pack(plus->state());
  commit_both(slots[1], 2, GetParam() == FoldPolicy::on_commit ? slots[2].id : -1);
  EXPECT_TRUE(equal());
  step(slots[1], 3, false);
  commit_both(slots[1], 3);
  EXPECT_TRUE(equal());

  ASSERT_TRUE(done(ringfold_pool_settle(c, slots.data(), 2)));
  const std::vector<Slot> first_two = {cpp(slots[0]), cpp(slots[1])};
  ASSERT_TRUE(succeeded(plus->settle(first_two)));
  EXPECT_TRUE(equal());
  EXPECT_NE(pack(plus->state()), before);

  step(slots[0], 4, false);
  ASSERT_TRUE(done(ringfold_pool_materialise(c, slots[0], 2, slots[2])));
  ASSERT_TRUE(succeeded(plus->materialise(cpp(slots[0]), 2, cpp(slots[2]))));
  EXPECT_TRUE(equal());

  const ringfold_slot src[2] = {slots[0], slots[1]}, dst[2] = {slots[1], slots[2]};
  const Slot cpp_src[2] = {cpp(slots[0]), cpp(slots[1])}, cpp_dst[2] = {cpp(slots[1]), cpp(slots[2])};
  ASSERT_TRUE(done(ringfold_pool_copy(c, src, dst, 2)));
  ASSERT_TRUE(succeeded(plus->copy(cpp_src, cpp_dst)));
  EXPECT_TRUE(equal());

  size_t size = 0;
  ASSERT_TRUE(done(ringfold_pool_export_size(c, &size)));
  ASSERT_EQ(size, plus->export_size());
  std::vector<std::byte> bytes(size), cpp_bytes(size);
  ASSERT_TRUE(done(ringfold_pool_export_slot(c, slots[1], bytes.data(), size)));
  ASSERT_TRUE(succeeded(plus->export_slot(cpp(slots[1]), cpp_bytes)));
  EXPECT_EQ(bytes, cpp_bytes);

  ASSERT_TRUE(done(ringfold_pool_reset(c, &slots[1], 1)));
  ASSERT_TRUE(succeeded(plus->reset(cpp(slots[1]))));
  EXPECT_TRUE(equal());
  ASSERT_TRUE(done(ringfold_pool_import_slot(c, bytes.data(), size, slots[1])));
  ASSERT_TRUE(succeeded(plus->import_slot(cpp_bytes, cpp(slots[1]))));
  EXPECT_TRUE(equal());

  ASSERT_TRUE(done(ringfold_pool_release(c, slots.data(), 3)));
  const std::vector<Slot> all = {cpp(slots[0]), cpp(slots[1]), cpp(slots[2])};
  ASSERT_TRUE(succeeded(plus->release(all)));
  EXPECT_TRUE(equal());
  int64_t free = 0;
  ASSERT_TRUE(done(ringfold_pool_free_slots(c, &free)));
  EXPECT_EQ(free, kSlots);
  EXPECT_TRUE(done(ringfold_pool_acquire(c, nullptr, 0)));
  EXPECT_TRUE(done(ringfold_pool_set_stream(c, nullptr)));
}

TEST_P(Pools, Description) {
  ringfold_pool_config config = made<ringfold_pool_config>();
  ASSERT_TRUE(done(ringfold_pool_get_config(c, &config)));
  ringfold_pool_config want = c_config(GetParam());
  want.max_window = plus->config().max_window;
  EXPECT_EQ(std::memcmp(&config, &want, sizeof want), 0);

  auto got = made<ringfold_pool_bytes>(), before = made<ringfold_pool_bytes>();
  ASSERT_TRUE(done(ringfold_pool_get_bytes(c, &got)));
  ASSERT_TRUE(done(ringfold_pool_bytes_of(&want, &before)));
  EXPECT_EQ(std::memcmp(&got, &before, sizeof got), 0);
  const PoolBytes bytes = plus->bytes();
  EXPECT_EQ(got.state, bytes.state);
  EXPECT_EQ(got.ring, bytes.ring);
  EXPECT_EQ(got.conv, bytes.conv);
  EXPECT_EQ(got.cursors, bytes.cursors);
  EXPECT_EQ(got.scratch, bytes.scratch);
  EXPECT_EQ(got.total, bytes.total());

  for (int32_t which = 0; which < RINGFOLD_POOL_GENERATIONS; ++which) {
    const TensorView all = tensor_of(c, which);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const TensorView one = tensor_of(c, which, layer), want_one = all.at(layer);
      EXPECT_EQ(to_string(one), to_string(want_one));
      EXPECT_EQ(one.data, want_one.data);
    }
  }
}

TEST_P(Pools, Refusals) {
  const auto slots = acquire(kSlots);
  EXPECT_TRUE(equal());
  ringfold_slot more = {};
  EXPECT_TRUE(refused(ringfold_pool_acquire(c, &more, 1), RINGFOLD_OUT_OF_MEMORY, "slots: expected 1 free slots"));
  EXPECT_TRUE(refused(ringfold_pool_acquire(c, &more, SIZE_MAX), RINGFOLD_OUT_OF_MEMORY, "slots: expected "));
  const ringfold_slot twice[2] = {slots[0], slots[0]}, never = {99, 1};
  const ringfold_slot stale = {slots[0].id, slots[0].generation + 1};
  EXPECT_TRUE(refused(ringfold_pool_release(c, twice, 2), RINGFOLD_INVALID_ARGUMENT, "slots[1]: expected every slot"));
  EXPECT_TRUE(refused(ringfold_pool_release(c, &never, 1), RINGFOLD_INVALID_ARGUMENT, "slots[0]: expected a slot id"));
  EXPECT_TRUE(refused(ringfold_pool_reset(c, &stale, 1), RINGFOLD_INVALID_ARGUMENT, "slots[0]: expected generation"));
  EXPECT_TRUE(refused(ringfold_pool_settle(c, &stale, 1), RINGFOLD_INVALID_ARGUMENT, ""));
  EXPECT_TRUE(refused(ringfold_pool_copy(c, slots.data(), twice, 2), RINGFOLD_INVALID_ARGUMENT, "dst"));
  EXPECT_TRUE(refused(ringfold_pool_materialise(c, slots[0], 1, slots[1]), RINGFOLD_INVALID_ARGUMENT, ""));
  EXPECT_TRUE(refused(ringfold_pool_release(c, nullptr, 2), RINGFOLD_INVALID_ARGUMENT,
                      "slots: expected 2 elements, found NULL"));
  EXPECT_TRUE(refused(ringfold_pool_copy(c, nullptr, twice, 1), RINGFOLD_INVALID_ARGUMENT, "src: expected 1 elements"));
  EXPECT_TRUE(refused(ringfold_pool_copy(c, twice, nullptr, 1), RINGFOLD_INVALID_ARGUMENT, "dst: expected 1 elements"));

  size_t size = 0;
  ASSERT_TRUE(done(ringfold_pool_export_size(c, &size)));
  std::vector<std::byte> bytes(size);
  EXPECT_TRUE(refused(ringfold_pool_export_slot(c, slots[0], bytes.data(), size - 1), RINGFOLD_INVALID_ARGUMENT, ""));
  EXPECT_TRUE(refused(ringfold_pool_export_slot(c, slots[0], nullptr, size), RINGFOLD_INVALID_ARGUMENT, "bytes: "));
  EXPECT_TRUE(refused(ringfold_pool_import_slot(c, bytes.data(), size, slots[0]), RINGFOLD_INVALID_ARGUMENT, ""));
  EXPECT_TRUE(refused(ringfold_pool_import_slot(c, nullptr, 0, slots[0]), RINGFOLD_INVALID_ARGUMENT, ""));

  const DLTensor* tensor = nullptr;
  for (const int32_t which : {-1, 19}) {
    EXPECT_TRUE(
        refused(ringfold_pool_tensor(c, which, 0, &tensor), RINGFOLD_INVALID_ARGUMENT, "which: expected 0 .. "));
  }
  for (const int64_t layer : {int64_t{-2}, kLayers, INT64_MAX, INT64_MIN}) {
    EXPECT_TRUE(
        refused(ringfold_pool_tensor(c, 0, layer, &tensor), RINGFOLD_INVALID_ARGUMENT, "layer: expected 0 .. 1"));
  }
  EXPECT_TRUE(refused(ringfold_pool_tensor(c, RINGFOLD_POOL_GENERATIONS, 0, &tensor), RINGFOLD_INVALID_ARGUMENT,
                      "layer: expected RINGFOLD_ALL_LAYERS"));
  EXPECT_TRUE(refused(ringfold_pool_tensor(c, 0, 0, nullptr), RINGFOLD_INVALID_ARGUMENT, "tensor: "));
  EXPECT_TRUE(refused(ringfold_pool_get_bytes(c, nullptr), RINGFOLD_INVALID_ARGUMENT, "bytes: "));
  EXPECT_TRUE(refused(ringfold_pool_get_config(c, nullptr), RINGFOLD_INVALID_ARGUMENT, "config: "));
  EXPECT_TRUE(refused(ringfold_pool_free_slots(c, nullptr), RINGFOLD_INVALID_ARGUMENT, "count: "));
  EXPECT_TRUE(refused(ringfold_pool_export_size(c, nullptr), RINGFOLD_INVALID_ARGUMENT, "size: "));
  EXPECT_TRUE(equal());  // nothing of this changed a byte
  step(slots[0], 5, false);
  commit_both(slots[0], 1);
  EXPECT_TRUE(equal());
}

TEST_P(Pools, RowsThatAreRefused) {
  ringfold_slot slot = {};
  ASSERT_TRUE(done(ringfold_pool_acquire(c, &slot, 1)));
  Side side(Buffer::Pitch::packed);
  CommitArgs args;
  args.slot_ids = side.ints({slot.id, slot.id + 1, -1});
  args.num_accepted = side.ints({1, 1, 1});
  Arena arena;
  ringfold_commit_args given = arena.c(args);
  EXPECT_TRUE(refused(ringfold_commit(c, &given), RINGFOLD_INVALID_ARGUMENT, "commit: "));
  const TensorView statuses = side.ints({77, 77, 77});
  given.row_status = arena.dl(statuses);
  EXPECT_TRUE(done(ringfold_commit(c, &given)));
  EXPECT_EQ(ints(statuses),
            (std::vector<int32_t>{RINGFOLD_ROW_NO_PENDING_WINDOW, RINGFOLD_ROW_SLOT_NOT_ACQUIRED, RINGFOLD_ROW_NULL}));
}

TEST_P(Pools, AreBoundWhole) {  // a call on a pool has no tensors of its own in the pool's place
  const auto pool_tensor = [&](int32_t which) {
    const DLTensor* tensor = nullptr;
    EXPECT_TRUE(done(ringfold_pool_tensor(c, which, 0, &tensor)));
    return tensor;
  };
  auto mixer = made<ringfold_mixer>();
  auto window = made<ringfold_window>();
  auto args = made<ringfold_verify_args>();
  args.mixer = &mixer;
  args.window = &window;
  args.pool = c;
  args.state = pool_tensor(RINGFOLD_POOL_STATE);
  EXPECT_TRUE(refused(ringfold_verify(&args), RINGFOLD_INVALID_ARGUMENT, "state: expected NULL beside a pool"));
  args.state = nullptr;
  args.pending = pool_tensor(RINGFOLD_POOL_PENDING);
  EXPECT_TRUE(refused(ringfold_verify(&args), RINGFOLD_INVALID_ARGUMENT, "pending: expected NULL beside a pool"));
  args.pending = nullptr;
  args.layer = kLayers;
  EXPECT_TRUE(refused(ringfold_verify(&args), RINGFOLD_INVALID_ARGUMENT, "layer: expected 0 .. 1, found 2"));
  auto conv = made<ringfold_conv_args>();
  conv.pool = c;
  conv.conv_ring = pool_tensor(RINGFOLD_POOL_CONV_RING);
  EXPECT_TRUE(
      refused(ringfold_conv_verify(&conv), RINGFOLD_INVALID_ARGUMENT, "conv_ring: expected NULL beside a pool"));
  conv.conv_ring = nullptr;
  conv.layer = -1;
  EXPECT_TRUE(refused(ringfold_conv_verify(&conv), RINGFOLD_INVALID_ARGUMENT, "layer: expected 0 .. 1, found -1"));
}

INSTANTIATE_TEST_SUITE_P(Capi, Pools,
                         ::testing::Values(FoldPolicy::on_commit, FoldPolicy::on_next_verify, FoldPolicy::lazy),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST(PoolCreate, DefaultsAreThoseOfTheCppApi) {
  auto config = made<ringfold_pool_config>();
  config.slots = 2, config.H = 1, config.HV = 1, config.K = 4, config.V = 4, config.ring_rows = 2;
  ringfold_pool* pool = nullptr;
  ASSERT_TRUE(done(ringfold_pool_create(&config, &pool)));
  auto got = made<ringfold_pool_config>();
  ASSERT_TRUE(done(ringfold_pool_get_config(pool, &got)));
  EXPECT_EQ(got.layers, 1);
  EXPECT_EQ(got.conv_width, PoolConfig().conv_width);
  EXPECT_EQ(got.max_window, 2);
  EXPECT_EQ(got.qk_norm, RINGFOLD_QK_L2NORM);
  for (const int32_t which : {RINGFOLD_POOL_CONV_STATE, RINGFOLD_POOL_CONV_RING, RINGFOLD_POOL_CONV_PENDING,
                              RINGFOLD_POOL_HISTORY_BASE, RINGFOLD_POOL_HISTORY_LIVE, RINGFOLD_POOL_HISTORY_CUTS}) {
    EXPECT_TRUE(tensor_of(pool, which).empty());
    EXPECT_TRUE(tensor_of(pool, which, 0).empty());
  }
  ringfold_pool_destroy(pool);
  ringfold_pool_destroy(nullptr);
}

TEST(PoolCreate, Refusals) {
  ringfold_pool* pool = reinterpret_cast<ringfold_pool*>(8);
  const auto fails = [&](const ringfold_pool_config* config, ringfold_status status, const std::string& begin) {
    pool = reinterpret_cast<ringfold_pool*>(8);
    EXPECT_TRUE(refused(ringfold_pool_create(config, &pool), status, begin));
    EXPECT_EQ(pool, nullptr);
  };
  ringfold_pool_config config = {};
  fails(nullptr, RINGFOLD_INVALID_ARGUMENT, "config: expected a struct, found NULL");
  fails(&config, RINGFOLD_INVALID_ARGUMENT, "config.struct_size: ");
  config.struct_size = sizeof config;
  fails(&config, RINGFOLD_INVALID_ARGUMENT, "");
  config = c_config(FoldPolicy::on_commit);
  EXPECT_TRUE(refused(ringfold_pool_create(&config, nullptr), RINGFOLD_INVALID_ARGUMENT, "pool: "));
  for (int32_t* field : {&config.kind, &config.state_dtype, &config.act_dtype, &config.qk_norm, &config.state_rounding,
                         &config.fold_policy, &config.device}) {
    const int32_t before = *field;
    for (const int32_t bad : {-1, 4}) {
      *field = bad;
      fails(&config, RINGFOLD_INVALID_ARGUMENT, "");
    }
    *field = before;
  }
  config.device_id = 1;
  fails(&config, RINGFOLD_INVALID_ARGUMENT, "device_id: expected 0 .. 0, found 1");
  config.device_id = 0;
  config.state_dtype = RINGFOLD_I32;
  fails(&config, RINGFOLD_INVALID_ARGUMENT, "");
  config = c_config(FoldPolicy::on_commit);
  config.slots = int64_t{1} << 50;
  auto bytes = made<ringfold_pool_bytes>();
  EXPECT_TRUE(refused(ringfold_pool_bytes_of(nullptr, &bytes), RINGFOLD_INVALID_ARGUMENT, "config: "));
  EXPECT_TRUE(refused(ringfold_pool_bytes_of(&config, &bytes), RINGFOLD_INVALID_ARGUMENT, ""));
  fails(&config, RINGFOLD_INVALID_ARGUMENT, "");
  config = c_config(FoldPolicy::on_commit);
  EXPECT_TRUE(refused(ringfold_pool_bytes_of(&config, nullptr), RINGFOLD_INVALID_ARGUMENT, "bytes: "));
}

TEST(PoolCreate, HandlesThatAreNull) {
  ringfold_slot slot = {};
  int64_t count = 0;
  size_t size = 0;
  const DLTensor* tensor = nullptr;
  auto config = made<ringfold_pool_config>();
  auto bytes = made<ringfold_pool_bytes>();
  char byte = 0;
  for (const ringfold_status status :
       {ringfold_pool_get_config(nullptr, &config), ringfold_pool_get_bytes(nullptr, &bytes),
        ringfold_pool_free_slots(nullptr, &count), ringfold_pool_set_stream(nullptr, nullptr),
        ringfold_pool_acquire(nullptr, &slot, 1), ringfold_pool_release(nullptr, &slot, 1),
        ringfold_pool_reset(nullptr, &slot, 1), ringfold_pool_settle(nullptr, &slot, 1),
        ringfold_pool_copy(nullptr, &slot, &slot, 1), ringfold_pool_materialise(nullptr, slot, 0, slot),
        ringfold_pool_export_size(nullptr, &size), ringfold_pool_export_slot(nullptr, slot, &byte, 1),
        ringfold_pool_import_slot(nullptr, &byte, 1, slot), ringfold_pool_tensor(nullptr, 0, 0, &tensor)}) {
    EXPECT_TRUE(refused(status, RINGFOLD_INVALID_ARGUMENT, "pool: expected a handle, found NULL"));
  }
}

}  // namespace
}  // namespace ringfold::test
