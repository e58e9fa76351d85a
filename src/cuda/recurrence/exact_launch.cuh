// One instance of the exact kernel. Each instance is compiled in a unit of its own, so that builds use all cores.
#pragma once

#include "cuda/common/start.cuh"
#include "cuda/recurrence/exact.cuh"
#include "cuda/tuning.h"

namespace ringfold::cuda::exact {

/// A block's heads: first .. last-1 of `heads`, the first blocks one more where they do not divide.
struct Range {
  int first, last;
};
__device__ inline Range heads_of_block(uint32_t heads) {
  const uint32_t all = heads / gridDim.x, more = heads - all * gridDim.x;
  const uint32_t first = blockIdx.x * all + min(blockIdx.x, more);
  return {static_cast<int>(first), static_cast<int>(first + all + (blockIdx.x < more ? 1 : 0))};
}

template <class T>
__global__ void __launch_bounds__(kExactThreads, 2)
    exact_kernel(const __grid_constant__ ExactParams p, const __grid_constant__ Layers layers,
                 const __grid_constant__ Cut cut) {
  ptx::begin_kernel();
  auto heads = static_cast<uint32_t>(cut.tiles.heads);
  if (T::kFromRing && p.due) heads = static_cast<uint32_t>(min(static_cast<int64_t>(p.due[0]), p.most_due) * p.HV);
  const Range range = heads_of_block(heads);
  if (T::kFromRing && range.first == range.last) return;
  Block<T>(p, layers, cut, dynamic_shared()).run(range.first, range.last);
}

template <class T>
Status launch(const ExactParams& p, const Cut& cut, int most_shared_bytes) {
  Layers layers;
  RINGFOLD_RETURN_IF_ERROR(list_layers(p, &layers));
  RINGFOLD_RETURN_IF_ERROR(allow_shared<exact_kernel<T>>(most_shared_bytes));
  const ExactTiles& tiles = cut.tiles;
  const dim3 grid(tiles.blocks, tiles.v_parts);
  return start<exact_kernel<T>>("recurrence", grid, tiles.threads, tiles.shared_bytes, p.stream, p, layers, cut);
}

using Launch = Status (*)(const ExactParams&, const Cut&, int);

/// The instances of one K and source: [state bytes 4, 2][gdn, kda].
struct Instances {
  Launch of[2][2];
};
template <int K, Source From>
Instances instances() {
  return {{{launch<Traits<K, 4, false, From>>, launch<Traits<K, 4, true, From>>},
           {launch<Traits<K, 2, false, From>>, launch<Traits<K, 2, true, From>>}}};
}

Instances window_128();
Instances window_64();
Instances history_128();
Instances history_64();
Instances ring_128();
Instances ring_64();

}  // namespace ringfold::cuda::exact
