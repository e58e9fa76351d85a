// One warp for each (token, head); lane c holds group c of V.
#include "cuda/elementwise/gated_norm.cuh"

#include "cuda/common/launch.h"
#include "cuda/common/start.cuh"
#include "cuda/elementwise/elementwise.h"

namespace ringfold::cuda {
namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(kWarps * 32) norm(const __grid_constant__ NormParams p) {
  ptx::begin_kernel();
  const int lane = threadIdx.x % 32;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (task >= p.tokens * p.heads) return;
  const int64_t token = task / p.heads, h = task % p.heads;
  const int v0 = lane * arith::kGroup, n = max(0, min(arith::kGroup, p.V - v0));
  const std::byte *from = p.x.at(0, 0, token, h), *gate = p.z.at(0, 0, token, h);
  std::byte* to = p.out.at(0, 0, token, h);
  float x[arith::kGroup];
#pragma unroll
  for (int i = 0; i < arith::kGroup; ++i) x[i] = i < n ? load(p.x.dtype, from, v0 + i) : 0.0f;
  norm_head(p, x, gate, to, lane);
}

}  // namespace

Status gated_norm(const NormParams& p) {
  const int64_t blocks = (p.tokens * p.heads + kWarps - 1) / kWarps;
  if (blocks == 0) return {};
  RINGFOLD_RETURN_IF_ERROR(check_grid(blocks));
  return start<norm>("gated_norm", static_cast<unsigned>(blocks), kWarps * 32, 0, p.stream, p);
}

}  // namespace ringfold::cuda
