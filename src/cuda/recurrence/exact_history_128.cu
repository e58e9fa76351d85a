#include "cuda/recurrence/exact_launch.cuh"

namespace ringfold::cuda::exact {

Instances history_128() { return instances<128, Source::history>(); }

}  // namespace ringfold::cuda::exact
