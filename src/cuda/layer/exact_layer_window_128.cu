#include "cuda/layer/exact_layer_launch.cuh"

namespace ringfold::cuda::exact {

LayerInstances layer_window_128() { return layer_instances<128, Source::window>(); }

}  // namespace ringfold::cuda::exact
