// Which instance serves a layer, and how its work is cut.
#include <algorithm>

#include "cuda/layer/exact_layer_launch.cuh"
#include "cuda/recurrence/exact.h"

namespace ringfold::cuda {

Refusal exact_layer_refusal(const Desc& d) {
  if (const Refusal r = exact_refusal(recurrence_of(d)); r.needs) return r;
  // Instances that replay a history read beyond their memory (docs/notes/2026-11-30-fused-step.md).
  if (d.history_rows > 0) return {"runs no whole layer behind a history"};
  if (d.V > kExactThreads / 2 || (d.V & (d.V - 1)) != 0) return {"needs V of 16, 32, 64 or 128", "V", d.V};
  if (exact_layer_tiles(d, current_device()).blocks == 0) {
    return {"needs more shared memory than a block has", "T", d.window};
  }
  return {};
}

Status exact_layer(const LayerParams& params, const Desc& desc) {
  exact::ExactLayerParams p;
  const DeviceProperties& device = current_device();
  const ExactTiles tiles = exact_layer_tiles(desc, device);
  if (tiles.heads == 0) return {};
  p.fill(params, recurrence_of(desc));
  p.conv = params.conv;
  p.norm = params.norm;
  p.unit = params.conv.write_state ? p.heads_per_key : 1;
  // The recurrence's outputs stay in shared memory.
  p.out = {.dtype = DType::f32};
  p.out_at = {0, p.V * 4};
  static const exact::LayerInstances all[2] = {exact::layer_window_64(), exact::layer_window_128()};
  const exact::LayerInstances& of = all[p.K == 128];
  return of.of[p.state.dtype == DType::f32 ? 0 : 1][p.kind == MixerKind::kda](p, tiles, device.shared_bytes_per_block);
}

}  // namespace ringfold::cuda
