#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances f16_small() { return instances<64, DType::f16, 1, 4, 4, 4, 3>(); }

}  // namespace ringfold::cuda::fast
