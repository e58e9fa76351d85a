#include <algorithm>

#include "cuda/layer/layer.h"

namespace ringfold::cuda {
namespace {

constexpr int kRegistersPerSm = 65536;
constexpr int kRegistersPerThread = 128;

}  // namespace

int exact_layer_shared_bytes(const Desc& layer, const ExactTiles& tiles) {
  constexpr int kBarrierBytes = 2 * 8;
  return exact_shared_bytes(recurrence_of(layer), tiles) + kBarrierBytes + kLayerSharedBytes;
}

ExactTiles exact_layer_tiles(const Desc& d, const DeviceProperties& device) {
  ExactTiles t;
  t.threads = static_cast<int>(2 * d.V);
  t.heads = d.rows * d.HV;
  // Outputs of a head, fp32 [window,V], take the place of raw inputs, of which a step has 512 bytes.
  t.raw_steps = static_cast<int>((d.window * d.V * 4 + 511) / 512);
  const int64_t unit = d.op == Op::decode_layer ? d.HV / d.H : 1, units = t.heads / unit;
  const auto fits = [&](int blocks_per_sm, int vector_buffers) {
    const int64_t resident = static_cast<int64_t>(device.sms) * blocks_per_sm;
    t.blocks_per_sm = blocks_per_sm;
    t.vector_buffers = vector_buffers;
    t.blocks = static_cast<int>(std::clamp<int64_t>(units, 1, resident));
    t.heads_of_line = static_cast<int>(std::min<int64_t>(d.HV, (units + t.blocks - 1) / t.blocks * unit));
    t.shared_bytes = exact_layer_shared_bytes(d, t);
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
