#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Launches history_f16_64_rows() { return history_launches<128, DType::f16, 1, 4, 4, 4, 3>(); }

}  // namespace ringfold::cuda::fast
