// struct_size: older and newer callers.
#include <type_traits>

#include "capi/bridge.h"

namespace ringfold::test {
namespace {

// No struct has padding: a field of a later version may not come to lie in what an old caller never set. Floats have
// several bits for one value, so for some structs the sizes of their fields are added up.
template <class... T>
constexpr bool packed = (std::has_unique_object_representations_v<T> && ...);
static_assert(packed<ringfold_slot, ringfold_pool_config, ringfold_pool_bytes, ringfold_window, ringfold_ring,
                     ringfold_ring_owners, ringfold_history, ringfold_verify_args, ringfold_decode_args,
                     ringfold_fold_args, ringfold_commit_args, ringfold_conv_args, ringfold_conv_commit_args,
                     ringfold_desc, ringfold_footprint, ringfold_plan_info, ringfold_candidate>);
static_assert(sizeof(ringfold_mixer) == sizeof(size_t) + 2 * 4 + 2 * sizeof(void*) + 4 * 4);
static_assert(sizeof(ringfold_gated_norm_args) == sizeof(size_t) + 6 * sizeof(void*) + 2 * 4);
static_assert(sizeof(ringfold_layer_args) == sizeof(size_t) + 8 + 21 * sizeof(void*) + 6 * 4);
static_assert(sizeof(ringfold_step_cost) == sizeof(size_t) + 4 * 8 + 2 * sizeof(void*) + 4 * 4);

constexpr int64_t kTokens = 2, HV = 2, V = 4;

class Structs : public ::testing::Test {
 protected:
  Structs() {
    GatedNormArgs a;
    a.x = side.floats(DType::f32, {kTokens, HV, V});
    a.z = side.floats(DType::f32, {kTokens, HV, V});
    a.weight = side.floats(DType::f32, {V});
    a.out = side.poisoned(DType::f32, {kTokens, HV, V});
    out = a.out;
    given = arena.c(a);
  }

  Side side{Buffer::Pitch::packed};
  Arena arena;
  TensorView out;
  ringfold_gated_norm_args given = {};
};

TEST_F(Structs, AShorterOneIsReadAsIfTheRestWereZero) {
  ASSERT_TRUE(done(ringfold_gated_norm(&given)));
  const Bytes want = pack(out);
  fill_poison(out);
  // What an older version without gate, eps, impl and stream would give; the memory behind it is not the struct's.
  given.gate = 7;
  given.eps = -1;
  given.impl = reinterpret_cast<const char*>(1);
  given.struct_size = offsetof(ringfold_gated_norm_args, gate);
  ASSERT_TRUE(done(ringfold_gated_norm(&given)));
  EXPECT_EQ(pack(out), want);
  given.struct_size = sizeof given;
  given.impl = nullptr;
  EXPECT_TRUE(refused(ringfold_gated_norm(&given), RINGFOLD_INVALID_ARGUMENT, "gate: expected 0 .. 1, found 7"));
}

TEST_F(Structs, ALongerOneMustEndWithZeros) {
  struct Newer {
    ringfold_gated_norm_args known;
    const void* more[2];
  } newer = {given, {nullptr, nullptr}};
  newer.known.struct_size = sizeof newer;
  EXPECT_TRUE(done(ringfold_gated_norm(&newer.known)));
  for (size_t i = sizeof newer.known; i < sizeof newer; ++i) {
    auto* byte = reinterpret_cast<unsigned char*>(&newer) + i;
    *byte = 1;
    EXPECT_TRUE(refused(ringfold_gated_norm(&newer.known), RINGFOLD_INVALID_ARGUMENT,
                        "args.struct_size: expected 64 bytes, which this library knows, or zeros behind them, found 80 "
                        "bytes and byte " +
                            std::to_string(i) + " set"));
    *byte = 0;
  }
  EXPECT_TRUE(done(ringfold_gated_norm(&newer.known)));
}

TEST_F(Structs, SizesThatNoVersionHas) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{60}, sizeof given - 1, size_t{4104}, SIZE_MAX}) {
    given.struct_size = size;
    EXPECT_TRUE(refused(ringfold_gated_norm(&given), RINGFOLD_INVALID_ARGUMENT,
                        "args.struct_size: expected the sizeof of the struct, found " + std::to_string(size)));
  }
  given.struct_size = sizeof given;
  EXPECT_TRUE(done(ringfold_gated_norm(&given)));
}

TEST(NestedStructs, HaveSizesOfTheirOwn) {
  auto args = made<ringfold_verify_args>();
  ringfold_mixer mixer = {};
  ringfold_window window = {};
  args.mixer = &mixer;
  args.window = &window;
  EXPECT_TRUE(refused(ringfold_verify(&args), RINGFOLD_INVALID_ARGUMENT, "mixer.struct_size: "));
  mixer.struct_size = sizeof mixer;
  EXPECT_TRUE(refused(ringfold_verify(&args), RINGFOLD_INVALID_ARGUMENT, "window.struct_size: "));
  window.struct_size = sizeof window;
  ringfold_ring ring = {};
  args.ring = &ring;
  EXPECT_TRUE(refused(ringfold_verify(&args), RINGFOLD_INVALID_ARGUMENT, "ring.struct_size: "));
  ring.struct_size = sizeof ring;
  args.ring = nullptr;
  ringfold_history history = {};
  args.history = &history;
  EXPECT_TRUE(refused(ringfold_verify(&args), RINGFOLD_INVALID_ARGUMENT, "history.struct_size: "));
}

TEST(WrittenStructs, GetAsManyBytesAsTheyHave) {
  auto desc = made<ringfold_desc>();
  desc.H = desc.HV = 2;
  desc.K = desc.V = 16;
  auto whole = made<ringfold_footprint>();
  ASSERT_TRUE(done(ringfold_footprint_of(&desc, 0, &whole)));
  EXPECT_GT(whole.step_snapshot, 0);

  ringfold_footprint shorter;
  std::memset(&shorter, 0x55, sizeof shorter);
  shorter.struct_size = offsetof(ringfold_footprint, ring_bytes);
  ASSERT_TRUE(done(ringfold_footprint_of(&desc, 0, &shorter)));
  EXPECT_EQ(shorter.struct_size, offsetof(ringfold_footprint, ring_bytes));
  EXPECT_EQ(shorter.ring_row_bytes, whole.ring_row_bytes);
  EXPECT_EQ(shorter.ring_bytes, 0x5555555555555555);

  struct Newer {
    ringfold_footprint known;
    int64_t more, not_its;
  } newer;
  std::memset(&newer, 0x55, sizeof newer);
  newer.known.struct_size = offsetof(Newer, not_its);
  ASSERT_TRUE(done(ringfold_footprint_of(&desc, 0, &newer.known)));
  EXPECT_EQ(std::memcmp(&newer.known.state_bytes, &whole.state_bytes, sizeof whole - sizeof(size_t)), 0);
  EXPECT_EQ(newer.more, 0);
  EXPECT_EQ(newer.not_its, 0x5555555555555555);

  ringfold_footprint empty = {};
  EXPECT_TRUE(refused(ringfold_footprint_of(&desc, 0, &empty), RINGFOLD_INVALID_ARGUMENT, "footprint.struct_size: "));
  EXPECT_EQ(empty.state_bytes, 0);
}

}  // namespace
}  // namespace ringfold::test
