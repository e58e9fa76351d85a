// What goes by the cursors of accepted rows before and after the kernels that do the work: which states a commit
// touches, and the cursors' move. One warp for each row.
#include "cuda/common/judging.cuh"
#include "cuda/common/start.cuh"
#include "cuda/elementwise/elementwise.h"

namespace ringfold::cuda {
namespace {

constexpr int kWarps = 4;

__device__ int64_t row_of_warp() { return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; }

/// The verdict once more, from the same values as in the kernels before this one. For accepted rows, and for windows
/// behind a history.
__global__ void __launch_bounds__(kWarps * 32)
    move_all_cursors(const __grid_constant__ Rows p, const __grid_constant__ Layers layers) {
  ptx::begin_kernel();
  const int lane = threadIdx.x % 32;
  const int64_t row = row_of_warp();
  if (row == 0 && lane == 0 && p.due) p.due[0] = 0;
  if (row >= p.rows) return;
  const RowStatus status = p.num_accepted ? verdict_on_accepted(p, layers, row) : judge_layer(p, row);
  __syncwarp();  // every lane has judged, before one moves what the others go by
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
      p.conv_pending.at(layer, slot) =
          p.move == CursorMove::record ? static_cast<int32_t>(p.asked_tokens(row)) : kNoWindow;
      if (target >= 0) p.conv_pending.at(layer, target) = kNoWindow;
    }
  }
}

/// Lists the lines (layer and row) whose states a deferring commit folds. Their order says nothing.
__global__ void __launch_bounds__(kWarps * 32)
    list_due_lines(const __grid_constant__ Rows p, const __grid_constant__ Layers layers) {
  ptx::begin_kernel();
  const int64_t row = row_of_warp();
  if (row >= p.rows || verdict_on_accepted(p, layers, row) != RowStatus::done) return;
  for (int64_t i = threadIdx.x % 32; i < p.layers; i += 32) {
    if (!folds_now(p, layers(i), row)) continue;
    const int32_t at = atomicAdd(&p.due[0], 1);
    // More than there are places for only if a slot is in several rows, which is the caller's fault.
    if (at < p.most_due) p.due[1 + at] = static_cast<int32_t>(i * p.rows + row);
  }
}

template <auto kernel>
Status for_rows(const Rows& p, const char* what) {
  Layers layers;
  RINGFOLD_RETURN_IF_ERROR(list_layers(p, &layers));
  RINGFOLD_RETURN_IF_ERROR(check_grid(p.rows));
  const auto blocks = static_cast<unsigned>((p.rows + kWarps - 1) / kWarps);
  return start<kernel>(what, blocks, kWarps * 32, 0, p.stream, p, layers);
}

}  // namespace

Status move_cursors(const Rows& p) {
  if (p.rows == 0 || p.move == CursorMove::keep) return {};
  return for_rows<move_all_cursors>(p, "move_cursors");
}

Status list_due(const Rows& p) {
  if (p.rows == 0) return {};
  return for_rows<list_due_lines>(p, "list_due");
}

}  // namespace ringfold::cuda
