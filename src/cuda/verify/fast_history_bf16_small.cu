#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Launches history_bf16_small() { return history_launches<64, DType::bf16, 1, 4, 4, 4, 3>(); }

}  // namespace ringfold::cuda::fast
