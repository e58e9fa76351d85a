#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances bf16_128_rows() {
  return {launches<128, DType::bf16, false, 2, 4, 4, 4, 3>(), launches<128, DType::bf16, true, 2, 4, 4, 4, 3>()};
}

}  // namespace ringfold::cuda::fast
