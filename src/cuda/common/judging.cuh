// Judging rows on the device: every block finds its row's verdict for itself, by the rules of core/judge.h.
#pragma once

#include "core/judge.h"
#include "cuda/common/launch.h"

namespace ringfold::cuda {

using namespace detail;

/// The verdict on a row of a window call. Every thread may call it.
__device__ inline RowStatus verdict_on_window(const Rows& p, int64_t row, bool may_have_history = true) {
  return judge_window(p, row, may_have_history);
}

/// The verdict on a row of accepted tokens. All 32 lanes of a warp must call it.
__device__ inline RowStatus verdict_on_accepted(const Rows& p, const Layers& layers, int64_t row) {
  const int lane = threadIdx.x % 32;
  const int64_t slot = p.slot_ids[row], target = p.track_slot(row);
  if (const RowStatus s = judge_slot(slot, p.slots); s != RowStatus::done) return s;
  if (const RowStatus s = judge_ring(p, p.ring_of(row)); s != RowStatus::done) return s;
  const auto shortest = [&](int64_t of) {
    return __reduce_min_sync(0xffffffffu, shortest_window(p, of, layers, lane, 32));
  };
  const bool cursors = p.pending || p.conv_pending;
  const int32_t window = cursors ? shortest(slot) : INT32_MAX;
  const int32_t target_window = cursors && target >= 0 && target < p.slots ? shortest(target) : INT32_MAX;
  const RowStatus status = judge_accepted(p, row, window, target_window);
  if (status != RowStatus::done) return status;
  if (p.owners) {
    const bool there = window_is_in_ring(p, row, layers, lane, 32);
    return __all_sync(0xffffffffu, there) ? RowStatus::done : RowStatus::window_not_in_ring;
  }
  if (!p.history) return status;
  bool fits = true;
  for (int64_t i = lane; i < p.layers; i += 32) fits = fits && history_fits(p, layers(i), slot, p.num_accepted[row]);
  return __all_sync(0xffffffffu, fits) ? RowStatus::done : RowStatus::accept_out_of_range;
}

/// What the one thread that speaks for a row of a window call leaves behind. Cursors that the other blocks go by stay:
/// move_cursors() moves them after the call.
__device__ inline void settle_window(const Rows& p, int64_t row, RowStatus status) {
  if (p.row_status) write_unordered(p.row_status[row], static_cast<int32_t>(status));
  if (status != RowStatus::done || !p.pending || p.move == CursorMove::keep || p.history) return;
  const int64_t slot = p.slot_ids[row];
  const bool records = p.move == CursorMove::record;
  write_unordered(p.pending.at(0, slot), records ? static_cast<int32_t>(p.asked_tokens(row)) : kNoWindow);
  if (records && p.owners) p.owners.set(0, slot, p.ring_of(row));
}

}  // namespace ringfold::cuda
