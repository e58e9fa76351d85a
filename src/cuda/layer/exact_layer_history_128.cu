#include "cuda/layer/exact_layer_launch.cuh"

namespace ringfold::cuda::exact {

LayerInstances layer_history_128() { return layer_instances<128, Source::history>(); }

}  // namespace ringfold::cuda::exact
