// One instance of the fast kernel. Each set of instances is compiled in a unit of its own, so that builds use all
// cores.
#pragma once

#include <array>

#include "cuda/common/start.cuh"
#include "cuda/tuning.h"
#include "cuda/verify/fast.cuh"

namespace ringfold::cuda::fast {

inline constexpr int kMostGridRows = 65535;

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) fast_kernel(const __grid_constant__ FastParams p) {
  ptx::begin_kernel();
  const int row = blockIdx.z * kMostGridRows + blockIdx.y;
  if (row < p.rows) Block<T>(p, dynamic_shared()).run(row);
}

template <class T>
Status launch(const FastParams& p, int shared_bytes_per_sm) {
  // The state is on its way to registers through the first-level cache, and what does not fit is not asked for: the
  // cache gets all that the blocks do not need as shared memory.
  const int needed = T::kBlocks * (T::kSharedBytes + kReservedSharedBytes);
  const int percent = (needed * 100 + shared_bytes_per_sm - 1) / shared_bytes_per_sm;
  RINGFOLD_RETURN_IF_ERROR(allow_shared<fast_kernel<T>>(T::kSharedBytes, percent < 100 ? percent : 100));
  const int64_t y = p.rows < kMostGridRows ? p.rows : kMostGridRows, z = (p.rows + kMostGridRows - 1) / kMostGridRows;
  const dim3 grid(p.HV / p.heads_of_block * p.v_parts, static_cast<unsigned>(y), static_cast<unsigned>(z));
  return start<fast_kernel<T>>("verify", grid, T::kThreads, T::kSharedBytes, p.stream, p);
}

using Launch = Status (*)(const FastParams&, int shared_bytes_per_sm);

/// For up to 4, 8, 16 tokens.
using Launches = std::array<Launch, 3>;

/// The instances of one K, state dtype and number of rows.
struct Instances {
  Launches gdn, kda;
};

/// Blocks4, 8, 16: that share a multiprocessor.
template <int K, DType State, bool Kda, int Tiles, int Warps, int Blocks4, int Blocks8, int Blocks16,
          bool History = false>
constexpr Launches launches() {
  return {launch<Traits<K, State, Kda, 4, Tiles, Warps, Blocks4, History>>,
          launch<Traits<K, State, Kda, 8, Tiles, Warps, Blocks8, History>>,
          launch<Traits<K, State, Kda, 16, Tiles, Warps, Blocks16, History>>};
}
// By K, state dtype and rows of V of a block.
Instances bf16_128_rows();
Instances bf16_64_rows();
Instances f32_128_rows();
Instances f32_64_rows();
Instances f16_64_rows();
Instances bf16_small();
Instances f32_small();
Instances f16_small();
// The same behind a history.
Instances history_bf16_128_rows();
Instances history_bf16_64_rows();
Instances history_f32_128_rows();
Instances history_f32_64_rows();
Instances history_f16_64_rows();
Instances history_bf16_small();
Instances history_f32_small();
Instances history_f16_small();

}  // namespace ringfold::cuda::fast
