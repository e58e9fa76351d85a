#include "cuda/recurrence/exact_launch.cuh"

namespace ringfold::cuda::exact {

Instances ring_64() { return instances<64, Source::ring>(); }

}  // namespace ringfold::cuda::exact
