#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances history_bf16_small() {
  return {launches<64, DType::bf16, false, 1, 4, 4, 4, 3, true>(),
          launches<64, DType::bf16, true, 1, 4, 4, 4, 3, true>()};
}

}  // namespace ringfold::cuda::fast
