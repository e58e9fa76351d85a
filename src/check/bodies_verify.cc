// C1, C2, C3, C10, C16: what verify reads, writes and records.
#include <algorithm>
#include <cmath>

#include "check/bodies.h"
#include "check/conv_world.h"
#include "check/error_bound.h"

namespace ringfold::check {
namespace {

Buffer copy_of(const TensorView& view) {
  Buffer buffer(view.dtype, std::vector<int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
  copy(view, buffer.view());
  return buffer;
}

/// Recorded gate values against double, and within their range.
void gates_are_right(Judge& judge, const World& world, const Ring& recorded, const Sequence& sequence, int64_t layer,
                     int64_t t, const std::string& where) {
  const oracle::Layer gates = world.params[layer].oracle_layer();
  const oracle::Token token = sequence.token(t);
  const std::vector<float> g = floats(gate_of(recorded)), beta = floats(recorded.beta);
  const int64_t channels = world.config.gate == Gate::gdn ? 1 : world.config.K;
  if (world.config.ring_a) judge.untouched(recorded.a, pack(sequence.a.view().at(t)), "ring a of " + where);
  for (int64_t i = 0; !world.config.ring_a && i < world.config.HV * channels; ++i) {
    double argument = 0;
    const double want = oracle::log_decay(gates, i / channels, i % channels, token.a[i], &argument);
    judge.that(g[i] <= 0 && std::abs(g[i] - want) <= gate_tolerance(argument) * std::abs(want) + kTinyGate,
               "ring g of " + where + ": " + std::to_string(g[i]) + ", the oracle has " + std::to_string(want));
  }
  for (int64_t hv = 0; hv < world.config.HV; ++hv) {
    const double want = oracle::sigmoid(token.b[hv]);
    judge.that(std::abs(beta[hv] - want) <= kSigmoidError * want,
               "ring beta of " + where + ": " + std::to_string(beta[hv]) + ", the oracle has " + std::to_string(want));
  }
}

}  // namespace

void verify_only_reads(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  const Store store = world.make_store();
  for (int64_t l = 0; l < config.layers; ++l) {
    // A history that is due goes to the checkpoint, which thereby holds the logical state; nothing else changes.
    const Bytes before = pack(store.state());
    std::vector<size_t> due;
    for (size_t r = 0; r < world.slots.size(); ++r) {
      if (world.is_due(store, l, r)) due.push_back(r);
    }
    std::vector<Bytes> checkpoints;
    for (size_t r : due) checkpoints.push_back(pack(store.state(l, world.slots[r])));
    Batch batch = world.batch(l);
    if (world.takes_snapshots()) batch.want_snapshots();
    world.verify(judge, store, l, batch);
    for (size_t i = 0; i < due.size(); ++i) {
      const TensorView state = store.state(l, world.slots[due[i]]);
      judge.same(state, store.logical(l, world.slots[due[i]]),
                 "folded history of " + World::where(l, static_cast<int64_t>(due[i])));
      unpack(checkpoints[i], state);
    }
    judge.untouched(store.state(), before, "state, by verify of layer " + std::to_string(l));
    for (size_t r : due) copy(store.logical(l, world.slots[r]), store.state(l, world.slots[r]));
    for (size_t r = 0; r < world.slots.size(); ++r) {
      const bool says = ints(store.pending(l))[world.slots[r]] >= kFolded;
      judge.that(says == (std::find(due.begin(), due.end(), r) != due.end()),
                 "pending says whether the history of row " + std::to_string(r) + " was folded");
    }
  }
  const ConvWorld conv(config, impl);
  const ConvWorld::Memory memory = conv.make_memory();
  const Bytes window = pack(memory.state);
  ConvWorld::Call call = conv.call(memory, conv.rows());
  conv.verify(judge, memory, call);
  judge.untouched(memory.state, window, "conv window, by conv_verify");
}

void recording_is_silent(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  Batch plain = world.batch(0);
  {  // of the logical states, where there are histories
    const Store store = world.make_plain_store();
    VerifyArgs args = world.verify_args(store, 0, plain);
    args.ring = {};
    args.pending = {};
    judge.ok(mirrored::verify(args), "verify without a ring");
  }
  for (const auto& [ring, snapshots] : {std::pair{true, false}, {false, true}, {true, true}}) {
    if (snapshots && !world.takes_snapshots()) continue;
    if (!ring && world.has_history()) continue;  // lies there
    const Store store = world.make_store();
    Batch batch = world.batch(0);
    if (snapshots) batch.want_snapshots();
    VerifyArgs args = world.verify_args(store, 0, batch);
    if (!ring) args.ring = {};
    judge.ok(mirrored::verify(args), "verify");
    batch.guards(judge);
    store.guards(judge);
    judge.same(batch.out, plain.out,
               std::string("outputs with") + (ring ? " ring" : "") + (snapshots ? " snapshots" : ""));
  }
  // An fp32 output is the same value before its rounding.
  const Store store = world.make_store();
  Batch wide(config, config.layout, world.rows(0), DType::f32);
  world.verify(judge, store, 0, wide);
  Buffer rounded = copy_of(plain.out);
  const std::vector<float> values = floats(wide.out);
  size_t i = 0;
  fill(rounded.view(), [&] { return values[i++]; });
  judge.same(plain.out, rounded.view(), "outputs, against fp32 outputs rounded once,");
}

void ring_holds_inputs(Judge& judge, const Config& config, std::string_view impl) {
  World world(config, impl);
  const Store store = world.make_store();
  for (int64_t l = 0; l < config.layers; ++l) {
    Sequence& special = world.sequences[l][0];  // signs of zeros and denormals are bits too
    const TensorView k0 = slice(merge(special.k.view(), 0, 3), 0, 1), v0 = slice(merge(special.v.view(), 0, 3), 0, 1);
    fill(k0, [] { return -0.0f; });
    fill(v0, [] { return 6e-8f; });  // denormal in f16
    Batch batch = world.batch(l);
    world.verify(judge, store, l, batch);
    for (size_t r = 0; r < world.slots.size(); ++r) {
      for (int64_t t = 0; t < world.lengths[r]; ++t) {
        const Ring row = store.ring_row(l, world.slots[r], t);
        const std::string where = World::where(l, static_cast<int64_t>(r), t);
        judge.untouched(row.k, pack(world.sequences[l][r].k.view().at(t)), "ring k of " + where);
        judge.untouched(row.v, pack(world.sequences[l][r].v.view().at(t)), "ring v of " + where);
        gates_are_right(judge, world, row, world.sequences[l][r], l, t, where);
      }
    }
    const std::vector<int32_t> pending = ints(store.pending(l));
    for (size_t r = 0; r < world.slots.size(); ++r) {
      const int32_t found = pending[world.slots[r]];
      judge.that((found < 0 ? found : found % kFolded) == world.lengths[r],
                 "pending length after verify: expected " + std::to_string(world.lengths[r]) + ", found " +
                     std::to_string(pending[world.slots[r]]));
    }
  }
  // g and beta are what the recurrence used: folding rows whose gates are then changed must differ (C4 shows the other
  // half).
  Store altered = world.make_store();
  altered.copy_from(store);
  fill_zero(altered.ring().beta);
  Store other_gate = world.make_store();
  other_gate.copy_from(store);
  fill(gate_of(other_gate.ring()), [] { return -0.25f; });
  const int32_t slot = world.slots[0];
  for (const Store* each : std::initializer_list<const Store*>{&altered, &other_gate, &store}) {
    world.fold(judge, *each, {slot}, {static_cast<int32_t>(world.lengths[0])});
  }
  judge.that(!difference(altered.state(0, slot), store.state(0, slot)).empty(),
             "fold does not read beta from the ring");
  judge.that(!difference(other_gate.state(0, slot), store.state(0, slot)).empty(),
             "fold does not read the gate from the ring");
}

void second_window_replaces(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  if (config.by_row) second_window_elsewhere(judge, world);
  const Store twice = world.make_store(), once = world.make_store();
  std::vector<Row> second;
  std::vector<Sequence> tokens;
  tokens.reserve(world.slots.size());
  std::vector<int32_t> accepted;
  const int64_t shorter = std::max<int64_t>(1, config.window - 1);
  for (size_t r = 0; r < world.slots.size(); ++r) {
    tokens.emplace_back(config, shorter, 0, 100 + static_cast<int64_t>(r));
    second.push_back({&tokens.back(), 0, shorter, world.slots[r]});
    accepted.push_back(static_cast<int32_t>(shorter));
  }
  for (int64_t l = 0; l < config.layers; ++l) {
    Batch first = world.batch(l);
    world.verify(judge, twice, l, first);
    Batch again = world.batch(config.layout, second), fresh = world.batch(config.layout, second);
    world.verify(judge, twice, l, again);
    world.verify(judge, once, l, fresh);
    judge.same(again.out, fresh.out, "outputs of a window that replaces another");
  }
  if (!world.has_history()) {
    judge.same(twice.pending(), once.pending(), "pending lengths after a window was replaced");
  }
  for (int64_t l = 0; l < config.layers; ++l) {
    const std::vector<int32_t> lengths = ints(twice.pending(l));
    for (size_t r = 0; r < world.slots.size(); ++r) {
      judge.that(lengths[world.slots[r]] % kFolded == shorter, "pending length after a window was replaced");
    }
  }
  if (shorter < world.lengths[0]) {  // the first window was longer; its extra rows are gone
    const RowBuffers ids({world.slots[0]}), counts({static_cast<int32_t>(world.lengths[0])}), status({77});
    FoldArgs args = world.fold_args(twice, ids, counts);
    args.row_status = status.view;
    judge.ok(mirrored::fold(args), "fold of more rows than the second window has");
    judge.rows(status.view, {RowStatus::accept_out_of_range}, "fold of more rows than the second window has");
  }
  world.fold(judge, twice, world.slots, accepted);
  world.fold(judge, once, world.slots, accepted);
  judge.same(twice.state(), once.state(), "states after a window was replaced");
}

namespace {

/// A verify of `fast` numerics; where nothing serves it nothing may change, and the line is skipped.
void verify_fast(Judge& judge, const World& world, const Store& store, const Batch& batch, VerifyArgs args) {
  const Bytes state = pack(store.state()), ring = pack(store.ring().k), out = pack(batch.out);
  args.numerics = Numerics::fast;
  const Status status = mirrored::verify(args);
  judge.untouched(store.state(), state, "state, by a verify of fast numerics");
  if (status.ok()) return;
  judge.refused(status, Code::unsupported, "verify with fast numerics");
  judge.untouched(store.ring().k, ring, "ring, by a refused verify");
  judge.untouched(batch.out, out, "outputs, by a refused verify");
  throw Skip{std::string(world.impl) + " refuses fast numerics: " + status.message()};
}

void same_records(Judge& judge, const Store& fast, const Store& exact) {
  // Where verify leaves the folding to commit, it is not marked as done.
  std::vector<int32_t> got = ints(fast.pending()), want = ints(exact.pending());
  for (std::vector<int32_t>* all : {&got, &want}) {
    for (int32_t& pending : *all) pending = pending < 0 ? pending : pending & ~kFolded;
  }
  judge.that(got == want, "pending windows of fast numerics differ from those of exact");
  judge.same(fast.ring().k, exact.ring().k, "ring k of fast numerics");
  judge.same(fast.ring().v, exact.ring().v, "ring v of fast numerics");
  judge.same(gate_of(fast.ring()), gate_of(exact.ring()), "ring gate of fast numerics");
  judge.same(fast.ring().beta, exact.ring().beta, "ring beta of fast numerics");
}

/// Outputs of one call against the oracle, in the norm that the specification's bound is about: of all that the call
/// computes. (A row alone has no such bound: where q is all but orthogonal to the state, its output is small and the
/// error, which is relative to the terms of the sums, is not.)
class Distance {
 public:
  /// Takes the outputs of a row; the oracle goes `count` tokens on.
  void add(const TensorView& out, const Sequence& tokens, int64_t first, int64_t count, oracle::Recurrence* oracle) {
    const std::vector<float> got = floats(out);
    for (int64_t t = 0, i = 0; t < count; ++t) {
      for (double want : oracle->step(tokens.token(first + t))) {
        error_ += (got[i] - want) * (got[i] - want);
        norm_ += want * want;
        ++i;
      }
    }
  }
  void judge(Judge& judge, const std::string& what) const {
    // Also false for NaN.
    judge.that(std::sqrt(error_) <= 2e-5 * std::sqrt(norm_), what + ": relative error " +
                                                                 std::to_string(1e5 * std::sqrt(error_ / norm_)) +
                                                                 "e-5, above the bound 2e-5 of the specification");
  }

 private:
  double error_ = 0, norm_ = 0;
};

/// Windows one after the other, partly accepted, so that each reads what the ones before it have left in the ring, at
/// places that wrap; in the end the states are those of exact windows.
void fast_reads_history(Judge& judge, const Config& config, std::string_view impl) {
  Config without = config;
  without.ring_u = false;
  const World world(config, impl), plain(without, "reference");
  constexpr int64_t kRounds = 5;
  const int64_t ring_rows = std::min<int64_t>(4 * config.window + 1, kMaxWindow);
  Store fast(config, world.num_slots, ring_rows), exact(without, world.num_slots, ring_rows);
  fast.fill(world.slots);
  exact.fill(world.slots);
  std::vector<Sequence> tokens;
  std::vector<oracle::Recurrence> oracles;
  std::vector<int64_t> at(world.slots.size(), 0);
  for (size_t r = 0; r < world.slots.size(); ++r) {
    const auto row = static_cast<int64_t>(r);
    tokens.emplace_back(config, kRounds * config.window, 0, 500 + row);
    const std::vector<float> start = floats(fast.state(0, world.slots[r]));
    oracles.emplace_back(world.params[0].oracle_layer(), oracle::Doubles{start.begin(), start.end()});
    for (const Store* store : {&fast, &exact}) {
      store->set_cursors(0, world.slots[r], {.base = static_cast<int32_t>((3 + 5 * row) % ring_rows)});
    }
  }
  for (int64_t round = 0;; ++round) {
    std::vector<Row> rows;
    for (size_t r = 0; r < world.slots.size(); ++r) {
      rows.push_back({&tokens[r], at[r], world.lengths[r], world.slots[r]});
    }
    Batch got(config, config.layout, rows, DType::f32), want(without, config.layout, rows);
    verify_fast(judge, world, fast, got, world.verify_args(fast, 0, got));
    judge.rows(got.row_status, std::vector<RowStatus>(rows.size(), RowStatus::done), "verify of fast numerics");
    plain.verify(judge, exact, 0, want);
    same_records(judge, fast, exact);
    got.guards(judge);
    fast.guards(judge);
    bool room = round + 1 < kRounds;
    Distance distance;
    for (size_t r = 0; r < rows.size(); ++r) {
      oracle::Recurrence ahead = oracles[r];
      distance.add(got.out_row(r), tokens[r], at[r], rows[r].count, &ahead);
      room = room && fast.cursors(0, rows[r].slot).live + 2 * config.window <= ring_rows;
    }
    distance.judge(judge, "fast outputs of window " + std::to_string(round));
    if (!room) break;
    for (size_t r = 0; r < rows.size(); ++r) {
      // Mostly everything, at times part of it or nothing.
      const int64_t kinds[] = {rows[r].count, rows[r].count / 2, rows[r].count, 0};
      const int64_t n = kinds[(round + static_cast<int64_t>(r)) % 4];
      for (const Store* store : {&fast, &exact}) store->accept(0, rows[r].slot, static_cast<int32_t>(n));
      for (int64_t t = 0; t < n; ++t) oracles[r].step(tokens[r].token(at[r]++));
    }
  }
  std::vector<int32_t> counts;
  for (const int64_t length : world.lengths) counts.push_back(static_cast<int32_t>(length));
  // What serves the verify need not serve the fold.
  const World folding(config, device_of(impl) == Device::cpu ? "reference" : "cuda.general");
  folding.fold(judge, fast, world.slots, counts);
  plain.fold(judge, exact, world.slots, counts);
  judge.same(fast.state(), exact.state(), "states behind windows of fast numerics");
}

}  // namespace

void fast_is_bounded(Judge& judge, const Config& config, std::string_view impl) {
  if (config.ring_u) return fast_reads_history(judge, config, impl);
  const World world(config, impl);
  const Store store = world.make_store(), exact = world.make_store();
  Batch fast(config, config.layout, world.rows(0), DType::f32);
  verify_fast(judge, world, store, fast, world.verify_args(store, 0, fast));
  // What serves `fast` need not serve `exact`, so the other side is the plain reference.
  const World plain(config, "reference");
  Batch reference = plain.batch(0);
  plain.verify(judge, exact, 0, reference);
  same_records(judge, store, exact);
  Distance distance;
  for (size_t r = 0; r < world.slots.size(); ++r) {
    const std::vector<float> start = floats(store.state(0, world.slots[r]));
    oracle::Recurrence oracle(world.params[0].oracle_layer(), {start.begin(), start.end()});
    distance.add(fast.out_row(r), world.sequences[0][r], 0, world.lengths[r], &oracle);
  }
  distance.judge(judge, "fast outputs");
}

}  // namespace ringfold::check
