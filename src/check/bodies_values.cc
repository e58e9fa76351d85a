// C14, C15: values that must not get through, and values that must.
#include <cmath>
#include <limits>

#include "check/bodies.h"
#include "check/conv_world.h"

namespace ringfold::check {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

void spoil(const Sequence& sequence, int64_t first, float value) {
  for (const Buffer* part : {&sequence.q, &sequence.k, &sequence.v, &sequence.a, &sequence.b}) {
    fill(slice(part->view(), first, sequence.tokens - first), [&] { return value; });
  }
}

std::vector<int32_t> counts_of(const World& world) {
  std::vector<int32_t> counts;
  for (int64_t length : world.lengths) counts.push_back(static_cast<int32_t>(length));
  return counts;
}

/// Rejected tokens full of `value`: neither the outputs before them nor the state know.
void rejected_rows(Judge& judge, const Config& config, std::string_view impl, float value) {
  if (config.window < 2) return;
  const World clean(config, impl), dirty(config, impl);
  std::vector<int32_t> kept;
  for (size_t r = 0; r < clean.slots.size(); ++r) {
    kept.push_back(static_cast<int32_t>(clean.lengths[r] / 2));
    for (int64_t l = 0; l < config.layers; ++l) spoil(dirty.sequences[l][r], kept[r], value);
  }
  const Store expected = clean.make_store(), store = dirty.make_store();
  for (int64_t l = 0; l < config.layers; ++l) {
    Batch good = clean.batch(l), batch = dirty.batch(l);
    clean.verify(judge, expected, l, good);
    dirty.verify(judge, store, l, batch);
    for (size_t r = 0; r < kept.size(); ++r) {
      judge.same(slice(batch.out_row(r), 0, kept[r]), slice(good.out_row(r), 0, kept[r]),
                 "outputs before a token of NaN or Inf, row " + std::to_string(r));
    }
  }
  clean.fold(judge, expected, clean.slots, kept);
  dirty.fold(judge, store, dirty.slots, kept);
  judge.same(store.state(), expected.state(), "states after rejecting tokens of NaN or Inf");

  // A shorter window over the stale rows.
  std::vector<Row> shorter;
  std::vector<int32_t> ones;
  for (size_t r = 0; r < kept.size(); ++r) {
    shorter.push_back({&clean.sequences[0][r], 0, 1, clean.slots[r]});
    ones.push_back(1);
  }
  for (int64_t l = 0; l < config.layers; ++l) {
    Batch good = clean.batch(config.layout, shorter), batch = clean.batch(config.layout, shorter);
    clean.verify(judge, expected, l, good);
    clean.verify(judge, store, l, batch);
    judge.same(batch.out, good.out, "outputs of a window over stale ring rows of NaN or Inf");
  }
  clean.fold(judge, expected, clean.slots, ones);
  clean.fold(judge, store, clean.slots, ones);
  judge.same(store.state(), expected.state(), "states after a window over stale ring rows of NaN or Inf");
}

/// The same for the short conv.
void rejected_conv_rows(Judge& judge, const Config& config, std::string_view impl) {
  if (config.window < 2) return;
  const ConvWorld clean(config, impl), dirty(config, impl);
  const ConvWorld::Memory expected = clean.make_memory(), memory = dirty.make_memory();
  std::vector<int32_t> kept;
  for (size_t r = 0; r < clean.slots.size(); ++r) {
    kept.push_back(static_cast<int32_t>(clean.lengths[r] / 2));
    fill(slice(dirty.sequences[r].view(), kept[r], config.window - kept[r]), [] { return kNaN; });
  }
  ConvWorld::Call good = clean.call(expected, clean.rows()), call = dirty.call(memory, dirty.rows());
  clean.verify(judge, expected, good);
  dirty.verify(judge, memory, call);
  for (size_t r = 0; r < kept.size(); ++r) {
    const auto row = static_cast<int64_t>(r);
    judge.same(slice(call.out_row(row, clean.lengths[r]), 0, kept[r]),
               slice(good.out_row(row, clean.lengths[r]), 0, kept[r]), "conv outputs before a token of NaN");
  }
  clean.commit(judge, expected, clean.slots, kept);
  dirty.commit(judge, memory, dirty.slots, kept);
  judge.same(memory.state, expected.state, "conv windows after rejecting tokens of NaN");
}

/// Unused slots, ring rows and gaps hold zeros in one world and NaN in the other.
void unused_memory(Judge& judge, const World& world) {
  const Store poisoned = world.make_store(), zeroed = world.make_store();
  for (int64_t l = 0; l < world.config.layers; ++l) {
    for (int32_t slot = 0; slot < world.num_slots; ++slot) {
      const Store::Cursors at = zeroed.cursors(l, slot);
      const Ring ring = zeroed.ring(l);
      for (int64_t i = at.live; i < zeroed.ring_rows(); ++i) {
        const int64_t row = (at.base + i) % zeroed.ring_rows();
        for (const TensorView& view : {ring.k, ring.v, gate_of(ring), ring.beta})
          fill_zero(slice(view.at(slot), row, 1));
      }
    }
  }
  for (int64_t l = 0; l < world.config.layers; ++l) {
    std::vector<bool> used(static_cast<size_t>(world.num_slots), false);
    for (int32_t slot : world.slots) used[slot] = true;
    for (int64_t s = 0; s < world.num_slots; ++s) {
      if (!used[s]) fill_zero(zeroed.state(l, s));
    }
    Batch a = world.batch(l), b = world.batch(l);
    world.verify(judge, poisoned, l, a);
    world.verify(judge, zeroed, l, b);
    judge.same(a.out, b.out, "outputs, unused memory poisoned against zeroed,");
    judge.finite(a.out, "outputs beside poisoned memory");
  }
  world.fold(judge, poisoned, world.slots, counts_of(world));
  world.fold(judge, zeroed, world.slots, counts_of(world));
  for (int64_t l = 0; l < world.config.layers; ++l) {
    for (int32_t slot : world.slots) {
      judge.same(poisoned.state(l, slot), zeroed.state(l, slot), "state, unused memory poisoned against zeroed,");
      judge.finite(poisoned.state(l, slot), "state beside poisoned memory");
    }
  }
}

/// NaN inputs in row 0 stay in row 0.
void one_bad_row(Judge& judge, const Config& config, std::string_view impl) {
  if (config.rows < 2) return;
  const World clean(config, impl), dirty(config, impl);
  spoil(dirty.sequences[0][0], 0, kNaN);
  const Store expected = clean.make_store(), store = dirty.make_store();
  Batch good = clean.batch(0), batch = dirty.batch(0);
  clean.decode(judge, expected, 0, good);
  dirty.decode(judge, store, 0, batch);
  judge.that(std::isnan(floats(batch.out_row(0))[0]), "a NaN input gave an output that is not NaN");
  for (int64_t s = 0; s < clean.num_slots; ++s) {
    if (s == clean.slots[0]) continue;
    judge.untouched(store.state(0, s), pack(expected.state(0, s)), "state beside a row of NaN");
  }
  for (size_t r = 1; r < clean.slots.size(); ++r)
    judge.same(batch.out_row(r), good.out_row(r), "outputs beside a row of NaN");
}

struct Extreme {
  const char* name;
  float A_log, dt_bias, a, b;
};

/// Largest magnitude that the dtype can hold, at most `value`.
float clamp_to(DType type, float value) {
  const float limit = type == DType::f16 ? 65504.0f : 3.3e38f;
  return std::fmin(std::fmax(value, -limit), limit);
}

void one_extreme(Judge& judge, const Config& config, std::string_view impl, const Extreme& x) {
  const World world(config, impl);
  fill(world.params[0].A_log.view(), [&] { return x.A_log; });
  fill(world.params[0].dt_bias.view(), [&] { return x.dt_bias; });
  for (const Sequence& sequence : world.sequences[0]) {
    fill(sequence.a.view(), [&] { return clamp_to(config.gates, x.a); });
    fill(sequence.b.view(), [&] { return clamp_to(config.gates, x.b); });
  }
  const Store store = world.make_store();
  Batch batch(config, config.layout, world.rows(0), DType::f32);
  world.verify(judge, store, 0, batch);
  const std::string name = std::string("with ") + x.name;
  judge.finite(batch.out, "outputs " + name);
  const oracle::Layer layer = world.params[0].oracle_layer();
  for (size_t r = 0; r < world.slots.size(); ++r) {
    for (int64_t t = 0; t < world.lengths[r]; ++t) {
      const Ring row = store.ring_row(0, world.slots[r], t);
      for (float g : floats(row.g)) judge.that(g <= 0, "g " + name + ": " + std::to_string(g));
      for (float beta : floats(row.beta)) {
        judge.that(beta >= 0 && beta <= 1, "beta " + name + ": " + std::to_string(beta));
      }
      // The decay agrees with the oracle: absolute, since exp(g) of any wrong g may be far off. exp amplifies the error
      // of g by |g| e^g <= 1/e, so the gate's tolerance (14 + 6|z|) u with |z| <= 100 where the sigmoid is not flat
      // bounds it: < 1e-4.
      const float g0 = floats(row.g)[0];
      const double want = std::exp(oracle::log_decay(layer, 0, 0, world.sequences[0][r].token(t).a[0]));
      judge.that(std::fabs(std::exp(static_cast<double>(g0)) - want) < 1e-4,
                 "decay " + name + ": g is " + std::to_string(g0) + ", exp(g) should be " + std::to_string(want));
    }
  }
  const RowBuffers ids(world.slots), counts(counts_of(world));
  FoldArgs args = world.fold_args(store, ids, counts);
  World::take_layer(store, 0, &args);
  judge.ok(mirrored::fold(args), "fold " + name);
  for (int32_t slot : world.slots) judge.finite(store.state(0, slot), "state " + name);
}

}  // namespace

void nan_stays_out(Judge& judge, const Config& config, std::string_view impl) {
  unused_memory(judge, World(config, impl));
  rejected_rows(judge, config, impl, kNaN);
  rejected_rows(judge, config, impl, kInf);
  if (config.policy == FoldPolicy::on_commit) rejected_conv_rows(judge, config, impl);
  one_bad_row(judge, config, impl);
}

void extreme_gates(Judge& judge, const Config& config, std::string_view impl) {
  const Extreme cases[] = {
      {"A_log 100, x -200", 100, 0, -200, 0},
      {"A_log 100, x 200", 100, 0, 200, 0},
      {"A_log 100, x 0", 100, 0, 0, 0},
      {"A_log 3e38", 3e38f, 0, -50, 0},
      {"A_log -200, x 2e38 + 2e38", -200, 2e38f, 2e38f, 0},
      {"A_log -3e38, x 3e38 + 3e38", -3e38f, 3e38f, 3e38f, 0},
      {"A_log -3e38, x -3e38 - 3e38", -3e38f, -3e38f, -3e38f, 0},
      {"A_log 88.7, x -88.7", 88.7f, 0, -88.7f, 0},
      {"A_log 89, x -104", 89, 0, -104, 0},
      {"b 3e38", 0, 0, 1, 3e38f},
      {"b -3e38", 0, 0, 1, -3e38f},
      {"b -88.8", 0, 0, 1, -88.8f},
      {"denormal a", 0, 0, 1e-40f, 0},
  };
  for (const Extreme& x : cases) one_extreme(judge, config, impl, x);
  // Keys and queries of zeros have no direction; l2norm divides by sqrt(1e-6).
  const World world(config, impl);
  for (const Sequence& sequence : world.sequences[0]) {
    fill_zero(sequence.q.view());
    fill_zero(sequence.k.view());
  }
  const Store store = world.make_store();
  Batch batch = world.batch(0);
  world.decode(judge, store, 0, batch);
  for (float o : floats(batch.out)) judge.that(o == 0, "an output without a query");
  for (int32_t slot : world.slots) judge.finite(store.state(0, slot), "state after keys of zeros");
}

}  // namespace ringfold::check
