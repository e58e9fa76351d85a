#include "cuda/layer/exact_layer_launch.cuh"

namespace ringfold::cuda::exact {

LayerInstances layer_window_64() { return layer_instances<64, Source::window>(); }

}  // namespace ringfold::cuda::exact
