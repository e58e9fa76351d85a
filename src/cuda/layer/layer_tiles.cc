#include <algorithm>

#include "cuda/layer/layer.h"

namespace ringfold::cuda {
namespace {

constexpr int kRegistersPerSm = 65536;
constexpr int kRegistersPerThread = 128;

}  // namespace

int exact_layer_shared_bytes(const Desc& layer, int threads, int heads_of_line, int vector_buffers) {
  const Desc d = recurrence_of(layer);
  constexpr int kBarrierBytes = 2 * 8;
  // Outputs take the place of 16 raw bytes for each thread.
  const int outputs = threads * std::max(0, 2 * static_cast<int>(d.window) - 16);
  return exact_shared_bytes(d, threads, heads_of_line, vector_buffers) + outputs + kBarrierBytes + kLayerSharedBytes;
}

ExactTiles exact_layer_tiles(const Desc& d, const DeviceProperties& device) {
  ExactTiles t;
  t.threads = static_cast<int>(2 * d.V);
  t.heads = d.rows * d.HV;
  const int64_t unit = d.op == Op::decode_layer ? d.HV / d.H : 1, units = t.heads / unit;
  const auto fits = [&](int blocks_per_sm, int vector_buffers) {
    const int64_t resident = static_cast<int64_t>(device.sms) * blocks_per_sm;
    t.blocks_per_sm = blocks_per_sm;
    t.vector_buffers = vector_buffers;
    t.blocks = static_cast<int>(std::clamp<int64_t>(units, 1, resident));
    t.heads_of_line = static_cast<int>(std::min<int64_t>(d.HV, (units + t.blocks - 1) / t.blocks * unit));
    t.shared_bytes = exact_layer_shared_bytes(d, t.threads, t.heads_of_line, vector_buffers);
    return t.shared_bytes <= device.shared_bytes_per_block &&
           blocks_per_sm * (t.shared_bytes + kReservedSharedBytes) <= device.shared_bytes_per_sm;
  };
  for (int blocks_per_sm = kRegistersPerSm / (t.threads * kRegistersPerThread); blocks_per_sm >= 1; --blocks_per_sm) {
    if (fits(blocks_per_sm, 3) || fits(blocks_per_sm, 2)) return t;
  }
  t.blocks = 0;
  return t;
}

}  // namespace ringfold::cuda
