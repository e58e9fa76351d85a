// Histories (core/history.h): when they are due, what is replayed, how cursors move. Kernels compile the same
// functions.
#include "core/history.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/lower.h"
#include "ringfold/pool.h"

namespace ringfold::detail {
namespace {

constexpr int kRows = 7, kWindow = 3;

/// One row of a call on a pool of two layers and three slots; the row works on slot 1.
class HistoryTest : public testing::Test {
 protected:
  HistoryTest() {
    p_.rows = 1;
    p_.layers = 2;
    p_.slots = 3;
    p_.window = kWindow;
    p_.slot_ids = {&slot_, 1};
    p_.pending = {pending_.data(), 3, 1};
    p_.history = {.base = {base_.data(), 3, 1},
                  .live = {live_.data(), 3, 1},
                  .cuts = {cuts_.data(), 3, 1},
                  .policy = FoldPolicy::lazy,
                  .ring_rows = kRows,
                  .max_window = kWindow};
  }
  /// Cursors of slot 1 in layer 1; all others are full of a number that must stay.
  void set(int32_t pending, int32_t base, int32_t live, int32_t cuts) {
    for (std::vector<int32_t>* all : {&pending_, &base_, &live_, &cuts_}) all->assign(6, 77);
    pending_[4] = pending, base_[4] = base, live_[4] = live, cuts_[4] = cuts;
  }
  void expect(int32_t pending, int32_t base, int32_t live, int32_t cuts) {
    EXPECT_EQ(pending_, (std::vector<int32_t>{77, 77, 77, 77, pending, 77}));
    EXPECT_EQ(base_, (std::vector<int32_t>{77, 77, 77, 77, base, 77}));
    EXPECT_EQ(live_, (std::vector<int32_t>{77, 77, 77, 77, live, 77}));
    EXPECT_EQ(cuts_, (std::vector<int32_t>{77, 77, 77, 77, cuts, 77}));
  }
  void accept(int32_t n) {
    accepted_ = n;
    p_.num_accepted = {&accepted_, 1};
    p_.move = CursorMove::consume;
  }

  RecurrenceParams p_;
  int32_t slot_ = 1, accepted_ = 0, track_slot_ = 2, track_step_ = 0;
  std::vector<int32_t> pending_ = std::vector<int32_t>(6), base_ = pending_, live_ = pending_, cuts_ = pending_;
};

/// Kernels that move 16 bytes at a time read the history's rows too.
TEST(LowerDecode, TheAlignmentOfAHistoryCounts) {
  const PoolConfig config{.slots = 2,
                          .H = 1,
                          .HV = 1,
                          .K = 64,
                          .V = 16,
                          .act_dtype = DType::bf16,
                          .ring_rows = 4,
                          .fold_policy = FoldPolicy::lazy};
  std::unique_ptr<Pool> pool;
  ASSERT_TRUE(Pool::create(config, &pool).ok());
  alignas(64) std::byte memory[6][256] = {};
  int32_t slot = 0;
  const auto view = [&](int i, DType type, std::initializer_list<int64_t> shape) {
    return TensorView(memory[i], type, shape);
  };
  DecodeArgs args;
  pool->bind(0, &args);
  args.mixer.A_log = view(0, DType::f32, {1});
  args.window = {.q = view(1, DType::bf16, {1, 1, 1, 64}),
                 .k = view(2, DType::bf16, {1, 1, 1, 64}),
                 .v = view(3, DType::bf16, {1, 1, 1, 16}),
                 .a = view(4, DType::bf16, {1, 1, 1}),
                 .b = view(4, DType::bf16, {1, 1, 1}),
                 .slot_ids = TensorView(&slot, DType::i32, {1})};
  args.out = view(5, DType::bf16, {1, 1, 1, 16});
  RecurrenceParams p;
  Desc desc;
  Status status = lower(args, &p, &desc);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(desc.input_alignment, 16);
  EXPECT_EQ(desc.history_rows, 4);
  EXPECT_EQ(desc.widest_stride, 64 * 16 * 4);  // between the heads of a state
  args.ring.v.stride[1] += 2;                  // rows four bytes further apart
  args.ring.v.shape[1] = args.ring.k.shape[1] = args.ring.g.shape[1] = args.ring.beta.shape[1] = 3;
  status = lower(args, &p, &desc);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(desc.input_alignment, 4);
}

TEST(WindowLength, FlagsDoNotCount) {
  for (int32_t n : {0, 1, 31, 32}) {
    EXPECT_EQ(window_length(n), n);
    EXPECT_EQ(window_length(n | kFolded), n);
    EXPECT_FALSE(is_folded(n));
    EXPECT_TRUE(is_folded(n | kFolded));
  }
  for (int32_t none : {kNoWindow, kNotAcquired, INT32_MIN}) {
    EXPECT_EQ(window_length(none), none);
    EXPECT_FALSE(is_folded(none)) << "the bit is set in negative numbers too";
  }
}

TEST_F(HistoryTest, DueRules) {
  HistoryParams h = p_.history;
  // lazy: live + T + 3 > 7.
  EXPECT_FALSE(is_due(h, 0, 3));
  EXPECT_FALSE(is_due(h, 1, 3));
  EXPECT_TRUE(is_due(h, 2, 3));
  EXPECT_FALSE(is_due(h, 3, 1));
  EXPECT_TRUE(is_due(h, 4, 1));
  EXPECT_FALSE(is_due(h, 4, 0));
  h.ring_rows = 4;
  EXPECT_FALSE(is_due(h, 0, 3)) << "nothing is there to fold";
  h.policy = FoldPolicy::on_next_verify;
  EXPECT_FALSE(is_due(h, 0, 3));
  h.ring_rows = 32;
  EXPECT_TRUE(is_due(h, 1, 0));
}

TEST_F(HistoryTest, CursorsThatFitTheRing) {
  const auto fits = [&](int32_t base, int32_t live, int64_t rows) {
    set(kNoWindow, base, live, 0);
    return history_fits(p_, 1, 1, rows);
  };
  EXPECT_TRUE(fits(0, 0, 7));
  EXPECT_TRUE(fits(6, 4, 3));
  EXPECT_FALSE(fits(6, 4, 4));
  EXPECT_FALSE(fits(6, 7, 1));
  EXPECT_TRUE(fits(6, 7, 0));
  for (int32_t base : {-1, 7, INT32_MAX, INT32_MIN}) EXPECT_FALSE(fits(base, 0, 0)) << base;
  for (int32_t live : {-1, 8, INT32_MAX, INT32_MIN}) EXPECT_FALSE(fits(0, live, 0)) << live;
  for (int64_t rows : {int64_t{-1}, int64_t{8}, INT64_MAX}) EXPECT_FALSE(fits(0, 0, rows)) << rows;
}

TEST_F(HistoryTest, ReplayRunsAroundTheRing) {
  p_.move = CursorMove::record;
  set(kNoWindow, 5, 3, 1 << 6 | 1 << 0);
  const Replay r = replay_of(p_, 1, 0);
  EXPECT_EQ(r.rows, 3);
  EXPECT_TRUE(r.to_checkpoint);
  const int64_t rows[] = {5, 6, 0, 1, 2, 3};
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(r.ring_row(i), rows[i]) << i;
  EXPECT_FALSE(r.ends_commit(0));
  EXPECT_TRUE(r.ends_commit(1));
  EXPECT_TRUE(r.ends_commit(2));
  set(2 | kFolded, 5, 3, 1 << 6 | 1 << 0);
  const Replay folded = replay_of(p_, 1, 0);
  EXPECT_EQ(folded.rows, 0);
  EXPECT_FALSE(folded.to_checkpoint);
  EXPECT_EQ(folded.ring_row(0), 1) << "the window stays where it is";
  p_.history = {};
  EXPECT_EQ(replay_of(p_, 1, 0).ring_row(31), 31) << "on_commit does not wrap";
}

TEST_F(HistoryTest, AVerifyMovesPendingAlone) {
  p_.move = CursorMove::record;
  set(kNoWindow, 5, 3, 65);
  move_row_cursors(p_, 1, 0);
  expect(3 | kFolded, 5, 3, 65);
  p_.window = 1;
  move_row_cursors(p_, 1, 0);
  expect(1 | kFolded, 5, 3, 65);
  set(2, 5, 1, 64);
  move_row_cursors(p_, 1, 0);
  expect(1, 5, 1, 64);
}

TEST_F(HistoryTest, ACommitThatIsPutOff) {
  p_.deferred = true;
  accept(2);
  set(3, 6, 1, 1 << 6);
  EXPECT_FALSE(folds_now(p_, 1, 0));
  move_row_cursors(p_, 1, 0);
  expect(kNoWindow, 6, 3, 1 << 6 | 1 << 1);
  set(3 | kFolded, 5, 3, 65);
  EXPECT_FALSE(folds_now(p_, 1, 0)) << "the history gives its rows up";
  move_row_cursors(p_, 1, 0);
  expect(kNoWindow, 1, 2, 1 << 2);
  accept(0);
  set(3, 6, 1, 1 << 6);
  move_row_cursors(p_, 1, 0);
  expect(kNoWindow, 6, 1, 1 << 6);
}

TEST_F(HistoryTest, ACommitThatHasToFold) {
  p_.deferred = true;
  accept(2);
  set(3, 6, 3, 1 << 6);
  EXPECT_TRUE(folds_now(p_, 1, 0)) << "5 rows leave no room for 3";
  move_row_cursors(p_, 1, 0);
  expect(kNoWindow, 4, 0, 0);
  set(3, 6, 1, 1 << 6);
  p_.track_slots = {&track_slot_, 1};
  p_.track_steps = {&track_step_, 1};
  EXPECT_TRUE(folds_now(p_, 1, 0)) << "a snapshot is asked for";
  move_row_cursors(p_, 1, 0);
  expect(kNoWindow, 2, 0, 0);
}

TEST_F(HistoryTest, FoldDecodeAndSettle) {
  accept(2);
  set(3, 6, 3, 1 << 6);
  move_row_cursors(p_, 1, 0);
  expect(kNoWindow, 4, 0, 0);
  set(3 | kFolded, 6, 3, 1 << 6);
  move_row_cursors(p_, 1, 0);
  expect(kNoWindow, 4, 0, 0);
  p_.num_accepted = {};  // decode
  set(3, 6, 3, 1 << 6);
  move_row_cursors(p_, 1, 0);
  expect(kNoWindow, 2, 0, 0);
  accept(0);
  p_.move = CursorMove::settle;
  set(3, 6, 3, 1 << 6);
  move_row_cursors(p_, 1, 0);
  expect(3 | kFolded, 6, 3, 1 << 6);
  set(kNoWindow, 6, 3, 1 << 6);
  move_row_cursors(p_, 1, 0);
  expect(kNoWindow, 2, 0, 0);
}

}  // namespace
}  // namespace ringfold::detail
