// commit: judge every row against all layers, then fold, conv windows, snapshots and cursors together.
#include "ringfold/commit.h"

#include <algorithm>

#include "core/check_view.h"
#include "core/rows.h"
#include "dispatch/judged.h"

namespace ringfold {
namespace {

using detail::Ints;
using detail::ints;

Status check_args(const CommitArgs& args) {
  const int64_t rows = args.slot_ids.rank == 1 ? args.slot_ids.shape[0] : 0;
  const struct {
    const char* name;
    const TensorView& view;
    bool optional;
  } arguments[] = {{"slot_ids", args.slot_ids, false},         {"generations", args.generations, true},
                   {"num_accepted", args.num_accepted, false}, {"track_slots", args.track_slots, true},
                   {"track_steps", args.track_steps, true},    {"row_status", args.row_status, true}};
  for (const auto& [name, view, optional] : arguments) {
    if (optional && view.empty()) continue;
    RINGFOLD_RETURN_IF_ERROR(detail::check_ints(name, view, "B", rows));
  }
  if (args.track_slots.empty() != args.track_steps.empty()) {
    return detail::invalid("track_slots and track_steps", "both or neither", "one of them");
  }
  return {};
}

/// The pending lengths of one slot over all layers, conv windows included.
class Cursors {
 public:
  explicit Cursors(const Pool& pool) : config_(pool.config()), arrays_{pool.pending(), pool.conv_pending()} {}

  bool acquired(int32_t slot) const { return at(arrays_[0], 0, slot) != kNotAcquired; }

  /// The shortest window; kNoWindow if one layer has none.
  int32_t shortest(int32_t slot) const {
    int32_t rows = static_cast<int32_t>(config_.ring_rows);
    for_each(slot, [&](int32_t pending) { rows = std::min(rows, pending); });
    return std::max(rows, kNoWindow);
  }

  void consume(int32_t slot) const {
    for_each(slot, [](int32_t& pending) { pending = kNoWindow; });
  }

 private:
  static int32_t& at(const TensorView& t, int64_t layer, int32_t slot) {
    return static_cast<int32_t*>(t.data)[layer * t.stride[0] + slot];
  }

  template <class Visit>
  void for_each(int32_t slot, Visit visit) const {
    for (const TensorView& array : arrays_) {
      for (int64_t layer = 0; !array.empty() && layer < config_.layers; ++layer) visit(at(array, layer, slot));
    }
  }

  const PoolConfig& config_;
  const TensorView arrays_[2];
};

/// What a commit asks of one pool, row by row.
struct Rows {
  explicit Rows(const Pool& pool, const CommitArgs& args)
      : slots(pool.config().slots),
        cursors(pool),
        current(ints(pool.generations())),
        slot_ids(ints(args.slot_ids)),
        generations(ints(args.generations)),
        num_accepted(ints(args.num_accepted)),
        track_slots(ints(args.track_slots)),
        track_steps(ints(args.track_steps)) {}

  /// The slot that gets a snapshot of the row; negative: none.
  int64_t track(int64_t row) const {
    return slot_ids[row] >= 0 && track_slots && track_steps[row] >= 0 ? track_slots[row] : -1;
  }

  /// Everything but duplicates.
  RowStatus judge(int64_t row) const {
    const int32_t slot = slot_ids[row];
    if (const RowStatus s = detail::judge_slot(slot, slots); s != RowStatus::done) return s;
    const bool live = cursors.acquired(slot);
    if (generations && (!live || generations[row] != current[slot])) return RowStatus::stale_generation;
    if (!live) return RowStatus::slot_not_acquired;
    const int32_t window = cursors.shortest(slot);
    if (window == kNoWindow) return RowStatus::no_pending_window;
    const int32_t accepted = num_accepted[row];
    if (accepted < 0 || accepted > window) return RowStatus::accept_out_of_range;
    const int64_t target = track(row);
    if (target < 0) return RowStatus::done;
    if (target >= slots || track_steps[row] >= accepted) return RowStatus::track_out_of_range;
    return cursors.acquired(static_cast<int32_t>(target)) ? RowStatus::done : RowStatus::slot_not_acquired;
  }

  int64_t slots;
  Cursors cursors;
  Ints current;  ///< generation of every slot
  Ints slot_ids, generations, num_accepted, track_slots, track_steps;
};

/// Folds the rows that are done, in all layers, and forms their conv windows.
Status fold_all(const Pool& pool, const CommitArgs& args) {
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
  RINGFOLD_RETURN_IF_ERROR(detail::fold_judged(fold, args.row_status, {}));
  if (pool.config().conv_channels == 0) return {};

  ConvCommitArgs conv;
  conv.conv_state = pool.conv_state();
  conv.conv_ring = pool.conv_ring();
  conv.slot_ids = args.slot_ids;
  conv.num_accepted = args.num_accepted;
  conv.track_slots = args.track_slots;
  conv.track_steps = args.track_steps;
  conv.impl = args.impl;
  return detail::conv_commit_judged(conv, args.row_status, {});
}

/// The same on no rows: says whether both halves can be served before either has changed anything.
Status can_fold(const Pool& pool, const CommitArgs& args) {
  CommitArgs none = args;
  for (TensorView* t : {&none.slot_ids, &none.num_accepted, &none.track_slots, &none.track_steps, &none.row_status}) {
    if (!t->empty()) t->shape[0] = 0;
  }
  return fold_all(pool, none);
}

}  // namespace

Status commit(Pool& pool, const CommitArgs& args) {
  RINGFOLD_RETURN_IF_ERROR(check_args(args));
  RINGFOLD_RETURN_IF_ERROR(can_fold(pool, args));
  const Rows rows(pool, args);
  const int64_t count = args.slot_ids.shape[0];
  const Ints status = ints(args.row_status);
  RINGFOLD_RETURN_IF_ERROR(detail::judge_rows(
      "commit", count, rows.slots, rows.slot_ids, status, [&](int64_t row) { return rows.judge(row); },
      [&](int64_t row) { return rows.track(row); }));
  RINGFOLD_RETURN_IF_ERROR(fold_all(pool, args));
  for (int64_t row = 0; row < count; ++row) {
    if (rows.slot_ids[row] < 0 || (status && status[row] != static_cast<int32_t>(RowStatus::done))) continue;
    rows.cursors.consume(rows.slot_ids[row]);
    if (const int64_t target = rows.track(row); target >= 0) rows.cursors.consume(static_cast<int32_t>(target));
  }
  return {};
}

}  // namespace ringfold
