#include "cuda/recurrence/exact_launch.cuh"

namespace ringfold::cuda::exact {

Instances window_128() { return instances<128, false>(); }

}  // namespace ringfold::cuda::exact
