#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances f16_small() {
  return {launches<64, DType::f16, false, 1, 4, 4, 4, 3>(), launches<64, DType::f16, true, 1, 4, 4, 4, 3>()};
}

}  // namespace ringfold::cuda::fast
