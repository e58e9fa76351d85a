// Padding rows, sentinels and replays of one set of buffers: public reports 16 to 24.
#include <climits>

#include "faults/case.h"

namespace ringfold::test {
namespace {

/// One step of `real` rows, alone and with padding rows around them; everything must come out alike.
void expect_padding_is_inert(const std::vector<int32_t>& real, const std::vector<int32_t>& padding) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Bench alone(small_rig(), 6), padded(small_rig(), 6);
    std::vector<Row> rows, all;
    std::vector<int32_t> ids, all_ids, all_accept, want;
    for (size_t i = 0; i < real.size(); ++i) {
      rows.push_back({.slot = real[i], .tokens = {real[i] + 1, 7, 8}});
      ids.push_back(real[i]);
    }
    all = rows;
    all_ids = ids;
    for (int32_t id : padding) {
      all.insert(all.begin() + static_cast<int64_t>(all.size() / 2),
                 {.slot = id, .tokens = {Row::kNaN, Row::kNaN, Row::kNaN}});
      all_ids.insert(all_ids.begin() + static_cast<int64_t>(all_ids.size() / 2), id);
    }
    for (int32_t id : all_ids) {
      all_accept.push_back(id < 0 ? 77 : 2);
      want.push_back(static_cast<int32_t>(id < 0 ? RowStatus::null_row : RowStatus::done));
    }
    alone.verify(rows, impl);
    const StepResult r = padded.verify(all, impl);
    EXPECT_EQ(r.row_status, want);
    EXPECT_EQ(alone.commit(ids, std::vector<int32_t>(ids.size(), 2)), std::vector<int32_t>(ids.size(), 0));
    EXPECT_EQ(padded.commit(all_ids, all_accept), want);
    for (int32_t slot = 0; slot < 6; ++slot) EXPECT_EQ(padded.state(slot), alone.state(slot)) << "slot " << slot;
    const Ring a = alone.pool->ring(), b = padded.pool->ring();
    EXPECT_TRUE(same(b.k, a.k));
    EXPECT_TRUE(same(b.v, a.v));
    EXPECT_TRUE(same(b.g, a.g));
    EXPECT_TRUE(same(b.beta, a.beta));
    EXPECT_TRUE(same(padded.pool->conv_ring(), alone.pool->conv_ring()));
  }
}

TEST(Fault16, PaddingDoesNotReachSlotZero) { expect_padding_is_inert({0, 1, 2}, {-1, -1, -1, -1, -1}); }
TEST(Fault17, TheOnlyRequestOnSlotZero) { expect_padding_is_inert({0}, {-1, -1, INT_MIN}); }
TEST(Fault18, NegativeIdsDoNotWrapToTheLastSlot) { expect_padding_is_inert({5}, {-1, -1, -6, INT_MIN}); }

TEST(Fault20, TheSameBuffersWithOtherRows) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Case kept({.B = 8, .T = 2, .slots = 8});
    const std::vector<std::vector<int32_t>> replays = {{0, 1, 2, 3, 4, 5, 6, 7},
                                                       {4, 2, 6, -1, -1, -1, -1, -1},
                                                       {7, 6, 5, 4, 3, 2, 1, 0},
                                                       {3, -1, -1, -1, -1, -1, -1, -1}};
    for (const std::vector<int32_t>& ids : replays) {
      Case fresh({.B = 8, .T = 2, .slots = 8});
      copy(kept.state.view(), fresh.state.view());
      for (Case* c : {&kept, &fresh}) {
        set_ints(c->slot_ids.view(), ids);
        ASSERT_TRUE(succeeded(ringfold::verify(c->verify(impl))));
        ASSERT_TRUE(succeeded(ringfold::fold(c->fold(impl))));
      }
      EXPECT_TRUE(same(kept.state.view(), fresh.state.view()));
      EXPECT_TRUE(same(kept.out.view(), fresh.out.view()));
      EXPECT_EQ(ints(kept.status.view()), ints(fresh.status.view()));
    }
  }
}

TEST(Fault21, SlotsOutsideTheBatchAreUntouched) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Bench p(small_rig(), 6);
    std::vector<Row> all;
    for (int32_t slot = 0; slot < 6; ++slot) all.push_back({.slot = slot, .tokens = {slot, 9}});
    p.decode(all, impl);
    p.verify(all, impl);  // everybody has a window
    p.verify({{.slot = 4, .tokens = {5, 6}}, {.slot = -1, .tokens = {Row::kNaN}}, {.slot = 1, .tokens = {7}}}, impl);
    EXPECT_EQ(p.commit({4, -1, 1}, {2, 1, 1}, {}, {}, impl),
              statuses({RowStatus::done, RowStatus::null_row, RowStatus::done}));
    // The parked requests still hold their states, and their windows can be committed.
    for (int32_t slot : {0, 2, 3, 5}) {
      EXPECT_EQ(p.compare(slot, {slot, 9}), "");
      EXPECT_EQ(p.commit({slot}, {2}, {}, {}, impl), statuses({RowStatus::done}));
      EXPECT_EQ(p.compare(slot, {slot, 9, slot, 9}), "");
    }
    EXPECT_EQ(p.compare(4, {4, 9, 5, 6}), "");
    EXPECT_EQ(p.compare(1, {1, 9, 7}), "");
  }
}

TEST(Fault22, RepeatsWithAndWithoutDummyRowsAgree) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    std::vector<Plain::State> states;
    std::vector<Bytes> outs;
    for (int repeat = 0; repeat < 20; ++repeat) {
      Bench p(small_rig(), 3);
      std::vector<Row> rows = {
          {.slot = 0, .tokens = {1, 2, 3}}, {.slot = 1, .tokens = {4, 5}}, {.slot = 2, .tokens = {6}}};
      for (int dummy = 0; dummy < repeat % 4; ++dummy) rows.push_back({.slot = -1, .tokens = {Row::kNaN, Row::kNaN}});
      const StepResult r = p.verify(rows, impl);
      p.commit({0, 1, 2}, {2, 1, 0}, {}, {}, impl);
      states.push_back(p.state(0));
      outs.push_back(pack(slice(r.out[1].view(), 0, 6)));
      EXPECT_EQ(states.back(), states.front());
      EXPECT_EQ(outs.back(), outs.front());
    }
  }
}

TEST(Fault24, AFreshRowAsLongAsTheWindow) {
  for (std::string_view impl : impls()) {
    SCOPED_TRACE(impl);
    Bench p(small_rig(), 4);
    for (int32_t slot : {0, 1, 3}) p.decode({{.slot = slot, .tokens = {slot, 8}}}, impl);
    std::vector<Row> rows;
    for (int32_t slot = 0; slot < 4; ++slot) rows.push_back({.slot = slot, .tokens = {20 + slot, 30, 31, 32}});
    p.verify(rows, impl);
    p.commit({0, 1, 2, 3}, {4, 4, 4, 4}, {}, {}, impl);
    EXPECT_EQ(p.compare(2, {22, 30, 31, 32}), "");
    for (int32_t slot : {0, 1, 3}) EXPECT_EQ(p.compare(slot, {slot, 8, 20 + slot, 30, 31, 32}), "");
  }
}

}  // namespace
}  // namespace ringfold::test
