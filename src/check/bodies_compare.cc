// C9 and ACC: against the plain reference, bit for bit, and against the fp64 oracle, within derived bounds.
#include <algorithm>
#include <cmath>

#include "check/bodies.h"
#include "check/conv_world.h"
#include "check/error_bound.h"

namespace ringfold::check {
namespace {

constexpr std::string_view kReference = "reference";

oracle::Doubles doubles(const TensorView& view) {
  const std::vector<float> values = floats(view);
  return {values.begin(), values.end()};
}

/// Everything that one implementation computes for a config, in a fixed order, with names.
struct Results {
  std::vector<std::pair<std::string, Buffer>> items;
  void add(const std::string& name, const TensorView& view) {
    Buffer buffer(view.dtype, std::vector<int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
    copy(view, buffer.view());
    items.emplace_back(name, std::move(buffer));
  }
};

void add_recurrence(Judge& judge, const Config& config, std::string_view impl, bool snapshots, Results& results) {
  const World world(config, impl);
  const Store store = world.make_store(), decoded = world.make_store();
  std::vector<int32_t> counts;
  for (size_t r = 0; r < world.slots.size(); ++r) {
    counts.push_back(static_cast<int32_t>(std::max<int64_t>(0, world.lengths[r] - static_cast<int64_t>(r % 2))));
  }
  for (int64_t l = 0; l < config.layers; ++l) {
    Batch batch(config, config.layout, world.rows(l), DType::f32);
    if (snapshots) batch.want_snapshots();
    world.verify(judge, store, l, batch);
    results.add("outputs of verify", batch.out);
    if (snapshots) results.add("snapshots", batch.snapshots);
    Batch step = world.batch(l);
    world.decode(judge, decoded, l, step);
    results.add("outputs of decode", step.out);
  }
  results.add("ring k", store.ring().k);
  results.add("ring v", store.ring().v);
  results.add("ring gate", gate_of(store.ring()));
  results.add("ring beta", store.ring().beta);
  world.fold(judge, store, world.slots, counts);
  results.add("states after fold", store.state());
  results.add("states after decode", decoded.state());
}

void add_conv(Judge& judge, const Config& config, std::string_view impl, Results& results) {
  const ConvWorld conv(config, impl);
  const ConvWorld::Memory memory = conv.make_memory(), decoded = conv.make_memory();
  ConvWorld::Call call = conv.call(memory, conv.rows(), DType::f32), step = conv.call(decoded, conv.rows());
  conv.verify(judge, memory, call);
  conv.decode(judge, decoded, step);
  std::vector<int32_t> counts;
  for (int64_t length : conv.lengths) counts.push_back(static_cast<int32_t>(length / 2));
  results.add("outputs of conv_verify", call.args.out);
  results.add("outputs of conv_decode", step.args.out);
  results.add("conv ring", memory.ring);
  conv.commit(judge, memory, conv.slots, counts);
  results.add("conv windows after commit", memory.state);
  results.add("conv windows after decode", decoded.state);
}

struct NormCase {
  explicit NormCase(const Config& c, std::string_view impl, DType out_dtype)
      : x(c.act, {c.rows, c.HV, c.V}),
        z(c.act, {c.rows, c.HV, c.V}),
        weight(c.gates, {c.V}),
        out(out_dtype, {c.rows, c.HV, c.V}) {
    fill_normal(x.view(), mix({static_cast<int64_t>(c.seed), 40}), 0.2f);
    fill_normal(z.view(), mix({static_cast<int64_t>(c.seed), 41}), 3.0f);
    fill_normal(weight.view(), mix({static_cast<int64_t>(c.seed), 42}), 0.3f, 1.0f);
    args = {x.view(), z.view(), weight.view(), out.view(), c.seed % 2 ? NormGate::silu : NormGate::sigmoid,
            1e-6f,    impl};
  }
  Buffer x, z, weight, out;
  GatedNormArgs args;
};

Results run_all(Judge& judge, const Config& config, std::string_view impl, bool snapshots) {
  Results results;
  add_recurrence(judge, config, impl, snapshots, results);
  if (config.policy != FoldPolicy::on_commit) return results;  // conv and norm know nothing of it
  add_conv(judge, config, impl, results);
  for (DType type : {DType::f32, config.act}) {
    NormCase norm(config, impl, type);
    judge.ok(mirrored::gated_norm(norm.args), "gated_norm");
    results.add("gated_norm", norm.out.view());
  }
  return results;
}

/// |got - want| <= bound + half a unit of the output's dtype, for every element.
void within(Judge& judge, const TensorView& got, const oracle::Doubles& want, const oracle::Doubles& bounds,
            const std::string& what) {
  const std::vector<float> values = floats(got);
  for (size_t i = 0; i < values.size(); ++i) {
    const double bound = bounds[i] + rounding_of(got.dtype, std::fabs(want[i]) + bounds[i]);
    if (std::fabs(values[i] - want[i]) <= bound) continue;  // also false for NaN
    judge.that(false, what + " element " + std::to_string(i) + ": " + std::to_string(values[i]) + ", the oracle has " +
                          std::to_string(want[i]) + ", error " +
                          std::to_string(std::fabs(values[i] - want[i]) / bound) + " times the bound");
  }
  judge.that(!values.empty(), what + ": nothing to compare");
}

void recurrence_accuracy(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  const Store store = world.make_store(), start = world.make_store();
  Batch batch(config, config.layout, world.rows(0), DType::f32);
  world.verify(judge, store, 0, batch);
  std::vector<int32_t> counts;
  for (int64_t length : world.lengths) counts.push_back(static_cast<int32_t>(length));
  const RowBuffers ids(world.slots), accepted(counts);
  FoldArgs args = world.fold_args(store, ids, accepted);
  args.state = store.state(0), args.ring = store.ring_argument(0), args.owners = store.owners(0),
  args.pending = store.pending(0);
  judge.ok(mirrored::fold(args), "fold");
  const oracle::Layer layer = world.params[0].oracle_layer();
  for (size_t r = 0; r < world.slots.size(); ++r) {
    oracle::Recurrence truth(layer, doubles(start.state(0, world.slots[r])));
    ErrorBound bound(layer, config.state, config.rounding);
    for (int64_t t = 0; t < world.lengths[r]; ++t) {
      const oracle::Token token = world.sequences[0][r].token(t);
      const oracle::Doubles bounds = bound.step(token, truth.state());
      within(judge, batch.out_row(r).at(t), truth.step(token), bounds,
             "output of " + World::where(0, static_cast<int64_t>(r), t));
    }
    if (world.lengths[r] == 0) continue;
    within(judge, store.state(0, world.slots[r]), truth.state(), bound.state_bounds(truth.state()),
           "state of " + World::where(0, static_cast<int64_t>(r)));
  }
}

void conv_accuracy(Judge& judge, const Config& config, std::string_view impl) {
  const ConvWorld conv(config, impl);
  const ConvWorld::Memory memory = conv.make_memory();
  ConvWorld::Call call = conv.call(memory, conv.rows(), DType::f32);
  conv.verify(judge, memory, call);
  const oracle::Doubles weight = doubles(conv.weight.view());
  const oracle::Doubles bias = call.args.bias.empty() ? oracle::Doubles{} : doubles(conv.bias.view());
  for (size_t r = 0; r < conv.slots.size(); ++r) {
    if (conv.lengths[r] == 0) continue;
    const oracle::Doubles x = doubles(slice(conv.sequences[r].view(), 0, conv.lengths[r]));
    const TensorView by_channel = memory.state.at(conv.slots[r]);
    oracle::Doubles history((conv.W - 1) * conv.C);
    for (int64_t c = 0; c < conv.C; ++c) {
      for (int64_t j = 0; j < conv.W - 1; ++j) {
        const auto* at =
            static_cast<const std::byte*>(by_channel.data) +
            (c * by_channel.stride[0] + j * by_channel.stride[1]) * static_cast<int64_t>(size_of(config.act));
        history[j * conv.C + c] = load(config.act, at);
      }
    }
    within(judge, call.out_row(static_cast<int64_t>(r), conv.lengths[r]),
           oracle::short_conv(x, history, weight, bias, conv.C, conv.W, conv.silu),
           conv_bounds(x, history, weight, bias, conv.C, conv.W, conv.silu), "conv output of row " + std::to_string(r));
  }
}

void norm_accuracy(Judge& judge, const Config& config, std::string_view impl) {
  NormCase norm(config, impl, DType::f32);
  judge.ok(mirrored::gated_norm(norm.args), "gated_norm");
  const oracle::Doubles want = oracle::gated_norm(doubles(norm.x.view()), doubles(norm.z.view()),
                                                  doubles(norm.weight.view()), norm.args.eps, norm.args.gate);
  oracle::Doubles bounds = want;
  for (double& bound : bounds) bound = std::fabs(bound) * gated_norm_relative_bound(config.V) + 1e-37;
  within(judge, norm.out.view(), want, bounds, "gated_norm");
}

}  // namespace

void equals_reference(Judge& judge, const Config& config, std::string_view impl) {
  const std::vector<std::string_view> known = implementations();
  judge.that(std::find(known.begin(), known.end(), kReference) != known.end(),
             "the plain reference is not in this build");
  if (impl == kReference) throw Skip{"it is the reference that the others are compared with"};
  const bool snapshots = World(config, impl).takes_snapshots();
  const Results got = run_all(judge, config, impl, snapshots), want = run_all(judge, config, kReference, snapshots);
  for (size_t i = 0; i < want.items.size(); ++i) {
    judge.same(got.items[i].second.view(), want.items[i].second.view(),
               got.items[i].first + ", against the reference,");
  }
}

uint64_t fingerprint_of(Judge& judge, const Config& config, std::string_view impl) {
  uint64_t h = 0xCBF29CE484222325ull;  // FNV-1a starts here
  for (const auto& [name, buffer] : run_all(judge, config, impl, true).items) h = hash(buffer.view(), h);
  return h;
}

void accuracy(Judge& judge, const Config& config, std::string_view impl) {
  recurrence_accuracy(judge, config, impl);
  conv_accuracy(judge, config, impl);
  norm_accuracy(judge, config, impl);
}

}  // namespace ringfold::check
