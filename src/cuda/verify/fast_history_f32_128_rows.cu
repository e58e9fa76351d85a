#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Instances history_f32_128_rows() {
  return {{launch<Traits<128, DType::f32, false, 4, 2, 4, 2, true>>,
           launch<Traits<128, DType::f32, false, 8, 2, 4, 2, true>>,
           launch<Traits<128, DType::f32, false, 16, 1, 8, 2, true>>},
          launches<128, DType::f32, true, 1, 8, 2, 2, 1, true>()};
}

}  // namespace ringfold::cuda::fast
