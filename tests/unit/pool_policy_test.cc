// Fold policies that keep a history: every operation of a pool while accepted rows wait in the ring.
#include <gmock/gmock.h>
#include <pthread.h>

#include <cstring>

#include "support/buffers.h"
#include "trace/rig.h"
#include "unit/count_new.h"
#include "unit/exported_slot.h"

namespace ringfold::test {
namespace {

using ::testing::HasSubstr;

constexpr FoldPolicy kPolicies[] = {FoldPolicy::on_next_verify, FoldPolicy::lazy};

RigConfig config(FoldPolicy policy, int64_t ring_rows, bool halves = false) {
  RigConfig c;
  c.pool = {.layers = 3, .slots = 4, .H = 1, .HV = 2, .K = 9, .V = 5, .ring_rows = ring_rows, .conv_width = 4};
  c.pool.fold_policy = policy;
  if (policy != FoldPolicy::on_commit) c.pool.max_window = 4;
  if (halves) c.pool.state_dtype = DType::bf16, c.pool.act_dtype = DType::f16;
  return c;
}

int32_t value(const TensorView& all, int64_t layer, int32_t slot) { return ints(slice(all.at(layer), slot, 1))[0]; }

/// A pool whose slots are all acquired, and what each slot's tokens are.
struct World {
  explicit World(const RigConfig& c) : rig(c), plain(rig), pool(rig.make_pool()), slots(4) {
    EXPECT_TRUE(succeeded(pool->acquire(slots)));
  }
  StepResult verify(int32_t slot, const std::vector<int>& tokens) {
    StepResult r = rig.verify(target_of(*pool), {{.slot = slot, .tokens = tokens}});
    EXPECT_TRUE(succeeded(r.status));
    EXPECT_EQ(r.row_status, std::vector<int32_t>{0});
    return r;
  }
  int32_t commit(int32_t slot, int32_t accept, int32_t track = -1, int32_t step = -1) {
    int32_t status = 99;
    CommitArgs a;
    a.slot_ids = TensorView(&slot, DType::i32, {1});
    a.num_accepted = TensorView(&accept, DType::i32, {1});
    if (track >= 0) {
      a.track_slots = TensorView(&track, DType::i32, {1});
      a.track_steps = TensorView(&step, DType::i32, {1});
    }
    a.row_status = TensorView(&status, DType::i32, {1});
    EXPECT_TRUE(succeeded(ringfold::commit(*pool, a)));
    return status;
  }
  /// Verifies `tokens` and keeps them all.
  void accept(int32_t slot, const std::vector<int>& tokens) {
    verify(slot, tokens);
    EXPECT_EQ(commit(slot, static_cast<int32_t>(tokens.size())), 0);
  }
  int32_t live(int32_t slot, int64_t layer = 0) const { return value(pool->history().live, layer, slot); }
  int32_t pending(int32_t slot, int64_t layer = 0) const { return value(pool->pending(), layer, slot); }
  Bytes state(int32_t slot) const {
    Bytes all;
    for (int64_t layer = 0; layer < 3; ++layer) {
      const Bytes bytes = pack(slice(pool->state(layer), slot, 1));
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }
  std::vector<Bytes> dump() const {
    std::vector<Bytes> all;
    const Ring ring = pool->ring();
    const History h = pool->history();
    for (const TensorView& v : {pool->state(), ring.k, ring.v, ring.g, ring.beta, pool->conv_state(), pool->conv_ring(),
                                pool->pending(), pool->conv_pending(), h.base, h.live, h.cuts, pool->generations()}) {
      all.push_back(pack(v));
    }
    return all;
  }
  /// What the slot holds after these groups of tokens, each of them one commit.
  std::string compare(int32_t slot, const std::vector<std::vector<int>>& groups) {
    EXPECT_TRUE(succeeded(pool->settle({&slots[slot], 1})));
    Plain::State want = plain.zero();
    for (const std::vector<int>& group : groups) plain.decode(&want, group, "reference");
    return compare_slot(*pool, slot, want);
  }

  Rig rig;
  Plain plain;
  std::unique_ptr<Pool> pool;
  std::vector<Slot> slots;
};

TEST(PolicyPool, DescriptionsThatContradictThemselves) {
  struct Case {
    const char* names;
    void (*change)(PoolConfig&);
  };
  const Case cases[] = {
      {"ring_rows", [](PoolConfig& c) { c.ring_rows = 1, c.max_window = 0; }},
      {"ring_rows", [](PoolConfig& c) { c.ring_rows = kMaxWindow + 1; }},
      {"max_window", [](PoolConfig& c) { c.max_window = c.ring_rows; }},
      {"max_window", [](PoolConfig& c) { c.max_window = -1; }},
      {"max_window", [](PoolConfig& c) { c.fold_policy = FoldPolicy::on_commit; }},
  };
  for (FoldPolicy policy : kPolicies) {
    for (const Case& one : cases) {
      PoolConfig c = config(policy, 9).pool;
      one.change(c);
      std::unique_ptr<Pool> pool;
      const Status s = Pool::create(c, &pool);
      EXPECT_EQ(s.code(), Code::invalid_argument) << one.names;
      EXPECT_THAT(s.message(), HasSubstr(one.names));
    }
  }
}

TEST(PolicyPool, TheLargestWindowIsHalfOfTheRingUnlessSaid) {
  for (FoldPolicy policy : kPolicies) {
    for (int64_t rows = 2; rows <= kMaxWindow; ++rows) {
      PoolConfig c = config(policy, rows).pool;
      c.max_window = 0;
      std::unique_ptr<Pool> pool;
      ASSERT_TRUE(succeeded(Pool::create(c, &pool)));
      EXPECT_EQ(pool->config().max_window, rows / 2);
    }
  }
  std::unique_ptr<Pool> pool;
  ASSERT_TRUE(succeeded(Pool::create(config(FoldPolicy::on_commit, 4).pool, &pool)));
  EXPECT_EQ(pool->config().max_window, 4);
  EXPECT_TRUE(pool->history().empty());
}

TEST(PolicyPool, AHistoryCostsThreeCursorsForEachSlotAndLayer) {
  PoolConfig c = config(FoldPolicy::lazy, 9).pool;
  PoolBytes lazy, plain;
  ASSERT_TRUE(succeeded(pool_bytes(c, &lazy)));
  c.fold_policy = FoldPolicy::on_commit, c.max_window = 0;
  ASSERT_TRUE(succeeded(pool_bytes(c, &plain)));
  EXPECT_EQ(lazy.cursors - plain.cursors, 3u * 4u * 3 * 4);
  EXPECT_EQ(lazy.ring, plain.ring);
}

/// One script on three pools: same outputs, same states, whatever the policy; with a 16-bit state too, which on_commit
/// rounds at every commit.
TEST(PolicyPool, PoliciesAgreeBitForBit) {
  for (const bool halves : {false, true}) {
    for (const int64_t ring_rows : {5, 6, 8, 13, 32}) {
      World commit(config(FoldPolicy::on_commit, 4, halves));
      World next(config(FoldPolicy::on_next_verify, ring_rows, halves)),
          lazy(config(FoldPolicy::lazy, ring_rows, halves));
      check::Rng rng(static_cast<uint64_t>(ring_rows));
      for (int step = 0; step < 40; ++step) {
        const auto slot = static_cast<int32_t>(rng.below(2));
        std::vector<int> tokens;
        for (int64_t t = 1 + rng.below(4); t > 0; --t) tokens.push_back(static_cast<int>(rng.below(48)));
        const auto accept = static_cast<int32_t>(rng.below(static_cast<int64_t>(tokens.size()) + 1));
        const bool decodes = rng.below(8) == 0;
        std::vector<StepResult> results;
        for (World* w : {&commit, &next, &lazy}) {
          if (decodes) {
            results.push_back(w->rig.decode(target_of(*w->pool), {{.slot = slot, .tokens = tokens}}));
          } else {
            results.push_back(w->verify(slot, tokens));
            ASSERT_EQ(w->commit(slot, accept), 0);
          }
        }
        for (size_t i : {1, 2}) {
          for (size_t layer = 0; layer < 3; ++layer) {
            EXPECT_TRUE(same(results[i].out[layer].view(), results[0].out[layer].view()));
          }
        }
      }
      for (World* w : {&next, &lazy}) {
        ASSERT_TRUE(succeeded(w->pool->settle(w->slots)));
        EXPECT_TRUE(same(w->pool->state(), commit.pool->state()));
        EXPECT_TRUE(same(w->pool->conv_state(), commit.pool->conv_state()));
      }
    }
  }
}

TEST(PolicyPool, ACommitInARingOfTwoWindowsWritesNoStateAndTakesNoMemory) {
  for (FoldPolicy policy : kPolicies) {
    World w(config(policy, 8));
    for (int round = 0; round < 6; ++round) {
      w.verify(1, {1, 2, 3, 4});
      const Bytes before = pack(w.pool->state());
      const int32_t slot = 1, accept = 3;
      CommitArgs a;
      a.slot_ids = TensorView(&slot, DType::i32, {1});
      a.num_accepted = TensorView(&accept, DType::i32, {1});
      const int64_t calls = g_calls;
      const Status s = commit(*w.pool, a);
      EXPECT_EQ(g_calls, calls);
      ASSERT_TRUE(succeeded(s));
      EXPECT_EQ(pack(w.pool->state()), before);
      EXPECT_EQ(w.live(1), 3);  // 3 + 4 + 4 rows do not fit 8, so each lazy verify folds too
    }
  }
}

TEST(PolicyPool, LazyFoldsWhenTheRingMightOverflow) {
  World w(config(FoldPolicy::lazy, 16));
  std::vector<std::vector<int>> groups;
  std::vector<int32_t> lives;
  for (int i = 0; i < 12; ++i) {
    const Bytes before = w.state(0);
    w.verify(0, {i, i + 1, i + 2});
    const bool folds = (w.pending(0) & kFolded) != 0;
    EXPECT_EQ(w.state(0) != before, folds);
    ASSERT_EQ(w.commit(0, 2), 0);
    groups.push_back({i, i + 1});
    lives.push_back(w.live(0));
  }
  // live + 3 + 4 > 16 is due: from 10 rows on.
  EXPECT_EQ(lives, (std::vector<int32_t>{2, 4, 6, 8, 10, 2, 4, 6, 8, 10, 2, 4}));
  EXPECT_EQ(w.compare(0, groups), "");
}

TEST(PolicyPool, AVerifyThatReplacesAWindowFoldsOnce) {
  for (FoldPolicy policy : kPolicies) {
    World w(config(policy, 8));
    w.accept(2, {1, 2, 3});
    w.verify(2, {4, 5, 6, 7});
    EXPECT_EQ(w.pending(2), 4 | kFolded);
    const Bytes folded = w.state(2);
    w.verify(2, {8});
    EXPECT_EQ(w.pending(2), 1 | kFolded);
    w.verify(2, {});
    EXPECT_EQ(w.pending(2), 0 | kFolded);
    w.verify(2, {9, 10});
    EXPECT_EQ(w.state(2), folded);
    EXPECT_EQ(w.live(2), 3);
    EXPECT_EQ(w.commit(2, 2), 0);
    EXPECT_EQ(w.live(2), 2);
    EXPECT_EQ(w.compare(2, {{1, 2, 3}, {9, 10}}), "");
  }
}

TEST(PolicyPool, DecodeFoldsTheHistoryAndDropsTheWindow) {
  for (FoldPolicy policy : kPolicies) {
    for (const bool folded : {false, true}) {
      World w(config(policy, 8, true));
      w.accept(0, {1, 2, 3});
      if (folded) w.verify(0, {4, 5, 6, 7});
      std::vector<int> chunk(32);  // a ring of history and a chunk of a prompt in one call
      for (int i = 0; i < 32; ++i) chunk[static_cast<size_t>(i)] = i;
      EXPECT_TRUE(succeeded(w.rig.decode(target_of(*w.pool), {{.slot = 0, .tokens = chunk}}).status));
      EXPECT_EQ(w.live(0), 0);
      EXPECT_EQ(w.pending(0), kNoWindow);
      EXPECT_EQ(w.compare(0, {{1, 2, 3}, chunk}), "");
    }
  }
}

/// Engines call from threads of their own. docs/dispatch.md promises that this is enough.
TEST(PolicyPool, ACallOnTheCpuNeedsLessThan640KiBOfStack) {
  World w(config(FoldPolicy::lazy, 8, true));
  w.accept(0, {1, 2, 3});
  set_num_threads(1);
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 640 << 10), 0);
  const auto call = [](void* world) -> void* {
    const World& the = *static_cast<World*>(world);
    EXPECT_TRUE(succeeded(the.rig.decode(target_of(*the.pool), {{.slot = 0, .tokens = std::vector<int>(32)}}).status));
    return nullptr;
  };
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, call, &w), 0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  EXPECT_EQ(pthread_attr_destroy(&attributes), 0);
  set_num_threads(0);
  EXPECT_EQ(w.live(0), 0);
}

TEST(PolicyPool, AcquireReleaseAndResetEmptyTheHistory) {
  for (FoldPolicy policy : kPolicies) {
    World w(config(policy, 9));
    for (int32_t slot : {1, 2}) w.accept(slot, {1, 2}), w.accept(slot, {3, 4});
    ASSERT_TRUE(succeeded(w.pool->reset(w.slots[1])));
    ASSERT_TRUE(succeeded(w.pool->release(w.slots[2])));
    ASSERT_TRUE(succeeded(w.pool->acquire(&w.slots[2])));
    const History h = w.pool->history();
    for (int32_t slot : {1, 2}) {
      for (int64_t layer = 0; layer < 3; ++layer) {
        for (const TensorView& v : {h.base, h.live, h.cuts}) EXPECT_EQ(value(v, layer, slot), 0);
      }
      EXPECT_EQ(w.compare(slot, {}), "");
      w.accept(slot, {7, 8});
      EXPECT_EQ(w.compare(slot, {{7, 8}}), "");
    }
  }
}

TEST(PolicyPool, CopiesCarryTheHistory) {
  for (FoldPolicy policy : kPolicies) {
    World w(config(policy, 13, true));
    w.accept(0, {1, 2}), w.accept(0, {3}), w.verify(0, {4, 5, 6});
    w.accept(1, {9});
    const Slot src[] = {w.slots[0], w.slots[1]}, dst[] = {w.slots[1], w.slots[0]};
    ASSERT_TRUE(succeeded(w.pool->copy(src, dst)));
    EXPECT_EQ(w.commit(1, 2), 0);
    w.accept(0, {10, 11, 12});
    EXPECT_EQ(w.compare(1, {{1, 2}, {3}, {4, 5}}), "");
    EXPECT_EQ(w.compare(0, {{9}, {10, 11, 12}}), "");
  }
}

TEST(PolicyPool, SettleLeavesTheWindowWaiting) {
  for (FoldPolicy policy : kPolicies) {
    World w(config(policy, 16, true));
    w.accept(0, {1, 2}), w.accept(0, {3, 4}), w.verify(0, {5, 6, 7});
    EXPECT_EQ(w.compare(0, {{1, 2}, {3, 4}}), "");
    EXPECT_EQ(w.pending(0) & ~kFolded, 3);
    const Bytes settled = w.state(0);
    EXPECT_EQ(w.compare(0, {{1, 2}, {3, 4}}), "") << "a second time";
    EXPECT_EQ(w.commit(0, 2), 0);
    EXPECT_EQ(w.state(0), settled);
    EXPECT_EQ(w.live(0), 2);
    EXPECT_EQ(w.compare(0, {{1, 2}, {3, 4}, {5, 6}}), "");
    EXPECT_EQ(w.live(0), 0);
    EXPECT_EQ(w.pending(0), kNoWindow);
    const auto before = w.dump();
    const Slot bad[] = {w.slots[0], {.id = 1, .generation = 77}};
    EXPECT_EQ(w.pool->settle(bad).code(), Code::invalid_argument);
    EXPECT_EQ(w.dump(), before);
  }
  World w(config(FoldPolicy::on_commit, 4));
  w.verify(0, {1, 2});
  const Bytes before = pack(w.pool->pending());
  ASSERT_TRUE(succeeded(w.pool->settle(w.slots)));
  EXPECT_EQ(pack(w.pool->pending()), before);
}

TEST(PolicyPool, MaterialiseDoesNotDisturbTheSource) {
  for (FoldPolicy policy : kPolicies) {
    for (const bool verified : {false, true}) {
      for (int32_t n = 0; n <= (verified ? 3 : 0); ++n) {
        World w(config(policy, 16, true));
        w.accept(3, {1, 2}), w.accept(3, {3}), w.accept(1, {9, 9});
        if (verified) w.verify(3, {4, 5, 6});
        const History h = w.pool->history();
        const Bytes state = w.state(3), live = pack(slice(h.live.at(1), 3, 1)), base = pack(slice(h.base.at(1), 3, 1));
        const int32_t pending = w.pending(3);
        ASSERT_TRUE(succeeded(w.pool->materialise(w.slots[3], n, w.slots[1])));
        EXPECT_EQ(w.state(3), state);
        EXPECT_EQ(pack(slice(h.live.at(1), 3, 1)), live);
        EXPECT_EQ(pack(slice(h.base.at(1), 3, 1)), base);
        EXPECT_EQ(w.pending(3), pending);
        EXPECT_EQ(w.live(1), 0);
        EXPECT_EQ(w.pending(1), kNoWindow);
        std::vector<std::vector<int>> groups = {{1, 2}, {3}};
        if (n > 0) groups.push_back({4, 5, 6}), groups.back().resize(static_cast<size_t>(n));
        EXPECT_EQ(w.compare(1, groups), "");
        if (verified) {
          EXPECT_EQ(w.commit(3, 3), 0);
          EXPECT_EQ(w.compare(3, {{1, 2}, {3}, {4, 5, 6}}), "");
        }
      }
    }
    World w(config(policy, 16));
    w.accept(3, {1, 2});
    const auto before = w.dump();
    for (int32_t n : {-1, 1, INT32_MAX}) {
      EXPECT_EQ(w.pool->materialise(w.slots[3], n, w.slots[1]).code(), Code::invalid_argument);
    }
    EXPECT_EQ(w.dump(), before);
  }
}

TEST(PolicyPool, ASnapshotFoldsTheRowAndEmptiesTheTarget) {
  for (FoldPolicy policy : kPolicies) {
    World w(config(policy, 16, true));
    w.accept(0, {1, 2}), w.accept(2, {8}), w.verify(2, {8, 8});
    w.verify(0, {3, 4, 5, 6});
    EXPECT_EQ(w.commit(0, 3, 2, 1), 0);
    EXPECT_EQ(w.live(0), 0);
    EXPECT_EQ(w.live(2), 0);
    EXPECT_EQ(w.pending(2), kNoWindow);
    EXPECT_EQ(w.commit(2, 1), static_cast<int32_t>(RowStatus::no_pending_window));
    EXPECT_EQ(w.compare(0, {{1, 2}, {3, 4, 5}}), "");
    EXPECT_EQ(w.compare(2, {{1, 2}, {3, 4}}), "");
    w.accept(2, {7}), w.accept(0, {7});
    EXPECT_EQ(w.compare(0, {{1, 2}, {3, 4, 5}, {7}}), "");
    EXPECT_EQ(w.compare(2, {{1, 2}, {3, 4}, {7}}), "");
  }
}

/// Layers whose verify ran more often, or that were decoded alone, have histories of their own.
TEST(PolicyPool, LayersMayDiffer) {
  for (FoldPolicy policy : kPolicies) {
    World w(config(policy, 16));
    w.accept(0, {1, 2}), w.accept(0, {3});
    int32_t slot = 0, none = 0;
    FoldArgs fold_args;
    fold_args.state = w.pool->state(1);
    fold_args.ring = w.pool->ring(1);
    fold_args.pending = w.pool->pending(1);
    fold_args.history = w.pool->history(1);
    fold_args.slot_ids = TensorView(&slot, DType::i32, {1});
    fold_args.num_accepted = TensorView(&none, DType::i32, {1});
    EXPECT_EQ(fold(fold_args).code(), Code::invalid_argument) << "no window is pending";
    w.verify(0, {4, 5});
    EXPECT_TRUE(succeeded(fold(fold_args))) << "layer 1 drops the window, the others keep it";
    EXPECT_EQ(w.live(0, 1), 0);
    EXPECT_GT(w.live(0, 0), 0);
    w.verify(0, {6, 7});
    EXPECT_EQ(w.commit(0, 2), 0);
    EXPECT_EQ(w.compare(0, {{1, 2}, {3}, {6, 7}}), "");
  }
}

uint64_t word_at(const Bytes& bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

TEST(PolicyPool, ExportedSlotsCarryTheHistory) {
  for (FoldPolicy policy : kPolicies) {
    World a(config(policy, 13, true)), b(config(policy, 13, true));
    a.accept(0, {1, 2, 3, 4}), a.accept(0, {5, 6}), a.accept(0, {7, 8, 9, 10}), a.verify(0, {11, 12, 13});
    b.accept(2, {30, 31}), b.verify(2, {32});
    Bytes bytes(a.pool->export_size()), again(bytes.size());
    ASSERT_TRUE(succeeded(a.pool->export_slot(a.slots[0], bytes)));
    ASSERT_TRUE(succeeded(b.pool->import_slot(bytes, b.slots[2])));
    ASSERT_TRUE(succeeded(b.pool->export_slot(b.slots[2], again)));
    EXPECT_EQ(bytes, again);
    EXPECT_EQ(b.commit(2, 2), 0);
    EXPECT_EQ(b.compare(2, {{1, 2, 3, 4}, {5, 6}, {7, 8, 9, 10}, {11, 12}}), "");
    EXPECT_EQ(a.commit(0, 1), 0);
    EXPECT_EQ(a.compare(0, {{1, 2, 3, 4}, {5, 6}, {7, 8, 9, 10}, {11}}), "");
  }
}

TEST(PolicyPool, ImportsAreCheckedWhole) {
  World w(config(FoldPolicy::lazy, 13));
  w.accept(0, {1, 2, 3, 4}), w.accept(0, {5, 6}), w.verify(0, {7, 8});
  Bytes bytes(w.pool->export_size());
  ASSERT_TRUE(succeeded(w.pool->export_slot(w.slots[0], bytes)));
  Bytes same_again = bytes;
  sign(&same_again);
  ASSERT_EQ(same_again, bytes) << "this test does not know the format";
  EXPECT_EQ(word_at(bytes, 8), 4u);
  const auto before = w.dump();
  const auto refuses = [&](const char* names, size_t at, int32_t found, size_t size = 4) {
    Bytes bad = bytes;
    const int64_t wide = found;
    std::memcpy(bad.data() + at, &wide, size);
    sign(&bad);
    const Status s = w.pool->import_slot(bad, w.slots[1]);
    EXPECT_EQ(s.code(), Code::invalid_argument) << names << " " << found;
    EXPECT_THAT(s.message(), HasSubstr(names));
    EXPECT_EQ(w.dump(), before);
  };
  refuses("version", 8, 1, 8);
  refuses("max_window", 8 * 15, 3, 8);
  refuses("ring_u", 8 * 16, 1, 8);
  // Sections of three layers: pending, conv pending, base, live, cuts.
  for (size_t layer : {0, 2}) {
    const size_t at = kHeader + layer * 4;
    for (int32_t bad : {-2, 5, 5 | kFolded, kFolded << 1, INT32_MAX, INT32_MIN}) refuses("pending", at, bad);
    for (int32_t bad : {-2, 5, kFolded}) refuses("conv", at + 12, bad);
    for (int32_t bad : {-1, 13, INT32_MAX, INT32_MIN}) refuses("base", at + 24, bad);
    for (int32_t bad : {-1, 10, INT32_MAX, INT32_MIN}) refuses("history rows", at + 36, bad);
  }
  for (FoldPolicy other : {FoldPolicy::on_commit, FoldPolicy::on_next_verify}) {
    RigConfig c = config(other, 13);
    World there(c);
    EXPECT_EQ(there.pool->import_slot(bytes, there.slots[0]).code(), Code::invalid_argument);
  }
}

/// Cursors lie in memory that others can write: what does not fit the ring is refused, and nothing is touched.
TEST(PolicyPool, CursorsThatDoNotFitTheRingAreRefused) {
  World w(config(FoldPolicy::lazy, 9));
  w.accept(0, {1, 2, 3}), w.verify(0, {4, 5});
  const History h = w.pool->history();
  const std::vector<std::pair<TensorView, std::vector<int32_t>>> cases = {{h.base, {-1, 9, INT32_MAX, INT32_MIN}},
                                                                          {h.live, {-1, 10, INT32_MAX, INT32_MIN}}};
  for (const auto& [cursor, values] : cases) {
    const int32_t good = value(cursor, 2, 0);
    for (int32_t bad : values) {
      set_ints(slice(cursor.at(2), 0, 1), {bad});
      const auto before = w.dump();
      const StepResult r = w.rig.verify(target_of(*w.pool), {{.slot = 0, .tokens = {1, 2}}}, {.layers = {2}});
      EXPECT_EQ(r.row_status, std::vector<int32_t>{static_cast<int32_t>(RowStatus::window_too_long)});
      EXPECT_EQ(w.commit(0, 1), static_cast<int32_t>(RowStatus::accept_out_of_range));
      std::vector<Bytes> after = w.dump();
      after[6] = before[6], after[8] = before[8];  // the conv of the call knows nothing of the history
      EXPECT_EQ(after, before);
    }
    set_ints(slice(cursor.at(2), 0, 1), {good});
  }
  EXPECT_EQ(w.commit(0, 1), 0);
}

/// Calls on slot 0 of layer 0, a window of two tokens.
struct RawCalls {
  explicit RawCalls(const Pool& pool) {
    for (const Buffer* buffer : {&q, &v, &a, &A_log, &out}) check::fill_normal(buffer->view(), 5);
    pool.bind(0, &verify);
    verify.mixer.A_log = A_log.view();
    verify.window = {.q = q.view(),
                     .k = q.view(),
                     .v = v.view(),
                     .a = a.view(),
                     .b = a.view(),
                     .slot_ids = TensorView(&slot, DType::i32, {1})};
    verify.out = out.view();
    verify.row_status = TensorView(&status, DType::i32, {1});
    pool.bind(0, &decode);
    decode.mixer = verify.mixer;
    decode.window = verify.window;
    decode.out = verify.out;
    decode.row_status = verify.row_status;
  }
  Buffer q{DType::f32, {1, 2, 1, 9}}, v{DType::f32, {1, 2, 2, 5}}, a{DType::f32, {1, 2, 2}}, A_log{DType::f32, {2}};
  Buffer out{DType::f32, {1, 2, 2, 5}};
  int32_t slot = 0, status = 0;
  VerifyArgs verify;
  DecodeArgs decode;
};

TEST(PolicyPool, NoCallTakesMemoryWhileAHistoryWaits) {
  for (FoldPolicy policy : kPolicies) {
    World w(config(policy, 9));
    w.accept(0, {1, 2, 3}), w.accept(0, {4}), w.accept(1, {5});
    const RawCalls calls(*w.pool);
    set_num_threads(1);
    int64_t count = g_calls;
    const bool verified = verify(calls.verify).ok() && w.pool->materialise(w.slots[0], 0, w.slots[2]).ok() &&
                          w.pool->settle(w.slots).ok() && decode(calls.decode).ok();
    count = g_calls - count;
    set_num_threads(0);
    EXPECT_TRUE(verified);
    EXPECT_EQ(count, 0);
    EXPECT_EQ(calls.status, 0);
  }
}

TEST(PolicyPool, CallsNameTheArgumentThatIsWrong) {
  const World w(config(FoldPolicy::lazy, 9));
  const RawCalls calls(*w.pool);
  const VerifyArgs& verify_args = calls.verify;
  const DecodeArgs& decode_args = calls.decode;
  int32_t slot = 0, count = 0, status = 0, wrong[8] = {};
  const TensorView slot_ids(&slot, DType::i32, {1}), row_status(&status, DType::i32, {1});
  FoldArgs fold_args;
  fold_args.state = w.pool->state();
  fold_args.ring = w.pool->ring();
  fold_args.pending = w.pool->pending();
  fold_args.history = w.pool->history();
  fold_args.slot_ids = slot_ids;
  fold_args.num_accepted = TensorView(&count, DType::i32, {1});
  fold_args.row_status = row_status;
  const auto before = w.dump();
  const auto refused = [&](const char* name, const Status& s) {
    EXPECT_EQ(s.code(), Code::invalid_argument) << name;
    EXPECT_THAT(s.message(), HasSubstr(name));
    EXPECT_EQ(w.dump(), before);
  };
  const auto refuse_all = [&](const char* name, const auto& change) {
    VerifyArgs v_args = verify_args;
    DecodeArgs d_args = decode_args;
    FoldArgs f_args = fold_args;
    change(v_args), change(d_args), change(f_args);
    refused(name, verify(v_args));
    refused(name, decode(d_args));
    refused(name, fold(f_args));
  };
  ASSERT_TRUE(succeeded(verify(verify_args)));
  ASSERT_TRUE(succeeded(w.pool->reset(w.slots[0])));
  EXPECT_EQ(w.dump(), before);
  refuse_all("ring.k", [](auto& args) { args.ring = {}; });
  refuse_all("pending", [](auto& args) { args.pending = {}; });
  refuse_all("history.base", [](auto& args) { args.history.base = {}; });
  refuse_all("history.live", [](auto& args) { args.history.live = {}; });
  refuse_all("history.cuts", [](auto& args) { args.history.cuts.dtype = DType::f32; });
  refuse_all("history.live", [&](auto& args) { args.history.live = TensorView(wrong, DType::i32, {3}); });
  refuse_all("history.base", [&](auto& args) { args.history.base.device = Device::cuda; });
  refuse_all("history.max_window", [](auto& args) { args.history.max_window = 9; });
  refuse_all("history.max_window", [](auto& args) { args.history.max_window = -1; });
  refuse_all("history:", [](auto& args) { args.history.policy = FoldPolicy::on_commit; });
  VerifyArgs args = verify_args;
  args.history.max_window = 0;
  refused("history.max_window", verify(args));
  args.history.max_window = 1;
  refused("window.v", verify(args));
}

}  // namespace
}  // namespace ringfold::test
