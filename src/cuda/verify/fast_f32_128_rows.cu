#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances f32_128_rows() {
  return {launches<128, DType::f32, false, 2, 4, 2, 2, 2>(), launches<128, DType::f32, true, 1, 8, 2, 2, 2>()};
}

}  // namespace ringfold::cuda::fast
