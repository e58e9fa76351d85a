#include "cuda/recurrence/direct_launch.cuh"

namespace ringfold::cuda::direct {

Instances instances_64() { return instances<64>(); }

}  // namespace ringfold::cuda::direct
