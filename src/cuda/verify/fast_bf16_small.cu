#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances bf16_small() {
  return {launches<64, DType::bf16, false, 1, 4, 4, 4, 3>(), launches<64, DType::bf16, true, 1, 4, 4, 4, 3>()};
}

}  // namespace ringfold::cuda::fast
