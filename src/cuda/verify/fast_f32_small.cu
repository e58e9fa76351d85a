#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances f32_small() { return instances<64, DType::f32, 1, 4, 4, 4, 3>(); }

}  // namespace ringfold::cuda::fast
