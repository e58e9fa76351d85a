#include "cuda/recurrence/exact_launch.cuh"

namespace ringfold::cuda::exact {

Instances window_64() { return instances<64, Source::window>(); }

}  // namespace ringfold::cuda::exact
