#include "cuda/layer/exact_layer_launch.cuh"

namespace ringfold::cuda::exact {

LayerInstances layer_history_64() { return layer_instances<64, Source::history>(); }

}  // namespace ringfold::cuda::exact
