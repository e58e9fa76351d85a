#include "cuda/verify/fast_launch.cuh"

namespace ringfold::cuda::fast {

Launches history_bf16_128_rows() { return history_launches<128, DType::bf16, 2, 4, 3, 3, 3>(); }

}  // namespace ringfold::cuda::fast
