#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances bf16_128_rows() { return instances<128, DType::bf16, 2, 4, 5, 4, 3>(); }

}  // namespace ringfold::cuda::fast
