// commit and materialise on a small model: what they refuse, what they change, and that they take no memory.
#include <gmock/gmock.h>

#include "support/buffers.h"
#include "trace/rig.h"
#include "unit/count_new.h"

namespace ringfold::test {
namespace {

using ::testing::HasSubstr;

RigConfig config(bool conv = true) {
  RigConfig c;
  c.pool = {.layers = 3, .slots = 4, .H = 1, .HV = 2, .K = 9, .V = 5, .ring_rows = 4, .conv_width = 4};
  c.conv = conv;
  return c;
}

class CommitTest : public ::testing::Test {
 protected:
  CommitTest() : rig(config()), plain(rig), pool(rig.make_pool()), slots(4) {
    EXPECT_TRUE(succeeded(pool->acquire(slots)));
    set_num_threads(1);
  }
  ~CommitTest() override { set_num_threads(0); }

  /// commit of rows (slot, accept).
  CommitArgs args() {
    const auto B = static_cast<int64_t>(ids.size());
    status.assign(ids.size(), 99);
    CommitArgs a;
    a.slot_ids = TensorView(ids.data(), DType::i32, {B});
    a.num_accepted = TensorView(accept.data(), DType::i32, {B});
    a.row_status = TensorView(status.data(), DType::i32, {B});
    return a;
  }
  void verify(const std::vector<Row>& rows) { EXPECT_TRUE(succeeded(rig.verify(target_of(*pool), rows).status)); }
  Plain::State decoded(const std::vector<int>& tokens) {
    Plain::State s = plain.zero();
    plain.decode(&s, tokens, "reference");
    return s;
  }
  std::vector<Bytes> dump() const {
    std::vector<Bytes> all;
    for (const TensorView& v : {pool->state(), pool->conv_state(), pool->pending(), pool->conv_pending()})
      all.push_back(pack(v));
    return all;
  }

  Rig rig;
  Plain plain;
  std::unique_ptr<Pool> pool;
  std::vector<Slot> slots;
  std::vector<int32_t> ids, accept, status;
};

TEST_F(CommitTest, NamesTheArgumentThatIsWrong) {
  ids = {0, 1}, accept = {1, 1};
  verify({{.slot = 0, .tokens = {1}}, {.slot = 1, .tokens = {2}}});
  const auto before = dump();
  const int32_t three[3] = {0, 0, 0};
  const TensorView longer(three, DType::i32, {3}), floats(three, DType::f32, {2});
  const std::pair<TensorView CommitArgs::*, const char*> members[] = {
      {&CommitArgs::slot_ids, "slot_ids"},         {&CommitArgs::generations, "generations"},
      {&CommitArgs::num_accepted, "num_accepted"}, {&CommitArgs::track_slots, "track_slots"},
      {&CommitArgs::track_steps, "track_steps"},   {&CommitArgs::row_status, "row_status"}};
  for (const auto& [member, name] : members) {
    for (const TensorView& bad : {longer, floats}) {
      CommitArgs a = args();
      a.track_slots = a.track_steps = TensorView(three, DType::i32, {2});
      a.*member = bad;
      const Status s = commit(*pool, a);
      EXPECT_EQ(s.code(), Code::invalid_argument) << name;
      if (member != &CommitArgs::slot_ids || bad.dtype == DType::f32) {
        EXPECT_THAT(s.message(), HasSubstr(name));
      }
    }
  }
  CommitArgs a = args();
  a.num_accepted = {};
  EXPECT_EQ(commit(*pool, a).code(), Code::invalid_argument);
  a = args();
  a.track_steps = TensorView(three, DType::i32, {2});
  EXPECT_EQ(commit(*pool, a).code(), Code::invalid_argument);
  EXPECT_EQ(dump(), before);
  EXPECT_EQ(status, (std::vector<int32_t>{99, 99}));
}

TEST_F(CommitTest, WithoutStatusesOneBadRowStopsAll) {
  verify({{.slot = 0, .tokens = {1, 2}}, {.slot = 1, .tokens = {3}}});
  const auto before = dump();
  ids = {0, 1, 2}, accept = {2, 1, 0};
  CommitArgs a = args();
  a.row_status = {};
  const Status s = commit(*pool, a);
  EXPECT_EQ(s.code(), Code::invalid_argument);
  EXPECT_THAT(s.message(), HasSubstr("row 2"));
  EXPECT_THAT(s.message(), HasSubstr("no_pending_window"));
  EXPECT_EQ(dump(), before);
  ids.pop_back();
  a = args();
  a.row_status = {};
  EXPECT_TRUE(succeeded(commit(*pool, a)));
  EXPECT_EQ(compare_slot(*pool, 0, decoded({1, 2})), "");
  EXPECT_EQ(compare_slot(*pool, 1, decoded({3})), "");
}

TEST_F(CommitTest, EveryLayerAndTheConvMustHaveRun) {
  ids = {0}, accept = {1};
  const std::vector<Row> rows = {{.slot = 0, .tokens = {1, 2}}};
  const auto refused = std::vector<int32_t>{static_cast<int32_t>(RowStatus::no_pending_window)};
  // Layer 1 is missing.
  EXPECT_TRUE(succeeded(rig.verify(target_of(*pool), rows, {.layers = {0, 2}}).status));
  EXPECT_TRUE(succeeded(commit(*pool, args())));
  EXPECT_EQ(status, refused);
  EXPECT_EQ(compare_slot(*pool, 0, plain.zero()), "");
  // The conv of layer 2 is missing: its mixer ran alone.
  verify(rows);
  set_ints(slice(pool->conv_pending(2), 0, 1), {kNoWindow});
  EXPECT_TRUE(succeeded(commit(*pool, args())));
  EXPECT_EQ(status, refused);
  verify(rows);
  EXPECT_TRUE(succeeded(commit(*pool, args())));
  EXPECT_EQ(status, std::vector<int32_t>{0});
  EXPECT_EQ(compare_slot(*pool, 0, decoded({1})), "");
}

TEST_F(CommitTest, TheShortestWindowOfTheLayersCounts) {
  verify({{.slot = 0, .tokens = {1, 2, 3}}});
  EXPECT_TRUE(succeeded(rig.verify(target_of(*pool), {{.slot = 0, .tokens = {1, 2}}}, {.layers = {1}}).status));
  ids = {0}, accept = {3};
  EXPECT_TRUE(succeeded(commit(*pool, args())));
  EXPECT_EQ(status, std::vector<int32_t>{static_cast<int32_t>(RowStatus::accept_out_of_range)});
  accept = {2};
  EXPECT_TRUE(succeeded(commit(*pool, args())));
  EXPECT_EQ(status, std::vector<int32_t>{0});
  EXPECT_EQ(compare_slot(*pool, 0, decoded({1, 2})), "");
}

TEST_F(CommitTest, OldHandlesAreRefusedByGeneration) {
  verify({{.slot = 0, .tokens = {1}}, {.slot = 1, .tokens = {2}}, {.slot = 2, .tokens = {3}}});
  std::vector<int32_t> generations = {slots[0].generation, slots[1].generation, slots[2].generation};
  ASSERT_TRUE(succeeded(pool->release(slots[1])));
  ASSERT_TRUE(succeeded(pool->release(slots[2])));
  Slot again;
  ASSERT_TRUE(succeeded(pool->acquire(&again)));
  ASSERT_EQ(again.id, 2);
  verify({{.slot = 2, .tokens = {4}}});  // the new tenant's own window
  ids = {0, 1, 2}, accept = {1, 1, 1};
  CommitArgs a = args();
  a.generations = TensorView(generations.data(), DType::i32, {3});
  EXPECT_TRUE(succeeded(commit(*pool, a)));
  const auto stale = static_cast<int32_t>(RowStatus::stale_generation);
  EXPECT_EQ(status, (std::vector<int32_t>{0, stale, stale}));
  EXPECT_EQ(compare_slot(*pool, 2, plain.zero()), "");
  // Without generations the free slot is still refused.
  ids = {1, 2}, accept = {1, 1};
  EXPECT_TRUE(succeeded(commit(*pool, args())));
  EXPECT_EQ(status, (std::vector<int32_t>{static_cast<int32_t>(RowStatus::slot_not_acquired), 0}));
}

TEST_F(CommitTest, TakesNoMemory) {
  verify({{.slot = 0, .tokens = {1, 2}}, {.slot = 1, .tokens = {3}}});
  ids = {0, 1, 2, -1, 9, 3, 3}, accept = {2, 5, 0, 1, 1, 0, 0};
  const std::vector<int32_t> track_slots = {2, -1, -1, -1, -1, 0, 0}, track_steps = {1, -1, -1, -1, -1, 0, 0};
  CommitArgs a = args();
  a.track_slots = TensorView(track_slots.data(), DType::i32, {7});
  a.track_steps = TensorView(track_steps.data(), DType::i32, {7});
  const int64_t calls = g_calls;
  const Status s = commit(*pool, a);
  EXPECT_EQ(g_calls, calls);
  EXPECT_TRUE(succeeded(s));
  EXPECT_EQ(status[1], static_cast<int32_t>(RowStatus::accept_out_of_range));
}

TEST_F(CommitTest, MaterialiseIsTheCommitOfACopy) {
  for (int32_t n = 0; n <= 4; ++n) {
    for (const Slot& s : slots) ASSERT_TRUE(succeeded(pool->reset(s)));
    verify({{.slot = 3, .tokens = {9}}, {.slot = 1, .tokens = {9, 8}}});
    ids = {3}, accept = {1};
    ASSERT_TRUE(succeeded(commit(*pool, args())));
    verify({{.slot = 3, .tokens = {1, 2, 3, 4}}});
    const int64_t calls = g_calls;
    const Status s = pool->materialise(slots[3], n, slots[1]);
    EXPECT_EQ(g_calls, calls);
    ASSERT_TRUE(succeeded(s));
    std::vector<int> text = {9};
    for (int32_t t = 1; t <= n; ++t) text.push_back(t);
    EXPECT_EQ(compare_slot(*pool, 1, decoded(text)), "") << n;
    EXPECT_EQ(compare_slot(*pool, 3, decoded({9})), "");
    for (int64_t layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(ints(pool->pending(layer))[1], kNoWindow);
      EXPECT_EQ(ints(pool->conv_pending(layer))[3], 4);
    }
    accept = {4};  // the window of the source is still there
    ASSERT_TRUE(succeeded(commit(*pool, args())));
    EXPECT_EQ(compare_slot(*pool, 3, decoded({9, 1, 2, 3, 4})), "");
  }
  for (int32_t n : {-1, 1, INT32_MAX}) {  // nothing pending any more
    const auto before = dump();
    EXPECT_EQ(pool->materialise(slots[3], n, slots[1]).code(), Code::invalid_argument);
    EXPECT_EQ(dump(), before);
  }
  EXPECT_EQ(pool->materialise(slots[3], 0, slots[3]).code(), Code::invalid_argument);
}

TEST(Commit, PoolsWithoutConv) {
  const Rig rig(config(false));
  const Plain plain(rig);
  const auto pool = rig.make_pool();
  Slot slot;
  ASSERT_TRUE(succeeded(pool->acquire(&slot)));
  EXPECT_TRUE(succeeded(rig.verify(target_of(*pool), {{.slot = slot.id, .tokens = {5, 6, 7}}}).status));
  const int32_t two = 2;
  CommitArgs a;
  a.slot_ids = TensorView(&slot.id, DType::i32, {1});
  a.num_accepted = TensorView(&two, DType::i32, {1});
  EXPECT_TRUE(succeeded(commit(*pool, a)));
  Plain::State want = plain.zero();
  plain.decode(&want, {5, 6}, "reference");
  EXPECT_EQ(compare_slot(*pool, slot.id, want), "");
  EXPECT_EQ(commit(*pool, a).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace ringfold::test
