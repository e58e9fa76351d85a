#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances history_f32_64_rows() {
  return {launches<128, DType::f32, false, 1, 4, 4, 4, 3, true>(),
          launches<128, DType::f32, true, 1, 4, 3, 3, 2, true>()};
}

}  // namespace ringfold::cuda::fast
