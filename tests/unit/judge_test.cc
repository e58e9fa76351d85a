// Verdicts on rows (core/judge.h): every status, at its boundaries. Kernels compile the same functions.
#include "core/judge.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "ringfold/verify.h"

namespace ringfold::detail {
namespace {

constexpr int32_t kMin = INT32_MIN, kMax = INT32_MAX;

Ints ints(std::vector<int32_t>& v) { return {v.data(), 1}; }

TEST(JudgeSlot, NegativeIsNullAndOnlyTheRangeIsASlot) {
  EXPECT_EQ(judge_slot(0, 4), RowStatus::done);
  EXPECT_EQ(judge_slot(3, 4), RowStatus::done);
  EXPECT_EQ(judge_slot(4, 4), RowStatus::slot_out_of_range);
  EXPECT_EQ(judge_slot(kMax, 4), RowStatus::slot_out_of_range);
  EXPECT_EQ(judge_slot(-1, 4), RowStatus::null_row);
  EXPECT_EQ(judge_slot(kMin, 4), RowStatus::null_row);
  EXPECT_EQ(judge_slot(0, 0), RowStatus::slot_out_of_range);
}

/// One row of a window call on a pool of four slots, of which slot 2 is free.
class JudgeWindow : public testing::Test {
 protected:
  JudgeWindow() {
    rows_.rows = 1;
    rows_.slots = 4;
    rows_.total_tokens = 10;
    rows_.longest = 5;
    rows_.slot_ids = ints(slot_);
    rows_.pending = {pending_.data(), 4, 1};
  }
  RowStatus dense(int32_t slot) {
    slot_[0] = slot;
    rows_.cu_seqlens = {};
    return judge_window(rows_, 0);
  }
  RowStatus ragged(int32_t slot, int32_t begin, int32_t end) {
    slot_[0] = slot;
    bounds_ = {begin, end};
    rows_.cu_seqlens = ints(bounds_);
    return judge_window(rows_, 0);
  }

  Rows rows_;
  std::vector<int32_t> slot_{0}, bounds_{0, 0}, pending_{kNoWindow, 0, kNotAcquired, 7};
};

TEST_F(JudgeWindow, Dense) {
  for (const int32_t slot : {0, 1, 3}) EXPECT_EQ(dense(slot), RowStatus::done) << "a pending window does not matter";
  EXPECT_EQ(dense(2), RowStatus::slot_not_acquired);
  EXPECT_EQ(dense(4), RowStatus::slot_out_of_range);
  EXPECT_EQ(dense(kMax), RowStatus::slot_out_of_range);
  EXPECT_EQ(dense(-1), RowStatus::null_row);
  EXPECT_EQ(dense(kMin), RowStatus::null_row);
  rows_.pending = {};
  EXPECT_EQ(dense(2), RowStatus::done) << "without cursors nobody knows that it is free";
}

TEST_F(JudgeWindow, RingsByRow) {
  std::vector<int32_t> ring{0};
  rows_.ring_ids = ints(ring);
  rows_.rings = 2;
  for (const int32_t id : {0, 1}) {
    ring[0] = id;
    EXPECT_EQ(dense(3), RowStatus::done);
  }
  for (const int32_t id : {-1, 2, kMin, kMax}) {
    ring[0] = id;
    EXPECT_EQ(dense(3), RowStatus::ring_out_of_range);
    EXPECT_EQ(dense(-1), RowStatus::null_row);
    EXPECT_EQ(dense(4), RowStatus::slot_out_of_range);
    EXPECT_EQ(dense(2), RowStatus::slot_not_acquired);
    EXPECT_EQ(ragged(3, 0, 6), RowStatus::ring_out_of_range) << "before the length";
    EXPECT_EQ(ragged(3, 6, 11), RowStatus::bad_window_bounds) << "which outputs need";
  }
}

TEST(WindowInRing, BothLinksOfEveryLayerAndConvMustAgree) {
  constexpr int64_t kLayers = 2, kSlots = 3, kRings = 2;
  std::vector<int32_t> slot{2}, ring{1};
  std::vector<int32_t> memory(2 * kLayers * (kRings + kSlots), 77);
  const auto owners = [&](int32_t* at) { return OwnerParams{{at, kRings, 1}, {at + kLayers * kRings, kSlots, 1}}; };
  Rows p;
  p.rows = 1, p.layers = kLayers, p.slots = kSlots, p.rings = kRings;
  p.slot_ids = ints(slot), p.ring_ids = ints(ring);
  const auto all = [](int64_t i) { return i; };
  EXPECT_TRUE(window_is_in_ring(p, 0, all)) << "without owners nobody knows";
  p.owners = owners(memory.data());
  p.conv_owners = owners(memory.data() + kLayers * (kRings + kSlots));
  EXPECT_FALSE(window_is_in_ring(p, 0, all)) << "memory that was never set";
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    p.owners.set(layer, 2, 1);
    EXPECT_FALSE(window_is_in_ring(p, 0, all));
    p.conv_owners.set(layer, 2, 1);
  }
  EXPECT_TRUE(window_is_in_ring(p, 0, all));
  EXPECT_TRUE(window_is_in_ring(p, 0, all, 1, 2));
  for (const OwnerParams& o : {p.owners, p.conv_owners}) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t* link : {&o.slot_of_ring.at(layer, 1), &o.ring_of_slot.at(layer, 2)}) {
        const int32_t right = *link;
        *link = right - 1;
        EXPECT_FALSE(window_is_in_ring(p, 0, all));
        EXPECT_EQ(window_is_in_ring(p, 0, all, 1, 2), layer == 0) << "a share of the layers";
        *link = right;
      }
    }
  }
  EXPECT_TRUE(window_is_in_ring(p, 0, all));
  ring[0] = 0;
  EXPECT_FALSE(window_is_in_ring(p, 0, all));
}

TEST_F(JudgeWindow, Bounds) {
  EXPECT_EQ(ragged(0, 0, 0), RowStatus::done);
  EXPECT_EQ(ragged(0, 10, 10), RowStatus::done);
  EXPECT_EQ(ragged(0, 5, 10), RowStatus::done);
  EXPECT_EQ(ragged(0, 6, 11), RowStatus::bad_window_bounds);
  EXPECT_EQ(ragged(0, 11, 11), RowStatus::bad_window_bounds);
  EXPECT_EQ(ragged(0, 3, 2), RowStatus::bad_window_bounds);
  EXPECT_EQ(ragged(0, -1, 2), RowStatus::bad_window_bounds);
  EXPECT_EQ(ragged(0, -1, -1), RowStatus::bad_window_bounds);
  EXPECT_EQ(ragged(0, kMin, kMax), RowStatus::bad_window_bounds);
  EXPECT_EQ(ragged(0, kMax, kMin), RowStatus::bad_window_bounds);
  EXPECT_EQ(ragged(0, 0, kMax), RowStatus::bad_window_bounds);
  EXPECT_EQ(ragged(0, kMin, 0), RowStatus::bad_window_bounds);
}

TEST_F(JudgeWindow, TheLongest) {
  EXPECT_EQ(ragged(0, 2, 7), RowStatus::done);
  EXPECT_EQ(ragged(0, 2, 8), RowStatus::window_too_long);
  rows_.longest = 1;
  EXPECT_EQ(ragged(0, 2, 3), RowStatus::done);
  EXPECT_EQ(ragged(0, 2, 4), RowStatus::window_too_long);
}

TEST_F(JudgeWindow, BoundsComeFirstThenTheSlotThenTheLength) {
  EXPECT_EQ(ragged(-1, 3, 2), RowStatus::bad_window_bounds);
  EXPECT_EQ(ragged(9, 3, 2), RowStatus::bad_window_bounds);
  EXPECT_EQ(ragged(-1, 0, 9), RowStatus::null_row);
  EXPECT_EQ(ragged(9, 0, 9), RowStatus::slot_out_of_range);
  EXPECT_EQ(ragged(2, 0, 9), RowStatus::slot_not_acquired);
}

TEST_F(JudgeWindow, StridesOfIndexArrays) {
  std::vector<int32_t> wide = {1, -7, 9, -7, 2};
  rows_.slot_ids = {wide.data(), 2};
  EXPECT_EQ(judge_window(rows_, 0), RowStatus::done);
  EXPECT_EQ(judge_window(rows_, 1), RowStatus::slot_out_of_range);
  EXPECT_EQ(judge_window(rows_, 2), RowStatus::slot_not_acquired);
}

// What max_window says to a ragged call becomes the longest window of its rows.
TEST(JudgeVerify, MaxWindowRefusesLongerRows) {
  std::vector<float> qkv(8 * 8), gates(8), A_log(1), state(3 * 64), out(8 * 8, 7.0f);
  std::vector<int32_t> slots = {0, 1, 2}, bounds = {0, 2, 5, 6}, status(3, 99);
  VerifyArgs args;
  args.mixer.A_log = {A_log.data(), DType::f32, {1}};
  args.window = {.q = {qkv.data(), DType::f32, {8, 1, 8}},
                 .k = {qkv.data(), DType::f32, {8, 1, 8}},
                 .v = {qkv.data(), DType::f32, {8, 1, 8}},
                 .a = {gates.data(), DType::f32, {8, 1}},
                 .b = {gates.data(), DType::f32, {8, 1}},
                 .slot_ids = {slots.data(), DType::i32, {3}},
                 .cu_seqlens = {bounds.data(), DType::i32, {4}},
                 .max_window = 2};
  args.state = {state.data(), DType::f32, {3, 1, 8, 8}};
  args.out = {out.data(), DType::f32, {8, 1, 8}};
  args.row_status = {status.data(), DType::i32, {3}};
  ASSERT_TRUE(verify(args).ok());
  EXPECT_EQ(status, (std::vector<int32_t>{0, 7, 0}));
  for (int i = 0; i < 6 * 8; ++i) EXPECT_EQ(out[i], 0.0f);
  for (int i = 6 * 8; i < 8 * 8; ++i) EXPECT_EQ(out[i], 7.0f) << "tokens of no row";
  args.window.max_window = 3;
  ASSERT_TRUE(verify(args).ok());
  EXPECT_EQ(status, (std::vector<int32_t>{0, 0, 0}));
}

/// One row of accepted tokens. Four slots, five ring rows.
class JudgeAccepted : public testing::Test {
 protected:
  JudgeAccepted() {
    rows_.rows = 1;
    rows_.slots = 4;
    rows_.longest = 5;
    rows_.slot_ids = ints(slot_);
    rows_.num_accepted = ints(accepted_);
  }
  RowStatus judge(int32_t accepted, int32_t window, int32_t target_window = INT32_MAX) {
    accepted_[0] = accepted;
    return judge_accepted(rows_, 0, window, target_window);
  }
  void track(int32_t slot, int32_t step) {
    track_slot_[0] = slot;
    track_step_[0] = step;
    rows_.track_slots = ints(track_slot_);
    rows_.track_steps = ints(track_step_);
  }

  Rows rows_;
  std::vector<int32_t> slot_{1}, accepted_{0}, track_slot_{-1}, track_step_{-1}, generation_{5}, current_{1, 5, 9, 13};
};

TEST_F(JudgeAccepted, Counts) {
  for (const int32_t n : {0, 1, 3}) EXPECT_EQ(judge(n, 3), RowStatus::done) << n;
  for (const int32_t n : {-1, 4, 5, 6, kMin, kMax}) EXPECT_EQ(judge(n, 3), RowStatus::accept_out_of_range) << n;
  EXPECT_EQ(judge(0, 0), RowStatus::done);
  EXPECT_EQ(judge(1, 0), RowStatus::accept_out_of_range);
}

TEST_F(JudgeAccepted, TheRingIsABoundWhateverTheCursorSays) {
  for (const int32_t window : {5, 6, kMax}) {
    EXPECT_EQ(judge(5, window), RowStatus::done);
    EXPECT_EQ(judge(6, window), RowStatus::accept_out_of_range);
  }
}

TEST_F(JudgeAccepted, WindowsThatAreNone) {
  EXPECT_EQ(judge(0, kNoWindow), RowStatus::no_pending_window);
  EXPECT_EQ(judge(9, kNoWindow), RowStatus::no_pending_window);
  EXPECT_EQ(judge(0, kNotAcquired), RowStatus::slot_not_acquired);
  EXPECT_EQ(judge(0, -3), RowStatus::no_pending_window);
  EXPECT_EQ(judge(0, kMin), RowStatus::no_pending_window);
}

TEST_F(JudgeAccepted, Generations) {
  rows_.generations = ints(generation_);
  rows_.current_generations = ints(current_);
  EXPECT_EQ(judge(2, 3), RowStatus::done);
  EXPECT_EQ(judge(2, kNotAcquired), RowStatus::stale_generation) << "a free slot has no live handle";
  for (const int32_t other : {4, 6, kMin, kMax}) {
    generation_[0] = other;
    EXPECT_EQ(judge(2, 3), RowStatus::stale_generation);
    EXPECT_EQ(judge(9, kNoWindow), RowStatus::stale_generation) << "it says more than the other refusals";
  }
}

TEST_F(JudgeAccepted, TrackSlots) {
  track(3, 1);
  EXPECT_EQ(judge(2, 3), RowStatus::done);
  EXPECT_EQ(judge(1, 3), RowStatus::track_out_of_range) << "row 1 is not accepted";
  EXPECT_EQ(judge(0, 3), RowStatus::track_out_of_range);
  EXPECT_EQ(judge(2, 3, kNotAcquired), RowStatus::slot_not_acquired);
  EXPECT_EQ(judge(2, 3, kNoWindow), RowStatus::done);
  EXPECT_EQ(judge(4, 3, kNotAcquired), RowStatus::accept_out_of_range);
  track(4, 0);
  EXPECT_EQ(judge(2, 3), RowStatus::track_out_of_range);
  track(kMax, 0);
  EXPECT_EQ(judge(2, 3), RowStatus::track_out_of_range);
  track(3, kMax);
  EXPECT_EQ(judge(2, 3), RowStatus::track_out_of_range);
  for (const auto& [slot, step] : {std::array{-1, 1}, std::array{3, -1}, std::array{kMin, kMax}, std::array{9, kMin}}) {
    track(slot, step);
    EXPECT_EQ(judge(0, 3, kNotAcquired), RowStatus::done) << slot << " " << step << ": no snapshot is asked for";
  }
}

/// Three layers of four slots, with conv cursors.
class ShortestWindow : public testing::Test {
 protected:
  ShortestWindow() {
    rows_.layers = 3;
    rows_.slots = 4;
    rows_.pending = {pending_.data(), 4, 1};
    rows_.conv_pending = {conv_.data(), 4, 1};
  }
  int32_t shortest(int64_t slot, int64_t first = 0, int64_t step = 1) {
    return shortest_window(
        rows_, slot, [&](int64_t i) { return rows_.layer(i); }, first, step);
  }

  Rows rows_;
  std::vector<int32_t> pending_{4, 3, kNotAcquired, 0,  //
                                5, 3, kNotAcquired, 1,  //
                                6, 3, kNotAcquired, 2};
  std::vector<int32_t> conv_{9, 3, kNotAcquired, 9,  //
                             9, 2, kNotAcquired, 9,  //
                             9, 3, kNotAcquired, kNoWindow};
};

TEST_F(ShortestWindow, OverLayersAndConvs) {
  EXPECT_EQ(shortest(0), 4);
  EXPECT_EQ(shortest(1), 2) << "a conv's";
  EXPECT_EQ(shortest(2), kNotAcquired);
  EXPECT_EQ(shortest(3), kNoWindow) << "one layer has none";
  rows_.conv_pending = {};
  EXPECT_EQ(shortest(1), 3);
  EXPECT_EQ(shortest(3), 0);
  rows_.pending = {};
  EXPECT_EQ(shortest(2), kMax) << "without cursors nothing is known";
}

TEST_F(ShortestWindow, ListedLayersOnly) {
  const std::vector<int32_t> list = {2, 1};
  rows_.layer_list = list.data();
  rows_.layers = 2;
  EXPECT_EQ(shortest(0), 5);
  EXPECT_EQ(shortest(3), kNoWindow);
  rows_.conv_pending = {};
  EXPECT_EQ(shortest(3), 1);
  rows_.layers = 1;
  EXPECT_EQ(shortest(0), 6);
}

TEST_F(ShortestWindow, ThreadsShareTheLayersOut) {
  for (int64_t slot = 0; slot < 4; ++slot) {
    for (const int64_t threads : {1, 2, 3, 32}) {
      int32_t least = kMax;
      for (int64_t i = 0; i < threads; ++i) least = std::min(least, shortest(slot, i, threads));
      EXPECT_EQ(least, shortest(slot));
    }
  }
  EXPECT_EQ(shortest(0, 1, 3), 5);
  EXPECT_EQ(shortest(0, 3, 3), kMax) << "a thread without a layer";
}

}  // namespace
}  // namespace ringfold::detail
