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

 private:
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
