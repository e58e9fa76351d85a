// C17 where there is a device: a CUDA graph that was captured once serves other slots, counts and window lengths.
#include "check/bodies.h"
#include "check/conv_world.h"
#include "check/layer_world.h"

#if defined(RINGFOLD_CUDA)
#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#endif

namespace ringfold::check {

#if defined(RINGFOLD_CUDA)
namespace {

constexpr int64_t kRounds = 4;
constexpr std::string_view kFastImpl = "cuda.fast";

void succeeded(Judge& judge, cudaError_t error, const char* what) {
  judge.that(error == cudaSuccess, std::string(what) + ": " + cudaGetErrorName(error));
}

/// A stream that does not wait for the default one, which a capture does not allow.
class Stream {
 public:
  explicit Stream(Judge& judge) {
    succeeded(judge, cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// What some calls launch. Capturing forbids them to allocate, to wait and to read what is on the device.
class Graph {
 public:
  Graph(Judge& judge, cudaStream_t stream, const std::function<Status()>& calls) {
    succeeded(judge, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    const Status status = calls();
    const cudaError_t end = cudaStreamEndCapture(stream, &graph_);
    judge.ok(status, "a call in a stream that is captured");
    succeeded(judge, end, "cudaStreamEndCapture");
    succeeded(judge, cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(Judge& judge, cudaStream_t stream) const {
    succeeded(judge, cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

/// Calls in order, each to be made directly (through copies of its own), or on the copies of one mirror.
class Calls {
 public:
  template <class Args, class OnDevice, class Direct>
  void add(const Args& args, OnDevice on_device, Direct direct) {
    notes_.push_back([=](Mirror& mirror) { mirror.add(args); });
    calls_.push_back([=](const Mirror* mirror, void* stream) -> Status {
      if (mirror == nullptr) return direct(args);
      Args there = mirror->on_device(args);
      there.stream = stream;
      return on_device(there);
    });
  }
  void note(Mirror& mirror) const {
    for (const auto& note : notes_) note(mirror);
  }
  /// The first error.
  Status run(const Mirror* mirror, void* stream) const {
    for (const auto& call : calls_) {
      if (Status status = call(mirror, stream); !status.ok()) return status;
    }
    return {};
  }

 private:
  std::vector<std::function<void(Mirror&)>> notes_;
  std::vector<std::function<Status(const Mirror*, void*)>> calls_;
};

/// Rows of one round: slots, windows, counts and (where rings are keyed by request row) rings that differ from those of
/// every other round. A slot has another ring each time, so that neither id tells the other.
struct Round {
  Round(const World& world, int64_t number) {
    Rng rng(mix({static_cast<int64_t>(world.config.seed), 60, number}));
    const std::vector<int32_t> order = rng.permutation(world.num_slots);
    const std::vector<int32_t> ring_order =
        Rng(mix({static_cast<int64_t>(world.config.seed), 67, number})).permutation(world.num_slots);
    const auto rows = static_cast<size_t>(world.config.rows);
    for (size_t r = 0; r < rows; ++r) {
      const bool null_row = number % 3 == 2 && r + 1 == rows && rows > 1;
      const auto length =
          static_cast<int32_t>(r == 0 && number == 1 ? world.config.window : rng.below(world.config.window + 1));
      slots.push_back(null_row ? -1 - static_cast<int32_t>(number) : order[r]);
      rings.push_back(null_row ? slots.back() : ring_order[r]);
      bounds.push_back(bounds.back() + length);
      counts.push_back(static_cast<int32_t>(rng.below(length + 1)));
    }
    used.assign(order.begin(), order.begin() + static_cast<int64_t>(rows));
    const bool tracks = slots[0] >= 0 && counts[0] > 0;
    track_slots.assign(rows, -1);
    track_steps.assign(rows, -1);
    if (tracks) track_slots[0] = order[rows], track_steps[0] = static_cast<int32_t>(rng.below(counts[0]));
  }
  int64_t tokens() const { return bounds.back(); }
  std::vector<int32_t> slots, rings, bounds{0}, counts, track_slots, track_steps, used;
};

/// Rows as long as the bounds of a captured call allow.
std::vector<Row> longest_rows(const World& world) {
  std::vector<Row> rows;
  for (int64_t r = 0; r < world.config.rows; ++r) rows.push_back({nullptr, 0, world.config.window, 0});
  return rows;
}

/// New tokens, rows and poisoned outputs in place of those of the last round.
void refill(const Config& config, const Round& round, int64_t number, int64_t layer, const Batch& batch) {
  const Window& w = batch.window;
  for (const TensorView& view : {w.q, w.k, w.v, w.a, w.b, batch.out}) fill_poison(view);
  const Sequence tokens(config, round.tokens(), layer, 300 + number);
  const std::pair<const Buffer*, const TensorView*> parts[] = {
      {&tokens.q, &w.q}, {&tokens.k, &w.k}, {&tokens.v, &w.v}, {&tokens.a, &w.a}, {&tokens.b, &w.b}};
  for (const auto& [from, to] : parts) copy(from->view(), slice(*to, 0, round.tokens()));
  set_ints(w.slot_ids, round.slots);
  if (config.by_row) set_ints(w.ring_ids, round.rings);
  set_ints(w.cu_seqlens, round.bounds);
  set_ints(batch.row_status, std::vector<int32_t>(round.slots.size(), 77));
}

void refill(const Config& config, const Round& round, int64_t number, const ConvArgs& args) {
  fill_poison(args.x);
  fill_poison(args.out);
  fill_normal(slice(args.x, 0, round.tokens()), mix({static_cast<int64_t>(config.seed), 61, number}));
  set_ints(args.slot_ids, round.slots);
  if (config.by_row) set_ints(args.ring_ids, round.rings);
  set_ints(args.cu_seqlens, round.bounds);
  set_ints(args.row_status, std::vector<int32_t>(round.slots.size(), 77));
}

std::vector<ConvWorld::ConvRow> longest_conv_rows(const Config& config) {
  return std::vector<ConvWorld::ConvRow>(static_cast<size_t>(config.rows), {{}, config.window, 0});
}

struct Named {
  std::string name;
  TensorView view;
};

void add_owners(std::vector<Named>* all, const RingOwners& owners) {
  if (owners.empty()) return;
  all->push_back({"slot of ring", owners.slot_of_ring});
  all->push_back({"ring of slot", owners.ring_of_slot});
}

/// Every operation but commit, on the kit's own memory.
class StoreScene {
 public:
  StoreScene(const Config& config, std::string_view impl)
      : world_(config, impl),
        conv_(config, impl),
        store_(world_.make_store()),
        memory_(conv_.make_memory()),
        step_(world_.batch(Layout::ragged, longest_rows(world_))),
        conv_verify_(conv_.call(memory_, longest_conv_rows(config))),
        conv_decode_(conv_.call(memory_, longest_conv_rows(config))),
        zeros_(static_cast<size_t>(config.rows), 0),
        ids_(zeros_),
        rings_(zeros_),
        counts_(zeros_),
        track_slots_(zeros_),
        track_steps_(zeros_),
        status_(zeros_),
        norm_weight_(config.gates, {config.V}),
        norm_(config.act, {config.rows * config.window, config.HV, config.V}) {
    fill_normal(norm_weight_.view(), config.seed, 0.3f, 1.0f);
    for (int64_t l = 0; l < config.layers; ++l) {
      batches_.push_back(world_.batch(Layout::ragged, longest_rows(world_)));
      calls.add(world_.verify_args(store_, l, batches_.back()), ringfold::verify, mirrored::verify);
    }
    layers_.resize(static_cast<size_t>(config.layers));
    std::iota(layers_.rbegin(), layers_.rend(), 0);
    FoldArgs fold_args = world_.fold_args(store_, ids_, counts_);
    fold_args.layers = layers_;
    if (config.by_row) fold_args.ring_ids = rings_.view;
    fold_args.track_slots = track_slots_.view, fold_args.track_steps = track_steps_.view;
    fold_args.row_status = status_.view;
    calls.add(fold_args, ringfold::fold, mirrored::fold);
    calls.add(world_.decode_args(store_, 0, step_), ringfold::decode, mirrored::decode);
    calls.add(conv_verify_.args, ringfold::conv_verify, mirrored::conv_verify);
    ConvCommitArgs commit_args;
    commit_args.conv_state = memory_.state, commit_args.conv_ring = memory_.ring_argument;
    commit_args.slot_ids = ids_.view, commit_args.num_accepted = counts_.view;
    if (config.by_row) commit_args.ring_ids = rings_.view;
    commit_args.impl = world_.impl;
    calls.add(commit_args, ringfold::conv_commit, mirrored::conv_commit);
    calls.add(conv_decode_.args, ringfold::conv_decode, mirrored::conv_decode);
    const TensorView v = batches_[0].window.v;
    const GatedNormArgs norm{v, v, norm_weight_.view(), norm_.view(), NormGate::silu, 1e-6f, world_.impl};
    calls.add(norm, ringfold::gated_norm, mirrored::gated_norm);
  }
  void prepare(int64_t number) {
    const Config& config = world_.config;
    const Round round(world_, number);
    store_.fill(round.used, number);
    fill_poison(memory_.state);
    fill_poison(memory_.ring);
    for (int32_t slot : round.used) fill_normal(memory_.state.at(slot), mix({number, 62, slot}));
    for (int64_t l = 0; l < config.layers; ++l) refill(config, round, number, l, batches_[static_cast<size_t>(l)]);
    refill(config, round, number + 100, 0, step_);
    refill(config, round, number, conv_verify_.args);
    refill(config, round, number + 100, conv_decode_.args);
    set_ints(ids_.view, round.slots);
    set_ints(rings_.view, round.rings);
    set_ints(counts_.view, round.counts);
    set_ints(track_slots_.view, round.track_slots);
    set_ints(track_steps_.view, round.track_steps);
    set_ints(status_.view, std::vector<int32_t>(round.slots.size(), 77));
    fill_poison(norm_.view());
  }
  std::vector<Named> results() const {
    const Ring ring = store_.ring();
    std::vector<Named> all{{"states", store_.state()},
                           {"ring k", ring.k},
                           {"ring v", ring.v},
                           {"ring gate", gate_of(ring)},
                           {"ring beta", ring.beta},
                           {"pending", store_.pending()},
                           {"status of fold", status_.view},
                           {"outputs of decode", step_.out},
                           {"conv windows", memory_.state},
                           {"conv ring", memory_.ring},
                           {"outputs of conv_verify", conv_verify_.args.out},
                           {"outputs of conv_decode", conv_decode_.args.out},
                           {"gated_norm", norm_.view()}};
    for (const Batch& batch : batches_) {
      all.push_back({"outputs of verify", batch.out});
      all.push_back({"status of verify", batch.row_status});
    }
    add_owners(&all, store_.owners());
    add_owners(&all, conv_verify_.args.owners);
    return all;
  }
  Calls calls;

 private:
  World world_;
  ConvWorld conv_;
  Store store_;
  ConvWorld::Memory memory_;
  std::vector<Batch> batches_;
  Batch step_;
  ConvWorld::Call conv_verify_, conv_decode_;
  std::vector<int32_t> zeros_, layers_;
  RowBuffers ids_, rings_, counts_, track_slots_, track_steps_, status_;
  Buffer norm_weight_, norm_;
};

/// verify_layer and decode_layer.
class LayerScene {
 public:
  LayerScene(const Config& config, std::string_view impl)
      : layer_(config, impl),
        memory_(layer_.make_memory()),
        verify_(layer_.call(longest_rows(layer_.world))),
        decode_(layer_.call(longest_rows(layer_.world))) {
    calls.add(layer_.args(memory_, verify_), ringfold::verify_layer, mirrored::verify_layer);
    calls.add(layer_.args(memory_, decode_), ringfold::decode_layer, mirrored::decode_layer);
  }
  void prepare(int64_t number) {
    const Config& config = layer_.world.config;
    const Round round(layer_.world, number);
    memory_.store.fill(round.used, number);
    fill_poison(memory_.conv_state);
    fill_poison(memory_.conv_ring);
    for (int32_t slot : round.used) fill_normal(memory_.conv_state.at(slot), mix({number, 65, slot}));
    for (auto [call, seed] : {std::pair{&verify_, number}, std::pair{&decode_, number + 100}}) {
      refill(config, round, seed, 0, call->batch);
      for (const TensorView& view : {call->qkv.view(), call->z.view()}) {
        fill_poison(view);
        fill_normal(slice(view, 0, round.tokens()), mix({static_cast<int64_t>(config.seed), 66, seed}));
      }
    }
  }
  std::vector<Named> results() const {
    std::vector<Named> all;
    for (const auto& [name, view] : memory_.all()) all.push_back({"layers:" + std::string(name), view});
    for (const LayerWorld::Call* call : {&verify_, &decode_}) {
      all.push_back({"outputs of a layer", call->batch.out});
      all.push_back({"status of a layer", call->batch.row_status});
    }
    return all;
  }
  Calls calls;

 private:
  LayerWorld layer_;
  LayerWorld::Memory memory_;
  LayerWorld::Call verify_, decode_;
};

/// verify, conv_verify and commit on a pool of the device. cuda.fast: its ring keeps u, and all but verify is somebody
/// else's.
class PoolScene {
 public:
  PoolScene(Judge& judge, const Config& config, FoldPolicy policy, std::string_view impl)
      : world_(config, impl == kFastImpl ? "cuda.general" : impl),
        conv_(config, world_.impl),
        zeros_(static_cast<size_t>(config.rows), 0),
        ids_(zeros_),
        rings_(zeros_),
        generations_(zeros_),
        counts_(zeros_),
        track_slots_(zeros_),
        track_steps_(zeros_),
        status_(zeros_) {
    PoolConfig pc{.layers = config.layers,
                  .slots = world_.num_slots,
                  .H = config.H,
                  .HV = config.HV,
                  .K = config.K,
                  .V = config.V,
                  .kind = config.gate == Gate::gdn ? MixerKind::gdn : MixerKind::kda,
                  .state_dtype = config.state,
                  .act_dtype = config.act,
                  .ring_rows = config.window,
                  .rings = config.by_row ? world_.num_slots : 0,
                  .conv_channels = conv_.C,
                  .conv_width = conv_.W,
                  .qk_l2norm = config.qk_l2norm,
                  .state_rounding = config.rounding,
                  .fold_policy = policy,
                  .device = device_of(impl)};
    if (policy != FoldPolicy::on_commit) {  // rings of two or three windows: commits in which nothing is due
      pc.max_window = config.window, pc.ring_u = impl == kFastImpl;
      pc.ring_rows = std::min<int64_t>((2 + static_cast<int64_t>(config.seed % 2)) * config.window, kMaxWindow);
    }
    judge.ok(Pool::create(pc, &pool_), "Pool::create");
    std::vector<Slot> slots(static_cast<size_t>(world_.num_slots));
    judge.ok(pool_->acquire(slots), "acquire");
    generation_of_.resize(slots.size());
    for (const Slot& slot : slots) generation_of_[static_cast<size_t>(slot.id)] = slot.generation;
    fill_normal(pool_->state(), config.seed, 0.5f);
    fill_normal(pool_->conv_state(), config.seed + 1);
    const ConvWorld::Memory unused = conv_.make_memory();
    for (int64_t l = 0; l < config.layers; ++l) {
      batches_.push_back(world_.batch(Layout::ragged, longest_rows(world_)));
      VerifyArgs args;
      args.mixer = world_.params[l].mixer();
      args.window = batches_.back().window;
      args.out = batches_.back().out;
      args.row_status = batches_.back().row_status;
      args.impl = impl;
      if (pc.ring_u) args.numerics = Numerics::fast;
      pool_->bind(l, &args);
      calls.add(args, ringfold::verify, mirrored::verify);
      convs_.push_back(conv_.call(unused, longest_conv_rows(config)));
      pool_->bind(l, &convs_.back().args);
      calls.add(convs_.back().args, ringfold::conv_verify, mirrored::conv_verify);
    }
    CommitArgs args{.slot_ids = ids_.view,
                    .generations = generations_.view,
                    .num_accepted = counts_.view,
                    .track_slots = track_slots_.view,
                    .track_steps = track_steps_.view,
                    .row_status = status_.view,
                    .impl = world_.impl};
    if (config.by_row) args.ring_ids = rings_.view;
    Pool& pool = *pool_;
    calls.add(
        args, [&pool](const CommitArgs& a) { return commit(pool, a); },
        [&pool](const CommitArgs& a) { return mirrored::commit(pool, a); });
  }
  void prepare(int64_t number) {
    const Config& config = world_.config;
    const Round round(world_, number);
    for (int64_t l = 0; l < config.layers; ++l) {
      refill(config, round, number, l, batches_[static_cast<size_t>(l)]);
      refill(config, round, number + 10 * l, convs_[static_cast<size_t>(l)].args);
    }
    std::vector<int32_t> generations;
    for (int32_t slot : round.slots) generations.push_back(slot < 0 ? 0 : generation_of_[static_cast<size_t>(slot)]);
    set_ints(ids_.view, round.slots);
    set_ints(rings_.view, round.rings);
    set_ints(generations_.view, generations);
    set_ints(counts_.view, round.counts);
    set_ints(track_slots_.view, round.track_slots);
    set_ints(track_steps_.view, round.track_steps);
    set_ints(status_.view, std::vector<int32_t>(round.slots.size(), 77));
  }
  std::vector<Named> results() const {
    std::vector<Named> all{{"states of the pool", pool_->state()},
                           {"conv windows of the pool", pool_->conv_state()},
                           {"pending of the pool", pool_->pending()},
                           {"conv pending of the pool", pool_->conv_pending()},
                           {"status of commit", status_.view}};
    if (const History h = pool_->history(); !h.empty()) {
      for (const TensorView& cursors : {h.base, h.live, h.cuts}) all.push_back({"history of the pool", cursors});
    }
    for (const Batch& batch : batches_) all.push_back({"outputs of verify on a pool", batch.out});
    add_owners(&all, pool_->owners());
    add_owners(&all, pool_->conv_owners());
    for (const ConvWorld::Call& conv : convs_) all.push_back({"outputs of conv_verify on a pool", conv.args.out});
    return all;
  }
  Calls calls;

 private:
  World world_;
  ConvWorld conv_;
  std::vector<int32_t> zeros_;
  RowBuffers ids_, rings_, generations_, counts_, track_slots_, track_steps_, status_;
  std::unique_ptr<Pool> pool_;
  std::vector<int32_t> generation_of_;  ///< by slot id
  std::vector<Batch> batches_;
  std::vector<ConvWorld::Call> convs_;
};

/// Captures the calls of one scene, replays them round after round, and compares with direct calls in its twin.
template <class Scene>
void replay(Judge& judge, Scene& captured, Scene& direct) {
  DeviceBlock copies(memory_of(Device::cuda));
  Mirror mirror(copies, Device::cuda);
  captured.calls.note(mirror);
  const Stream stream(judge);
  const auto compare = [&](const std::string& how) {
    const std::vector<Named> got = captured.results(), want = direct.results();
    for (size_t i = 0; i < want.size(); ++i) judge.untouched(got[i].view, pack(want[i].view), got[i].name + how);
  };
  const auto launch = [&] { return captured.calls.run(&mirror, stream.get()); };
  // Round 0 is not captured: the first call of a kernel may load it.
  captured.prepare(0);
  direct.prepare(0);
  judge.ok(mirror.upload(stream.get()), "copying to the device");
  judge.ok(launch(), "a call in a stream");
  judge.ok(mirror.download(stream.get()), "copying from the device");
  judge.ok(direct.calls.run(nullptr, nullptr), "a direct call");
  compare(" in a stream of its own, against the default stream,");
  const Graph graph(judge, stream.get(), launch);
  for (int64_t number = 1; number <= kRounds; ++number) {
    captured.prepare(number);
    direct.prepare(number);
    judge.ok(mirror.upload(stream.get()), "copying to the device");
    graph.launch(judge, stream.get());
    judge.ok(mirror.download(stream.get()), "copying from the device");
    judge.ok(direct.calls.run(nullptr, nullptr), "a direct call");
    compare(" of a replayed graph, round " + std::to_string(number) + ", against direct calls,");
  }
}

void replay_all(Judge& judge, Config config, std::string_view impl) {
  config.layout = Layout::ragged;
  if (impl == kFastImpl) {  // a point that it may serve
    config.by_row = config.ring_a = false;
    config.window = std::clamp<int64_t>(config.window, 2, 8);
    config.rounding = StateRounding::per_commit;
    if (config.act == DType::f32) config.act = DType::bf16;
    PoolScene captured(judge, config, FoldPolicy::lazy, impl), direct(judge, config, FoldPolicy::lazy, impl);
    return replay(judge, captured, direct);
  }
  const bool fits = !config.by_row && config.window >= 2 && 2 * config.window <= kMaxWindow;
  StoreScene captured(config, impl), direct(config, impl);
  replay(judge, captured, direct);
  try {
    LayerScene captured_layer(config, impl), direct_layer(config, impl);
    replay(judge, captured_layer, direct_layer);
  } catch (const Skip&) {  // it serves no layers, as C20 says
  }
  for (const FoldPolicy policy : {FoldPolicy::on_commit, FoldPolicy::on_next_verify, FoldPolicy::lazy}) {
    if (policy != FoldPolicy::on_commit && !fits) continue;
    PoolScene captured_pool(judge, config, policy, impl), direct_pool(judge, config, policy, impl);
    replay(judge, captured_pool, direct_pool);
  }
}

}  // namespace
#endif

void graph_replay(Judge& judge, [[maybe_unused]] const Config& config, [[maybe_unused]] std::string_view impl) {
  if (!judge.on_device()) {
    throw Skip{"needs a hook in the program (tests/contract counts allocations) and, for graph replay, CUDA"};
  }
#if defined(RINGFOLD_CUDA)
  replay_all(judge, config, impl);
#endif
}

}  // namespace ringfold::check
