#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Launches history_f32_small() { return history_launches<64, DType::f32, 1, 4, 4, 4, 3>(); }

}  // namespace ringfold::cuda::fast
