// The pool without arithmetic: sizes, lives of slots, copies, transfer.
#include <gmock/gmock.h>

#include <set>

#include "ringfold/commit.h"
#include "support/buffers.h"
#include "unit/count_new.h"

namespace ringfold::test {
namespace {

using ::testing::HasSubstr;

PoolConfig small() {
  PoolConfig c;
  c.layers = 2;
  c.slots = 5;
  c.H = 1;
  c.HV = 2;
  c.K = 5;
  c.V = 3;
  c.kind = MixerKind::kda;
  c.state_dtype = DType::bf16;
  c.act_dtype = DType::f16;
  c.ring_rows = 4;
  c.conv_channels = 7;
  c.conv_width = 4;
  return c;
}

std::unique_ptr<Pool> make(const PoolConfig& c) {
  std::unique_ptr<Pool> pool;
  EXPECT_TRUE(succeeded(Pool::create(c, &pool)));
  return pool;
}

std::vector<TensorView> payload(const Pool& p) {
  std::vector<TensorView> views{p.state(), p.ring().k, p.ring().v, p.ring().g, p.ring().beta};
  if (!p.conv_state().empty()) views.insert(views.end(), {p.conv_state(), p.conv_ring()});
  return views;
}

std::vector<TensorView> cursors(const Pool& p) {
  std::vector<TensorView> views{p.pending()};
  if (!p.conv_pending().empty()) views.push_back(p.conv_pending());
  return views;
}

std::vector<TensorView> everything(const Pool& p) {
  std::vector<TensorView> views = payload(p);
  for (const TensorView& v : cursors(p)) views.push_back(v);
  return views;
}

/// All bytes of the pool, and its generations.
std::vector<Bytes> dump(const Pool& p) {
  std::vector<Bytes> all;
  for (const TensorView& v : everything(p)) all.push_back(pack(v));
  all.push_back(pack(p.generations()));
  return all;
}

/// All bytes of one slot, cursors included.
Bytes dump_slot(const Pool& p, int32_t id) {
  Bytes all;
  for (const TensorView& v : everything(p)) {
    for (int64_t layer = 0; layer < p.config().layers; ++layer) {
      const TensorView part = v.at(layer);
      const Bytes bytes = pack(slice(part, id, 1));
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
  }
  return all;
}

void set_window(const Pool& p, int32_t id, int32_t rows) {
  for (const TensorView& v : cursors(p)) {
    for (int64_t layer = 0; layer < p.config().layers; ++layer) set_ints(slice(v.at(layer), id, 1), {rows});
  }
}

/// Bytes of every float of a slot, distinct per slot and seed.
void scribble(const Pool& p, int32_t id, uint64_t seed) {
  for (const TensorView& v : payload(p)) {
    for (int64_t layer = 0; layer < p.config().layers; ++layer) {
      fill_normal(slice(v.at(layer), id, 1), mix({static_cast<int64_t>(seed), id, layer, v.shape[v.rank - 1]}));
    }
  }
}

std::vector<Slot> acquire_all(Pool& p) {
  std::vector<Slot> slots(static_cast<size_t>(p.free_slots()));
  EXPECT_TRUE(succeeded(p.acquire(slots)));
  return slots;
}

TEST(Pool, AllocatesExactlyTheBytesItNames) {
  for (int64_t conv : {0, 7}) {
    for (MixerKind kind : {MixerKind::gdn, MixerKind::kda}) {
      PoolConfig c = small();
      c.conv_channels = conv;
      c.kind = kind;
      PoolBytes bytes;
      ASSERT_TRUE(succeeded(pool_bytes(c, &bytes)));
      g_aligned_bytes = 0;
      const auto pool = make(c);
      EXPECT_EQ(g_aligned_bytes, static_cast<int64_t>(bytes.total()));
      EXPECT_EQ(pool->bytes(), bytes);
      size_t state = 2u * 5 * 2 * 3 * 5 * 2;
      size_t ring_row = 5 * 2 + 2 * 3 * 2 + (kind == MixerKind::kda ? 2 * 5 * 4 : 2 * 4) + 2 * 4;
      EXPECT_EQ(bytes.state, state);
      EXPECT_EQ(bytes.ring, 2u * 5 * 4 * ring_row);
      EXPECT_EQ(bytes.conv, static_cast<size_t>(2 * 5 * (conv * 3 * 2 + 4 * conv * 2)));
    }
  }
}

TEST(Pool, BuffersAreAlignedAndZero) {
  const auto pool = make(small());
  for (const TensorView& v : everything(*pool)) EXPECT_EQ(reinterpret_cast<uintptr_t>(v.data) % 64, 0u) << to_string(v);
  for (const TensorView& v : payload(*pool)) EXPECT_EQ(pack(v), Bytes(pack(v).size())) << to_string(v);
  for (const TensorView& v : cursors(*pool)) EXPECT_THAT(ints(v), ::testing::Each(kNotAcquired));
}

TEST(Pool, RefusesBadDescriptions) {
  struct Case {
    const char* names;
    void (*change)(PoolConfig&);
  };
  const Case cases[] = {
      {"layers", [](PoolConfig& c) { c.layers = 0; }},
      {"slots", [](PoolConfig& c) { c.slots = 0; }},
      {"slots", [](PoolConfig& c) { c.slots = int64_t{1} << 31; }},
      {"H:", [](PoolConfig& c) { c.H = 0; }},
      {"HV", [](PoolConfig& c) { c.H = 4; }},
      {"HV", [](PoolConfig& c) { c.H = 2, c.HV = 3; }},
      {"K:", [](PoolConfig& c) { c.K = 257; }},
      {"V:", [](PoolConfig& c) { c.V = 0; }},
      {"ring_rows", [](PoolConfig& c) { c.ring_rows = 0; }},
      {"ring_rows", [](PoolConfig& c) { c.ring_rows = kMaxWindow + 1; }},
      {"conv_channels", [](PoolConfig& c) { c.conv_channels = -1; }},
      {"conv_width", [](PoolConfig& c) { c.conv_width = 5; }},
      {"conv_width", [](PoolConfig& c) { c.conv_width = 1; }},
      {"state_dtype", [](PoolConfig& c) { c.state_dtype = DType::i32; }},
      {"act_dtype", [](PoolConfig& c) { c.act_dtype = DType::i32; }},
      {"2^63", [](PoolConfig& c) { c.slots = (int64_t{1} << 31) - 1, c.layers = int64_t{1} << 40; }},
  };
  for (const Case& one : cases) {
    PoolConfig c = small();
    one.change(c);
    std::unique_ptr<Pool> pool;
    const Status s = Pool::create(c, &pool);
    EXPECT_EQ(s.code(), Code::invalid_argument) << one.names;
    EXPECT_THAT(s.message(), HasSubstr(one.names));
    EXPECT_EQ(pool, nullptr);
    PoolBytes bytes;
    EXPECT_EQ(pool_bytes(c, &bytes).message(), s.message());
  }
}

TEST(Pool, RefusesFoldPoliciesThatAreNotBuilt) {
  for (FoldPolicy policy : {FoldPolicy::on_next_verify, FoldPolicy::lazy}) {
    PoolConfig c = small();
    c.fold_policy = policy;
    std::unique_ptr<Pool> pool;
    const Status s = Pool::create(c, &pool);
    EXPECT_EQ(s.code(), Code::unsupported);
    EXPECT_THAT(s.message(), HasSubstr(to_string(policy)));
  }
}

TEST(Pool, ReportsExhaustedMemory) {
  PoolConfig c = small();
  c.slots = (int64_t{1} << 31) - 1;
  c.layers = 1 << 12;
  std::unique_ptr<Pool> pool;
  EXPECT_EQ(Pool::create(c, &pool).code(), Code::out_of_memory);
  EXPECT_EQ(pool, nullptr);
}

TEST(Pool, AcquireHandsOutZeroedSlots) {
  const auto pool = make(small());
  for (int round = 1; round <= 3; ++round) {
    for (const TensorView& v : payload(*pool)) fill_poison(v);
    const std::vector<Slot> slots = acquire_all(*pool);
    std::set<int32_t> ids;
    for (const Slot& s : slots) {
      ids.insert(s.id);
      EXPECT_EQ(s.generation, round);
    }
    EXPECT_EQ(ids, (std::set<int32_t>{0, 1, 2, 3, 4}));
    for (const TensorView& v : payload(*pool)) EXPECT_EQ(pack(v), Bytes(pack(v).size())) << to_string(v);
    for (const TensorView& v : cursors(*pool)) EXPECT_THAT(ints(v), ::testing::Each(kNoWindow));
    for (const Slot& s : slots) EXPECT_TRUE(succeeded(pool->release(s)));
    for (const TensorView& v : cursors(*pool)) EXPECT_THAT(ints(v), ::testing::Each(kNotAcquired));
  }
}

TEST(Pool, AcquireIsAllOrNone) {
  const auto pool = make(small());
  Slot one;
  ASSERT_TRUE(succeeded(pool->acquire(&one)));
  const auto before = dump(*pool);
  std::vector<Slot> many(5);
  EXPECT_EQ(pool->acquire(many).code(), Code::out_of_memory);
  EXPECT_EQ(dump(*pool), before);
  EXPECT_EQ(pool->free_slots(), 4);
  for (const Slot& s : many) EXPECT_EQ(s, Slot{});
  many.resize(4);
  EXPECT_TRUE(succeeded(pool->acquire(many)));
  EXPECT_EQ(pool->free_slots(), 0);
  EXPECT_EQ(pool->acquire(&one).code(), Code::out_of_memory);
}

TEST(Pool, RefusesHandlesThatAreNotLive) {
  const auto pool = make(small());
  Slot old, live, copy;
  ASSERT_TRUE(succeeded(pool->acquire(&old)));
  ASSERT_TRUE(succeeded(pool->release(old)));
  Slot same_slot;
  ASSERT_TRUE(succeeded(pool->acquire(&same_slot)));
  ASSERT_EQ(same_slot.id, old.id);
  ASSERT_TRUE(succeeded(pool->acquire(&live)));
  ASSERT_TRUE(succeeded(pool->acquire(&copy)));
  ASSERT_TRUE(succeeded(pool->release(copy)));
  for (const Slot& s : {live, same_slot}) scribble(*pool, s.id, 1);
  const auto before = dump(*pool);
  Bytes bytes(pool->export_size());
  ASSERT_TRUE(succeeded(pool->export_slot(live, bytes)));

  const std::pair<Slot, const char*> bad[] = {{old, "generation"},
                                              {copy, "free"},
                                              {Slot{}, "0..4"},
                                              {Slot{.id = 5, .generation = 1}, "0..4"},
                                              {Slot{.id = live.id, .generation = 77}, "77"},
                                              {Slot{.id = INT32_MAX, .generation = 1}, "0..4"},
                                              {Slot{.id = INT32_MIN, .generation = 1}, "0..4"}};
  for (const auto& [slot, word] : bad) {
    const Slot two[] = {live, slot}, fine[] = {live, same_slot};
    Bytes target(pool->export_size());
    for (const Status& s : {pool->release(slot), pool->reset(slot), pool->copy(two, fine), pool->copy(fine, two),
                            pool->materialise(slot, 0, live), pool->materialise(live, 0, slot),
                            pool->export_slot(slot, target), pool->import_slot(bytes, slot)}) {
      EXPECT_EQ(s.code(), Code::invalid_argument);
      EXPECT_THAT(s.message(), HasSubstr(word));
    }
    EXPECT_EQ(dump(*pool), before);
    EXPECT_EQ(pool->free_slots(), 3);
  }
}

TEST(Pool, ReleaseTwiceIsRefused) {
  const auto pool = make(small());
  Slot slot;
  ASSERT_TRUE(succeeded(pool->acquire(&slot)));
  ASSERT_TRUE(succeeded(pool->release(slot)));
  EXPECT_EQ(pool->release(slot).code(), Code::invalid_argument);
  EXPECT_EQ(pool->free_slots(), 5);
}

TEST(Pool, ResetClearsUnderTheSameHandle) {
  const auto pool = make(small());
  const std::vector<Slot> slots = acquire_all(*pool);
  for (const Slot& s : slots) scribble(*pool, s.id, 2), set_window(*pool, s.id, 3);
  const Bytes neighbour = dump_slot(*pool, 3);
  const auto fresh = make(small());
  acquire_all(*fresh);
  ASSERT_TRUE(succeeded(pool->reset(slots[2])));
  EXPECT_EQ(dump_slot(*pool, slots[2].id), dump_slot(*fresh, slots[2].id));
  EXPECT_EQ(dump_slot(*pool, 3), neighbour);
  EXPECT_TRUE(succeeded(pool->reset(slots[2])));
}

TEST(Pool, ViewsHaveTheDescribedShapes) {
  const auto pool = make(small());
  EXPECT_EQ(to_string(pool->state()), "bf16[2,5,2,3,5]");
  EXPECT_EQ(to_string(pool->state(1)), "bf16[5,2,3,5]");
  EXPECT_EQ(to_string(pool->ring().k), "f16[2,5,4,1,5]");
  EXPECT_EQ(to_string(pool->ring(0).v), "f16[5,4,2,3]");
  EXPECT_EQ(to_string(pool->ring(0).g), "f32[5,4,2,5]");
  EXPECT_EQ(to_string(pool->ring(1).beta), "f32[5,4,2]");
  EXPECT_EQ(to_string(pool->conv_state(1)), "f16[5,7,3]");
  EXPECT_EQ(to_string(pool->conv_ring(1)), "f16[5,4,7]");
  EXPECT_EQ(to_string(pool->pending(1)), "i32[5]");
  EXPECT_EQ(to_string(pool->conv_pending()), "i32[2,5]");
  EXPECT_EQ(to_string(pool->generations()), "i32[5]");
  EXPECT_TRUE(pool->state(2).empty());
  EXPECT_TRUE(pool->ring(-1).empty());
  EXPECT_TRUE(pool->pending(INT64_MAX).empty());
  PoolConfig c = small();
  c.conv_channels = 0;
  c.kind = MixerKind::gdn;
  const auto plain = make(c);
  EXPECT_TRUE(plain->conv_state().empty() && plain->conv_ring(0).empty() && plain->conv_pending(0).empty());
  EXPECT_EQ(to_string(plain->ring().g), "f32[2,5,4,2]");
}

TEST(Pool, BindFillsWhatThePoolKnows) {
  PoolConfig c = small();
  c.state_rounding = StateRounding::per_token;
  c.qk_l2norm = false;
  const auto pool = make(c);
  VerifyArgs verify;
  pool->bind(1, &verify);
  EXPECT_EQ(verify.state.data, pool->state(1).data);
  EXPECT_EQ(verify.ring.g.data, pool->ring(1).g.data);
  EXPECT_EQ(verify.pending.data, pool->pending(1).data);
  EXPECT_EQ(verify.mixer.kind, MixerKind::kda);
  EXPECT_FALSE(verify.mixer.qk_l2norm);
  EXPECT_EQ(verify.state_rounding, StateRounding::per_token);
  DecodeArgs decode;
  pool->bind(0, &decode);
  EXPECT_EQ(decode.state.data, pool->state(0).data);
  EXPECT_EQ(decode.pending.data, pool->pending(0).data);
  EXPECT_EQ(decode.state_rounding, StateRounding::per_token);
  ConvArgs conv;
  pool->bind(1, &conv);
  EXPECT_EQ(conv.conv_state.data, pool->conv_state(1).data);
  EXPECT_EQ(conv.conv_ring.data, pool->conv_ring(1).data);
  EXPECT_EQ(conv.pending.data, pool->conv_pending(1).data);
}

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
      {},                                            // nothing
      {{1, 1}},                                      // itself
      {{0, 4}},                                      // one
      {{1, 2}, {2, 3}, {3, 4}},                      // a chain, in the order that would smear slot 1
      {{3, 4}, {2, 3}, {1, 2}},                      // and in the other
      {{0, 1}, {1, 0}},                              // a swap
      {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 0}},      // one cycle over all
      {{0, 1}, {1, 0}, {2, 3}, {3, 2}},              // two cycles
      {{0, 1}, {1, 0}, {0, 2}, {2, 3}, {1, 4}},      // trees on a cycle
      {{2, 0}, {2, 1}, {2, 2}, {2, 3}, {2, 4}},      // one source for all, itself included
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
      const std::pair<TensorView, TensorView> rings[] = {{rb.k, ra.k}, {rb.v, ra.v}, {rb.g, ra.g}, {rb.beta, ra.beta},
                                                         {b->conv_ring(layer), a->conv_ring(layer)}};
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

TEST(Pool, NoSlotIsLostOverManyLives) {
  PoolConfig c = small();
  c.K = c.V = 1;
  const auto pool = make(c);
  Rng rng(9);
  std::vector<Slot> live;
  for (int i = 0; i < 2000; ++i) {
    if (rng.below(2) == 0) {
      std::vector<Slot> more(static_cast<size_t>(rng.below(4)));
      const bool fits = static_cast<int64_t>(more.size()) <= pool->free_slots();
      EXPECT_EQ(pool->acquire(more).ok(), fits);
      if (fits) live.insert(live.end(), more.begin(), more.end());
    } else if (!live.empty()) {
      const auto at = live.begin() + rng.below(static_cast<int64_t>(live.size()));
      EXPECT_TRUE(succeeded(pool->release(*at)));
      EXPECT_FALSE(pool->release(*at).ok());
      live.erase(at);
    }
    EXPECT_EQ(pool->free_slots(), 5 - static_cast<int64_t>(live.size()));
  }
}

}  // namespace
}  // namespace ringfold::test
