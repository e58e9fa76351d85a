// Traces of fold policies that keep a history: where it lies, what of the ring is dead, what a slot holds in truth.
#include <algorithm>

#include "trace/tracer.h"

namespace ringfold::test {

using check::fill_poison;
using check::pack;
using check::slice;

Tracer::HistoryOf Tracer::history_of(int32_t slot) const {
  if (!has_history_) return {};
  const auto value = [&](const TensorView& view) { return check::ints(slice(view, slot, 1))[0]; };
  const int32_t pending = value(pool_->pending(0));
  return {.base = value(pool_->history(0).base),
          .live = value(pool_->history(0).live),
          .folded = pending >= 0 && (pending & kFolded) != 0};
}

void Tracer::turn_rings() {
  for (const Tenant& t : live_) {
    if (t.window || history_of(t.slot.id).live > 0 || !chance(20)) continue;
    const auto base = static_cast<int32_t>(below(pool_->config().ring_rows));
    for (int64_t layer = 0; layer < rig_.layers(); ++layer) {
      if (check::ints(slice(pool_->history(layer).live, t.slot.id, 1))[0] > 0) return;
      check::set_ints(slice(pool_->history(layer).base, t.slot.id, 1), {base});
    }
  }
}

Bytes Tracer::state_bytes(int32_t slot) const {
  Bytes all;
  for (int64_t layer = 0; layer < rig_.layers(); ++layer) {
    const Bytes bytes = pack(slice(pool_->state(layer), slot, 1));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

void Tracer::count_history(int32_t slot, const HistoryOf& before, const Bytes& state_before) {
  const HistoryOf after = history_of(slot);
  const PoolConfig& c = pool_->config();
  EXPECT_EQ(after.base, before.base) << "verify moved the history";
  EXPECT_EQ(after.live, before.live) << "verify moved the history";
  if (before.folded) {
    EXPECT_TRUE(after.folded) << "a window that replaced another forgot that the history was folded";
    counts_["folded once"] += before.live > 0;
  } else if (before.live > 0) {
    counts_[after.folded ? "due" : "not due"]++;
    EXPECT_TRUE(after.folded || c.fold_policy != FoldPolicy::on_next_verify);
  }
  if (before.folded || !after.folded) {
    EXPECT_EQ(state_bytes(slot), state_before) << "verify wrote a state that was not due, slot " << slot;
  }
  const auto window = static_cast<int64_t>(find(slot)->window->size());
  if (before.base + before.live > c.ring_rows) counts_["history wraps"]++;
  if (before.base + before.live <= c.ring_rows && before.base + before.live + window > c.ring_rows) {
    counts_["window wraps"]++;
  }
  counts_["base " + std::to_string(before.base)]++;
}

std::string Tracer::compare_logical(const Tenant& tenant) {
  const Slot there{.id = 1, .generation = 1};
  Bytes bytes(pool_->export_size());
  const Status exported = pool_->export_slot(tenant.slot, bytes), imported = second_->import_slot(bytes, there);
  EXPECT_TRUE(exported.ok()) << exported.message();
  EXPECT_TRUE(imported.ok()) << imported.message();
  const Status settled = second_->settle({&there, 1});
  EXPECT_TRUE(settled.ok()) << settled.message();
  return compare_slot(*second_, there.id, tenant.plain);
}

void Tracer::poison_stale_rows() {
  const PoolConfig& c = pool_->config();
  const Ring ring = pool_->ring();
  for (const Tenant& t : live_) {
    const auto window = static_cast<int64_t>(t.window ? t.window->size() : 0);
    const HistoryOf h = history_of(t.slot.id);
    EXPECT_TRUE(h.base >= 0 && h.base < c.ring_rows && h.live >= 0) << h.base << " " << h.live;
    EXPECT_LE(h.live + (has_history_ ? c.max_window : 0), c.ring_rows) << "no room for a window";
    for (int64_t layer = 0; layer < rig_.layers(); ++layer) {
      for (int64_t i = 0; i < c.ring_rows; ++i) {
        // A history that the checkpoint has is dead too.
        if (i >= (h.folded ? h.live : 0) && i < h.live + window) continue;
        for (const TensorView& v : {ring.k, ring.v, ring.a.empty() ? ring.g : ring.a, ring.beta}) {
          fill_poison(slice(v.at(layer).at(t.slot.id), (h.base + i) % c.ring_rows, 1));
        }
      }
      if (!pool_->conv_ring().empty()) {
        fill_poison(slice(pool_->conv_ring(layer).at(t.slot.id), window, c.max_window - window));
      }
    }
  }
}

}  // namespace ringfold::test
