// One warp for each row: the verdict once more, from the same values as in the kernels before it, then the cursors. For
// accepted rows, and for windows behind a history.
#include "cuda/common/judging.cuh"
#include "cuda/elementwise/elementwise.h"

namespace ringfold::cuda {
namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(kWarps * 32)
    consume_cursors(const __grid_constant__ Rows p, const __grid_constant__ Layers layers) {
  const int lane = threadIdx.x % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= p.rows) return;
  const RowStatus status = p.num_accepted ? verdict_on_accepted(p, layers, row) : verdict_on_window(p, row);
  if (lane == 0 && p.row_status) p.row_status[row] = static_cast<int32_t>(status);  // this may be the only kernel
  if (status != RowStatus::done) return;
  const int64_t slot = p.slot_ids[row], target = p.track_slot(row);
  for (int64_t i = lane; i < p.layers; i += 32) {
    const int64_t layer = layers(i);
    if (p.pending) {
      move_row_cursors(p, layer, row);
      if (target >= 0) clear_cursors(p, layer, target);
    }
    if (p.conv_pending) {
      p.conv_pending.at(layer, slot) = kNoWindow;
      if (target >= 0) p.conv_pending.at(layer, target) = kNoWindow;
    }
  }
}

}  // namespace

Status consume(const Rows& p) {
  if (p.rows == 0 || p.move == CursorMove::keep) return {};
  Layers layers;
  RINGFOLD_RETURN_IF_ERROR(list_layers(p, &layers));
  RINGFOLD_RETURN_IF_ERROR(check_grid(p.rows));
  const auto blocks = static_cast<unsigned>((p.rows + kWarps - 1) / kWarps);
  consume_cursors<<<blocks, kWarps * 32, 0, static_cast<cudaStream_t>(p.stream)>>>(p, layers);
  return check(cudaGetLastError(), "consume");
}

}  // namespace ringfold::cuda
