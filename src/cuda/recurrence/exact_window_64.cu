#include "cuda/recurrence/exact_launch.cuh"

namespace ringfold::cuda::exact {

Instances window_64() { return instances<64, false>(); }

}  // namespace ringfold::cuda::exact
