// A pool's layers in one call each: what bind fills in, the stack that a call needs, how the work is cut.
#include <gmock/gmock.h>
#include <pthread.h>

#include "cpu/tiling.h"
#include "support/buffers.h"
#include "trace/rig.h"

namespace ringfold::test {
namespace {

TEST(PoolLayer, BindFillsInWhatThePoolOwns) {
  for (FoldPolicy policy : {FoldPolicy::on_commit, FoldPolicy::lazy}) {
    RigConfig config;
    config.pool = {.layers = 3, .slots = 4, .H = 1, .HV = 2, .K = 8, .V = 4, .kind = MixerKind::kda};
    config.pool.ring_rows = 9;
    config.pool.max_window = policy == FoldPolicy::on_commit ? 9 : 4;
    config.pool.fold_policy = policy;
    config.pool.qk_l2norm = false;
    config.pool.state_rounding = StateRounding::per_token;
    const std::unique_ptr<Pool> pool = Rig(config).make_pool();
    LayerArgs args;
    pool->bind(2, &args);
    EXPECT_EQ(args.mixer.kind, MixerKind::kda);
    EXPECT_FALSE(args.mixer.qk_l2norm);
    EXPECT_EQ(args.state_rounding, StateRounding::per_token);
    EXPECT_EQ(args.state.data, pool->state(2).data);
    EXPECT_EQ(args.ring.g.data, pool->ring(2).g.data);
    EXPECT_EQ(args.pending.data, pool->pending(2).data);
    EXPECT_EQ(args.conv_state.data, pool->conv_state(2).data);
    EXPECT_EQ(args.conv_ring.data, pool->conv_ring(2).data);
    EXPECT_EQ(args.conv_pending.data, pool->conv_pending(2).data);
    EXPECT_EQ(args.history.policy, policy);
    EXPECT_EQ(args.history.base.data, pool->history(2).base.data);
  }
}

/// The largest heads and windows, alone on a thread with as much stack as docs/dispatch.md names, and V cut between
/// threads; both give the bits of one thread with whole heads.
TEST(PoolLayer, LargestCallsAndSmallestStack) {
  RigConfig config;
  config.pool = {.layers = 1, .slots = 1, .H = 1, .HV = 2, .K = 256, .V = 256, .ring_rows = 32, .conv_width = 4};
  config.fused = true;
  const Rig rig(config);
  const std::vector<Row> rows = {{.slot = 0, .tokens = std::vector<int>(32, 3)}},
                         few = {{.slot = 0, .tokens = {1, 2, 3}}};
  const auto run = [&](int threads, const std::vector<Row>& tokens) {
    const std::unique_ptr<Pool> pool = rig.make_pool();
    Slot slot;
    EXPECT_TRUE(succeeded(pool->acquire(&slot)));
    set_num_threads(threads);
    const StepResult decoded = rig.decode(target_of(*pool), tokens), verified = rig.verify(target_of(*pool), tokens);
    set_num_threads(0);
    EXPECT_TRUE(succeeded(decoded.status));
    EXPECT_TRUE(succeeded(verified.status));
    std::vector<Bytes> all = {pack(decoded.out[0].view()), pack(verified.out[0].view())};
    for (const TensorView& view :
         {pool->state(), pool->conv_state(), pool->conv_ring(), pool->ring().k, pool->ring().v})
      all.push_back(pack(view));
    return all;
  };
  for (const auto& tokens : {rows, few}) {
    const std::vector<Bytes> one = run(1, tokens);
    for (int threads : {2, 3, 8, 16}) EXPECT_EQ(run(threads, tokens), one) << threads << " threads";
  }

  struct Call {
    const std::function<std::vector<Bytes>()> run;
    std::vector<Bytes> result;
  } call{[&] { return run(1, rows); }, {}};
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 640 << 10), 0);
  pthread_t thread;
  const auto body = [](void* data) -> void* {
    Call& c = *static_cast<Call*>(data);
    c.result = c.run();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, body, &call), 0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  EXPECT_EQ(pthread_attr_destroy(&attributes), 0);
  EXPECT_EQ(call.result, run(1, rows));
}

struct Shape {
  int64_t rows, H, HV, K, V, max_window;
};

TEST(LayerCut, CoversAllHeadsAndStaysWithinItsBuffers) {
  using namespace ringfold::cpu;
  int shared = 0, cut_v = 0, several = 0;
  for (int64_t rows : {1, 2, 16}) {
    for (int64_t H : {1, 2, 12, 16}) {
      for (int64_t group : {1, 2, 3, 4, 8}) {
        for (int64_t dim : {1, 64, 128, 256}) {
          for (int64_t T : {1, 4, 32}) {
            for (int threads : {1, 2, 5, 16, 64}) {
              const LayerCut cut = layer_cut(Shape{rows, H, H * group, dim, dim, T}, 4, threads);
              ASSERT_EQ(group % cut.heads, 0);
              ASSERT_EQ(cut.tasks_per_key, group / cut.heads * cut.v_parts);
              if (cut.tasks_per_key > 1) {
                ++shared;
                ASSERT_EQ(cut.keys, 1);
                ASSERT_LE(rows * H, kMostSharedKeys);
              }
              if (cut.v_parts > 1) {
                ++cut_v;
                ASSERT_LE(rows * H * group * T * dim, kMostSharedFloats);
              }
              ASSERT_GE(cut.keys, 1);
              ASSERT_LE(cut.keys, H);
              const int batch = layer_batch(T, dim, dim, cut.keys, cut.heads, 4);
              ASSERT_LE(cut.keys * (2 * T * dim * 4 + batch * T * dim * 4), kLayerBuffer);
              ASSERT_TRUE(cut.keys == 1 || batch == cut.heads);
              several += cut.keys > 1;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(shared, 0);
  EXPECT_GT(cut_v, 0);
  EXPECT_GT(several, 0);
  // One row of Qwen3.5-35B: two threads take its 16 key heads in four tasks.
  const LayerCut qwen = layer_cut(Shape{1, 16, 32, 128, 128, 4}, 2, 2);
  EXPECT_EQ(qwen.keys, 4);
  EXPECT_EQ(qwen.heads, 2);
  EXPECT_EQ(qwen.v_parts, 1);
  // 32 threads: one value head each.
  const LayerCut wide = layer_cut(Shape{1, 16, 32, 128, 128, 4}, 2, 32);
  EXPECT_EQ(wide.heads, 1);
  EXPECT_EQ(wide.tasks_per_key, 2);
}

}  // namespace
}  // namespace ringfold::test
