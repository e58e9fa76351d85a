// Random commits: what is asked, what must become of each row, and what the model does then.
#include <climits>

#include "trace/tracer.h"

namespace ringfold::test {

std::vector<Tracer::CommitRow> Tracer::random_commit_rows() {
  const auto slots = static_cast<int32_t>(rig_.pool_config().slots);
  const auto some_tenant = [&]() -> const Tenant& { return live_[below(static_cast<int64_t>(live_.size()))]; };
  std::vector<CommitRow> rows;
  const auto add = [&](const Tenant& t) {
    const auto n = static_cast<int32_t>(t.window ? t.window->size() : 0);
    CommitRow row{.slot = t.slot.id, .generation = t.slot.generation, .accept = chance(25) ? 0 : below(n + 1)};
    row.ring = t.ring;
    if (by_row_ && chance(8)) row.ring = chance(50) ? no_ring() : below(rings());
    if (chance(8)) row.accept = chance(50) ? n + 1 : chance(50) ? -1 : INT_MAX;
    if (chance(6)) row.generation += chance(50) ? 1 : -1;
    if (chance(30)) {
      row.track = chance(85) ? some_tenant().slot.id : below(slots + 2);
      row.step = chance(85) && row.accept > 0 && row.accept <= n ? below(row.accept) : below(8) - 1;
    }
    rows.push_back(row);
  };
  for (const Tenant& t : live_) {
    if (chance(t.window ? 60 : 8)) add(t);
  }
  if (!on_device_ && !live_.empty() && chance(6)) add(some_tenant());
  while (chance(25)) {
    const int32_t slot = hostile_row(0, false).first.slot;
    rows.push_back({.slot = slot, .accept = below(3), .track = below(slots + 1) - 1, .step = below(3) - 1});
  }
  std::vector<CommitRow> shuffled;
  for (int32_t i : rng_.permutation(static_cast<int64_t>(rows.size()))) shuffled.push_back(rows[i]);
  if (!on_device_) return shuffled;
  std::set<int32_t> written;
  for (const CommitRow& row : shuffled) written.insert(row.slot);
  for (CommitRow& row : shuffled) {
    if (row.tracks() && !written.insert(row.track).second) row.track = -1;
  }
  return shuffled;
}

std::vector<RowStatus> Tracer::judge(const std::vector<CommitRow>& rows, bool with_generations) {
  std::map<int32_t, int> writers;
  for (const CommitRow& row : rows) {
    writers[row.slot]++;
    if (row.tracks()) writers[row.track]++;
  }
  const auto slots = static_cast<int32_t>(rig_.pool_config().slots);
  const auto judge_row = [&](const CommitRow& row) {
    const Tenant* t = find(row.slot);
    if (row.slot < 0) return RowStatus::null_row;
    if (row.slot >= slots) return RowStatus::slot_out_of_range;
    if (by_row_ && (row.ring < 0 || row.ring >= rings())) return RowStatus::ring_out_of_range;
    if (with_generations && (t == nullptr || t->slot.generation != row.generation)) return RowStatus::stale_generation;
    if (t == nullptr) return RowStatus::slot_not_acquired;
    if (!t->window) return RowStatus::no_pending_window;
    if (row.accept < 0 || row.accept > static_cast<int64_t>(t->window->size())) return RowStatus::accept_out_of_range;
    if (row.tracks() && (row.track >= slots || row.step >= row.accept)) return RowStatus::track_out_of_range;
    if (row.tracks() && find(row.track) == nullptr) return RowStatus::slot_not_acquired;
    if (by_row_ && (row.ring != t->ring || !has_its_ring(*t))) return RowStatus::window_not_in_ring;
    if (writers[row.slot] > 1 || (row.tracks() && writers[row.track] > 1)) return RowStatus::duplicate_slot;
    return RowStatus::done;
  };
  std::vector<RowStatus> statuses;
  for (const CommitRow& row : rows) statuses.push_back(judge_row(row));
  return statuses;
}

void Tracer::commit() {
  counts_["commit"]++;
  std::vector<CommitRow> rows = random_commit_rows();
  const bool with_generations = chance(70), with_status = chance(80), with_track = chance(80);
  if (!with_track) {
    for (CommitRow& row : rows) row.track = row.step = -1;
  }
  const std::vector<RowStatus> want = judge(rows, with_generations);
  bool any_refused = false;
  for (RowStatus s : want) any_refused |= refused(s);

  const auto B = static_cast<int64_t>(rows.size());
  std::vector<CommitRow> table = rows;
  if (table.empty()) table.resize(1);
  static_assert(sizeof(CommitRow) == 6 * sizeof(int32_t));
  const auto column = [&](int32_t CommitRow::*member) { return TensorView(&(table[0].*member), DType::i32, {B}, {6}); };
  std::vector<int32_t> status(static_cast<size_t>(B), 77);
  CommitArgs args;
  args.slot_ids = column(&CommitRow::slot);
  args.num_accepted = column(&CommitRow::accept);
  if (by_row_) args.ring_ids = column(&CommitRow::ring);
  if (with_generations) args.generations = column(&CommitRow::generation);
  if (with_track) {
    args.track_slots = column(&CommitRow::track);
    args.track_steps = column(&CommitRow::step);
  }
  if (with_status) args.row_status = TensorView(status.data(), DType::i32, {B});
  args.impl = impl_;
  const Status s = check::mirrored::commit(*pool_, args);
  if (any_refused && !with_status && !on_device_) {
    counts_["refused call"]++;
    EXPECT_EQ(s.code(), Code::invalid_argument);
    return;
  }
  ASSERT_TRUE(s.ok()) << s.message();
  if (with_status) {
    EXPECT_EQ(status, as_ints(want));
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    counts_[to_string(want[r])]++;
    if (want[r] != RowStatus::done) continue;
    apply(rows[r]);
    if (!has_history_ || rows[r].accept == 0) continue;
    const HistoryOf after = history_of(rows[r].slot);
    if (after.live == 0) {
      EXPECT_EQ(compare_slot(*pool_, rows[r].slot, find(rows[r].slot)->plain), "");
    }
    counts_[after.live > 0 ? "commit moved cursors" : rows[r].tracks() ? "commit tracked" : "commit folded"]++;
  }
}

void Tracer::apply(const CommitRow& row) {
  Tenant& t = *find(row.slot);
  const auto prefix = [&](int32_t n) { return std::vector<int>(t.window->begin(), t.window->begin() + n); };
  if (row.tracks()) {
    counts_["tracked"]++;
    Tenant& snapshot = *find(row.track);
    snapshot.plain = t.plain;
    plain_.decode(&snapshot.plain, prefix(row.step + 1), plain_impl_);
    snapshot.window.reset();
  }
  if (row.accept == 0) counts_["accept 0"]++;
  plain_.decode(&t.plain, prefix(row.accept), plain_impl_);
  t.window.reset();
}

}  // namespace ringfold::test
