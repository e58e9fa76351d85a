// C7, C8: the bits of a row depend on its own tokens and state alone.
#include <algorithm>
#include <cfenv>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "check/bodies.h"
#include "check/conv_world.h"

namespace ringfold::check {
namespace {

/// Restores the number of threads.
class Threads {
 public:
  explicit Threads(int n) : saved_(num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(saved_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int saved_;
};

/// The floating-point environment of this thread, spoilt for a while: rounding upwards and, where the kit knows how,
/// subnormals flushed to zero.
class Environment {
 public:
  void spoil() {
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u);  // FTZ, DAZ
#endif
    rounding_ = FE_UPWARD;
#if defined(__x86_64__)
    control_ = _mm_getcsr() & ~0x3Fu;
#endif
  }
  /// True if the environment is still the one that was left.
  bool restore() {
    bool kept = std::fegetround() == rounding_;
#if defined(__x86_64__)
    kept = kept && (_mm_getcsr() & ~0x3Fu) == control_;
#endif
    std::fesetenv(&before_);
    return kept;
  }

 private:
  static std::fenv_t current() {
    std::fenv_t environment;
    std::fegetenv(&environment);
    return environment;
  }
  std::fenv_t before_ = current();
  int rounding_ = std::fegetround();
#if defined(__x86_64__)
  unsigned control_ = _mm_getcsr() & ~0x3Fu;  // without the sticky flags
#endif
};

/// What one row of a step gives: outputs, ring, folded state.
struct RowResult {
  Buffer out, k, v, g, beta, state;
};

Buffer copy_of(const TensorView& view) {
  Buffer buffer(view.dtype, std::vector<int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
  copy(view, buffer.view());
  return buffer;
}

/// verify + fold of a batch that has some of the world's rows, in this order and layout, on slots that may be others.
std::vector<RowResult> step(Judge& judge, const World& world, Layout layout, const std::vector<size_t>& order,
                            bool other_slots) {
  const Store start = world.make_store();
  Config memory = world.config;
  memory.layers = 1;
  Store store(memory, world.num_slots, world.has_history() ? start.ring_rows() : world.config.window);
  store.fill({});
  std::vector<Row> rows;
  std::vector<int32_t> slots, counts;
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t r = order[i];
    const int32_t slot =
        other_slots ? static_cast<int32_t>(world.num_slots - 1 - static_cast<int64_t>(i)) : world.slots[r];
    if (world.has_history()) {
      store.copy_slot(start, world.slots[r], slot);
    } else {
      copy(start.state(0, world.slots[r]), store.state(0, slot));
    }
    rows.push_back({&world.sequences[0][r], 0, world.lengths[r], slot});
    slots.push_back(slot);
    counts.push_back(static_cast<int32_t>(world.lengths[r]));
  }
  Batch batch = world.batch(layout, rows);
  world.verify(judge, store, 0, batch);
  std::vector<Store::Cursors> cursors;
  for (int32_t slot : slots) cursors.push_back(store.cursors(0, slot));
  world.fold(judge, store, slots, counts);
  std::vector<RowResult> results(world.slots.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const Ring ring = store.ring(0);
    // History and window; all rows, in order of age.
    const auto rows_of = [&](const TensorView& view) {
      const TensorView mine = view.at(slots[i]);
      std::vector<int64_t> shape(mine.shape.begin(), mine.shape.begin() + mine.rank);
      shape[0] = cursors[i].live + counts[i];
      Buffer aged(mine.dtype, shape);
      for (int64_t t = 0; t < shape[0]; ++t) {
        copy(slice(mine, (cursors[i].base + t) % store.ring_rows(), 1), slice(aged.view(), t, 1));
      }
      return aged;
    };
    results[order[i]] = {copy_of(batch.out_row(i)), rows_of(ring.k),    rows_of(ring.v),
                         rows_of(gate_of(ring)),    rows_of(ring.beta), copy_of(store.state(0, slots[i]))};
  }
  return results;
}

void same_rows(Judge& judge, const std::vector<RowResult>& got, const std::vector<RowResult>& want,
               const std::vector<size_t>& which, const std::string& how) {
  for (size_t r : which) {
    const std::string row = " of row " + std::to_string(r) + ", " + how + ",";
    judge.same(got[r].out.view(), want[r].out.view(), "outputs" + row);
    judge.same(got[r].k.view(), want[r].k.view(), "ring k" + row);
    judge.same(got[r].v.view(), want[r].v.view(), "ring v" + row);
    judge.same(got[r].g.view(), want[r].g.view(), "ring g" + row);
    judge.same(got[r].beta.view(), want[r].beta.view(), "ring beta" + row);
    judge.same(got[r].state.view(), want[r].state.view(), "state" + row);
  }
}

void norm_rows(Judge& judge, const Config& c, std::string_view impl) {
  const std::vector<int64_t> shape{c.rows * c.window, c.HV, c.V};
  Buffer x(c.act, shape, Buffer::Pitch::padded), z(c.act, shape, Buffer::Pitch::padded), weight(c.gates, {c.V});
  Buffer all(c.act, shape), one(c.act, {1, c.HV, c.V});
  fill_normal(x.view(), mix({static_cast<int64_t>(c.seed), 20}));
  fill_normal(z.view(), mix({static_cast<int64_t>(c.seed), 21}));
  fill_normal(weight.view(), mix({static_cast<int64_t>(c.seed), 22}), 0.3f, 1.0f);
  GatedNormArgs args{x.view(), z.view(), weight.view(), all.view(), c.seed % 2 ? NormGate::silu : NormGate::sigmoid,
                     1e-6f,    impl};
  judge.ok(mirrored::gated_norm(args), "gated_norm");
  const int64_t t = shape[0] - 1;
  args.x = slice(x.view(), t, 1), args.z = slice(z.view(), t, 1), args.out = one.view();
  judge.ok(mirrored::gated_norm(args), "gated_norm of one token");
  judge.same(slice(all.view(), t, 1), one.view(), "gated_norm of a batch, against one token,");
  args.x = x.view(), args.z = z.view(), args.out = x.view();
  judge.ok(mirrored::gated_norm(args), "gated_norm in place");
  judge.same(x.view(), all.view(), "gated_norm in place");
  for (const Buffer* buffer : {&x, &z, &weight, &all, &one}) judge.intact(*buffer, "gated_norm buffer");
}

/// The caller's floating-point environment has no influence, and comes back as it was. States of subnormal size, so
/// that a flush to zero would show.
void floating_point_environment(Judge& judge, const World& world) {
  if (world.config.state == DType::f16) return;  // has no value of that size
  const auto run = [&](bool odd_environment, const Store& store) {
    for (int32_t slot : world.slots) fill_normal(store.state(0, slot), static_cast<uint64_t>(slot), 1e-38f);
    Batch batch(world.config, world.config.layout, world.rows(0), DType::f32);
    const DecodeArgs args = world.decode_args(store, 0, batch);
    Environment environment;
    if (odd_environment) environment.spoil();
    const Status status = mirrored::decode(args);
    const bool kept = environment.restore();
    judge.ok(status, "decode");
    judge.that(kept, "decode changed the floating-point environment of its caller");
    return copy_of(batch.out);
  };
  const Store plain_store = world.make_store(), odd_store = world.make_store();
  const Buffer plain = run(false, plain_store), odd = run(true, odd_store);
  judge.same(odd.view(), plain.view(), "outputs, rounding upwards and flushing subnormals outside,");
  judge.same(odd_store.state(0), plain_store.state(0), "states, rounding upwards and flushing subnormals outside,");
}

/// A sequence with the first `good` tokens of one and the rest from another.
Sequence splice(const Config& c, const Sequence& truth, int64_t first, int64_t good, int64_t total, int64_t stream) {
  Sequence result(c, total, 0, stream);
  for (auto part : {&Sequence::q, &Sequence::k, &Sequence::v, &Sequence::a, &Sequence::b}) {
    copy(slice((truth.*part).view(), first, good), slice((result.*part).view(), 0, good));
  }
  return result;
}

/// 32 tokens, unless the implementation is a device's and made for shorter windows: then the window of the config.
int64_t longest_chunk(const Judge& judge, const World& world, const std::vector<Sequence>& tokens) {
  if (!judge.on_device()) return kMaxWindow;
  const Store store = world.make_store();
  std::vector<Row> rows;
  for (size_t r = 0; r < tokens.size(); ++r) {
    rows.push_back({&tokens[r], 0, std::min<int64_t>(kMaxWindow, tokens[r].tokens), world.slots[r]});
  }
  Batch batch = world.batch(world.config.layout, rows);
  const Status status = mirrored::decode(world.decode_args(store, 0, batch));
  return status.code() == Code::unsupported ? world.config.window : kMaxWindow;
}

}  // namespace

void batch_invariance(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  std::vector<size_t> all(world.slots.size());
  for (size_t r = 0; r < all.size(); ++r) all[r] = r;
  std::vector<RowResult> base;
  {
    const Threads one(1);
    base = step(judge, world, config.layout, all, false);
  }
  for (int threads : {2, 3}) {
    const Threads set(threads);
    same_rows(judge, step(judge, world, config.layout, all, false), base, all, std::to_string(threads) + " threads");
  }
  std::vector<size_t> backwards(all.rbegin(), all.rend());
  same_rows(judge, step(judge, world, config.layout, backwards, true), base, all, "rows permuted, other slots");
  same_rows(judge, step(judge, world, Layout::ragged, all, false), base, all, "ragged");
  for (size_t r : all) {
    const Layout layout = r % 2 == 0 ? Layout::dense : Layout::strided;
    same_rows(judge, step(judge, world, layout, {r}, r % 2 == 0), base, {r},
              std::string("alone, ") + to_string(layout));
  }
  if (config.layout == Layout::dense)
    same_rows(judge, step(judge, world, Layout::strided, all, false), base, all, "strided");
  norm_rows(judge, config, impl);
  floating_point_environment(judge, world);
}

void speculation_invariance(Judge& judge, const Config& config, std::string_view impl) {
  const World world(config, impl);
  if (world.grouping_matters()) throw Skip{"rounding per commit in a 16-bit pool depends on the windows by definition"};
  const int64_t total = std::min<int64_t>(3 * config.window + 2, 40);
  Rng rng(mix({static_cast<int64_t>(config.seed), 30}));
  std::vector<Sequence> truth;
  for (size_t r = 0; r < world.slots.size(); ++r) truth.emplace_back(config, total, 0, 200 + static_cast<int64_t>(r));

  // Plain decoding, one token per call.
  const Store plain = world.make_plain_store(), spec = world.make_store();
  std::vector<std::vector<Buffer>> outputs(total);
  for (int64_t t = 0; t < total; ++t) {
    std::vector<Row> rows;
    for (size_t r = 0; r < truth.size(); ++r) rows.push_back({&truth[r], t, 1, world.slots[r]});
    Batch batch = world.batch(config.layout, rows);
    world.decode(judge, plain, 0, batch);
    for (size_t r = 0; r < truth.size(); ++r) outputs[t].push_back(copy_of(batch.out_row(r)));
  }

  // The same tokens with drafts: windows of any length, any number of good tokens, then wrong ones.
  std::vector<int64_t> at(truth.size(), 0);
  for (int64_t round = 0; *std::min_element(at.begin(), at.end()) < total; ++round) {
    const int64_t window = round == 0 ? config.window : 1 + rng.below(config.window);
    std::vector<Sequence> drafts;
    drafts.reserve(truth.size());
    std::vector<Row> rows;
    std::vector<int64_t> good;
    std::vector<int32_t> slots, counts;
    for (size_t r = 0; r < truth.size(); ++r) {
      // The first round keeps nothing, the second one token: both are what all drafts rejected looks like.
      const int64_t most = std::min(window, total - at[r]);
      good.push_back(round == 0 ? 0 : round == 1 ? std::min<int64_t>(1, most) : rng.below(most + 1));
      drafts.push_back(splice(config, truth[r], at[r], good[r], window, 1000 + 10 * round + static_cast<int64_t>(r)));
      const bool finished = at[r] == total;
      rows.push_back({finished ? nullptr : &drafts.back(), 0, window, finished ? -1 : world.slots[r]});
      slots.push_back(rows.back().slot);
      counts.push_back(static_cast<int32_t>(good[r]));
    }
    Batch batch = world.batch(config.layout, rows);
    VerifyArgs args = world.verify_args(spec, 0, batch);
    judge.ok(mirrored::verify(args), "verify");
    for (size_t r = 0; r < truth.size(); ++r) {
      for (int64_t t = 0; t < good[r]; ++t) {
        judge.same(
            slice(batch.out_row(r), t, 1), outputs[at[r] + t][r].view(),
            "output of token " + std::to_string(at[r] + t) + " row " + std::to_string(r) + ", against plain decoding,");
      }
      at[r] += good[r];
    }
    // Most commits leave their rows in the ring where the fold policy allows it, and some fold.
    for (size_t r = 0; r < slots.size() && world.has_history(); ++r) {
      if (slots[r] >= 0 && rng.below(4) > 0 && spec.accept(0, slots[r], counts[r])) slots[r] = -1;
    }
    const RowBuffers ids(slots), accepted(counts);
    FoldArgs fold_args = world.fold_args(spec, ids, accepted);
    World::take_layer(spec, 0, &fold_args);
    judge.ok(mirrored::fold(fold_args), "fold");
  }
  if (world.has_history()) {  // a window of nothing, to fold what is left
    std::vector<Row> rows;
    for (int32_t slot : world.slots) rows.push_back({nullptr, 0, 0, slot});
    Batch batch = world.batch(Layout::ragged, rows);
    world.verify(judge, spec, 0, batch);
    const RowBuffers ids(world.slots), none(std::vector<int32_t>(world.slots.size(), 0));
    FoldArgs fold_args = world.fold_args(spec, ids, none);
    World::take_layer(spec, 0, &fold_args);
    judge.ok(mirrored::fold(fold_args), "fold of histories");
  }
  // And in chunks, as a prompt is taken: the longest that a call allows, then the rest.
  const int64_t longest = longest_chunk(judge, world, truth);
  const Store chunk = world.make_store();
  for (int64_t first = 0; first < total; first += longest) {
    const int64_t count = std::min<int64_t>(longest, total - first);
    std::vector<Row> rows;
    for (size_t r = 0; r < truth.size(); ++r) rows.push_back({&truth[r], first, count, world.slots[r]});
    Batch batch = world.batch(config.layout, rows);
    world.decode(judge, chunk, 0, batch);
    for (size_t r = 0; r < truth.size(); ++r) {
      for (int64_t t = 0; t < count; ++t) {
        judge.same(slice(batch.out_row(r), t, 1), outputs[first + t][r].view(),
                   "output of a chunk, token " + std::to_string(first + t));
      }
    }
  }
  judge.same(chunk.state(0), plain.state(0), "states after decoding in chunks, against token by token,");
  judge.same(spec.state(0), plain.state(0),
             "states after " + std::to_string(total) + " tokens, against plain decoding,");
  spec.guards(judge);
}

}  // namespace ringfold::check
