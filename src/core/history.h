// The history of a slot: accepted rows that are in the ring and not yet in the checkpoint (fold policies on_next_verify
// and lazy, docs/ring.md). What a call replays of it, when it is folded, and how its cursors move: one definition for
// host and device. Everywhere else a row of the ring is a number that comes from here.
#pragma once

#include "core/params.h"

namespace ringfold::detail {

/// The window's length in a value of `pending`; negative values stay what they are.
RF_HD int32_t window_length(int32_t pending) { return pending < 0 ? pending : pending & ~kFolded; }

/// Has the checkpoint taken the history already?
RF_HD bool is_folded(int32_t pending) { return pending >= 0 && (pending & kFolded) != 0; }

/// May these cursors be used as they are, with `rows` rows behind the history? They lie in a caller's memory.
RF_HD bool history_fits(const HistoryParams& h, int64_t base, int64_t live, int64_t rows) {
  return base >= 0 && base < h.ring_rows && live >= 0 && rows >= 0 && rows <= h.ring_rows - live;
}
RF_HD bool history_fits(const Rows& p, int64_t layer, int64_t slot, int64_t rows) {
  return history_fits(p.history, p.history.base.at(layer, slot), p.history.live.at(layer, slot), rows);
}

/// The due rule of a verify of `tokens` tokens: does the checkpoint take the history before them? Under lazy it does
/// where the commit after this window might leave too little room for a window more. So a commit never has to fold in a
/// ring of two windows.
RF_HD bool is_due(const HistoryParams& h, int64_t live, int64_t tokens) {
  if (h.by_commit) return false;
  if (h.policy == FoldPolicy::on_next_verify) return live > 0;
  return live > 0 && live + tokens + h.max_window > h.ring_rows;
}

/// Must a commit fold that leaves `live` rows of history? A window more has to fit.
RF_HD bool is_full(const HistoryParams& h, int64_t live) { return live + h.max_window > h.ring_rows; }

/// Does a commit under a fold policy that may put it off fold this row in this layer?
RF_HD bool folds_now(const Rows& p, int64_t layer, int64_t row) {
  if (!p.deferred || p.track_slot(row) >= 0) return true;
  const int64_t slot = p.slot_ids[row];
  const int64_t old = is_folded(p.pending.at(layer, slot)) ? 0 : p.history.live.at(layer, slot);
  return is_full(p.history, old + p.num_accepted[row]);
}

/// What a call replays from the ring before its own tokens. Step i of a row, counted from the first row replayed, is
/// ring row ring_row(i); the window's rows follow those of the history.
struct Replay {
  int64_t rows = 0;            ///< of the history; 0 where the checkpoint has it
  int64_t first = 0;           ///< ring row of step 0
  int64_t ring_rows = 0;       ///< 0: rows do not wrap around
  uint32_t cuts = 0;           ///< bit i: a commit ended with ring row i
  bool to_checkpoint = false;  ///< verify: the checkpoint takes the state after the history

  RF_HD int64_t ring_row(int64_t step) const {
    const int64_t row = first + step;
    return ring_rows > 0 && row >= ring_rows ? row - ring_rows : row;
  }
  /// Did a commit end with this step of the history?
  RF_HD bool ends_commit(int64_t step) const { return (cuts >> ring_row(step) & 1) != 0; }
};

/// Of a row that is done.
RF_HD Replay replay_of(const Rows& p, int64_t layer, int64_t row) {
  Replay r;
  if (!p.history) return r;
  const int64_t slot = p.slot_ids[row];
  const int64_t base = p.history.base.at(layer, slot), live = p.history.live.at(layer, slot);
  r.ring_rows = p.history.ring_rows;
  if (is_folded(p.pending.at(layer, slot))) {
    r.first = base;
    r.first = r.ring_row(live);
    return r;
  }
  r.first = base;
  r.rows = live;
  r.cuts = static_cast<uint32_t>(p.history.cuts.at(layer, slot));
  r.to_checkpoint = p.move == CursorMove::record && is_due(p.history, live, p.asked_tokens(row));
  return r;
}

/// Does a row that is done leave states and outputs alone?
RF_HD bool is_idle(const RecurrenceParams& p, const Replay& r, int64_t layer, int64_t row) {
  if (!folds_now(p, layer, row)) return true;
  if (p.tokens(row) > 0 || p.destination(row) != p.slot_ids[row]) return false;
  return r.rows == 0 || !(p.write_state || r.to_checkpoint);
}

/// The bits first .. first + count - 1 of a ring of `ring_rows` rows.
RF_HD uint32_t ring_bits(int64_t first, int64_t count, int64_t ring_rows) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits |= uint32_t{1} << (first + i) % ring_rows;
  return bits;
}

/// Do a call's kernels go by cursors that the call itself moves, so that they have to be moved after it? A verify that
/// folds nothing only sets the window's length, which no verify reads.
RF_HD bool moves_cursors_after(const Rows& p) {
  return p.history && !(p.move == CursorMove::record && p.history.by_commit);
}

/// Moves the cursors of the slot of a row that is done, in one layer, after the call's work. `pending` is written last
/// of all: the others depend on it.
RF_HD void move_row_cursors(const Rows& p, int64_t layer, int64_t row) {
  const int64_t slot = p.slot_ids[row];
  int32_t& pending = p.pending.at(layer, slot);
  if (p.move == CursorMove::record) {
    const bool folded = p.history && (is_folded(pending) || replay_of(p, layer, row).to_checkpoint);
    pending = static_cast<int32_t>(p.asked_tokens(row)) | (folded ? kFolded : 0);
    if (p.owners) p.owners.set(layer, slot, p.ring_of(row));
    return;
  }
  const int32_t after = p.move == CursorMove::settle && pending >= 0 ? pending | kFolded : kNoWindow;
  if (!p.history || after != kNoWindow) {
    pending = after;
    return;
  }
  const HistoryParams& h = p.history;
  int32_t &base = h.base.at(layer, slot), &live = h.live.at(layer, slot), &cuts = h.cuts.at(layer, slot);
  const int64_t accepted = p.num_accepted ? p.num_accepted[row] : 0;
  if (is_folded(pending)) {
    base = static_cast<int32_t>((base + live) % h.ring_rows);
    live = cuts = 0;
  }
  if (p.deferred && !folds_now(p, layer, row)) {
    if (accepted > 0) {
      cuts = static_cast<int32_t>(static_cast<uint32_t>(cuts) | ring_bits(base + live + accepted - 1, 1, h.ring_rows));
    }
    live = static_cast<int32_t>(live + accepted);
  } else {
    base = static_cast<int32_t>((base + live + accepted) % h.ring_rows);
    live = cuts = 0;
  }
  pending = after;
}

/// Empties the cursors of a slot that a snapshot was stored to.
RF_HD void clear_cursors(const Rows& p, int64_t layer, int64_t slot) {
  p.pending.at(layer, slot) = kNoWindow;
  if (!p.history) return;
  p.history.base.at(layer, slot) = p.history.live.at(layer, slot) = p.history.cuts.at(layer, slot) = 0;
}

}  // namespace ringfold::detail
