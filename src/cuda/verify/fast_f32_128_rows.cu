#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances f32_128_rows() { return instances<128, DType::f32, 1, 8, 2, 2, 2>(); }

}  // namespace ringfold::cuda::fast
