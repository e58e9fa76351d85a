#include "cuda/layer/direct_layer_launch.cuh"

namespace ringfold::cuda::direct {

LayerInstances layer_instances_64() { return layer_instances<64>(); }

}  // namespace ringfold::cuda::direct
