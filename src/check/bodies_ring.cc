// C12, C16 where rings are keyed by request row: ids that are no ring, one ring for two rows, windows that are not in
// the ring that a fold names.
#include <algorithm>
#include <limits>

#include "check/bodies.h"

namespace ringfold::check {
namespace {

constexpr int32_t kMax = std::numeric_limits<int32_t>::max(), kMin = std::numeric_limits<int32_t>::min();

void equal_memory(Judge& judge, const Store& got, const Store& want, const std::string& what) {
  const auto mine = got.memory(), theirs = want.memory();
  for (size_t i = 0; i < mine.size(); ++i)
    judge.untouched(mine[i].second, pack(theirs[i].second), what + mine[i].first);
  got.guards(judge);
}

int32_t unused_slot(const World& world) {
  int32_t slot = 0;
  while (std::find(world.slots.begin(), world.slots.end(), slot) != world.slots.end()) ++slot;
  return slot;
}

/// verify of the world's rows, row `at` in another ring; the rows `refused` get that status.
void verify_in_ring(Judge& judge, const World& world, size_t at, int32_t ring, const std::vector<size_t>& refused,
                    RowStatus expected) {
  const std::string name = std::string("verify with ") + to_string(expected);
  const Store store = world.make_store(), alone = world.make_store();
  Batch batch = world.batch(0);
  set_ints(slice(batch.window.ring_ids, static_cast<int64_t>(at), 1), {ring});
  std::vector<Row> others;
  std::vector<RowStatus> statuses(world.slots.size(), RowStatus::done);
  for (size_t r : refused) statuses[r] = expected;
  for (size_t r = 0; r < statuses.size(); ++r) {
    if (statuses[r] == RowStatus::done) others.push_back(world.rows(0)[r]);
  }
  if (!judge.on_device()) {
    const Store silent = world.make_store();
    VerifyArgs args = world.verify_args(silent, 0, batch);
    args.row_status = {};
    judge.refused(mirrored::verify(args), Code::invalid_argument, name + ", no row_status");
    equal_memory(judge, silent, alone, name + ", no row_status:");
  }
  judge.ok(mirrored::verify(world.verify_args(store, 0, batch)), name);
  judge.rows(batch.row_status, statuses, name);
  batch.guards(judge);
  for (size_t r : refused) judge.zeros(batch.out_row(r), "outputs of " + name);
  if (!others.empty()) {
    Batch good = world.batch(world.config.layout, others);
    world.verify(judge, alone, 0, good);
  }
  equal_memory(judge, store, alone, name + ":");
}

/// On a device nobody notices that a ring came twice. Those two rows alone have no window that means anything; outputs
/// come from no ring.
void undefined_rings(Judge& judge, const World& world) {
  const Store store = world.make_store(), alone = world.make_store();
  Batch batch = world.batch(0), good = world.batch(0);
  set_ints(slice(batch.window.ring_ids, 0, 1), {ring_of(world.config, world.slots[1])});
  const Bytes before = pack(store.state());
  world.verify(judge, store, 0, batch);
  world.verify(judge, alone, 0, good);
  judge.untouched(store.state(), before, "state, by verify with one ring twice");
  for (size_t r = 0; r < world.slots.size(); ++r) {
    judge.same(batch.out_row(r), good.out_row(r), "outputs of verify with one ring twice");
    if (r < 2) continue;
    for (const auto& [mine, theirs] :
         {std::pair(store.ring(0).k, alone.ring(0).k), {store.ring(0).v, alone.ring(0).v}}) {
      judge.same(mine.at(world.slots[r]), theirs.at(world.slots[r]), "ring beside one that came twice");
    }
  }
}

/// fold of a verified store, row 0 from another ring: it is refused, the others are folded.
void fold_from_ring(Judge& judge, const World& world, const Store& verified, int32_t ring, RowStatus expected,
                    const std::string& why) {
  const std::string name = "fold " + why;
  Store store = world.make_store(), want = world.make_store();
  store.copy_from(verified);
  want.copy_from(verified);
  std::vector<int32_t> counts, rings = rings_of(world.config, world.slots);
  for (int64_t length : world.lengths) counts.push_back(static_cast<int32_t>(length));
  rings[0] = ring;
  const RowBuffers ids(world.slots), accepted(counts), ring_ids(rings), status(std::vector<int32_t>(counts.size(), 77));
  FoldArgs args = world.fold_args(store, ids, accepted);
  args.ring_ids = ring_ids.view;
  if (!judge.on_device()) {
    judge.refused(mirrored::fold(args), Code::invalid_argument, name + ", no row_status");
    equal_memory(judge, store, verified, name + ", no row_status:");
  }
  args.row_status = status.view;
  judge.ok(mirrored::fold(args), name);
  std::vector<RowStatus> statuses(counts.size(), RowStatus::done);
  statuses[0] = expected;
  judge.rows(status.view, statuses, name);
  if (counts.size() > 1)
    world.fold(judge, want, {world.slots.begin() + 1, world.slots.end()}, {counts.begin() + 1, counts.end()});
  equal_memory(judge, store, want, name + ":");
}

Store verified_store(Judge& judge, const World& world) {
  Store store = world.make_store();
  for (int64_t l = 0; l < world.config.layers; ++l) {
    Batch batch = world.batch(l);
    world.verify(judge, store, l, batch);
  }
  return store;
}

}  // namespace

void refused_rings(Judge& judge, const World& world) {
  const auto rings = static_cast<int32_t>(world.num_slots);
  for (int32_t id : {-1, kMin, rings, kMax}) {
    verify_in_ring(judge, world, 0, id, {0}, RowStatus::ring_out_of_range);
  }
  const Store verified = verified_store(judge, world);
  const int32_t spare = unused_slot(world), empty_ring = ring_of(world.config, spare);
  for (int32_t id : {-1, kMin, rings, kMax}) {
    fold_from_ring(judge, world, verified, id, RowStatus::ring_out_of_range, "from a ring that is none");
  }
  fold_from_ring(judge, world, verified, empty_ring, RowStatus::window_not_in_ring, "from a ring without a window");
  if (world.slots.size() > 1) {
    const int32_t ring = ring_of(world.config, world.slots[1]);
    fold_from_ring(judge, world, verified, ring, RowStatus::window_not_in_ring, "from the ring of another row");
    if (judge.on_device()) {
      undefined_rings(judge, world);
    } else {
      verify_in_ring(judge, world, 0, ring, {0, 1}, RowStatus::duplicate_ring);
    }
  }
  // Another slot's window in the ring of row 0, on one layer alone.
  Store taken = world.make_store();
  taken.copy_from(verified);
  const int64_t last = world.config.layers - 1;
  Batch thief = world.batch(world.config.layout, {{&world.sequences[last][0], 0, world.lengths[0], spare}});
  const int32_t ring = ring_of(world.config, world.slots[0]);
  set_ints(thief.window.ring_ids, {ring});
  judge.ok(mirrored::verify(world.verify_args(taken, last, thief)), "verify in the ring of another slot's window");
  judge.rows(thief.row_status, {RowStatus::done}, "verify in the ring of another slot's window");
  fold_from_ring(judge, world, taken, ring, RowStatus::window_not_in_ring, "of a window whose ring was taken");
}

void second_window_elsewhere(Judge& judge, const World& world) {
  Store store = verified_store(judge, world);
  const int32_t slot = world.slots[0], ring = ring_of(world.config, slot);
  const int32_t other = ring_of(world.config, unused_slot(world));
  const int64_t n = world.lengths[0];
  for (int64_t l = 0; l < world.config.layers; ++l) {
    Batch batch = world.batch(world.config.layout, {{&world.sequences[l][0], 0, n, slot}});
    set_ints(batch.window.ring_ids, {other});
    world.verify(judge, store, l, batch);
  }
  const Store start = world.make_store();
  const RowBuffers ids({slot}), accepted({static_cast<int32_t>(n)});
  for (const auto& [from, expected] : {std::pair(ring, RowStatus::window_not_in_ring),
                                       {other, RowStatus::done},
                                       {other, RowStatus::no_pending_window}}) {
    const RowBuffers rings({from}), status({77});
    const Bytes before = pack(store.state());
    FoldArgs args = world.fold_args(store, ids, accepted);
    args.ring_ids = rings.view;
    args.row_status = status.view;
    judge.ok(mirrored::fold(args), "fold after a second window in another ring");
    judge.rows(status.view, {expected}, "fold after a second window in another ring");
    store.guards(judge);
    if (expected != RowStatus::done) judge.untouched(store.state(), before, "state, by a refused fold");
  }
  for (int64_t l = 0; l < world.config.layers; ++l) {
    const Buffer want = world.decoded_state(judge, start, l, 0, n);
    judge.same(store.state(l, slot), want.view(), "state after a second window in another ring");
  }
}

}  // namespace ringfold::check
