// C11, C12: null rows, and rows that are refused, with the reason in row_status.
#include <algorithm>
#include <iterator>
#include <limits>

#include "check/bodies.h"
#include "check/conv_world.h"

namespace ringfold::check {
namespace {

std::vector<Bytes> bytes_of(const Store& store) {
  std::vector<Bytes> all;
  for (const auto& [name, view] : store.memory()) all.push_back(pack(view));
  return all;
}

void untouched(Judge& judge, const Store& store, const std::vector<Bytes>& before, const std::string& what) {
  size_t i = 0;
  for (const auto& [name, view] : store.memory()) judge.untouched(view, before[i++], what + name);
}

/// A good row on each slot of the world, with odd rows between them that have poisoned inputs.
struct Mixed {
  std::vector<Row> rows;
  std::vector<size_t> good_at;
  std::vector<size_t> odd_at;
};

Mixed interleave(const World& world, const std::vector<int32_t>& odd_slots) {
  Mixed mixed;
  size_t odd = 0;
  const auto add_odd = [&] {
    if (odd == odd_slots.size()) return;
    mixed.odd_at.push_back(mixed.rows.size());
    mixed.rows.push_back({nullptr, 0, world.config.window, odd_slots[odd++]});
  };
  add_odd();
  for (size_t r = 0; r < world.slots.size(); ++r) {
    mixed.good_at.push_back(mixed.rows.size());
    mixed.rows.push_back({&world.sequences[0][r], 0, world.lengths[r], world.slots[r]});
    add_odd();
  }
  while (odd < odd_slots.size()) add_odd();
  return mixed;
}

/// verify and decode with odd rows in between: their outputs are zeros, their status is `expected`, the good rows and
/// all memory are as without them.
void odd_rows(Judge& judge, const World& world, const std::vector<int32_t>& odd_slots, RowStatus expected) {
  const std::string name = std::string("a row with status ") + to_string(expected);
  for (bool decoding : {false, true}) {
    const Store alone = world.make_store(), mixed_store = world.make_store();
    Batch good = world.batch(0);
    const Mixed mixed = interleave(world, odd_slots);
    Batch batch = world.batch(world.config.layout, mixed.rows);
    std::vector<RowStatus> statuses(mixed.rows.size(), RowStatus::done);
    for (size_t r : mixed.odd_at) statuses[r] = expected;
    if (decoding) {
      world.decode(judge, alone, 0, good);
      judge.ok(mirrored::decode(world.decode_args(mixed_store, 0, batch)), "decode");
    } else {
      world.verify(judge, alone, 0, good);
      judge.ok(mirrored::verify(world.verify_args(mixed_store, 0, batch)), "verify");
    }
    judge.rows(batch.row_status, statuses, decoding ? "decode" : "verify");
    batch.guards(judge);
    mixed_store.guards(judge);
    for (size_t r : mixed.odd_at) judge.zeros(batch.out_row(r), "outputs of " + name);
    for (size_t r = 0; r < mixed.good_at.size(); ++r) {
      judge.same(batch.out_row(mixed.good_at[r]), good.out_row(r), "outputs beside " + name);
    }
    untouched(judge, mixed_store, bytes_of(alone), "memory beside " + name + ":");
  }
}

void conv_odd_rows(Judge& judge, const Config& config, std::string_view impl, int32_t odd, RowStatus expected) {
  const ConvWorld conv(config, impl);
  const ConvWorld::Memory alone = conv.make_memory(), mixed = conv.make_memory();
  std::vector<ConvWorld::ConvRow> rows = conv.rows();
  ConvWorld::Call good = conv.call(alone, rows);
  conv.verify(judge, alone, good);
  rows.insert(rows.begin(), {{}, config.window, odd});
  ConvWorld::Call call = conv.call(mixed, rows);
  conv.verify(judge, mixed, call);
  const std::string name = std::string("a conv row with status ") + to_string(expected);
  std::vector<RowStatus> statuses(rows.size(), RowStatus::done);
  statuses[0] = expected;
  judge.rows(call.args.row_status, statuses, "conv_verify");
  judge.zeros(call.out_row(0, config.window), "outputs of " + name);
  for (size_t r = 1; r < rows.size(); ++r) {
    judge.same(call.out_row(static_cast<int64_t>(r), rows[r].count),
               good.out_row(static_cast<int64_t>(r) - 1, rows[r].count), "outputs beside " + name);
  }
  judge.untouched(mixed.state, pack(alone.state), "conv windows beside " + name);
  judge.untouched(mixed.ring, pack(alone.ring), "conv ring beside " + name);
}

/// fold of a verified store where row 0 is bad in some way: refused, nothing of it changes, the others are folded. And
/// without row_status: on the host the whole call is an error that changes nothing; on a device, whose values no host
/// looks at, the row is passed over.
struct BadFold {
  const char* name;
  RowStatus expected;
  int32_t count;
  int32_t slot = -2;        ///< -2: the row's own
  int32_t track_slot = -1;  ///< with track_step
  int32_t track_step = -1;
  int32_t pending = -3;  ///< put into `pending` of the row's slot; -3: as verify left it
};

void bad_fold(Judge& judge, const World& world, const Store& verified, const BadFold& bad) {
  const std::string name = std::string("fold with ") + bad.name;
  std::vector<int32_t> slots = world.slots, counts, track_slots(slots.size(), -1), track_steps(slots.size(), -1);
  for (int64_t length : world.lengths) counts.push_back(static_cast<int32_t>(length));
  counts[0] = bad.count;
  if (bad.slot != -2) slots[0] = bad.slot;
  track_slots[0] = bad.track_slot;
  track_steps[0] = bad.track_step;
  Store store = world.make_store(), silent = world.make_store(), expected = world.make_store();
  store.copy_from(verified);
  if (bad.pending != -3) set_ints(slice(store.pending(0), world.slots[0], 1), {bad.pending});
  silent.copy_from(store);
  expected.copy_from(store);
  const std::vector<Bytes> before = bytes_of(store);
  if (slots.size() > 1) {
    world.fold(judge, expected, std::vector<int32_t>(slots.begin() + 1, slots.end()),
               std::vector<int32_t>(counts.begin() + 1, counts.end()));
  }

  const RowBuffers ids(slots), accepted(counts), tracks(track_slots), steps(track_steps),
      status(std::vector<int32_t>(slots.size(), 77));
  const auto args_on = [&](const Store& where) {
    FoldArgs args = world.fold_args(where, ids, accepted);
    args.track_slots = tracks.view;
    args.track_steps = steps.view;
    return args;
  };
  if (judge.on_device()) {
    judge.ok(mirrored::fold(args_on(silent)), name + ", no row_status");
    untouched(judge, silent, bytes_of(expected), name + ", no row_status:");
  } else {
    judge.refused(mirrored::fold(args_on(silent)), Code::invalid_argument, name + ", no row_status");
    untouched(judge, silent, before, name + ", no row_status:");
  }

  FoldArgs args = args_on(store);
  args.row_status = status.view;
  judge.ok(mirrored::fold(args), name);
  judge.intact(status.buffer, name + ": row_status");
  store.guards(judge);
  std::vector<RowStatus> statuses(slots.size(), RowStatus::done);
  statuses[0] = bad.expected;
  judge.rows(status.view, statuses, name);
  untouched(judge, store, bytes_of(expected), name + ":");
}

void refused_folds(Judge& judge, const World& world) {
  const Store verified = world.make_store();
  for (int64_t l = 0; l < world.config.layers; ++l) {
    Batch batch = world.batch(l);
    world.verify(judge, verified, l, batch);
  }
  const auto T = static_cast<int32_t>(world.lengths[0]), pool = static_cast<int32_t>(world.num_slots);
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max(), kMin = std::numeric_limits<int32_t>::min();
  const BadFold cases[] = {
      {"a count of -1", RowStatus::accept_out_of_range, -1},
      {"the smallest count", RowStatus::accept_out_of_range, kMin},
      {"one more than the window", RowStatus::accept_out_of_range, T + 1},
      {"the largest count", RowStatus::accept_out_of_range, kMax},
      {"a slot past the pool", RowStatus::slot_out_of_range, T, pool},
      {"the largest slot", RowStatus::slot_out_of_range, T, kMax},
      {"a snapshot slot past the pool", RowStatus::track_out_of_range, T, -2, pool, 0},
      {"a snapshot after the accepted rows", RowStatus::track_out_of_range, T, -2, pool - 1, T},
      {"a snapshot of no row", RowStatus::track_out_of_range, 0, -2, pool - 1, 0},
      {"no pending window", RowStatus::no_pending_window, T, -2, -1, -1, kNoWindow},
      {"a free slot", RowStatus::slot_not_acquired, T, -2, -1, -1, kNotAcquired},
  };
  for (BadFold bad : cases) {
    if (bad.track_slot == pool - 1) {  // some slot that no row has
      for (int32_t s = 0; s < pool; ++s) {
        if (std::find(world.slots.begin(), world.slots.end(), s) == world.slots.end()) bad.track_slot = s;
      }
    }
    bad_fold(judge, world, verified, bad);
  }
  // A second fold of the same window.
  Store twice = world.make_store();
  twice.copy_from(verified);
  world.fold(judge, twice, {world.slots[0]}, {T});
  const std::vector<Bytes> after_first = bytes_of(twice);
  const RowBuffers ids({world.slots[0]}), accepted({T}), status({77});
  FoldArgs args = world.fold_args(twice, ids, accepted);
  args.row_status = status.view;
  judge.ok(mirrored::fold(args), "second fold of one window");
  judge.rows(status.view, {RowStatus::no_pending_window}, "second fold of one window");
  untouched(judge, twice, after_first, "second fold of one window:");
}

/// The same slot in two rows of verify; on the host both are refused.
void duplicate_windows(Judge& judge, const World& world, const std::vector<Row>& rows) {
  const Store store = world.make_store();
  Batch batch = world.batch(world.config.layout, rows);
  const std::vector<Bytes> before = bytes_of(store);
  std::vector<Bytes> state_before;
  for (int64_t l = 0; l < world.config.layers; ++l) {
    for (int32_t slot = 0; slot < world.num_slots; ++slot) state_before.push_back(pack(store.state(l, slot)));
  }
  VerifyArgs args = world.verify_args(store, 0, batch);
  args.row_status = {};
  judge.refused(mirrored::verify(args), Code::invalid_argument, "verify with one slot twice, no row_status");
  untouched(judge, store, before, "verify with one slot twice:");
  args.row_status = batch.row_status;
  judge.ok(mirrored::verify(args), "verify with one slot twice");
  std::vector<RowStatus> statuses(rows.size(), RowStatus::done);
  statuses[0] = statuses[1] = RowStatus::duplicate_slot;
  judge.rows(batch.row_status, statuses, "verify with one slot twice");
  judge.zeros(batch.out_row(0), "outputs of a slot that came twice");
  // The histories of other rows may be folded.
  for (int64_t l = 0; l < world.config.layers; ++l) {
    for (int32_t slot = 0; slot < world.num_slots; ++slot) {
      if (world.has_history() && l == 0 && slot != rows[0].slot) continue;
      judge.untouched(store.state(l, slot), state_before[static_cast<size_t>(l * world.num_slots + slot)],
                      "state, by verify with one slot twice");
    }
  }
}

/// A snapshot into a slot that another row folds; on the host at least the row with the snapshot is refused.
void duplicate_targets(Judge& judge, const World& world, const Store& verified, const FoldArgs& args) {
  const Bytes state0 = pack(verified.state(0, world.slots[0])), state1 = pack(verified.state(0, world.slots[1]));
  judge.ok(mirrored::fold(args), "fold with a snapshot into a slot that is folded");
  const std::vector<int32_t> status = ints(args.row_status);
  judge.that(status[0] == static_cast<int32_t>(RowStatus::duplicate_slot),
             "fold with a snapshot into a slot that is folded");
  judge.untouched(verified.state(0, world.slots[0]), state0, "state of a row whose snapshot collides");
  if (status[1] != static_cast<int32_t>(RowStatus::done)) {
    judge.untouched(verified.state(0, world.slots[1]), state1, "state of a row that was refused as a duplicate");
  }
}

/// Everything but one slot is byte for byte that of another store.
void same_but(Judge& judge, const Store& got, const Store& want, int32_t slot, const std::string& what) {
  const auto views = got.memory(), expected = want.memory();
  for (size_t i = 0; i < views.size(); ++i) {
    for (int64_t l = 0; l < views[i].second.shape[0]; ++l) {
      for (int64_t s = 0; s < got.slots(); ++s) {
        if (s == slot) continue;
        judge.untouched(slice(views[i].second.at(l), s, 1), pack(slice(expected[i].second.at(l), s, 1)),
                        what + ": memory of slot " + std::to_string(s));
      }
    }
  }
  got.guards(judge);
}

/// On a device nobody notices that a slot came twice. That slot alone is undefined: the other rows' outputs, slots and
/// snapshots are those of a call without it.
void undefined_slots(Judge& judge, const World& world, const std::vector<Row>& rows, const Store& verified,
                     FoldArgs args) {
  const std::string twice = "verify with one slot twice, on a device";
  const Store store = world.make_store(), alone = world.make_store();
  const Bytes before = pack(store.state());
  Batch batch = world.batch(world.config.layout, rows);
  Batch good = world.batch(world.config.layout, {rows.begin() + 2, rows.end()});
  judge.ok(mirrored::verify(world.verify_args(store, 0, batch)), twice);
  world.verify(judge, alone, 0, good);
  batch.guards(judge);
  if (!world.has_history()) judge.untouched(store.state(), before, "state, by " + twice);  // same_but() says the rest
  for (size_t r = 2; r < rows.size(); ++r) {
    judge.same(batch.out_row(r), good.out_row(r - 2), "outputs beside a slot that came twice");
  }
  same_but(judge, store, alone, rows[0].slot, twice);

  const std::string collides = "fold with a snapshot into a slot that is folded, on a device";
  Store expected = world.make_store();
  expected.copy_from(verified);
  judge.ok(mirrored::fold(args), collides);
  args.state = expected.state(), args.ring = expected.ring_argument(), args.pending = expected.pending();
  args.owners = expected.owners();
  args.history = expected.history();
  args.track_slots = args.track_steps = {};
  judge.ok(mirrored::fold(args), "the same without the snapshot");
  same_but(judge, verified, expected, world.slots[1], collides);
}

/// The same slot in two rows; a snapshot into a slot that another row folds.
void duplicates(Judge& judge, const World& world) {
  if (world.slots.size() < 2) return;
  std::vector<Row> rows = world.rows(0);
  rows[1].slot = rows[0].slot;
  const Store verified = world.make_store();
  for (int64_t l = 0; l < world.config.layers; ++l) {
    Batch good = world.batch(l);
    world.verify(judge, verified, l, good);
  }
  std::vector<int32_t> counts, tracks(rows.size(), -1), steps(rows.size(), -1);
  for (int64_t length : world.lengths) counts.push_back(static_cast<int32_t>(length));
  tracks[0] = world.slots[1];
  steps[0] = 0;
  const RowBuffers ids(world.slots), accepted(counts), track_slots(tracks), track_steps(steps),
      status(std::vector<int32_t>(rows.size(), 77));
  FoldArgs args = world.fold_args(verified, ids, accepted);
  args.track_slots = track_slots.view;
  args.track_steps = track_steps.view;
  args.row_status = status.view;
  if (judge.on_device()) {
    undefined_slots(judge, world, rows, verified, args);
  } else {
    duplicate_windows(judge, world, rows);
    duplicate_targets(judge, world, verified, args);
  }
}

/// Windows that do not fit, free slots, bounds that do not ascend.
void refused_windows(Judge& judge, const World& world) {
  const Config& c = world.config;
  const Store store = world.make_store();
  set_ints(slice(store.pending(0), world.slots[0], 1), {kNotAcquired});
  std::vector<Bytes> before = bytes_of(store);
  Batch batch = world.batch(c.layout, {world.rows(0)[0]});
  judge.ok(mirrored::verify(world.verify_args(store, 0, batch)), "verify on a free slot");
  judge.rows(batch.row_status, {RowStatus::slot_not_acquired}, "verify on a free slot");
  judge.ok(mirrored::decode(world.decode_args(store, 0, batch)), "decode on a free slot");
  judge.rows(batch.row_status, {RowStatus::slot_not_acquired}, "decode on a free slot");
  judge.zeros(batch.out, "outputs of a free slot");
  untouched(judge, store, before, "calls on a free slot:");

  if (c.window > 1) {  // a dense window's length is plain to the host, so there it is an error of the call
    Store small(c, world.num_slots, world.has_history() ? c.window + 1 : c.window - 1);
    small.fill(world.slots);
    before = bytes_of(small);
    const auto args_of = [&](Batch& too_long) {  // behind a history windows have a limit of their own
      VerifyArgs args = world.verify_args(small, 0, too_long);
      if (world.has_history()) args.history.max_window = c.window - 1;
      return args;
    };
    Batch dense = world.batch(Layout::dense, {world.rows(0)[0]});
    judge.refused(mirrored::verify(args_of(dense)), Code::invalid_argument, "dense window longer than the ring");
    Batch longer = world.batch(Layout::ragged, {world.rows(0)[0]});
    judge.ok(mirrored::verify(args_of(longer)), "verify of a window longer than the ring");
    judge.rows(longer.row_status, {RowStatus::window_too_long}, "verify of a window longer than the ring");
    judge.zeros(longer.out, "outputs of a window longer than the ring");
    untouched(judge, small, before, "verify of a window longer than the ring:");
    const Store roomy = world.make_store();
    before = bytes_of(roomy);
    DecodeArgs args = world.decode_args(roomy, 0, longer);
    args.window.max_window = world.lengths[0] - 1;
    judge.ok(mirrored::decode(args), "decode of a window longer than max_window");
    judge.rows(longer.row_status, {RowStatus::window_too_long}, "decode of a window longer than max_window");
    judge.zeros(longer.out, "outputs of a window longer than max_window");
    untouched(judge, roomy, before, "decode of a window longer than max_window:");
  }

  const Store ragged_store = world.make_store();
  before = bytes_of(ragged_store);
  Batch ragged = world.batch(Layout::ragged, {world.rows(0)[0]});
  const auto T = static_cast<int32_t>(world.lengths[0]);
  for (const std::vector<int32_t>& bounds :
       {std::vector<int32_t>{0, T + 1}, {-1, T}, {T, 0}, {0, std::numeric_limits<int32_t>::max()}}) {
    const RowBuffers cu(bounds);
    VerifyArgs args = world.verify_args(ragged_store, 0, ragged);
    args.window.cu_seqlens = cu.view;
    const std::string name = "verify with bounds " + std::to_string(bounds[0]) + ", " + std::to_string(bounds[1]);
    judge.ok(mirrored::verify(args), name);
    judge.rows(ragged.row_status, {RowStatus::bad_window_bounds}, name);
    ragged.guards(judge);
    untouched(judge, ragged_store, before, name + ":");
  }
}

/// Cursors of a history that do not fit the ring: they lie in a caller's memory.
void refused_histories(Judge& judge, const World& world) {
  const int32_t slot = world.slots[0], T = static_cast<int32_t>(world.lengths[0]);
  const Store start = world.make_store();
  const auto R = static_cast<int32_t>(start.ring_rows());
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max(), kMin = std::numeric_limits<int32_t>::min();
  for (const auto& [base, live] : {std::pair<int32_t, int32_t>{-1, 0},
                                   {R, 0},
                                   {kMin, 1},
                                   {kMax, 1},
                                   {0, -1},
                                   {0, R - T + 1},
                                   {R - 1, R},
                                   {0, kMin},
                                   {1, kMax}}) {
    const std::string name = "a history of " + std::to_string(live) + " rows from " + std::to_string(base);
    Store store = world.make_store();
    store.set_cursors(0, slot, {base, live, 0});
    set_ints(slice(store.pending(0), slot, 1), {T});
    const std::vector<Bytes> before = bytes_of(store);
    Batch batch = world.batch(world.config.layout, {world.rows(0)[0]});
    judge.ok(mirrored::verify(world.verify_args(store, 0, batch)), "verify behind " + name);
    judge.rows(batch.row_status, {RowStatus::window_too_long}, "verify behind " + name);
    judge.zeros(batch.out, "outputs behind " + name);
    const RowBuffers ids({slot}), counts({T}), status({77});
    FoldArgs args = world.fold_args(store, ids, counts);
    World::take_layer(store, 0, &args);
    args.row_status = status.view;
    judge.ok(mirrored::fold(args), "fold of " + name);
    judge.rows(status.view, {RowStatus::accept_out_of_range}, "fold of " + name);
    untouched(judge, store, before, "calls with " + name + ":");
  }
}

}  // namespace

void null_rows(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  odd_rows(judge, world, {-1, std::numeric_limits<int32_t>::min(), -7}, RowStatus::null_row);
  if (!world.has_history()) conv_odd_rows(judge, config, impl, -1, RowStatus::null_row);

  // Nothing but null rows, without row_status: not an error.
  const Store store = world.make_store();
  const std::vector<Bytes> before = bytes_of(store);
  Batch batch = world.batch(config.layout, {{nullptr, 0, config.window, -1}, {nullptr, 0, config.window, -1}});
  VerifyArgs args = world.verify_args(store, 0, batch);
  args.row_status = {};
  judge.ok(mirrored::verify(args), "verify of null rows");
  judge.zeros(batch.out, "outputs of null rows");
  untouched(judge, store, before, "verify of null rows:");

  // fold: counts and snapshots of a null row are not looked at.
  const RowBuffers ids({-1, -5}), counts({1 << 30, -4}), tracks({1 << 30, 0}), steps({0, 0});
  FoldArgs fold_args = world.fold_args(store, ids, counts);
  fold_args.track_slots = tracks.view;
  fold_args.track_steps = steps.view;
  judge.ok(mirrored::fold(fold_args), "fold of null rows");
  untouched(judge, store, before, "fold of null rows:");
}

void refused_rows(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  const auto past = static_cast<int32_t>(world.num_slots);
  odd_rows(judge, world, {past, std::numeric_limits<int32_t>::max(), past + 1}, RowStatus::slot_out_of_range);
  if (!world.has_history()) conv_odd_rows(judge, config, impl, past, RowStatus::slot_out_of_range);
  refused_folds(judge, world);
  duplicates(judge, world);
  refused_windows(judge, world);
  if (config.by_row) refused_rings(judge, world);
  if (world.has_history()) {
    refused_histories(judge, world);
  } else {
    refused_arguments(judge, config, impl);
  }
}

}  // namespace ringfold::check
