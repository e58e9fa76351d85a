// Judging the rows of a call on the host: statuses, duplicates, and what happens when one is refused.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/judge.h"
#include "ringfold/status.h"
#include "ringfold/tensor_view.h"

namespace ringfold::detail {

inline Ints ints(const TensorView& view) {
  return view.empty() ? Ints{} : Ints{static_cast<int32_t*>(view.data), view.stride[0]};
}

/// i32 [slots] or [layers,slots].
inline Cursors cursors(const TensorView& view) {
  if (view.empty()) return {};
  return {static_cast<int32_t*>(view.data), view.rank == 2 ? view.stride[0] : 0, view.stride[view.rank - 1]};
}

/// Calls on_duplicate(i) for every i in 0 .. n-1 whose id(i) occurs at another place too. Ids outside 0 .. limit-1 do
/// not count. Linear in n for limits up to 2^17, no heap.
template <class Id, class OnDuplicate>
void for_each_duplicate(int64_t n, int64_t limit, Id id, OnDuplicate on_duplicate) {
  constexpr int64_t kSpan = int64_t{1} << 17;
  uint64_t seen[kSpan / 64], twice[kSpan / 64];
  for (int64_t base = 0; base < limit; base += kSpan) {
    const int64_t span = std::min(kSpan, limit - base);
    std::fill_n(seen, (span + 63) / 64, 0);
    std::fill_n(twice, (span + 63) / 64, 0);
    bool any = false;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = id(i) - base;
      if (at < 0 || at >= span) continue;
      const uint64_t bit = uint64_t{1} << (at % 64);
      if (seen[at / 64] & bit) {
        twice[at / 64] |= bit;
        any = true;
      }
      seen[at / 64] |= bit;
    }
    for (int64_t i = 0; any && i < n; ++i) {
      const int64_t at = id(i) - base;
      if (at >= 0 && at < span && (twice[at / 64] >> (at % 64) & 1)) on_duplicate(i);
    }
  }
}

/// Judges every row of a call with judge(row), then marks duplicates among the slots that the call writes (slot_ids[r],
/// and track slots) and among its rings where it writes them. The verdicts go to row_status, and `judged` becomes that.
/// Where it is absent and a row is refused, returns an error that names the first such row, `call` and what is wrong.
Status judge_rows_error(const char* call, int64_t row, RowStatus status);

template <class Judge>
Status judge_rows(const char* call, Rows* p, Judge judge) {
  const Ints status = p->row_status;
  const int64_t rows = p->rows;
  const auto written = [&](int64_t i) -> int64_t { return i < rows ? p->slot_ids[i] : p->track_slot(i - rows); };
  const auto recorded = [&](int64_t i) -> int64_t {
    const bool refused = status && status[i] != static_cast<int32_t>(RowStatus::done);
    return refused || p->slot_ids[i] < 0 ? -1 : p->ring_ids[i];
  };
  const int64_t rings = p->ring_ids && p->move == CursorMove::record ? rows : 0;
  if (!status) {
    for (int64_t r = 0; r < rows; ++r) {
      const RowStatus s = judge(r);
      if (s != RowStatus::done && s != RowStatus::null_row) return judge_rows_error(call, r, s);
    }
    int64_t bad = -1;
    RowStatus why = RowStatus::duplicate_slot;
    for_each_duplicate(2 * rows, p->slots, written, [&](int64_t i) {
      if (bad < 0) bad = i % rows;
    });
    for_each_duplicate(rings, p->rings, recorded, [&](int64_t i) {
      if (bad < 0) bad = i, why = RowStatus::duplicate_ring;
    });
    return bad < 0 ? Status{} : judge_rows_error(call, bad, why);
  }
  for (int64_t r = 0; r < rows; ++r) status[r] = static_cast<int32_t>(judge(r));
  for_each_duplicate(2 * rows, p->slots, written, [&](int64_t i) {
    int32_t& s = status[i % rows];
    if (s == static_cast<int32_t>(RowStatus::done)) s = static_cast<int32_t>(RowStatus::duplicate_slot);
  });
  for_each_duplicate(rings, p->rings, recorded, [&](int64_t i) {
    if (status[i] == static_cast<int32_t>(RowStatus::done)) status[i] = static_cast<int32_t>(RowStatus::duplicate_ring);
  });
  p->judged = status;
  return {};
}

}  // namespace ringfold::detail
