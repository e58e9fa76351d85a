#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances f32_64_rows() {
  return {launches<128, DType::f32, false, 1, 4, 4, 4, 3>(), launches<128, DType::f32, true, 1, 4, 4, 4, 3>()};
}

}  // namespace ringfold::cuda::fast
