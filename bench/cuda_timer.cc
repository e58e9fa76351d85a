// Times calls on CUDA by graph replay: a graph holds many consecutive calls on different slots, so that launches cost
// what they cost an engine that replays graphs, and every call finds its states in memory, not in the L2.
#include <algorithm>
#include <array>
#include <chrono>

#include "bench/cuda_twins.h"
#include "bench/timer.h"
#include "core/check_view.h"
#include "cuda/common/check.h"
#include "dispatch/select.h"

namespace ringfold::bench {
namespace {

using cuda::check;

// Slots come round again after so many bytes of state, in sizes of the L2.
constexpr int64_t kColdCaches = 4;
// Calls in one graph: so many bytes of states, within bounds that keep a replay both longer than the clock's grain and
// short.
constexpr int64_t kGraphBytes = 512 << 20;
constexpr int64_t kLeastCalls = 20, kMostCalls = 256;
constexpr int kWarmups = 2, kTuningReplays = 3;

/// A captured graph.
class Graph {
 public:
  Graph() = default;
  ~Graph() {
    if (graph_) cudaGraphExecDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// `calls` is what puts work into the stream; nothing of it runs now.
  template <class F>
  Status capture(cudaStream_t stream, F&& calls) {
    RINGFOLD_RETURN_IF_ERROR(
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    const Status called = calls();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    Status status = called.ok() ? check(ended, "cudaStreamEndCapture") : called;
    if (status.ok()) status = check(cudaGraphInstantiateWithFlags(&graph_, graph, 0), "cudaGraphInstantiate");
    if (graph) cudaGraphDestroy(graph);
    return status.ok() ? check(cudaGraphUpload(graph_, stream), "cudaGraphUpload") : status;
  }
  Status launch(cudaStream_t stream) { return check(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

class CudaTimer final : public Timer {
 public:
  explicit CudaTimer(const Options& options) : seconds_(options.seconds_per_row), flat_(Device::cuda) {}
  ~CudaTimer() override {
    for (const cudaEvent_t event : {begin_, end_}) {
      if (event) cudaEventDestroy(event);
    }
    if (stream_) cudaStreamDestroy(stream_);
  }

  Status open() {
    int device = 0, l2 = 0;
    RINGFOLD_RETURN_IF_ERROR(check(cudaGetDevice(&device), "cudaGetDevice"));
    RINGFOLD_RETURN_IF_ERROR(
        check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute"));
    cold_bytes_ = kColdCaches * std::max(l2, 1 << 20);
    RINGFOLD_RETURN_IF_ERROR(check(cudaStreamCreate(&stream_), "cudaStreamCreate"));
    RINGFOLD_RETURN_IF_ERROR(check(cudaEventCreate(&begin_), "cudaEventCreate"));
    RINGFOLD_RETURN_IF_ERROR(check(cudaEventCreate(&end_), "cudaEventCreate"));
    flat_ = Buffer(Device::cuda, stream_);
    return check(prepare_twins(), "the twins' kernels");
  }

  void* stream() const override { return stream_; }

  /// In a whole step verify and fold take sets that are half of all apart.
  int64_t sets(const Case& c) const override {
    const int64_t cold = c.fold ? 2 * cold_bytes_ : cold_bytes_;
    return 1 + (cold + c.state_bytes() - 1) / c.state_bytes();
  }

  Status measure(Rig& rig, const Work&, Row* row) override {
    const Case& c = rig.subject();
    const int64_t steps = c.fold ? c.layers() : 1, bytes = c.state_bytes();
    const int64_t calls = std::clamp(kGraphBytes / bytes, (kLeastCalls + steps - 1) / steps, kMostCalls);
    RINGFOLD_RETURN_IF_ERROR(provide_flat(rig));
    Graph call, chain, twin;
    RINGFOLD_RETURN_IF_ERROR(
        call.capture(stream_, [&] { return each(calls, [&](int64_t i) { return rig.call(i); }); }));
    const bool layer = is_layer(c.desc.op);
    if (layer) {
      RINGFOLD_RETURN_IF_ERROR(
          chain.capture(stream_, [&] { return each(calls, [&](int64_t i) { return rig.chain(i); }); }));
    }
    std::array<int, 2> shapes{};  // of twins that read, and that read and write
    RINGFOLD_RETURN_IF_ERROR(choose_twins(rig, std::clamp<int64_t>(calls / 4, 1, 64), &shapes));
    const auto twin_call = [&](int64_t i) -> Status {
      for (const Traffic& t : traffic(rig, i)) RINGFOLD_RETURN_IF_ERROR(launch(shapes[t.writes], t));
      return {};
    };
    RINGFOLD_RETURN_IF_ERROR(twin.capture(stream_, [&] { return each(calls, twin_call); }));
    std::vector<double> call_us, chain_us, twin_us;
    double us = 0;
    for (int i = 0; i < kWarmups; ++i) {
      RINGFOLD_RETURN_IF_ERROR(replay(rig, call, calls, &us));
      if (layer) RINGFOLD_RETURN_IF_ERROR(replay(rig, chain, calls, &us));
      RINGFOLD_RETURN_IF_ERROR(replay(rig, twin, calls, &us));
    }
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    while (call_us.size() < kLeastSamples || elapsed() < seconds_) {
      RINGFOLD_RETURN_IF_ERROR(replay(rig, call, calls, &us));
      call_us.push_back(us / static_cast<double>(steps));
      if (layer) {
        RINGFOLD_RETURN_IF_ERROR(replay(rig, chain, calls, &us));
        chain_us.push_back(us);
      }
      RINGFOLD_RETURN_IF_ERROR(replay(rig, twin, calls, &us));
      twin_us.push_back(us / static_cast<double>(steps));
    }
    row->us = median(call_us);
    row->min_us = least(call_us);
    if (layer) row->chain_us = median(chain_us);
    row->bytes_twin_us = median(twin_us);
    row->ratio = row->bytes_twin_us / row->us;
    const bool last_writes = traffic(rig, 0).back().writes;
    row->twin = c.fold ? twin_name(shapes[0]) + " + " + twin_name(shapes[1]) : twin_name(shapes[last_writes]);
    return {};
  }

  /// A graph holds a whole flush cycle of every set.
  Status measure(PoolRig& rig, const Work&, Row* row) override {
    const int64_t calls = rig.period() * rig.sets();
    RINGFOLD_RETURN_IF_ERROR(provide_flat(rig));
    Graph call, twin;
    RINGFOLD_RETURN_IF_ERROR(
        call.capture(stream_, [&] { return each(calls, [&](int64_t i) { return rig.step(i % rig.sets()); }); }));
    std::array<int, 2> shapes{};
    RINGFOLD_RETURN_IF_ERROR(choose_twins(rig, &shapes));
    const auto twin_call = [&](int64_t i) -> Status {
      for (const Traffic& t : traffic(rig, i)) RINGFOLD_RETURN_IF_ERROR(launch(shapes[t.writes], t));
      return {};
    };
    RINGFOLD_RETURN_IF_ERROR(twin.capture(stream_, [&] { return each(calls, twin_call); }));
    std::vector<double> call_us, twin_us;
    const auto layers = static_cast<double>(rig.layers());
    double us = 0;
    // The first replay of all brings lazy's raw rows into their cycle.
    for (int i = 0; i < kWarmups; ++i) {
      RINGFOLD_RETURN_IF_ERROR(replay(call, calls, &us));
      RINGFOLD_RETURN_IF_ERROR(replay(twin, calls, &us));
    }
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    while (call_us.size() < kLeastSamples || elapsed() < seconds_) {
      RINGFOLD_RETURN_IF_ERROR(replay(call, calls, &us));
      call_us.push_back(us / layers);
      RINGFOLD_RETURN_IF_ERROR(replay(twin, calls, &us));
      twin_us.push_back(us / layers);
    }
    row->us = median(call_us);
    row->min_us = least(call_us);
    row->bytes_twin_us = median(twin_us);
    row->ratio = row->bytes_twin_us / row->us;
    row->twin = twin_name(shapes[0]) + " + " + twin_name(shapes[1]);
    return {};
  }

 private:
  template <class F>
  static Status each(int64_t n, F&& f) {
    for (int64_t i = 0; i < n; ++i) RINGFOLD_RETURN_IF_ERROR(f(i));
    return {};
  }

  Status launch(int shape, const Traffic& t) { return check(launch_twin(shape, t, stream_), "a twin's launch"); }

  /// One replay of a graph of so many calls, in microseconds per call, on slots that come after those of the last one.
  Status replay(Rig& rig, Graph& graph, int64_t calls, double* us) {
    RINGFOLD_RETURN_IF_ERROR(rig.turn(calls));
    return replay(graph, calls, us);
  }

  /// The same on the same slots: for graphs that touch more memory than the caches hold.
  Status replay(Graph& graph, int64_t calls, double* us) {
    // The pause hides the time that the host needs to launch the graph.
    RINGFOLD_RETURN_IF_ERROR(check(launch_pause(stream_), "the pause's launch"));
    RINGFOLD_RETURN_IF_ERROR(check(cudaEventRecord(begin_, stream_), "cudaEventRecord"));
    RINGFOLD_RETURN_IF_ERROR(graph.launch(stream_));
    RINGFOLD_RETURN_IF_ERROR(check(cudaEventRecord(end_, stream_), "cudaEventRecord"));
    RINGFOLD_RETURN_IF_ERROR(check(cudaEventSynchronize(end_), "cudaEventSynchronize"));
    float ms = 0;
    RINGFOLD_RETURN_IF_ERROR(check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime"));
    *us = static_cast<double>(ms) * 1e3 / static_cast<double>(calls);
    return {};
  }

  // Bytes of inputs, outputs and ring rows lie in one buffer: inputs and outputs at the same place in every call, as a
  // call's are, and the ring rows of each set and layer in a place of their own.
  struct FlatBytes {
    int64_t inputs = 0, outputs = 0, ring = 0;  // multiples of 16
  };
  static int64_t whole_units(int64_t bytes) { return (bytes + 15) / 16 * 16; }
  static FlatBytes flat_bytes(const Layout& layout) {
    FlatBytes bytes;
    const int64_t B = layout.desc.rows;
    for (const Field f : kInputs) bytes.inputs += B * layout.item_bytes(f);
    bytes.inputs += B * layout.item_bytes(Field::z);
    for (const Field f : kRing) bytes.ring += B * layout.item_bytes(f);
    bytes = {whole_units(bytes.inputs), whole_units(B * layout.item_bytes(Field::out)), whole_units(bytes.ring)};
    return bytes;
  }

  Status provide_flat(const Rig& rig) {
    const Layout& layout = rig.layout();
    const FlatBytes bytes = flat_bytes(layout);
    const int64_t needed = bytes.inputs + bytes.outputs + layout.layers * layout.sets * bytes.ring;
    if (flat_.bytes() >= needed) return {};
    RINGFOLD_RETURN_IF_ERROR(flat_.allocate(needed));
    return draw(&flat_, DType::f32, 1, 0, kFields + 1, 1'000'003);
  }

  /// What call `index` moves, operation by operation.
  std::vector<Traffic> traffic(Rig& rig, int64_t index) {
    const Layout& layout = rig.layout();
    const int64_t set = index % layout.sets;
    std::vector<Traffic> all;
    if (!rig.subject().fold) return {traffic(rig, rig.subject().desc, set, 0)};
    for (int64_t layer = 0; layer < layout.layers; ++layer) all.push_back(traffic(rig, rig.subject().desc, set, layer));
    all.push_back(traffic(rig, *rig.subject().fold, rig.far_set(set), 0));
    return all;
  }

  Traffic traffic(Rig& rig, const Desc& part, int64_t set, int64_t layer) {
    const Layout& layout = rig.layout();
    const FlatBytes bytes = flat_bytes(layout);
    Traffic t;
    t.slot_bytes = layout.item_bytes(Field::state);
    t.layer_bytes = layout.slots() * t.slot_bytes;
    t.state = rig.tensors()[Field::state].data() + layer * t.layer_bytes;
    t.slot_ids = rig.slot_ids(set);
    t.rows = layout.desc.rows;
    t.layers = part.op == Op::fold ? part.layers : 1;
    const bool verifies = part.op == Op::verify || part.op == Op::verify_layer;
    t.writes = !verifies;
    std::byte* const outputs = flat_.data() + bytes.inputs;
    std::byte* const ring = outputs + bytes.outputs + (set * layout.layers + layer) * bytes.ring;
    if (part.op == Op::fold) {
      // Of the window's rows those that were accepted.
      t.read = {ring, t.layers * bytes.ring / 16 * part.window / layout.desc.window};
    } else {
      t.read = {flat_.data(), bytes.inputs / 16};
      t.written[0] = {outputs, bytes.outputs / 16};
      if (verifies) t.written[1] = {ring, bytes.ring / 16};
    }
    return t;
  }

  // Of a pool's steps: inputs and history are read as one piece, out of the ring's place, which is as large as the ring
  // of a set and layer and the inputs together.
  static FlatBytes flat_bytes(const PoolRig& rig) {
    const int64_t B = rig.desc().rows;
    const int64_t rows = std::max(rig.desc().history_rows, rig.desc().window);
    return {whole_units(B * rig.input_bytes()), whole_units(B * rig.output_bytes()),
            whole_units(B * rows * rig.ring_row_bytes())};
  }

  Status provide_flat(const PoolRig& rig) {
    const FlatBytes bytes = flat_bytes(rig);
    const int64_t needed = bytes.outputs + rig.layers() * rig.sets() * (bytes.inputs + bytes.ring);
    if (flat_.bytes() >= needed) return {};
    RINGFOLD_RETURN_IF_ERROR(flat_.allocate(needed));
    return draw(&flat_, DType::f32, 1, 0, kFields + 1, 1'000'003);
  }

  /// What step `index` of a graph moves: it is step index / sets of the cycle of set index % sets.
  std::vector<Traffic> traffic(PoolRig& rig, int64_t index) {
    const FlatBytes bytes = flat_bytes(rig);
    const Desc& d = rig.desc();
    const int64_t set = index % rig.sets(), step = index / rig.sets(), place = bytes.inputs + bytes.ring;
    const int64_t row_bytes = d.rows * rig.ring_row_bytes();
    std::byte* const ring = flat_.data() + bytes.outputs + set * rig.layers() * place;
    Traffic t;
    t.slot_bytes = d.HV * d.V * d.K * static_cast<int64_t>(size_of(d.state_dtype));
    t.layer_bytes = rig.slots() * t.slot_bytes;
    t.slot_ids = rig.slot_ids(set);
    t.rows = d.rows;
    std::vector<Traffic> all;
    for (int64_t layer = 0; layer < rig.layers(); ++layer) {
      t.state = static_cast<std::byte*>(rig.pool().state(layer).data);
      t.writes = rig.stores(step);
      t.read = {ring + layer * place, (bytes.inputs + rig.history(step) * row_bytes) / 16};
      t.written[0] = {flat_.data(), bytes.outputs / 16};
      t.written[1] = {ring + layer * place, d.window * row_bytes / 16};
      all.push_back(t);
    }
    if (rig.folds(step) == 0) return all;
    t.state = static_cast<std::byte*>(rig.pool().state(0).data);
    t.layers = rig.layers();
    t.writes = true;
    t.read = {ring, rig.layers() * rig.folds(step) * row_bytes / 16};
    t.written[0] = t.written[1] = {};
    all.push_back(t);
    return all;
  }

  Status choose_twins(PoolRig& rig, std::array<int, 2>* shapes) {
    const int64_t calls = rig.period() * rig.sets();
    // Of every kind so many that the last ones push the first out of the caches.
    std::array<std::vector<Traffic>, 2> samples;
    std::array<int64_t, 2> sampled{};
    for (int64_t i = calls - 1; i >= 0; --i) {
      for (const Traffic& t : traffic(rig, i)) {
        if (sampled[t.writes] >= 2 * cold_bytes_) continue;
        samples[t.writes].push_back(t);
        sampled[t.writes] += t.layers * t.rows * t.slot_bytes;
      }
    }
    for (const bool writes : {false, true}) {
      double best = 0;
      for (int shape = 0; shape < twin_shapes() && !samples[writes].empty(); ++shape) {
        if (!twin_fits(shape, samples[writes].front())) continue;
        Graph graph;
        RINGFOLD_RETURN_IF_ERROR(graph.capture(stream_, [&]() -> Status {
          for (const Traffic& t : samples[writes]) RINGFOLD_RETURN_IF_ERROR(launch(shape, t));
          return {};
        }));
        std::vector<double> times(kTuningReplays + 1);
        for (double& us : times) RINGFOLD_RETURN_IF_ERROR(replay(graph, 1, &us));
        times.erase(times.begin());  // the first one warms up
        const double us = median(times);
        if (best > 0 && best <= us) continue;
        best = us;
        (*shapes)[writes] = shape;
      }
    }
    return {};
  }

  /// The fastest launch shapes of this case's twins: of those that read, and of those that write too.
  Status choose_twins(Rig& rig, int64_t calls, std::array<int, 2>* shapes) {
    const std::vector<Traffic> first = traffic(rig, 0);
    for (const bool writes : {false, true}) {
      const auto sample =
          std::find_if(first.begin(), first.end(), [&](const Traffic& t) { return t.writes == writes; });
      if (sample == first.end()) continue;
      double best = 0;
      for (int shape = 0; shape < twin_shapes(); ++shape) {
        if (!twin_fits(shape, *sample)) continue;
        double us = 0;
        RINGFOLD_RETURN_IF_ERROR(try_shape(rig, calls, writes, shape, &us));
        if (best > 0 && best <= us) continue;
        best = us;
        (*shapes)[writes] = shape;
      }
    }
    return {};
  }

  Status try_shape(Rig& rig, int64_t calls, bool writes, int shape, double* us) {
    Graph graph;
    const auto calls_of_kind = [&](int64_t i) -> Status {
      for (const Traffic& t : traffic(rig, i)) {
        if (t.writes == writes) RINGFOLD_RETURN_IF_ERROR(launch(shape, t));
      }
      return {};
    };
    RINGFOLD_RETURN_IF_ERROR(graph.capture(stream_, [&] { return each(calls, calls_of_kind); }));
    RINGFOLD_RETURN_IF_ERROR(replay(rig, graph, calls, us));
    std::vector<double> samples(kTuningReplays);
    for (double& sample : samples) RINGFOLD_RETURN_IF_ERROR(replay(rig, graph, calls, &sample));
    *us = median(samples);
    return {};
  }

  double seconds_;
  int64_t cold_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Buffer flat_;
};

}  // namespace

Status cuda_timer(const Options& options, std::unique_ptr<Timer>* timer) {
  RINGFOLD_RETURN_IF_ERROR(detail::device_memory(Device::cuda)->usable());
  auto made = std::make_unique<CudaTimer>(options);
  RINGFOLD_RETURN_IF_ERROR(made->open());
  *timer = std::move(made);
  return {};
}

}  // namespace ringfold::bench
