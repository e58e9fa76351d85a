#include "cuda/recurrence/direct_launch.cuh"

namespace ringfold::cuda::direct {

Instances instances_128() { return instances<128>(); }

}  // namespace ringfold::cuda::direct
