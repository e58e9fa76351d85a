// commit: judge every row against all layers, then fold, conv windows, snapshots and cursors together.
#include "ringfold/commit.h"

#include <fmt/format.h>

#include "dispatch/judged.h"
#include "pool/pool_impl.h"

namespace ringfold {
namespace {

int32_t& row_of(const TensorView& t, int64_t row) { return static_cast<int32_t*>(t.data)[row * t.stride[0]]; }

Status check_rows(const char* name, const TensorView& t, int64_t rows, bool optional) {
  if (t.empty() && optional) return {};
  const bool good = t.rank == 1 && t.dtype == DType::i32 && t.device == Device::cpu && t.shape[0] == rows &&
                    (t.data != nullptr || rows == 0);
  if (good) return {};
  return {Code::invalid_argument, fmt::format("{}: expected host memory i32[{}], found {}", name, rows,
                                              t.empty() ? "nothing" : t.data == nullptr ? "no memory" : to_string(t))};
}

Status check_args(const CommitArgs& args) {
  const int64_t rows = args.slot_ids.rank == 1 ? args.slot_ids.shape[0] : 0;
  if (Status s = check_rows("slot_ids", args.slot_ids, rows, false); !s.ok()) return s;
  if (Status s = check_rows("generations", args.generations, rows, true); !s.ok()) return s;
  if (Status s = check_rows("num_accepted", args.num_accepted, rows, false); !s.ok()) return s;
  if (Status s = check_rows("track_slots", args.track_slots, rows, true); !s.ok()) return s;
  if (Status s = check_rows("track_steps", args.track_steps, rows, true); !s.ok()) return s;
  if (Status s = check_rows("row_status", args.row_status, rows, true); !s.ok()) return s;
  if (args.track_slots.empty() != args.track_steps.empty()) {
    return {Code::invalid_argument, "track_steps: expected together with track_slots, found one of them alone"};
  }
  return {};
}

/// A row's snapshot: the slot that gets it, or -1, and the ring row after which it is taken.
struct Track {
  int32_t slot = -1;
  int32_t step = -1;
  bool wanted() const { return slot >= 0 && step >= 0; }
};

Track track_of(const CommitArgs& args, int64_t row) {
  if (args.track_slots.empty()) return {};
  return {.slot = row_of(args.track_slots, row), .step = row_of(args.track_steps, row)};
}

/// The judge of one commit. Slots that rows write are marked in the pool while it lives, so that no memory is needed.
class CommitJudge {
 public:
  CommitJudge(PoolStore& pool, const CommitArgs& args) : pool_(pool), args_(args) {
    for_each_written([&](uint8_t& flags) {
      flags |= flags & PoolStore::kRowMark ? PoolStore::kTwiceMark : PoolStore::kRowMark;
    });
  }
  ~CommitJudge() {
    for_each_written([](uint8_t& flags) { flags &= PoolStore::kAcquired; });
  }
  CommitJudge(const CommitJudge&) = delete;
  CommitJudge& operator=(const CommitJudge&) = delete;

  RowStatus judge(int64_t row) const {
    const int32_t slot = row_of(args_.slot_ids, row);
    if (slot < 0) return RowStatus::null_row;
    if (slot >= pool_.config.slots) return RowStatus::slot_out_of_range;
    if (!args_.generations.empty() &&
        (!pool_.acquired(slot) || row_of(args_.generations, row) != pool_.generation[slot])) {
      return RowStatus::stale_generation;
    }
    if (!pool_.acquired(slot)) return RowStatus::slot_not_acquired;
    if (twice(slot)) return RowStatus::duplicate_slot;
    const int32_t window = pool_.shortest_window(slot);
    if (window == kNoWindow) return RowStatus::no_pending_window;
    const int32_t accepted = row_of(args_.num_accepted, row);
    if (accepted < 0 || accepted > window) return RowStatus::accept_out_of_range;
    const Track track = track_of(args_, row);
    if (!track.wanted()) return RowStatus::done;
    if (track.slot >= pool_.config.slots || track.step >= accepted) return RowStatus::track_out_of_range;
    if (!pool_.acquired(track.slot)) return RowStatus::slot_not_acquired;
    if (twice(track.slot)) return RowStatus::duplicate_slot;
    return RowStatus::done;
  }

 private:
  bool twice(int32_t slot) const { return (pool_.flags[slot] & PoolStore::kTwiceMark) != 0; }

  template <class Visit>
  void for_each_written(Visit visit) {
    for (int64_t row = 0; row < args_.slot_ids.shape[0]; ++row) {
      const int32_t slot = row_of(args_.slot_ids, row);
      if (slot < 0) continue;
      if (slot < pool_.config.slots) visit(pool_.flags[slot]);
      const Track track = track_of(args_, row);
      if (track.wanted() && track.slot < pool_.config.slots) visit(pool_.flags[track.slot]);
    }
  }

  PoolStore& pool_;
  const CommitArgs& args_;
};

FoldArgs fold_args(const Pool& pool, const CommitArgs& args) {
  FoldArgs fold;
  fold.qk_l2norm = pool.config().qk_l2norm;
  fold.state = pool.state();
  fold.ring = pool.ring();
  fold.slot_ids = args.slot_ids;
  fold.num_accepted = args.num_accepted;
  fold.track_slots = args.track_slots;
  fold.track_steps = args.track_steps;
  fold.state_rounding = pool.config().state_rounding;
  fold.impl = args.impl;
  return fold;
}

ConvCommitArgs conv_args(const Pool& pool, const CommitArgs& args) {
  ConvCommitArgs conv;
  conv.conv_state = pool.conv_state();
  conv.conv_ring = pool.conv_ring();
  conv.slot_ids = args.slot_ids;
  conv.num_accepted = args.num_accepted;
  conv.track_slots = args.track_slots;
  conv.track_steps = args.track_steps;
  conv.impl = args.impl;
  return conv;
}

Status run(const Pool& pool, const CommitArgs& args) {
  if (Status s = detail::fold_judged(fold_args(pool, args), args.row_status, {}); !s.ok()) return s;
  if (pool.config().conv_channels == 0) return {};
  return detail::conv_commit_judged(conv_args(pool, args), args.row_status, {});
}

/// The same calls on no rows: says whether both halves can be served before either has changed anything.
Status can_run(const Pool& pool, const CommitArgs& args) {
  CommitArgs none = args;
  for (TensorView* t : {&none.slot_ids, &none.num_accepted, &none.track_slots, &none.track_steps, &none.row_status}) {
    if (!t->empty()) t->shape[0] = 0;
  }
  return run(pool, none);
}

}  // namespace

Status commit(Pool& pool, const CommitArgs& args) {
  if (Status s = check_args(args); !s.ok()) return s;
  if (Status s = can_run(pool, args); !s.ok()) return s;
  PoolStore& store = *pool.impl_;
  const int64_t rows = args.slot_ids.shape[0];
  const bool report = !args.row_status.empty();
  {
    const CommitJudge judge(store, args);
    for (int64_t row = 0; row < rows; ++row) {
      const RowStatus status = judge.judge(row);
      if (report) {
        row_of(args.row_status, row) = static_cast<int32_t>(status);
      } else if (status != RowStatus::done && status != RowStatus::null_row) {
        return {Code::invalid_argument, fmt::format("slot_ids: expected rows that can be committed, found row {} (slot {}): {}",
                                                    row, row_of(args.slot_ids, row), to_string(status))};
      }
    }
  }
  if (Status s = run(pool, args); !s.ok()) return s;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t slot = row_of(args.slot_ids, row);
    if (slot < 0 || (report && row_of(args.row_status, row) != static_cast<int32_t>(RowStatus::done))) continue;
    store.set_pending(slot, kNoWindow);
    if (const Track track = track_of(args, row); track.wanted()) store.set_pending(track.slot, kNoWindow);
  }
  return {};
}

}  // namespace ringfold
