// One block for each (layer, row, value head, part of V).
#include "cuda/recurrence/general.h"

#include <algorithm>

#include "cuda/common/start.cuh"
#include "cuda/recurrence/general.cuh"
#include "cuda/tuning.h"

namespace ringfold::cuda {
namespace {

using general::kRows, general::kWarps, general::Place, general::run_head, general::WindowTokens;

__global__ void __launch_bounds__(kWarps * 32)
    general_kernel(const __grid_constant__ RecurrenceParams p, const __grid_constant__ Layers layers, int steps) {
  ptx::begin_kernel();
  auto* const shared = reinterpret_cast<float*>(dynamic_shared());
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = blockIdx.x % p.v_parts;
  const int64_t head = blockIdx.x / p.v_parts;
  const int hv = static_cast<int>(head % p.HV);
  if (p.due && head / p.HV >= min(static_cast<int64_t>(p.due[0]), p.most_due)) return;
  const int64_t line = p.due ? p.due[1 + head / p.HV] : head / p.HV;
  const int64_t row = line % p.rows, layer_index = line / p.rows;
  const int per_part = (p.V + p.v_parts - 1) / p.v_parts;
  const int v0 = min(part * per_part, p.V), v1 = min(v0 + per_part, p.V);

  const RowStatus status = p.from_ring ? verdict_on_accepted(p, layers, row) : verdict_on_window(p, row);
  const bool speaks = hv == 0 && part == 0 && layer_index == 0 && threadIdx.x == 0;
  if (p.from_ring) {
    if (speaks && p.row_status) p.row_status[row] = static_cast<int32_t>(status);
  } else if (speaks) {
    settle_window(p, row, status);
  }
  if (status != RowStatus::done) {
    if (!p.out || status == RowStatus::bad_window_bounds) return;
    for (int64_t t = warp; t < p.asked_tokens(row); t += kWarps) {
      std::byte* out = p.out.at(0, p.window_row(row), p.window_token(row) + t, hv);
      for (int v = v0 + lane; v < v1; v += 32) store(p.out.dtype, out, v, 0.0f);
    }
    return;
  }
  const int64_t slot = p.slot_ids[row], layer = layers(layer_index);
  const Replay replay = replay_of(p, layer, row);
  if (is_idle(p, replay, layer, row)) return;
  const int count = static_cast<int>(replay.rows + p.asked_tokens(row));
  const int h = hv / (p.HV / p.H);
  const int64_t ring = p.ring_of(row);
  const Place at{layer, row, slot, ring, h, hv, v0, v1, hv == h * (p.HV / p.H) && part == 0, part == 0, replay};
  run_head(p, WindowTokens{p}, at, {shared, p.K, steps}, count, warp, lane);
}

}  // namespace

int general_v_parts(int64_t heads, int64_t V, int sms) {
  const int64_t most = (V + kWarps * kRows - 1) / (kWarps * kRows);
  return static_cast<int>(std::clamp<int64_t>((4 * sms + heads - 1) / std::max<int64_t>(heads, 1), 1, most));
}

Refusal general_refusal(const Desc& d) {
  if (d.op != Op::verify && d.op != Op::decode && d.op != Op::fold) return {};
  const int bytes = general::shared_bytes(static_cast<int>(d.K), most_steps(d));
  if (bytes > current_device().shared_bytes_per_block) {
    return {"needs more shared memory than a block has", "bytes", bytes};
  }
  return {};
}

Status general_recurrence(const RecurrenceParams& p, const Desc& desc) {
  const int64_t blocks = p.layers * p.rows * p.HV * p.v_parts;
  if (blocks == 0) return {};
  Layers layers;
  RINGFOLD_RETURN_IF_ERROR(list_layers(p, &layers));
  RINGFOLD_RETURN_IF_ERROR(check_grid(blocks));
  RINGFOLD_RETURN_IF_ERROR(allow_shared<general_kernel>(current_device().shared_bytes_per_block));
  const int steps = most_steps(desc);
  return start<general_kernel>("recurrence", static_cast<unsigned>(blocks), kWarps * 32,
                               general::shared_bytes(p.K, steps), p.stream, p, layers, steps);
}

}  // namespace ringfold::cuda
