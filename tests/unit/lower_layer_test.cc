// What a description says of a layer's memory, by which kernels say whether they serve it.
#include <gtest/gtest.h>

#include "core/lower.h"
#include "ringfold/pool.h"

namespace ringfold::detail {
namespace {

constexpr int kV = 16, kK = 64, kC = 2 * kK + kV;

TEST(LowerLayer, AlignmentAndStridesOfItsOwnTensorsCount) {
  const PoolConfig config{.slots = 2,
                          .H = 1,
                          .HV = 1,
                          .K = kK,
                          .V = kV,
                          .act_dtype = DType::bf16,
                          .ring_rows = 4,
                          .conv_channels = kC,
                          .conv_width = 4};
  std::unique_ptr<Pool> pool;
  ASSERT_TRUE(Pool::create(config, &pool).ok());
  alignas(64) std::byte memory[8][2048] = {};
  int32_t slot = 0;
  const auto view = [&](int i, DType type, std::initializer_list<int64_t> shape) {
    return TensorView(memory[i], type, shape);
  };
  LayerArgs args;
  pool->bind(0, &args);
  args.mixer.A_log = view(0, DType::f32, {1});
  args.qkv = view(1, DType::bf16, {1, 2, kC});
  args.window.a = args.window.b = view(2, DType::bf16, {1, 2, 1});
  args.window.slot_ids = TensorView(&slot, DType::i32, {1});
  args.conv_weight = view(3, DType::bf16, {kC, 4});
  args.z = view(4, DType::bf16, {1, 2, 1, kV});
  args.norm_weight = view(5, DType::f32, {kV});
  args.out = view(6, DType::bf16, {1, 2, 1, kV});

  const auto lowered = [&](const LayerArgs& of) {
    LayerParams p;
    Desc desc;
    const Status status = lower_layer(Op::verify_layer, of, &p, &desc);
    EXPECT_TRUE(status.ok()) << status.message();
    return desc;
  };
  EXPECT_EQ(lowered(args).input_alignment, 16);
  const int64_t of_states = kK * kV * 4;  // between heads
  EXPECT_EQ(lowered(args).widest_stride, of_states);

  LayerArgs other = args;
  other.conv_ring.stride[1] += 4, other.conv_ring.shape[1] -= 1;  // rows eight bytes further apart
  EXPECT_EQ(lowered(other).input_alignment, 8);
  const auto widest = [&](auto change) {
    other = args;
    change(&other);
    return lowered(other).widest_stride;
  };
  constexpr int64_t kFar = 3'000'000'000;  // elements
  EXPECT_EQ(widest([](LayerArgs* a) { a->conv_weight.stride[0] = kFar; }), 2 * kFar);
  EXPECT_EQ(widest([](LayerArgs* a) { a->conv_state.stride[1] = kFar; }), 2 * kFar);
  EXPECT_EQ(widest([](LayerArgs* a) { a->conv_state.stride[2] = kFar; }), 2 * kFar);
  EXPECT_EQ(widest([](LayerArgs* a) { a->conv_ring.stride[1] = kFar; }), 2 * kFar);
  EXPECT_EQ(widest([](LayerArgs* a) { a->z.stride[1] = kFar; }), 2 * kFar);
  EXPECT_EQ(widest([](LayerArgs* a) { a->z.stride[2] = kFar; }), 2 * kFar);
}

}  // namespace
}  // namespace ringfold::detail
