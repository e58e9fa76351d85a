#include <algorithm>
#include <chrono>

#include "bench/timer.h"
#include "bench/twins.h"

namespace ringfold::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Enough bytes of state that a call's slots have left every cache before they come round again.
constexpr int64_t kRotate = 256 << 20;

/// Three alternatives, timed in turns so that all see the same machine.
class CpuTimer final : public Timer {
 public:
  explicit CpuTimer(const Options& options) : threads_(options.threads), seconds_(options.seconds_per_row) {}

  void* stream() const override { return nullptr; }
  int64_t sets(const Case& c) const override { return std::max<int64_t>(1, kRotate / c.state_bytes()); }

  Status measure(Rig& rig, const Work& work, Row* row) override {
    std::vector<double> call, chain, bytes, fma;
    const bool layer = is_layer(row->desc.op);
    const bool writes = work.bytes_written >= work.bytes_read / 2;
    const auto start = Clock::now();
    int64_t index = 0;
    while (call.size() < kLeastSamples || seconds_since(start) < seconds_) {
      auto at = Clock::now();
      // A call and its chain in turns, the other one first each time.
      for (int i = 0; i < (layer ? 2 : 1); ++i) {
        const bool whole = !layer || (call.size() + chain.size()) / 2 % 2 == static_cast<size_t>(i);
        at = Clock::now();
        if (Status s = whole ? rig.call(index++) : rig.chain(index++); !s.ok()) return s;
        (whole ? call : chain).push_back(seconds_since(at) * 1e6);
      }
      const std::vector<Piece> touched = pieces(rig, index++);
      at = Clock::now();
      move_bytes(touched, writes, threads_);
      bytes.push_back(seconds_since(at) * 1e6);
      at = Clock::now();
      multiply_add(work.fmas, threads_);
      fma.push_back(seconds_since(at) * 1e6);
    }
    row->us = median(call);
    row->min_us = least(call);
    if (layer) row->chain_us = median(chain);
    row->bytes_twin_us = median(bytes);
    row->fma_twin_us = median(fma);
    row->ratio = std::max(row->bytes_twin_us, row->fma_twin_us) / row->us;
    return {};
  }

  Status measure(PoolRig& rig, const Work& work, Row* row) override {
    std::vector<double> call, bytes, fma;
    const auto start = Clock::now();
    const auto layers = static_cast<double>(rig.layers()), period = static_cast<double>(rig.period());
    const auto us_of = [&](Clock::time_point from, double steps) { return seconds_since(from) * 1e6 / layers / steps; };
    const auto each = [&](auto&& f) -> Status {
      for (int64_t i = 0; i < rig.period(); ++i) {
        for (int64_t set = 0; set < rig.sets(); ++set) {
          if (Status s = f(i, set); !s.ok()) return s;
        }
      }
      return {};
    };
    const double steps = period * static_cast<double>(rig.sets());
    while (call.size() < 2 || (call.size() < kLeastSamples && seconds_since(start) < kMostSeconds) ||
           seconds_since(start) < seconds_) {
      auto at = Clock::now();
      if (Status s = each([&](int64_t, int64_t set) { return rig.step(set); }); !s.ok()) return s;
      call.push_back(us_of(at, steps));
      double twin = 0;
      const Status moved = each([&](int64_t i, int64_t set) -> Status {
        const std::vector<Piece> touched = pieces(rig, set);
        const auto begin = Clock::now();
        move_bytes(touched, rig.stores(i), threads_);
        if (rig.folds(i) > 0) move_bytes(touched, true, threads_);
        twin += us_of(begin, steps);
        return {};
      });
      if (!moved.ok()) return moved;
      bytes.push_back(twin);
      at = Clock::now();
      multiply_add(work.fmas, threads_);
      fma.push_back(us_of(at, 1));
    }
    row->us = median(call);
    row->min_us = least(call);
    row->bytes_twin_us = median(bytes);
    row->fma_twin_us = median(fma);
    row->ratio = std::max(row->bytes_twin_us, row->fma_twin_us) / row->us;
    return {};
  }

 private:
  static constexpr double kMostSeconds = 4;

  static std::vector<Piece> pieces(PoolRig& rig, int64_t set) {
    const TensorView state = rig.pool().state();
    const int64_t HV = rig.desc().HV, head = rig.desc().K * rig.desc().V * static_cast<int64_t>(size_of(state.dtype));
    std::vector<Piece> all;
    for (int64_t layer = 0; layer < rig.layers(); ++layer) {
      for (int64_t r = 0; r < rig.desc().rows; ++r) {
        auto* slot = static_cast<std::byte*>(state.data) + (layer * rig.slots() + rig.slot(set, r)) * HV * head;
        for (int64_t h = 0; h < HV; ++h) all.push_back({slot + h * head, head});
      }
    }
    return all;
  }

  /// The states that call `index` would touch.
  static std::vector<Piece> pieces(Rig& rig, int64_t index) {
    const Layout& layout = rig.layout();
    const int64_t set = index % layout.sets, slot_bytes = layout.item_bytes(Field::state);
    const int64_t head = slot_bytes / layout.desc.HV;
    std::vector<Piece> all;
    for (int64_t r = 0; r < layout.desc.rows; ++r) {
      std::byte* slot = rig.tensors()[Field::state].data() + rig.slot(set, r) * slot_bytes;
      for (int64_t h = 0; h < layout.desc.HV; ++h) all.push_back({slot + h * head, head});
    }
    return all;
  }

  int threads_;
  double seconds_;
};

}  // namespace

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

std::unique_ptr<Timer> cpu_timer(const Options& options) { return std::make_unique<CpuTimer>(options); }

}  // namespace ringfold::bench
