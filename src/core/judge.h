// The verdict on one row of a call, from values that only the row's arrays hold. One definition for host and device; a
// kernel judges where it runs, since nobody may read a device's values on the host.
#pragma once

#include "core/history.h"

namespace ringfold::detail {

/// Status of a slot id by itself: done, null_row or slot_out_of_range.
RF_HD RowStatus judge_slot(int64_t slot, int64_t slots) {
  if (slot < 0) return RowStatus::null_row;
  return slot < slots ? RowStatus::done : RowStatus::slot_out_of_range;
}

/// What a row of verify, decode or their convs is judged by: the row's values of the call's arrays. The cursors count
/// only where the slot is one of the pool's.
struct WindowFacts {
  int64_t begin = 0, end = 0;  ///< of its tokens
  int64_t slot = -1, ring = -1;
  int32_t pending = kNoWindow, base = 0, live = 0;
};

/// Where rings are keyed by request row: done, or ring_out_of_range.
RF_HD RowStatus judge_ring(const Rows& p, int64_t ring) {
  return !p.ring_ids || (ring >= 0 && ring < p.rings) ? RowStatus::done : RowStatus::ring_out_of_range;
}

/// Bounds come first: also a null row's outputs are zeroed, which needs them. `may_have_history`: false spares a kernel
/// the code for what its caller knows not to be there.
RF_HD RowStatus judge_window(const Rows& p, const WindowFacts& f, bool may_have_history = true) {
  RowStatus length = RowStatus::done;
  if (p.cu_seqlens) {
    if (f.begin < 0 || f.end < f.begin || f.end > p.total_tokens) return RowStatus::bad_window_bounds;
    if (f.end - f.begin > p.longest) length = RowStatus::window_too_long;
  }
  if (const RowStatus s = judge_slot(f.slot, p.slots); s != RowStatus::done) return s;
  if (f.pending == kNotAcquired) return RowStatus::slot_not_acquired;
  if (const RowStatus s = judge_ring(p, f.ring); s != RowStatus::done) return s;
  // A window goes behind the history, so that no row is read and written by one call.
  const bool records = p.move == CursorMove::record;
  if (may_have_history && p.history && !history_fits(p.history, f.base, f.live, records ? f.end - f.begin : 0))
    return RowStatus::window_too_long;
  return length;
}

RF_HD WindowFacts window_facts(const Rows& p, int64_t row, bool may_have_history = true) {
  WindowFacts f;
  f.begin = p.cu_seqlens ? p.cu_seqlens[row] : 0;
  f.end = p.cu_seqlens ? p.cu_seqlens[row + 1] : p.window;
  f.slot = p.slot_ids[row];
  f.ring = p.ring_of(row);
  if (judge_slot(f.slot, p.slots) == RowStatus::done) {
    if (p.pending) f.pending = read_unordered(p.pending.at(0, f.slot));
    if (may_have_history && p.history) f.base = p.history.base.at(0, f.slot), f.live = p.history.live.at(0, f.slot);
  }
  return f;
}

RF_HD RowStatus judge_window(const Rows& p, int64_t row, bool may_have_history = true) {
  return judge_window(p, window_facts(p, row, may_have_history), may_have_history);
}

/// A row of a whole layer: one verdict over the cursors of both halves. `conv_pending` counts only where the slot is
/// one of the pool's.
RF_HD RowStatus judge_layer(const Rows& p, const WindowFacts& f, int32_t conv_pending, bool may_have_history = true) {
  const RowStatus s = judge_window(p, f, may_have_history);
  const bool in_range = s == RowStatus::done || s == RowStatus::window_too_long;
  return in_range && conv_pending == kNotAcquired ? RowStatus::slot_not_acquired : s;
}

RF_HD RowStatus judge_layer(const Rows& p, int64_t row) {
  const WindowFacts f = window_facts(p, row);
  const bool looks = p.conv_pending && judge_slot(f.slot, p.slots) == RowStatus::done;
  return judge_layer(p, f, looks ? read_unordered(p.conv_pending.at(0, f.slot)) : kNoWindow);
}

/// The shortest pending window of a slot over the layers of the call, conv windows included: kNotAcquired if the slot
/// is free, kNoWindow if one layer has none. Looks at every step-th layer from `first` on: a kernel shares them out
/// among its threads. `layer_of(i)` is the i-th layer of the call.
template <class LayerOf>
RF_HD int32_t shortest_window(const Rows& p, int64_t slot, const LayerOf& layer_of, int64_t first = 0,
                              int64_t step = 1) {
  int32_t shortest = INT32_MAX;
  const auto look = [&](const Cursors& cursors, int64_t layer) {
    if (cursors && window_length(cursors.at(layer, slot)) < shortest) shortest = window_length(cursors.at(layer, slot));
  };
  for (int64_t i = first; i < p.layers; i += step) {
    look(p.pending, layer_of(i));
    look(p.conv_pending, layer_of(i));
  }
  return shortest;
}

/// Where rings are keyed by request row: is the pending window of a row's slot the one in its ring, in all layers, conv
/// windows included? A window replays onto the checkpoint that it was verified on. Its slot says in which ring it is,
/// so that a later window of the slot replaces it, wherever that is; the ring says whose it has, so that another slot's
/// does too. Looks at every step-th layer from `first` on. Slot and ring are in range.
template <class LayerOf>
RF_HD bool window_is_in_ring(const Rows& p, int64_t row, const LayerOf& layer_of, int64_t first = 0, int64_t step = 1) {
  const int64_t slot = p.slot_ids[row], ring = p.ring_of(row);
  bool all = true;
  for (int64_t i = first; i < p.layers; i += step) {
    if (p.owners) all = all && p.owners.agree(layer_of(i), slot, ring);
    if (p.conv_owners) all = all && p.conv_owners.agree(layer_of(i), slot, ring);
  }
  return all;
}

/// A row of fold, conv_commit or commit whose slot id is in range. `window` and `target_window` are shortest_window()
/// of the row's slot and of the slot that gets its snapshot; without cursors both are INT32_MAX.
RF_HD RowStatus judge_accepted(const Rows& p, int64_t row, int32_t window, int32_t target_window) {
  const bool acquired = window != kNotAcquired;
  if (p.generations && (!acquired || p.generations[row] != p.current_generations[p.slot_ids[row]])) {
    return RowStatus::stale_generation;
  }
  if (!acquired) return RowStatus::slot_not_acquired;
  if (window < 0) {
    if (p.needs_window) return RowStatus::no_pending_window;
    window = 0;
  }
  const int64_t accepted = p.num_accepted[row];
  if (accepted < 0 || accepted > p.longest || accepted > window) return RowStatus::accept_out_of_range;
  const int64_t target = p.track_slot(row);
  if (target < 0) return RowStatus::done;
  if (target >= p.slots || p.track_steps[row] >= accepted) return RowStatus::track_out_of_range;
  return target_window == kNotAcquired ? RowStatus::slot_not_acquired : RowStatus::done;
}

}  // namespace ringfold::detail
