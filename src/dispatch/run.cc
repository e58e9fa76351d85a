// The public compute calls. Each one goes the same way: lower (validate), select, judge the rows, plan, run, move
// cursors. Rows are judged after selecting, since that writes row_status, which a call that nothing serves must leave
// alone. On a device the kernels judge the rows and move the cursors; on the host it is done here.
#include <algorithm>

#include "core/lower.h"
#include "dispatch/commit_step.h"
#include "dispatch/select.h"

namespace ringfold {
namespace {

using namespace detail;

Status judge_windows(const char* call, Rows* p) {
  return judge_rows(call, p, [&](int64_t r) { return judge_layer(*p, r); });
}

Status judge_accepted_rows(const char* call, Rows* p) {
  return judge_rows(call, p, [&](int64_t r) {
    const int64_t slot = p->slot_ids[r], target = p->track_slot(r);
    if (const RowStatus s = judge_slot(slot, p->slots); s != RowStatus::done) return s;
    if (const RowStatus s = judge_ring(*p, p->ring_of(r)); s != RowStatus::done) return s;
    const auto shortest = [&](int64_t of) { return shortest_window(*p, of, [&](int64_t i) { return p->layer(i); }); };
    const RowStatus s =
        judge_accepted(*p, r, shortest(slot), target >= 0 && target < p->slots ? shortest(target) : INT32_MAX);
    if (s != RowStatus::done) return s;
    if (!window_is_in_ring(*p, r, [&](int64_t i) { return p->layer(i); })) return RowStatus::window_not_in_ring;
    if (!p->history) return s;
    for (int64_t i = 0; i < p->layers; ++i) {
      if (!history_fits(*p, p->layer(i), slot, p->num_accepted[r])) return RowStatus::accept_out_of_range;
    }
    return s;
  });
}

void move_cursors(const Rows& p) {
  if (!p.pending || p.move == CursorMove::keep) return;
  for (int64_t r = 0; r < p.rows; ++r) {
    if (!p.live(r)) continue;
    const int64_t target = p.track_slot(r);
    for (int64_t i = 0; i < p.layers; ++i) {
      const int64_t layer = p.layer(i);
      move_row_cursors(p, layer, r);
      if (p.conv_pending) {
        const bool records = p.move == CursorMove::record;
        p.conv_pending.at(layer, p.slot_ids[r]) = records ? static_cast<int32_t>(p.asked_tokens(r)) : kNoWindow;
        if (records && p.conv_owners) p.conv_owners.set(layer, p.slot_ids[r], p.ring_of(r));
      }
      if (target < 0) continue;
      clear_cursors(p, layer, target);
      if (p.conv_pending) p.conv_pending.at(layer, target) = kNoWindow;
    }
  }
}

Status run(const Implementation& chosen, const Desc& desc, RecurrenceParams* p) {
  const Plan plan = chosen.plan(desc);
  p->v_parts = static_cast<int>(plan.v_parts);
  p->threads = plan.threads;
  return chosen.recurrence(*p, desc);
}

Status run(const Implementation& chosen, const Desc& desc, ConvParams* p) {
  p->threads = chosen.plan(desc).threads;
  return desc.op == Op::conv_commit ? chosen.conv_commit(*p) : chosen.conv(*p);
}

Status run(const Implementation& chosen, const Desc& desc, LayerParams* p) {
  p->threads = chosen.plan(desc).threads;
  static_cast<Rows&>(p->conv) = *p;  // with the verdicts
  return chosen.layer(*p, desc);
}

/// A call on a window: lower, choose, judge, run, move the cursors.
template <class Params, class Args, class Lower>
Status on_window(const char* call, const Args& args, Lower lower_args) {
  Params p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower_args(&p, &desc));
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, args.impl, &chosen));
  if (desc.device != Device::cpu) {
    RINGFOLD_RETURN_IF_ERROR(run(*chosen, desc, &p));
    return moves_cursors_after(p) ? chosen->move_cursors(p) : Status{};
  }
  RINGFOLD_RETURN_IF_ERROR(judge_windows(call, &p));
  RINGFOLD_RETURN_IF_ERROR(run(*chosen, desc, &p));
  move_cursors(p);
  return {};
}

/// The same for accepted rows, lowered.
template <class Params>
Status run_accepted(const char* call, const Desc& desc, std::string_view impl, Params* p) {
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, impl, &chosen));
  if (desc.device != Device::cpu) {
    RINGFOLD_RETURN_IF_ERROR(run(*chosen, desc, p));
    return p->pending ? chosen->move_cursors(*p) : Status{};
  }
  RINGFOLD_RETURN_IF_ERROR(judge_accepted_rows(call, p));
  RINGFOLD_RETURN_IF_ERROR(run(*chosen, desc, p));
  move_cursors(*p);
  return {};
}

}  // namespace

Status verify(const VerifyArgs& args) {
  return on_window<RecurrenceParams>("verify", args, [&](auto* p, Desc* d) { return lower(args, p, d); });
}

Status decode(const DecodeArgs& args) {
  return on_window<RecurrenceParams>("decode", args, [&](auto* p, Desc* d) { return lower(args, p, d); });
}

Status conv_verify(const ConvArgs& args) {
  return on_window<ConvParams>("conv_verify", args,
                               [&](auto* p, Desc* d) { return lower_conv(Op::conv_verify, args, p, d); });
}

Status conv_decode(const ConvArgs& args) {
  return on_window<ConvParams>("conv_decode", args,
                               [&](auto* p, Desc* d) { return lower_conv(Op::conv_decode, args, p, d); });
}

Status verify_layer(const LayerArgs& args) {
  return on_window<LayerParams>("verify_layer", args,
                                [&](auto* p, Desc* d) { return lower_layer(Op::verify_layer, args, p, d); });
}

Status decode_layer(const LayerArgs& args) {
  return on_window<LayerParams>("decode_layer", args,
                                [&](auto* p, Desc* d) { return lower_layer(Op::decode_layer, args, p, d); });
}

Status fold(const FoldArgs& args) {
  RecurrenceParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower(args, &p, &desc));
  return run_accepted("fold", desc, args.impl, &p);
}

Status conv_commit(const ConvCommitArgs& args) {
  ConvParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower(args, &p, &desc));
  return run_accepted("conv_commit", desc, args.impl, &p);
}

Status gated_norm(const GatedNormArgs& args) {
  NormParams p;
  Desc desc;
  RINGFOLD_RETURN_IF_ERROR(lower(args, &p, &desc));
  const Implementation* chosen = nullptr;
  RINGFOLD_RETURN_IF_ERROR(select(desc, args.impl, &chosen));
  p.threads = chosen->plan(desc).threads;
  return chosen->gated_norm(p);
}

namespace detail {

Status commit_step(const CommitStep& step) {
  RecurrenceParams p;
  ConvParams c;
  Desc desc, conv_desc;
  const Implementation *chosen = nullptr, *conv_chosen = nullptr;
  const bool conv = !step.conv.conv_state.empty();
  // Both halves are lowered and chosen before either has changed anything.
  RINGFOLD_RETURN_IF_ERROR(lower(step.fold, &p, &desc));
  RINGFOLD_RETURN_IF_ERROR(select(desc, step.fold.impl, &chosen));
  if (conv) {
    RINGFOLD_RETURN_IF_ERROR(lower(step.conv, &c, &conv_desc));
    RINGFOLD_RETURN_IF_ERROR(select(conv_desc, step.conv.impl, &conv_chosen));
  }
  p.conv_pending = cursors(step.conv_pending);
  if (conv && p.ring_ids) {
    RINGFOLD_RETURN_IF_ERROR(lower_owners("conv_owners",
                                          {"ring_ids", step.fold.ring_ids, step.conv_owners, step.conv_pending,
                                           step.conv.conv_ring, p.slots, &desc.layers},
                                          &p.conv_owners));
  }
  p.generations = ints(step.generations);
  p.current_generations = ints(step.current_generations);
  p.dst_slot_ids = ints(step.dst_slot_ids);
  p.move = step.move;
  p.needs_window = step.move == CursorMove::consume;
  p.deferred = step.deferred;
  if (desc.device == Device::cpu) RINGFOLD_RETURN_IF_ERROR(judge_accepted_rows("commit", &p));
  // The rows of the conv are those of the fold, so that both get the same verdicts.
  const int64_t conv_longest = c.longest;
  static_cast<Rows&>(c) = p;
  c.longest = std::min(c.longest, conv_longest);
  // In a ring of two windows the next verify folds what would not fit (unless that is left to commits), so a commit has
  // nothing to do but to move cursors.
  const bool moves_only =
      p.deferred && !p.track_slots && !p.history.by_commit && 2 * p.history.max_window <= p.history.ring_rows;
  if (!moves_only) {
    // On a device the rows to be folded are known to the device alone.
    if (p.deferred && desc.device != Device::cpu && desc.layers * desc.rows <= INT32_MAX) {
      p.due = static_cast<int32_t*>(step.due.data);
      p.most_due = step.due.empty() ? 0 : step.due.shape[0] - 1;
    }
    if (p.due) RINGFOLD_RETURN_IF_ERROR(chosen->list_due(p));
    if (Status status = run(*chosen, desc, &p); !status.ok()) {
      // What was listed and not folded must not be found in the list by the next commit.
      if (p.due) (void)device_memory(desc.device)->fill(p.due, 0, sizeof *p.due, p.stream);
      return status;
    }
  }
  if (conv) RINGFOLD_RETURN_IF_ERROR(run(*conv_chosen, conv_desc, &c));
  if (desc.device != Device::cpu) return p.pending ? chosen->move_cursors(p) : Status{};
  move_cursors(p);
  return {};
}

}  // namespace detail

}  // namespace ringfold
