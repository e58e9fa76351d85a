// The pool without arithmetic: sizes, lives of slots, copies, transfer.
#include <gmock/gmock.h>

#include <set>

#include "unit/count_new.h"
#include "unit/pool_helpers.h"

namespace ringfold::test {
namespace {

using ::testing::HasSubstr;

TEST(Pool, AnArrayOfHandlesIsAcquiredWhole) {
  const std::unique_ptr<Pool> pool = make(small());
  const int64_t before = pool->free_slots();
  Slot three[3];
  ASSERT_TRUE(succeeded(pool->acquire(three)));
  EXPECT_EQ(pool->free_slots(), before - 3);
  for (const Slot& slot : three) EXPECT_GE(slot.id, 0);
  EXPECT_NE(three[0].id, three[2].id);
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

TEST(Pool, ManySlotsAreReleasedOrResetTogether) {
  const auto pool = make(small()), one_by_one = make(small());
  const std::vector<Slot> slots = acquire_all(*pool);
  acquire_all(*one_by_one);
  for (const auto& p : {pool.get(), one_by_one.get()}) {
    for (const Slot& s : slots) scribble(*p, s.id, 6), set_window(*p, s.id, 2);
  }
  const auto before = dump(*pool);
  const Slot old{.id = slots[1].id, .generation = 0};
  const std::vector<Slot> twice = {slots[2], slots[1], slots[2]}, stale = {slots[2], old};
  for (const Status& s : {pool->release(twice), pool->release(stale), pool->reset(stale)}) {
    EXPECT_EQ(s.code(), Code::invalid_argument);
    EXPECT_THAT(s.message(), HasSubstr("slots["));
  }
  EXPECT_EQ(dump(*pool), before);
  EXPECT_EQ(pool->free_slots(), 0);

  const std::vector<Slot> two = {slots[3], slots[1]};
  const int64_t calls = g_calls;
  const bool done = pool->reset(two).ok() && pool->release(two).ok() && pool->release(std::span<const Slot>()).ok();
  EXPECT_EQ(g_calls, calls);
  EXPECT_TRUE(done);
  for (const Slot& s : two) EXPECT_TRUE(one_by_one->reset(s).ok() && one_by_one->release(s).ok());
  EXPECT_EQ(dump(*pool), dump(*one_by_one));
  EXPECT_EQ(pool->free_slots(), 2);
  EXPECT_EQ(acquire_all(*pool), acquire_all(*one_by_one));
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
