#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances history_bf16_128_rows() {
  return {launches<128, DType::bf16, false, 2, 4, 3, 3, 3, true>(),
          {launch<Traits<128, DType::bf16, true, 4, 2, 4, 3, true>>,
           launch<Traits<128, DType::bf16, true, 8, 2, 4, 2, true>>,
           launch<Traits<128, DType::bf16, true, 16, 1, 8, 1, true>>}};
}

}  // namespace ringfold::cuda::fast
