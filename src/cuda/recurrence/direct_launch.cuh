// One instance of the direct kernel. Those of each K are compiled in a unit of their own, so that builds use all cores.
#pragma once

#include "cuda/common/start.cuh"
#include "cuda/recurrence/direct_window.cuh"

namespace ringfold::cuda::direct {

template <class T>
__global__ void __launch_bounds__((T::kWarps + 1) * 32, T::kBlocks)
    direct_kernel(const __grid_constant__ DirectParams p) {
  ptx::begin_kernel();
  WindowBlock<T>(p, *reinterpret_cast<Shared<T>*>(dynamic_shared())).run();
}

template <class T>
Status launch(const DirectParams& p, const dim3& grid, int warps, void* stream) {
  static_assert(sizeof(Shared<T>) <= 48 * 1024, "more needs to be allowed");
  return start<direct_kernel<T>>("recurrence", grid, (warps + 1) * 32, sizeof(Shared<T>), stream, p);
}

using Launch = Status (*)(const DirectParams&, const dim3& grid, int warps, void* stream);

/// The instances of one K: [state bytes 4, 2][gdn, kda].
struct Instances {
  Launch of[2][2];
};
template <int K>
Instances instances() {
  return {{{launch<Traits<K, 4, false>>, launch<Traits<K, 4, true>>},
           {launch<Traits<K, 2, false>>, launch<Traits<K, 2, true>>}}};
}

Instances instances_64();
Instances instances_128();

}  // namespace ringfold::cuda::direct
