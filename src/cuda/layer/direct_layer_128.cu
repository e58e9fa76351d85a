#include "cuda/layer/direct_layer_launch.cuh"

namespace ringfold::cuda::direct {

LayerInstances layer_instances_128() { return layer_instances<128>(); }

}  // namespace ringfold::cuda::direct
