// Slot to slot, and slots as bytes.
#include <gmock/gmock.h>

#include "unit/count_new.h"
#include "unit/pool_helpers.h"

namespace ringfold::test {
namespace {

using ::testing::HasSubstr;

/// Copies `pairs` (indices into the slots) and expects every destination to hold what its source held before.
void expect_copy(Pool& pool, const std::vector<Slot>& slots, const std::vector<std::pair<int, int>>& pairs) {
  std::vector<Slot> src, dst;
  std::vector<Bytes> want;
  for (const Slot& s : slots) want.push_back(dump_slot(pool, s.id));
  const std::vector<Bytes> old = want;
  for (const auto& [from, to] : pairs) {
    src.push_back(slots[from]);
    dst.push_back(slots[to]);
    want[to] = old[from];
  }
  const int64_t calls = g_calls;
  const Status s = pool.copy(src, dst);
  EXPECT_EQ(g_calls, calls) << "copy allocated";
  ASSERT_TRUE(succeeded(s));
  for (size_t i = 0; i < slots.size(); ++i) EXPECT_EQ(dump_slot(pool, slots[i].id), want[i]) << "slot " << i;
}

TEST(Pool, CopiesHappenAllAtOnce) {
  const auto pool = make(small());
  const std::vector<Slot> slots = acquire_all(*pool);
  using Pairs = std::vector<std::pair<int, int>>;
  const Pairs cases[] = {
      {},                                        // nothing
      {{1, 1}},                                  // itself
      {{0, 4}},                                  // one
      {{1, 2}, {2, 3}, {3, 4}},                  // a chain, in the order that would smear slot 1
      {{3, 4}, {2, 3}, {1, 2}},                  // and in the other
      {{0, 1}, {1, 0}},                          // a swap
      {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 0}},  // one cycle over all
      {{0, 1}, {1, 0}, {2, 3}, {3, 2}},          // two cycles
      {{0, 1}, {1, 0}, {0, 2}, {2, 3}, {1, 4}},  // trees on a cycle
      {{2, 0}, {2, 1}, {2, 2}, {2, 3}, {2, 4}},  // one source for all, itself included
  };
  uint64_t seed = 3;
  for (const Pairs& pairs : cases) {
    for (const Slot& s : slots) scribble(*pool, s.id, ++seed), set_window(*pool, s.id, s.id % 5 - 1);
    expect_copy(*pool, slots, pairs);
  }
}

TEST(Pool, RandomCopies) {
  PoolConfig c = small();
  c.slots = 9;
  c.K = c.V = 2;
  c.conv_channels = 3;
  const auto pool = make(c);
  const std::vector<Slot> slots = acquire_all(*pool);
  Rng rng(17);
  for (int round = 0; round < 300 && !::testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(round);
    for (const Slot& s : slots) scribble(*pool, s.id, mix({round})), set_window(*pool, s.id, s.id % 5 - 1);
    const std::vector<int32_t> order = rng.permutation(9);
    std::vector<std::pair<int, int>> pairs;
    for (int64_t i = 0, n = rng.below(10); i < n; ++i) pairs.emplace_back(static_cast<int>(rng.below(9)), order[i]);
    expect_copy(*pool, slots, pairs);
  }
}

TEST(Pool, CopiesOfMoreSlotsThanMoveAtOnce) {
  PoolConfig c = small();
  c.slots = 400;
  c.layers = c.K = c.V = 1;
  c.conv_channels = 0;
  const auto pool = make(c);
  const std::vector<Slot> slots = acquire_all(*pool);
  for (const Slot& s : slots) scribble(*pool, s.id, 4), set_window(*pool, s.id, s.id % 5 - 1);
  std::vector<std::pair<int, int>> cycle, chain;
  for (int i = 0; i < 400; ++i) cycle.emplace_back(i, (i + 7) % 400);
  expect_copy(*pool, slots, cycle);
  for (int i = 1; i < 400; ++i) chain.emplace_back(i - 1, i);
  expect_copy(*pool, slots, chain);
  Rng rng(5);
  for (int round = 0; round < 10; ++round) {
    std::vector<std::pair<int, int>> any;
    for (const int32_t to : rng.permutation(400)) any.emplace_back(static_cast<int>(rng.below(400)), to);
    expect_copy(*pool, slots, any);
    for (auto& [from, to] : any) from = (to * 3 + round) % 400;
    expect_copy(*pool, slots, any);
  }
}

TEST(Pool, RefusedCopiesChangeNothing) {
  const auto pool = make(small());
  const std::vector<Slot> s = acquire_all(*pool);
  for (const Slot& slot : s) scribble(*pool, slot.id, 5);
  const auto before = dump(*pool);
  const Slot src[] = {s[0], s[1], s[2]}, twice[] = {s[3], s[4], s[3]}, fine[] = {s[3], s[4], s[0]};
  const Status duplicate = pool->copy(src, twice);
  EXPECT_EQ(duplicate.code(), Code::invalid_argument);
  EXPECT_THAT(duplicate.message(), HasSubstr("dst[2]"));
  EXPECT_EQ(pool->copy(src, std::span(fine, 2)).code(), Code::invalid_argument);
  EXPECT_EQ(dump(*pool), before);
  // The refusal left no trace in the plan of the next copy.
  expect_copy(*pool, s, {{0, 3}, {1, 4}, {2, 0}});
}

TEST(Pool, TransferKeepsEveryByteThatCounts) {
  const auto a = make(small());
  PoolConfig larger = small();
  larger.slots = 8;
  const auto b = make(larger);
  const std::vector<Slot> sa = acquire_all(*a), sb = acquire_all(*b);
  for (const Slot& s : sa) scribble(*a, s.id, 6);
  for (const Slot& s : sb) scribble(*b, s.id, 7);
  for (int32_t window : {kNoWindow, 0, 1, 3, 4}) {
    set_window(*a, sa[4].id, window);
    ASSERT_EQ(a->export_size(), b->export_size());
    Bytes bytes(a->export_size()), again(a->export_size());
    const auto others = dump_slot(*b, sb[6].id);
    ASSERT_TRUE(succeeded(a->export_slot(sa[4], bytes)));
    ASSERT_TRUE(succeeded(b->import_slot(bytes, sb[7])));
    EXPECT_EQ(dump_slot(*b, sb[6].id), others);
    ASSERT_TRUE(succeeded(b->export_slot(sb[7], again)));
    EXPECT_EQ(bytes, again);
    for (int64_t layer = 0; layer < 2; ++layer) {
      EXPECT_TRUE(same(b->state(layer).at(sb[7].id), a->state(layer).at(sa[4].id)));
      EXPECT_TRUE(same(b->conv_state(layer).at(sb[7].id), a->conv_state(layer).at(sa[4].id)));
      EXPECT_EQ(ints(slice(b->pending(layer), sb[7].id, 1)), std::vector<int32_t>{window});
      const int64_t rows = std::max(window, 0);
      const Ring ra = a->ring(layer), rb = b->ring(layer);
      const std::pair<TensorView, TensorView> rings[] = {
          {rb.k, ra.k}, {rb.v, ra.v}, {rb.g, ra.g}, {rb.beta, ra.beta}, {b->conv_ring(layer), a->conv_ring(layer)}};
      for (const auto& [got, want] : rings) {
        EXPECT_TRUE(same(slice(got.at(sb[7].id), 0, rows), slice(want.at(sa[4].id), 0, rows)));
        // What an earlier window left behind does not travel.
        const Bytes rest = pack(slice(got.at(sb[7].id), rows, 4 - rows));
        EXPECT_EQ(rest, Bytes(rest.size()));
      }
    }
  }
}

TEST(Pool, ImportChecksBeforeItWrites) {
  const auto pool = make(small());
  const std::vector<Slot> slots = acquire_all(*pool);
  for (const Slot& s : slots) scribble(*pool, s.id, 8), set_window(*pool, s.id, 2);
  Bytes bytes(pool->export_size());
  ASSERT_TRUE(succeeded(pool->export_slot(slots[0], bytes)));
  const auto before = dump(*pool);
  for (size_t at = 0; at < bytes.size(); ++at) {
    Bytes bad = bytes;
    bad[at] ^= std::byte{1};
    EXPECT_EQ(pool->import_slot(bad, slots[1]).code(), Code::invalid_argument) << "byte " << at;
  }
  for (size_t size : {size_t{0}, size_t{8}, size_t{135}, size_t{136}, bytes.size() - 1}) {
    EXPECT_EQ(pool->import_slot(std::span(bytes).first(size), slots[1]).code(), Code::invalid_argument) << size;
  }
  Bytes longer = bytes;
  longer.resize(bytes.size() + 8);
  EXPECT_EQ(pool->import_slot(longer, slots[1]).code(), Code::invalid_argument);
  EXPECT_EQ(pool->export_slot(slots[0], longer).code(), Code::invalid_argument);
  EXPECT_EQ(dump(*pool), before);
}

TEST(Pool, ImportNamesWhatDiffers) {
  const auto pool = make(small());
  const std::vector<Slot> slots = acquire_all(*pool);
  Bytes bytes(pool->export_size());
  ASSERT_TRUE(succeeded(pool->export_slot(slots[0], bytes)));
  const std::pair<const char*, void (*)(PoolConfig&)> cases[] = {
      {"layers", [](PoolConfig& c) { c.layers = 3; }},
      {"H ", [](PoolConfig& c) { c.H = 2; }},
      {"HV", [](PoolConfig& c) { c.HV = 3; }},
      {"K ", [](PoolConfig& c) { c.K = 3, c.V = 5; }},
      {"V ", [](PoolConfig& c) { c.V = 4; }},
      {"mixer kind", [](PoolConfig& c) { c.kind = MixerKind::gdn; }},
      {"state_dtype", [](PoolConfig& c) { c.state_dtype = DType::f16; }},
      {"act_dtype", [](PoolConfig& c) { c.act_dtype = DType::bf16; }},
      {"ring_rows", [](PoolConfig& c) { c.ring_rows = 5; }},
      {"conv_channels", [](PoolConfig& c) { c.conv_channels = 0; }},
      {"conv_width", [](PoolConfig& c) { c.conv_width = 3; }},
      {"qk_l2norm", [](PoolConfig& c) { c.qk_l2norm = false; }},
      {"state_rounding", [](PoolConfig& c) { c.state_rounding = StateRounding::per_token; }},
  };
  for (const auto& [word, change] : cases) {
    PoolConfig c = small();
    change(c);
    const auto other = make(c);
    const std::vector<Slot> theirs = acquire_all(*other);
    const auto before = dump(*other);
    const Status s = other->import_slot(bytes, theirs[0]);
    EXPECT_EQ(s.code(), Code::invalid_argument) << word;
    EXPECT_THAT(s.message(), HasSubstr(word));
    EXPECT_EQ(dump(*other), before);
  }
}

}  // namespace
}  // namespace ringfold::test
