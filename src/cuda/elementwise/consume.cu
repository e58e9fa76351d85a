// One warp for each row: the verdict once more, from the same values as in the kernels before it, then the cursors.
#include "cuda/common/judging.cuh"
#include "cuda/elementwise/elementwise.h"

namespace ringfold::cuda {
namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(kWarps * 32)
    consume_cursors(const __grid_constant__ Rows p, const __grid_constant__ Layers layers) {
  const int lane = threadIdx.x % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= p.rows || verdict_on_accepted(p, layers, row) != RowStatus::done) return;
  const int64_t slot = p.slot_ids[row], target = p.track_slot(row);
  for (int64_t i = lane; i < p.layers; i += 32) {
    const int64_t layer = layers(i);
    for (const Cursors* cursors : {&p.pending, &p.conv_pending}) {
      if (!*cursors) continue;
      cursors->at(layer, slot) = kNoWindow;
      if (target >= 0) cursors->at(layer, target) = kNoWindow;
    }
  }
}

}  // namespace

Status consume(const Rows& p) {
  if (p.rows == 0) return {};
  Layers layers;
  RINGFOLD_RETURN_IF_ERROR(list_layers(p, &layers));
  RINGFOLD_RETURN_IF_ERROR(check_grid(p.rows));
  const auto blocks = static_cast<unsigned>((p.rows + kWarps - 1) / kWarps);
  consume_cursors<<<blocks, kWarps * 32, 0, static_cast<cudaStream_t>(p.stream)>>>(p, layers);
  return check(cudaGetLastError(), "consume");
}

}  // namespace ringfold::cuda
