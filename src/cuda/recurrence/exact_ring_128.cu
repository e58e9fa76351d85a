#include "cuda/recurrence/exact_launch.cuh"

namespace ringfold::cuda::exact {

Instances ring_128() { return instances<128, Source::ring>(); }

}  // namespace ringfold::cuda::exact
