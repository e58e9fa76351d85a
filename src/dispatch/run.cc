// The public compute calls. Each one goes the same way: lower (validate), select, judge the rows, plan, run, move
// cursors. Rows are judged after selecting, since that writes row_status, which a call that nothing serves must leave
// alone.
#include <algorithm>

#include "core/check_view.h"
#include "core/lower.h"
#include "core/rows.h"
#include "dispatch/judged.h"
#include "dispatch/select.h"

namespace ringfold {
namespace {

using namespace detail;

// Bounds of row r of a ragged window: ascending, inside the tokens, and no longer than a window may be.
RowStatus judge_window(const Ints& cu, int64_t r, int64_t tokens, int64_t most) {
  if (!cu) return RowStatus::done;
  const int64_t begin = cu[r], end = cu[r + 1];
  if (begin < 0 || end < begin || end > tokens) return RowStatus::bad_window_bounds;
  return end - begin <= most ? RowStatus::done : RowStatus::window_too_long;
}

RowStatus first_of(std::initializer_list<RowStatus> statuses) {
  for (const RowStatus s : statuses) {
    if (s != RowStatus::done) return s;
  }
  return RowStatus::done;
}

struct WindowRows {
  const char* call;
  int64_t slots;   // of the pool
  int64_t tokens;  // of the ragged inputs
  int64_t most;    // longest window allowed
  Ints pending;    // i32 [slots], optional
};

Status judge_windows(const WindowRows& w, const Rows& p) {
  return judge_rows(
      w.call, p.rows, w.slots, p.slot_ids, p.judged,
      [&](int64_t r) {
        // Bounds come first: also a null row's outputs are zeroed, which needs them.
        const RowStatus bounds = judge_window(p.cu_seqlens, r, w.tokens, w.most);
        if (bounds == RowStatus::bad_window_bounds) return bounds;
        const RowStatus slot = judge_slot(p.slot_ids[r], w.slots);
        if (slot != RowStatus::done) return slot;
        const bool free = w.pending && w.pending[p.slot_ids[r]] == kNotAcquired;
        return first_of({free ? RowStatus::slot_not_acquired : RowStatus::done, bounds});
      },
      [](int64_t) { return int64_t{-1}; });
}

void record_windows(const Rows& p, const Ints& pending) {
  for (int64_t r = 0; pending && r < p.rows; ++r) {
    if (p.live(r)) pending[p.slot_ids[r]] = static_cast<int32_t>(p.tokens(r));
  }
}

void drop_windows(const Rows& p, const Ints& pending) {
  for (int64_t r = 0; pending && r < p.rows; ++r) {
    if (p.live(r)) pending[p.slot_ids[r]] = kNoWindow;
  }
}

void plan_and_run(const Implementation& chosen, const Desc& desc, RecurrenceParams* p) {
  const Plan plan = chosen.plan(desc);
  p->v_parts = static_cast<int>(plan.v_parts);
  p->threads = plan.threads;
  chosen.recurrence(*p);
}

// Pending windows of the listed layers of a slot, judged together.
RowStatus judge_pending(const FoldArgs& args, const RecurrenceParams& p, int64_t slot, int64_t accepted) {
  if (args.pending.empty()) return RowStatus::done;
  for (int64_t i = 0; i < p.layers; ++i) {
    const TensorView layer = args.pending.rank == 2 ? args.pending.at(p.layer(i)) : args.pending;
    const int32_t pending = ints(layer)[slot];
    if (pending == kNotAcquired) return RowStatus::slot_not_acquired;
    if (pending < 0) return RowStatus::no_pending_window;
    if (accepted > pending) return RowStatus::accept_out_of_range;
  }
  return RowStatus::done;
}

RowStatus judge_counts(const Rows& p, int64_t r, int64_t slots, int64_t ring_rows) {
  const int64_t accepted = p.num_accepted[r];
  if (accepted < 0 || accepted > ring_rows) return RowStatus::accept_out_of_range;
  const int64_t target = p.track_slot(r);
  if (target >= slots || (target >= 0 && p.track_steps[r] >= accepted)) return RowStatus::track_out_of_range;
  return RowStatus::done;
}

}  // namespace

Status verify(const VerifyArgs& args) {
  RecurrenceParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower(args, &p, &desc));
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, args.impl, &chosen));
  const Ints pending = ints(args.pending);
  const int64_t most = args.ring.empty() ? kMaxWindow : std::min<int64_t>(kMaxWindow, args.ring.k.shape[1]);
  RINGFOLD_RETURN_IF_ERROR(judge_windows({"verify", args.state.shape[0], args.window.v.shape[0], most, pending}, p));
  plan_and_run(*chosen, desc, &p);
  if (!args.ring.empty()) record_windows(p, pending);
  return {};
}

Status decode(const DecodeArgs& args) {
  RecurrenceParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower(args, &p, &desc));
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, args.impl, &chosen));
  const Ints pending = ints(args.pending);
  RINGFOLD_RETURN_IF_ERROR(
      judge_windows({"decode", args.state.shape[0], args.window.v.shape[0], kMaxWindow, pending}, p));
  plan_and_run(*chosen, desc, &p);
  drop_windows(p, pending);
  return {};
}

Status fold(const FoldArgs& args) {
  RecurrenceParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower(args, &p, &desc));
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, args.impl, &chosen));
  const int64_t slots = args.state.shape[args.state.rank - 4];
  RINGFOLD_RETURN_IF_ERROR(judge_rows(
      "fold", p.rows, slots, p.slot_ids, p.judged,
      [&](int64_t r) {
        const RowStatus slot = judge_slot(p.slot_ids[r], slots);
        if (slot != RowStatus::done) return slot;
        const RowStatus counts = judge_counts(p, r, slots, p.max_window);
        if (counts == RowStatus::accept_out_of_range) return counts;
        const int64_t target = p.track_slot(r);
        const bool no_target = counts == RowStatus::done && target >= 0 && !args.pending.empty() &&
                               judge_pending(args, p, target, 0) == RowStatus::slot_not_acquired;
        return first_of({judge_pending(args, p, p.slot_ids[r], p.num_accepted[r]), counts,
                         no_target ? RowStatus::slot_not_acquired : RowStatus::done});
      },
      [&](int64_t r) { return p.track_slot(r); }));
  plan_and_run(*chosen, desc, &p);
  if (args.pending.empty()) return {};
  for (int64_t i = 0; i < p.layers; ++i) {
    const Ints pending = ints(args.pending.rank == 2 ? args.pending.at(p.layer(i)) : args.pending);
    for (int64_t r = 0; r < p.rows; ++r) {
      if (!p.live(r)) continue;
      pending[p.slot_ids[r]] = kNoWindow;
      if (const int64_t target = p.track_slot(r); target >= 0) pending[target] = kNoWindow;
    }
  }
  return {};
}

namespace {

Status run_conv(Op op, const char* call, const ConvArgs& args) {
  ConvParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower_conv(op, args, &p, &desc));
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, args.impl, &chosen));
  const Ints pending = ints(args.pending);
  const int64_t most = p.ring ? std::min<int64_t>(kMaxWindow, args.conv_ring.shape[1]) : kMaxWindow;
  RINGFOLD_RETURN_IF_ERROR(judge_windows({call, args.conv_state.shape[0], args.x.shape[0], most, pending}, p));
  p.threads = chosen->plan(desc).threads;
  chosen->conv(p);
  if (op == Op::conv_decode) drop_windows(p, pending);
  if (op == Op::conv_verify && p.ring) record_windows(p, pending);
  return {};
}

}  // namespace

Status conv_verify(const ConvArgs& args) { return run_conv(Op::conv_verify, "conv_verify", args); }
Status conv_decode(const ConvArgs& args) { return run_conv(Op::conv_decode, "conv_decode", args); }

Status conv_commit(const ConvCommitArgs& args) {
  ConvParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower(args, &p, &desc));
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, args.impl, &chosen));
  const int64_t slots = args.conv_state.shape[args.conv_state.rank - 3];
  RINGFOLD_RETURN_IF_ERROR(judge_rows(
      "conv_commit", p.rows, slots, p.slot_ids, p.judged,
      [&](int64_t r) {
        return first_of({judge_slot(p.slot_ids[r], slots), judge_counts(p, r, slots, desc.window)});
      },
      [&](int64_t r) { return p.track_slot(r); }));
  p.threads = chosen->plan(desc).threads;
  chosen->conv_commit(p);
  return {};
}

Status gated_norm(const GatedNormArgs& args) {
  NormParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower(args, &p, &desc));
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, args.impl, &chosen));
  p.threads = chosen->plan(desc).threads;
  chosen->gated_norm(p);
  return {};
}

namespace detail {

Status fold_judged(const FoldArgs& args, const TensorView& judged, const TensorView& dst_slots) {
  RecurrenceParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower(args, &p, &desc));
  p.judged = ints(judged);
  p.dst_slot_ids = ints(dst_slots);
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, args.impl, &chosen));
  plan_and_run(*chosen, desc, &p);
  return {};
}

Status conv_commit_judged(const ConvCommitArgs& args, const TensorView& judged, const TensorView& dst_slots) {
  ConvParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower(args, &p, &desc));
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, args.impl, &chosen));
  p.judged = ints(judged);
  p.dst_slot_ids = ints(dst_slots);
  p.threads = chosen->plan(desc).threads;
  chosen->conv_commit(p);
  return {};
}

}  // namespace detail

}  // namespace ringfold
