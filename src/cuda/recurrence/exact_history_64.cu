#include "cuda/recurrence/exact_launch.cuh"

namespace ringfold::cuda::exact {

Instances history_64() { return instances<64, Source::history>(); }

}  // namespace ringfold::cuda::exact
