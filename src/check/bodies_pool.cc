// C13, C18: the pool's generations, and commits that happen whole or not at all.
#include <algorithm>
#include <iterator>
#include <memory>

#include "check/bodies.h"
#include "check/conv_world.h"

namespace ringfold::check {
namespace {

/// A pool of the config's shape with a conv, every slot acquired, distinct random states and conv windows in all of
/// them.
class PoolWorld {
 public:
  PoolWorld(Judge& judge, const Config& config, std::string_view impl) : world(config, impl) {
    PoolConfig pc;
    pc.layers = config.layers;
    pc.slots = world.num_slots;
    pc.H = config.H, pc.HV = config.HV, pc.K = config.K, pc.V = config.V;
    pc.kind = config.gate == Gate::gdn ? MixerKind::gdn : MixerKind::kda;
    pc.state_dtype = config.state;
    pc.act_dtype = config.act;
    pc.ring_rows = config.window;
    pc.fold_policy = config.policy;
    if (config.policy != FoldPolicy::on_commit) {  // in turns: too small for two windows, just of two, and of three
      const auto more = static_cast<int64_t>(config.seed % 3);
      pc.max_window = config.window;
      pc.ring_rows = std::min<int64_t>(more == 0 ? config.window + 1 : (more + 1) * config.window, kMaxWindow);
    }
    pc.conv_channels = kChannels;
    pc.conv_width = kMinConvWidth + static_cast<int64_t>(config.seed % 3);
    pc.qk_l2norm = config.qk_l2norm;
    pc.state_rounding = config.rounding;
    pc.device = device_of(impl);
    if (config.ring_a) pc.ring_a = config.gates;
    if (config.by_row) pc.rings = world.num_slots;
    judge.ok(Pool::create(pc, &pool), "Pool::create");
    if (config.ring_a) give_mixers(judge);
    handles.resize(static_cast<size_t>(world.num_slots));
    for (int64_t i = 0; i < world.num_slots; ++i) {
      Slot slot;
      judge.ok(pool->acquire(&slot), "acquire");
      judge.that(slot.id >= 0 && slot.id < world.num_slots, "acquire gave slot " + std::to_string(slot.id));
      handles[slot.id] = slot;
    }
    judge.that(pool->free_slots() == 0, "free slots after taking all");
    fill_normal(pool->state(), mix({static_cast<int64_t>(config.seed), 50}), 0.5f);
    fill_normal(pool->conv_state(), mix({static_cast<int64_t>(config.seed), 51}));
    weight = Buffer(DType::f32, {kChannels, pc.conv_width});
    fill_normal(weight.view(), mix({static_cast<int64_t>(config.seed), 52}), 0.5f);
  }

  /// Not before a commit without them was refused.
  void give_mixers(Judge& judge) {
    const RowBuffers none({-1});
    CommitArgs args;
    args.slot_ids = args.num_accepted = none.view;
    if (world.config.by_row) args.ring_ids = none.view;
    judge.refused(mirrored::commit(*pool, args), Code::invalid_argument, "commit before set_mixers");
    std::vector<Mixer> mixers;
    for (const Params& layer : world.params) mixers.push_back(layer.mixer());
    judge.ok(mirrored::set_mixers(*pool, mixers), "set_mixers");
  }

  /// verify of these rows (indices into world.slots) on every layer; conv_verify too, except on layer `no_conv`.
  void verify_rows(Judge& judge, const std::vector<size_t>& which, int64_t no_conv = -1) const {
    const Config& c = world.config;
    for (int64_t l = 0; l < c.layers; ++l) {
      std::vector<Row> rows;
      std::vector<int32_t> ids;
      for (size_t r : which) {
        rows.push_back(world.rows(l)[r]);
        rows.back().count = c.window;
        ids.push_back(rows.back().slot);
      }
      Batch batch = world.batch(Layout::dense, rows);
      VerifyArgs args;
      args.mixer = world.params[l].mixer();
      args.window = batch.window;
      args.out = batch.out;
      args.row_status = batch.row_status;
      args.impl = world.impl;
      pool->bind(l, &args);
      judge.ok(mirrored::verify(args), "verify on a pool");
      judge.rows(batch.row_status, std::vector<RowStatus>(ids.size(), RowStatus::done), "verify on a pool");
      if (l == no_conv) continue;
      Buffer x(c.act, {static_cast<int64_t>(ids.size()), c.window, kChannels});
      Buffer y(c.act, {static_cast<int64_t>(ids.size()), c.window, kChannels});
      fill_normal(x.view(), mix({static_cast<int64_t>(c.seed), 53, l}));
      const RowBuffers slot_ids(ids), ring_ids(rings_of(c, ids));
      ConvArgs conv;
      conv.x = x.view();
      conv.out = y.view();
      conv.weight = weight.view();
      conv.slot_ids = slot_ids.view;
      if (c.by_row) conv.ring_ids = ring_ids.view;
      conv.impl = world.impl;
      pool->bind(l, &conv);
      judge.ok(mirrored::conv_verify(conv), "conv_verify on a pool");
    }
  }

  /// All memory of the pool that a commit may change.
  std::vector<TensorView> memory() const {
    std::vector<TensorView> all = {pool->state(), pool->conv_state(), pool->pending(), pool->conv_pending(),
                                   pool->generations()};
    const History h = pool->history();
    if (!h.empty()) all.insert(all.end(), {h.base, h.live, h.cuts});
    const RingOwners o = pool->owners(), conv = pool->conv_owners();
    if (!o.empty()) {
      all.insert(all.end(), {o.slot_of_ring, o.ring_of_slot, conv.slot_of_ring, conv.ring_of_slot});
    }
    return all;
  }
  std::vector<Bytes> bytes() const {
    std::vector<Bytes> all;
    for (const TensorView& view : memory()) all.push_back(pack(view));
    return all;
  }
  void untouched(Judge& judge, const std::vector<Bytes>& before, const std::string& what) const {
    const char* names[] = {" state", " conv windows", " pending", " conv pending", " generations"};
    for (size_t i = 0; i < before.size(); ++i) {
      judge.untouched(memory()[i], before[i], what + (i < std::size(names) ? names[i] : " cursors and owners"));
    }
  }

  static constexpr int64_t kChannels = 7;
  World world;
  std::unique_ptr<Pool> pool;
  std::vector<Slot> handles;  ///< by slot id
  Buffer weight;
};

struct CommitRows {
  std::vector<int32_t> slots, generations, counts, track_slots, track_steps;
};

struct Commit {
  Commit(const CommitRows& rows, const World& world)
      : slots(rows.slots),
        rings(rings_of(world.config, rows.slots)),
        generations(rows.generations),
        counts(rows.counts),
        track_slots(rows.track_slots),
        track_steps(rows.track_steps),
        status(std::vector<int32_t>(rows.slots.size(), 77)) {
    args.slot_ids = slots.view;
    if (world.config.by_row) args.ring_ids = rings.view;
    args.generations = generations.view;
    args.num_accepted = counts.view;
    if (!rows.track_slots.empty()) args.track_slots = track_slots.view, args.track_steps = track_steps.view;
    args.row_status = status.view;
    args.impl = world.impl;
  }
  RowBuffers slots, rings, generations, counts, track_slots, track_steps, status;
  CommitArgs args;
};

void zero_slot(Judge& judge, const Pool& pool, int32_t id, const std::string& when) {
  for (int64_t l = 0; l < pool.config().layers; ++l) {
    const Ring ring = pool.ring(l);
    judge.zeros(pool.state(l).at(id), "state " + when);
    judge.zeros(pool.conv_state(l).at(id), "conv window " + when);
    // A ring keyed by request row may hold anything: nobody reads it before another window is there.
    for (const TensorView& view : {ring.k, ring.v, gate_of(ring), ring.beta, pool.conv_ring(l)}) {
      if (pool.config().rings == 0) judge.zeros(view.at(id), "ring " + when);
    }
    judge.that(ints(pool.pending(l))[id] == kNoWindow, "pending " + when);
    judge.that(ints(pool.conv_pending(l))[id] == kNoWindow, "conv pending " + when);
    const History h = pool.history(l);
    if (h.empty()) continue;
    for (const TensorView& view : {h.base, h.live, h.cuts}) judge.that(ints(view)[id] == 0, "history " + when);
  }
}

}  // namespace

void generations(Judge& judge, const Config& config, std::string_view impl) {
  const PoolWorld w(judge, config, impl);
  Pool& pool = *w.pool;
  w.verify_rows(judge, {0});
  const Slot old = w.handles[w.world.slots[0]];
  const Commit late({{old.id}, {old.generation}, {1}, {}, {}}, w.world);
  judge.ok(pool.release(old), "release");

  std::vector<Bytes> before = w.bytes();
  judge.ok(mirrored::commit(pool, late.args), "commit of a released slot");
  judge.rows(late.status.view, {RowStatus::stale_generation}, "commit of a released slot");
  w.untouched(judge, before, "commit of a released slot:");
  Batch batch = w.world.batch(Layout::dense, {{&w.world.sequences[0][0], 0, config.window, old.id}});
  VerifyArgs args;
  args.mixer = w.world.params[0].mixer();
  args.window = batch.window;
  args.out = batch.out;
  args.row_status = batch.row_status;
  args.impl = impl;
  pool.bind(0, &args);
  judge.ok(mirrored::verify(args), "verify on a released slot");
  judge.rows(batch.row_status, {RowStatus::slot_not_acquired}, "verify on a released slot");
  judge.refused(pool.release(old), Code::invalid_argument, "second release of one handle");

  Slot fresh;
  judge.ok(pool.acquire(&fresh), "acquire of the only free slot");
  judge.that(fresh.id == old.id, "the only free slot is not the one released");
  judge.that(fresh.generation != old.generation, "the generation did not change");
  zero_slot(judge, pool, fresh.id, "of a slot acquired again");
  Slot none;
  judge.refused(pool.acquire(&none), Code::out_of_memory, "acquire from a full pool");

  w.verify_rows(judge, {0});
  before = w.bytes();
  judge.ok(mirrored::commit(pool, late.args), "commit with an old handle");
  judge.rows(late.status.view, {RowStatus::stale_generation}, "commit with an old handle");
  w.untouched(judge, before, "commit with an old handle:");
  judge.refused(pool.reset(old), Code::invalid_argument, "reset with an old handle");
  w.untouched(judge, before, "reset with an old handle:");
  const Commit right({{fresh.id}, {fresh.generation}, {static_cast<int32_t>(config.window)}, {}, {}}, w.world);
  judge.ok(mirrored::commit(pool, right.args), "commit with the new handle");
  judge.rows(right.status.view, {RowStatus::done}, "commit with the new handle");
}

namespace {

struct BadCommit {
  const char* name;
  RowStatus expected;
  int32_t count, generation_off, track_slot, track_step;
};

/// Row 0 is bad: it is refused whole, the others are committed. `silent`: without row_status, where that is allowed.
void bad_commit(Judge& judge, const PoolWorld& w, const PoolWorld& twin, const BadCommit& bad, int32_t free_slot,
                bool silent) {
  const auto T = static_cast<int32_t>(w.world.config.window);
  const int32_t slot = w.world.slots[0];
  std::vector<size_t> all(w.world.slots.size());
  for (size_t r = 0; r < all.size(); ++r) all[r] = r;
  const std::string name = std::string("commit with ") + bad.name;
  w.verify_rows(judge, all);
  twin.verify_rows(judge, all);
  CommitRows rows;
  for (size_t r = 0; r < all.size(); ++r) {
    const int32_t id = w.world.slots[r];
    rows.slots.push_back(id);
    rows.generations.push_back(w.handles[id].generation + (r == 0 ? bad.generation_off : 0));
    rows.counts.push_back(r == 0 ? bad.count : T);
    rows.track_slots.push_back(r == 0 ? bad.track_slot : -1);
    rows.track_steps.push_back(r == 0 ? bad.track_step : -1);
  }
  std::vector<Bytes> before = w.bytes();
  Commit partly(rows, w.world);
  if (!judge.on_device()) {
    Commit whole(rows, w.world);
    whole.args.row_status = {};
    judge.refused(mirrored::commit(*w.pool, whole.args), Code::invalid_argument, name + ", no row_status");
    w.untouched(judge, before, name + ", no row_status:");
  }
  if (silent) partly.args.row_status = {};
  judge.ok(mirrored::commit(*w.pool, partly.args), name);
  if (!silent) {
    std::vector<RowStatus> statuses(all.size(), RowStatus::done);
    statuses[0] = bad.expected;
    judge.rows(partly.status.view, statuses, name);
  }
  // The twin commits only the good rows. Everything must agree, the refused row's pending window included.
  CommitRows good = rows;
  for (std::vector<int32_t>* column :
       {&good.slots, &good.generations, &good.counts, &good.track_slots, &good.track_steps}) {
    column->erase(column->begin());
  }
  if (!good.slots.empty())
    judge.ok(mirrored::commit(*twin.pool, Commit(good, w.world).args), "commit of the good rows");
  w.untouched(judge, twin.bytes(), name + ":");
  // And the refused row can still be committed, with its snapshot.
  const CommitRows again{{slot}, {w.handles[slot].generation}, {T}, {free_slot}, {0}};
  for (const PoolWorld* pool : {&w, &twin}) {
    const Commit retry(again, w.world);
    judge.ok(mirrored::commit(*pool->pool, retry.args), "commit of a row that was refused before");
    judge.rows(retry.status.view, {RowStatus::done}, "commit of a row that was refused before");
  }
  w.untouched(judge, twin.bytes(), "commit of a row that was refused before:");
  before = w.bytes();
  const Commit second(again, w.world);
  judge.ok(mirrored::commit(*w.pool, second.args), "second commit of one window");
  judge.rows(second.status.view, {RowStatus::no_pending_window}, "second commit of one window");
  w.untouched(judge, before, "second commit of one window:");
}

}  // namespace

void commit_is_atomic(Judge& judge, const Config& config, std::string_view impl) {
  const PoolWorld w(judge, config, impl), twin(judge, config, impl);
  const auto T = static_cast<int32_t>(config.window), past = static_cast<int32_t>(w.world.num_slots);
  const int32_t slot = w.world.slots[0];
  int32_t unused = 0;  // a slot that no row has
  while (std::find(w.world.slots.begin(), w.world.slots.end(), unused) != w.world.slots.end()) ++unused;
  const BadCommit cases[] = {
      {"a count beyond the window", RowStatus::accept_out_of_range, T + 1, 0, unused, 0},
      {"a count below 0", RowStatus::accept_out_of_range, -1, 0, unused, 0},
      {"another generation", RowStatus::stale_generation, T, 1, unused, 0},
      {"a snapshot past the accepted rows", RowStatus::track_out_of_range, T, 0, unused, T},
      {"a snapshot slot past the pool", RowStatus::track_out_of_range, T, 0, past, 0},
  };
  for (const BadCommit& bad : cases) {
    bad_commit(judge, w, twin, bad, unused, false);
    if (judge.on_device()) bad_commit(judge, w, twin, bad, unused, true);
  }
  // One layer whose conv did not run: nothing is committed on any layer.
  w.verify_rows(judge, {0}, config.layers - 1);
  const std::vector<Bytes> before = w.bytes();
  const Commit incomplete({{slot}, {w.handles[slot].generation}, {T}, {}, {}}, w.world);
  judge.ok(mirrored::commit(*w.pool, incomplete.args), "commit of a step whose conv did not run on one layer");
  judge.rows(incomplete.status.view, {RowStatus::no_pending_window},
             "commit of a step whose conv did not run on one layer");
  w.untouched(judge, before, "commit of a step whose conv did not run on one layer:");
}

}  // namespace ringfold::check
