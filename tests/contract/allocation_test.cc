// C17, the half that needs no GPU: verify, decode, fold, commit, conv and gated_norm allocate nothing.
#include <atomic>
#include <cctype>
#include <memory>
#include <span>
#include <string>

#include "check/conv_world.h"
#include "check/layer_world.h"
#include "support/buffers.h"

/// Calls of operator new so far; allocation_hook.cc counts them.
extern std::atomic<int64_t> allocations;

namespace ringfold::test {
namespace {

/// Allocations of one call, after one to warm up (thread pools start once).
template <class Call>
int64_t allocations_of(Call call) {
  EXPECT_TRUE(succeeded(call()));
  const int64_t before = allocations;
  const bool ok = call().ok();
  const int64_t after = allocations;
  EXPECT_TRUE(ok);
  return after - before;
}

class Allocations : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
#ifndef RINGFOLD_OPENMP
    set_num_threads(1);  // plain threads (for thread sanitizers) are made anew by every call
#endif
  }
};

TEST(Counter, Counts) {
  const int64_t before = allocations;
  const std::unique_ptr<std::string> p = std::make_unique<std::string>(100, 'x');
  EXPECT_GT(allocations - before, 0) << p->size();
}

TEST_P(Allocations, ComputeCallsMakeNone) {
  for (Gate gate : {Gate::gdn, Gate::kda_softplus}) {
    for (Layout layout : {Layout::dense, Layout::ragged, Layout::strided}) {
      Config config;
      config.gate = gate, config.layout = layout, config.H = 2, config.HV = 4, config.rows = 3, config.layers = 2;
      config.state = DType::bf16, config.act = DType::bf16;
      const World world(config, GetParam());
      const Store store = world.make_store();
      Batch batch = world.batch(0);
      batch.want_snapshots();
      const VerifyArgs verify_args = world.verify_args(store, 0, batch);
      EXPECT_EQ(allocations_of([&] { return verify(verify_args); }), 0) << config.name();
      const DecodeArgs decode_args = world.decode_args(store, 0, batch);
      EXPECT_EQ(allocations_of([&] { return decode(decode_args); }), 0) << config.name();
      const RowBuffers ids(world.slots), counts(std::vector<int32_t>(world.slots.size(), 0)),
          status(std::vector<int32_t>(world.slots.size(), 0));
      FoldArgs fold_args = world.fold_args(store, ids, counts);
      fold_args.pending = {};
      EXPECT_EQ(allocations_of([&] { return fold(fold_args); }), 0) << config.name();
      fold_args.row_status = status.view;
      EXPECT_EQ(allocations_of([&] { return fold(fold_args); }), 0) << config.name();

      const ConvWorld conv(config, GetParam());
      const ConvWorld::Memory memory = conv.make_memory();
      const ConvWorld::Call call = conv.call(memory, conv.rows());
      EXPECT_EQ(allocations_of([&] { return conv_verify(call.args); }), 0) << config.name();
      EXPECT_EQ(allocations_of([&] { return conv_decode(call.args); }), 0) << config.name();
      ConvCommitArgs commit_args;
      commit_args.conv_state = memory.state, commit_args.conv_ring = memory.ring;
      commit_args.slot_ids = ids.view, commit_args.num_accepted = counts.view;
      commit_args.impl = GetParam();
      EXPECT_EQ(allocations_of([&] { return conv_commit(commit_args); }), 0) << config.name();
      const LayerWorld layer(config, GetParam());
      const LayerWorld::Memory layer_memory = layer.make_memory();
      LayerWorld::Call layer_call = layer.call();
      const LayerArgs layer_args = layer.args(layer_memory, layer_call);
      EXPECT_EQ(allocations_of([&] { return verify_layer(layer_args); }), 0) << config.name();
      EXPECT_EQ(allocations_of([&] { return decode_layer(layer_args); }), 0) << config.name();
      GatedNormArgs norm{batch.out, batch.out, {}, batch.out, NormGate::silu, 1e-6f, GetParam()};
      if (layout != Layout::ragged) continue;
      Buffer weight(DType::f32, {config.V});
      fill_zero(weight.view());
      norm.weight = weight.view();
      EXPECT_EQ(allocations_of([&] { return gated_norm(norm); }), 0) << config.name();
    }
  }
}

TEST_P(Allocations, CommitMakesNone) {
  PoolConfig config;
  config.layers = 3, config.slots = 4, config.H = 1, config.HV = 2, config.K = 16, config.V = 8, config.ring_rows = 4;
  config.conv_channels = 5;
  std::unique_ptr<Pool> pool;
  ASSERT_TRUE(succeeded(Pool::create(config, &pool)));
  Slot slots[2];
  ASSERT_TRUE(succeeded(pool->acquire(std::span<Slot>(slots))));  // a bare array would decay to a Slot*
  const RowBuffers ids({slots[0].id, slots[1].id}), generations({slots[0].generation, slots[1].generation}),
      counts({2, 0}), status({77, 77});
  CommitArgs args;
  args.slot_ids = ids.view, args.generations = generations.view, args.num_accepted = counts.view;
  args.row_status = status.view;
  args.impl = GetParam();
  const auto step = [&] {  // a window is pending again, as after a verify
    set_ints(merge(pool->pending(), 0, 2), std::vector<int32_t>(12, 3));
    set_ints(merge(pool->conv_pending(), 0, 2), std::vector<int32_t>(12, 3));
  };
  step();
  ASSERT_TRUE(succeeded(commit(*pool, args)));
  EXPECT_EQ(ints(status.view), (std::vector<int32_t>{0, 0}));
  step();
  const int64_t before = allocations;
  const bool ok = commit(*pool, args).ok();
  EXPECT_EQ(allocations - before, 0);
  EXPECT_TRUE(ok);
}

INSTANTIATE_TEST_SUITE_P(All, Allocations, ::testing::ValuesIn(implementations()), [](const auto& test) {
  std::string name(test.param);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

}  // namespace
}  // namespace ringfold::test
