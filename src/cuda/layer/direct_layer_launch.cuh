// One instance of the direct layer kernel. Those of each K are compiled in a unit of their own.
#pragma once

#include "cuda/common/start.cuh"
#include "cuda/layer/direct_layer.cuh"

namespace ringfold::cuda::direct {

template <class T>
__global__ void __launch_bounds__((T::kWarps + 1) * 32, T::kBlocks)
    direct_layer_kernel(const __grid_constant__ DirectLayerParams p) {
  ptx::begin_kernel();
  LayerBlock<T>(p, *reinterpret_cast<LayerShared<T>*>(dynamic_shared())).run();
}

template <class T>
Status launch_layer(const DirectLayerParams& p, const dim3& grid, void* stream) {
  static_assert(sizeof(LayerShared<T>) <= 48 * 1024, "more needs to be allowed");
  return start<direct_layer_kernel<T>>("layer", grid, (T::kWarps + 1) * 32, sizeof(LayerShared<T>), stream, p);
}

using LaunchLayer = Status (*)(const DirectLayerParams&, const dim3& grid, void* stream);

/// The instances of one K: [state bytes 4, 2][gdn, kda].
struct LayerInstances {
  LaunchLayer of[2][2];
};
template <int K>
LayerInstances layer_instances() {
  return {{{launch_layer<LayerTraits<K, 4, false>>, launch_layer<LayerTraits<K, 4, true>>},
           {launch_layer<LayerTraits<K, 2, false>>, launch_layer<LayerTraits<K, 2, true>>}}};
}

LayerInstances layer_instances_64();
LayerInstances layer_instances_128();

}  // namespace ringfold::cuda::direct
