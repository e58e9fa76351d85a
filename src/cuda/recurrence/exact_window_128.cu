#include "cuda/recurrence/exact_launch.cuh"

namespace ringfold::cuda::exact {

Instances window_128() { return instances<128, Source::window>(); }

}  // namespace ringfold::cuda::exact
