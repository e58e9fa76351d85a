// The kit's way to a device, tried with copies in host memory: every body must hold through it, and must notice what it
// would notice without.
#include "check/mirror.h"

#include <algorithm>

#include "check/check.h"
#include "check/conv_world.h"
#include "check/host_block.h"
#include "support/buffers.h"

namespace ringfold::test {
namespace {

TEST(HostBlock, FindsTheBlockThatAnAddressLiesIn) {
  Buffer buffer(DType::f32, {3, 5}, Buffer::Pitch::padded);
  const std::span<std::byte> block = block_of(buffer.view().data);
  EXPECT_EQ(block.data(), buffer.data() - Buffer::kGuard);
  EXPECT_EQ(block_of(block.data()).data(), block.data());
  EXPECT_EQ(block_of(block.data() + block.size() - 1).data(), block.data());
  EXPECT_TRUE(block_of(block.data() + block.size()).empty());
  Buffer moved = std::move(buffer);
  EXPECT_EQ(block_of(moved.view().data).data(), block.data());
  moved = Buffer();
  EXPECT_TRUE(block_of(block.data()).empty());
}

TEST(Mirror, CopiesWholeBlocksAndBringsThemBack) {
  Buffer x(DType::f32, {2, 3}, Buffer::Pitch::padded);
  std::vector<int32_t> table(10, 5);  // in no block: two columns, which overlap
  fill_normal(x.view(), 1);
  GatedNormArgs args;
  args.x = args.out = x.view();
  args.z = TensorView(table.data(), DType::i32, {5}, {2});
  args.weight = TensorView(table.data() + 1, DType::i32, {5}, {2});
  std::vector<std::byte> memory(4096);
  static std::byte* there = nullptr;
  there = memory.data();
  const detail::DeviceMemory functions = {.usable = [] { return Status{}; },
                                          .allocate =
                                              [](size_t, void** block) {
                                                *block = there;
                                                return Status{};
                                              },
                                          .release = [](void*) {},
                                          .fill = nullptr,
                                          .copy =
                                              [](void* to, const void* from, size_t bytes, void*) {
                                                std::copy_n(static_cast<const std::byte*>(from), bytes,
                                                            static_cast<std::byte*>(to));
                                                return Status{};
                                              },
                                          .copy_rows = nullptr,
                                          .synchronise = [](void*) { return Status{}; }};
  DeviceBlock block(functions);
  Mirror mirror(block, Device::cuda);
  mirror.add(args);
  ASSERT_TRUE(succeeded(mirror.upload(nullptr)));
  const GatedNormArgs moved = mirror.on_device(args);
  EXPECT_EQ(moved.x.data, moved.out.data);
  EXPECT_EQ(moved.x.device, Device::cuda);
  EXPECT_EQ(static_cast<std::byte*>(moved.weight.data) - static_cast<std::byte*>(moved.z.data), 4);
  auto* element = static_cast<float*>(moved.x.data);
  EXPECT_EQ(*element, floats(x.view())[0]);
  *element = 7;
  static_cast<int32_t*>(moved.weight.data)[2] = 9;
  element[3] = 8;  // a gap between rows
  EXPECT_TRUE(intact(x));
  ASSERT_TRUE(succeeded(mirror.download(nullptr)));
  EXPECT_EQ(floats(x.view())[0], 7);
  EXPECT_EQ(table, (std::vector<int32_t>{5, 5, 5, 9, 5, 5, 5, 5, 5, 5}));
  EXPECT_FALSE(intact(x));
}

class ThroughCopies : public ::testing::TestWithParam<std::string> {};

TEST_P(ThroughCopies, LineHolds) {
  const HostCopies copies;
  const std::string_view impl = implementations()[0];
  for (const Config& config : configs(GetParam(), Level::quick)) {
    const Outcome outcome = run_line(GetParam(), impl, config);
    EXPECT_TRUE(outcome.verdict != Verdict::fail) << outcome.message;
  }
}

std::vector<std::string> lines_of_small_tensors() {
  std::vector<std::string> ids;
  for (const Line& line : lines()) {
    if (std::string(line.id) != "C19") ids.emplace_back(line.id);  // its host tensors are address space, not memory
  }
  return ids;
}

INSTANTIATE_TEST_SUITE_P(All, ThroughCopies, ::testing::ValuesIn(lines_of_small_tensors()),
                         [](const auto& test) { return test.param; });

TEST(ThroughCopies, CallsWorkOnTheCopies) {
  const HostCopies copies;
  Config config;
  config.window = 3;
  const World world(config, "reference");
  const Store store = world.make_store();
  Batch batch = world.batch(0);
  const Status status = mirrored::verify(world.verify_args(store, 0, batch));
  ASSERT_TRUE(succeeded(status));
  Judge judge;
  const Store plain = world.make_store();
  Batch direct = world.batch(0);
  ASSERT_TRUE(succeeded(ringfold::verify(world.verify_args(plain, 0, direct))));
  EXPECT_TRUE(same(batch.out, direct.out));
  EXPECT_TRUE(same(store.ring().g, plain.ring().g));
  EXPECT_EQ(ints(store.pending()), ints(plain.pending()));
  EXPECT_NO_THROW(store.guards(judge));
}

}  // namespace
}  // namespace ringfold::test
