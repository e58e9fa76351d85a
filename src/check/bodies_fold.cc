// C4, C5, C6: what fold computes, for which layers, and what it leaves alone.
#include <algorithm>
#include <numeric>

#include "check/bodies.h"
#include "check/conv_world.h"

namespace ringfold::check {
namespace {

/// Counts worth trying for a window of T: all of a short one, the ends and group borders of a long one.
std::vector<int64_t> counts_to_try(int64_t T) {
  std::vector<int64_t> counts;
  for (int64_t n = 0; n <= T; ++n) {
    if (T <= 5 || n <= 1 || n == 8 || n >= T - 1) counts.push_back(n);
  }
  return counts;
}

/// The count that row r gets when the batch tries n: all different, all within the row's window.
int64_t count_of(const World& world, int64_t n, size_t r) {
  return (n + static_cast<int64_t>(r)) % (world.lengths[r] + 1);
}

void fold_one_count(Judge& judge, const World& world, const Store& verified, const std::vector<Batch>& batches,
                    int64_t n) {
  Store store = world.make_store();
  store.copy_from(verified);
  std::vector<int32_t> counts;
  for (size_t r = 0; r < world.slots.size(); ++r) counts.push_back(static_cast<int32_t>(count_of(world, n, r)));
  world.fold(judge, store, world.slots, counts);
  for (int64_t l = 0; l < world.config.layers; ++l) {
    for (size_t r = 0; r < world.slots.size(); ++r) {
      const std::string where =
          "state after fold(" + std::to_string(counts[r]) + ") of " + World::where(l, static_cast<int64_t>(r));
      const TensorView state = store.state(l, world.slots[r]);
      if (counts[r] == 0 && world.has_history()) {
        judge.same(state, verified.logical(l, world.slots[r]), where);
        continue;
      }
      if (counts[r] == 0) {
        judge.untouched(state, pack(verified.state(l, world.slots[r])), where);
        continue;
      }
      const Buffer decoded = world.decoded_state(judge, verified, l, r, counts[r]);
      judge.same(state, decoded.view(), where + ", against decoding,");
      if (!batches[l].snapshots.empty()) {
        judge.same(batches[l].snapshot(r, counts[r] - 1), decoded.view(), where + ": snapshot, against decoding,");
      }
    }
    const std::vector<int32_t> pending = ints(store.pending(l));
    for (int32_t slot : world.slots) {
      judge.that(pending[slot] == kNoWindow, "fold left a pending window");
      judge.that(store.cursors(l, slot).live == 0, "fold left a history");
    }
  }
}

/// Verify + fold of everything == decode of everything, outputs too; also in place of the caller's other slots.
void whole_window(Judge& judge, const World& world, const Store& verified, const std::vector<Batch>& batches) {
  Store folded = world.make_store(), decoded = world.make_store();
  folded.copy_from(verified);
  std::vector<int32_t> counts;
  for (int64_t length : world.lengths) counts.push_back(static_cast<int32_t>(length));
  world.fold(judge, folded, world.slots, counts);
  for (int64_t l = 0; l < world.config.layers; ++l) {
    Batch batch = world.batch(l);
    world.decode(judge, decoded, l, batch);
    judge.same(batches[l].out, batch.out, "outputs of verify, against one decode call,");
  }
  judge.same(folded.state(), decoded.state(), "states of verify and fold, against one decode call,");
}

/// Snapshots to another slot while folding.
void tracking(Judge& judge, const World& world, const Store& verified) {
  const int64_t T = world.lengths[0];
  std::vector<int32_t> free_slots;
  for (int32_t s = 0; s < world.num_slots; ++s) {
    if (std::find(world.slots.begin(), world.slots.end(), s) == world.slots.end()) free_slots.push_back(s);
  }
  for (int64_t step : {int64_t{0}, T - 1}) {
    Store tracked = world.make_store(), plain = world.make_store();
    tracked.copy_from(verified);
    plain.copy_from(verified);
    std::vector<int32_t> counts, track_slots(world.slots.size(), -1), track_steps(world.slots.size(), 0);
    for (int64_t length : world.lengths) counts.push_back(static_cast<int32_t>(length));
    track_slots[0] = free_slots[0];
    track_steps[0] = static_cast<int32_t>(step);
    if (world.slots.size() > 1) {
      track_slots[1] = free_slots[1];
      track_steps[1] = -1;  // negative: none
    }
    const RowBuffers ids(world.slots), accepted(counts), slots(track_slots, true), steps(track_steps, true);
    FoldArgs args = world.fold_args(tracked, ids, accepted);
    args.track_slots = slots.view;
    args.track_steps = steps.view;
    judge.ok(mirrored::fold(args), "fold with tracking");
    tracked.guards(judge);
    world.fold(judge, plain, world.slots, counts);
    for (int64_t l = 0; l < world.config.layers; ++l) {
      const Buffer want = world.decoded_state(judge, verified, l, 0, step + 1);
      judge.same(tracked.state(l, free_slots[0]), want.view(),
                 "snapshot that fold stored after row " + std::to_string(step));
      copy(plain.state(l, free_slots[0]), tracked.state(l, free_slots[0]));
    }
    judge.untouched(tracked.state(), pack(plain.state()), "state outside the tracked slot");
  }
}

void conv_commit_is_decode(Judge& judge, const Config& config, std::string_view impl) {
  const ConvWorld conv(config, impl);
  for (int64_t n : counts_to_try(config.window)) {
    const ConvWorld::Memory verified = conv.make_memory();
    ConvWorld::Call call = conv.call(verified, conv.rows());
    conv.verify(judge, verified, call);
    std::vector<int32_t> counts;
    for (size_t r = 0; r < conv.slots.size(); ++r) {
      counts.push_back(static_cast<int32_t>((n + static_cast<int64_t>(r)) % (conv.lengths[r] + 1)));
    }
    const int32_t tracked = counts[0] > 0 ? conv.free_slot() : -1, step = counts[0] / 2;  // step < counts[0]
    conv.commit(judge, verified, conv.slots, counts, tracked, step);
    const ConvWorld::Memory decoded = conv.make_memory();
    for (size_t r = 0; r < conv.slots.size(); ++r) {
      for (int64_t t = 0; t < counts[r]; ++t) {
        ConvWorld::Call single = conv.call(decoded, {{slice(conv.sequences[r].view(), t, 1), 1, conv.slots[r]}});
        conv.decode(judge, decoded, single);
        judge.same(call.out_row(static_cast<int64_t>(r), conv.lengths[r]).at(t), single.out_row(0, 1).at(0),
                   "conv_verify row " + std::to_string(r) + " token " + std::to_string(t) + ", against conv_decode,");
        if (r == 0 && t == step) copy(decoded.state.at(conv.slots[0]), decoded.state.at(tracked));
      }
    }
    judge.same(verified.state, decoded.state, "conv windows and snapshot after conv_commit, against conv_decode,");
  }
}

}  // namespace

void fold_is_decode(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  const Store verified = world.make_store();
  std::vector<Batch> batches;
  for (int64_t l = 0; l < config.layers; ++l) {
    batches.push_back(world.batch(l));
    if (world.takes_snapshots()) batches.back().want_snapshots();
    world.verify(judge, verified, l, batches.back());
  }
  for (int64_t n : counts_to_try(config.window)) fold_one_count(judge, world, verified, batches, n);
  whole_window(judge, world, verified, batches);
  tracking(judge, world, verified);
  if (!world.has_history()) conv_commit_is_decode(judge, config, impl);
}

void layers_are_free(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  const Store verified = world.make_store();
  for (int64_t l = 0; l < config.layers; ++l) {
    Batch batch = world.batch(l);
    world.verify(judge, verified, l, batch);
  }
  std::vector<int32_t> counts;
  for (size_t r = 0; r < world.slots.size(); ++r) {
    counts.push_back(static_cast<int32_t>(std::max<int64_t>(0, world.lengths[r] - static_cast<int64_t>(r) % 2)));
  }
  const RowBuffers ids(world.slots), accepted(counts);
  Store at_once = world.make_store();
  at_once.copy_from(verified);
  judge.ok(mirrored::fold(world.fold_args(at_once, ids, accepted)), "fold of all layers");
  at_once.guards(judge);

  Store one_by_one = world.make_store(), listed = world.make_store(), part = world.make_store();
  for (Store* store : {&one_by_one, &listed, &part}) store->copy_from(verified);
  for (int64_t l = config.layers - 1; l >= 0; --l) {  // one layer per call, through views of one layer
    FoldArgs args = world.fold_args(one_by_one, ids, accepted);
    World::take_layer(one_by_one, l, &args);
    judge.ok(mirrored::fold(args), "fold of layer " + std::to_string(l));
  }
  judge.same(one_by_one.state(), at_once.state(), "states, layer by layer against all at once,");

  std::vector<int32_t> order(static_cast<size_t>(config.layers));
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + config.layers / 2, order.end());
  FoldArgs args = world.fold_args(listed, ids, accepted);
  args.layers = order;
  judge.ok(mirrored::fold(args), "fold of all layers in another order");
  judge.same(listed.state(), at_once.state(), "states, layers in another order,");

  const std::vector<int32_t> last{static_cast<int32_t>(config.layers - 1)};
  FoldArgs some = world.fold_args(part, ids, accepted);
  some.layers = last;
  judge.ok(mirrored::fold(some), "fold of the last layer alone");
  judge.same(part.state(config.layers - 1), at_once.state(config.layers - 1),
             "state of the only layer that was folded");
  for (int64_t l = 0; l + 1 < config.layers; ++l) {
    judge.untouched(part.state(l), pack(verified.state(l)), "state of a layer that is not in the list");
    judge.untouched(part.pending(l), pack(verified.pending(l)), "pending of a layer that is not in the list");
  }
}

void others_untouched(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  Store store = world.make_store();
  const int64_t mine = 0;  // layer of the call
  const auto everything = [&] {
    std::vector<Bytes> all;
    for (const auto& [name, view] : store.memory()) all.push_back(pack(view));
    return all;
  };
  /// Bytes that a call may write are put back to what they were; then all there is is compared.
  const auto compare = [&](const std::vector<Bytes>& before, const std::string& what) {
    size_t i = 0;
    for (const auto& [name, view] : store.memory()) {
      judge.untouched(view, before[i++], what + ":" + name + " that the call does not own");
    }
  };
  std::vector<Bytes> before = everything();
  Store saved = world.make_store();
  saved.copy_from(store);
  const auto restore_pending = [&] {
    for (int32_t slot : world.slots) {
      const auto at = [&](const Store& s) { return slice(s.pending(mine), slot, 1); };
      copy(at(saved), at(store));
    }
  };
  const auto restore_owners = [&] {  // that a verify has set
    for (int32_t slot : world.slots) {
      if (!config.by_row) break;
      const auto entry = [&](const TensorView& view) { return slice(view, slot, 1); };
      const RingOwners from = saved.owners(mine), to = store.owners(mine);
      copy(entry(rings_by_slot(config, from.slot_of_ring, 0)), entry(rings_by_slot(config, to.slot_of_ring, 0)));
      copy(entry(from.ring_of_slot), entry(to.ring_of_slot));
    }
  };
  /// A row that a call has emptied.
  const auto restore_row = [&](int32_t slot) {
    copy(saved.state(mine, slot), store.state(mine, slot));
    store.set_cursors(mine, slot, saved.cursors(mine, slot));
  };
  Batch batch = world.batch(mine);
  std::vector<bool> due;
  for (size_t r = 0; r < world.slots.size(); ++r) due.push_back(world.is_due(store, mine, r));
  world.verify(judge, store, mine, batch);
  std::vector<int32_t> counts;
  for (size_t r = 0; r < world.slots.size(); ++r) {
    for (int64_t t = 0; t < world.lengths[r]; ++t) {
      const Ring from = saved.ring_row(mine, world.slots[r], t), to = store.ring_row(mine, world.slots[r], t);
      copy(from.k, to.k);
      copy(from.v, to.v);
      copy(gate_of(from), gate_of(to));
      copy(from.beta, to.beta);
    }
    counts.push_back(static_cast<int32_t>(world.lengths[r]));
    if (due[r]) copy(saved.state(mine, world.slots[r]), store.state(mine, world.slots[r]));
  }
  restore_pending();
  restore_owners();
  compare(before, "verify");

  Batch again = world.batch(mine);
  world.verify(judge, store, mine, again);
  before = everything();
  saved.copy_from(store);
  const std::vector<int32_t> first{world.slots[0]};
  const RowBuffers ids(first), accepted({counts[0]});
  FoldArgs args = world.fold_args(store, ids, accepted);
  const std::vector<int32_t> layers{static_cast<int32_t>(mine)};
  args.layers = layers;
  judge.ok(mirrored::fold(args), "fold of one row");
  restore_row(first[0]);
  restore_pending();
  compare(before, "fold");

  Batch step = world.batch(mine);
  world.decode(judge, store, mine, step);
  for (int32_t slot : world.slots) restore_row(slot);
  restore_pending();
  compare(before, "decode");
}

}  // namespace ringfold::check
