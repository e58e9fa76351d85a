// One instance of the exact layer kernel. Each instance is compiled in a unit of its own, so that builds use all cores.
#pragma once

#include "cuda/layer/exact_layer.cuh"

namespace ringfold::cuda::exact {

template <class T>
__global__ void __launch_bounds__(kExactThreads, 2)
    layer_kernel(const __grid_constant__ ExactLayerParams p, const __grid_constant__ Layers layers,
                 const __grid_constant__ Cut cut) {
  extern __shared__ __align__(16) std::byte shared[];
  const Range units = heads_of_block(static_cast<uint32_t>(cut.tiles.heads) / p.unit);
  LayerBlock<T>(p, layers, cut, shared + kLayerSharedBytes).run(units.first * p.unit, units.last * p.unit);
}

template <class T>
Status launch_layer(const ExactLayerParams& p, const ExactTiles& tiles, int most_shared_bytes) {
  Layers layers;
  RINGFOLD_RETURN_IF_ERROR(list_layers(p, &layers));
  RINGFOLD_RETURN_IF_ERROR(allow_shared<layer_kernel<T>>(most_shared_bytes));
  layer_kernel<T>
      <<<static_cast<unsigned>(tiles.blocks), tiles.threads, tiles.shared_bytes, static_cast<cudaStream_t>(p.stream)>>>(
          p, layers, p.cut(tiles));
  return check(cudaGetLastError(), "layer");
}

using LaunchLayer = Status (*)(const ExactLayerParams&, const ExactTiles&, int);

/// The instances of one K and source: [state bytes 4, 2][gdn, kda].
struct LayerInstances {
  LaunchLayer of[2][2];
};
template <int K, Source From>
LayerInstances layer_instances() {
  return {{{launch_layer<LayerTraits<K, 4, false, From>>, launch_layer<LayerTraits<K, 4, true, From>>},
           {launch_layer<LayerTraits<K, 2, false, From>>, launch_layer<LayerTraits<K, 2, true, From>>}}};
}

LayerInstances layer_window_128();
LayerInstances layer_window_64();

}  // namespace ringfold::cuda::exact
