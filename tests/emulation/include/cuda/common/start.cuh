// In place of src/cuda/common/start.cuh.
#pragma once

#include "cuda/common/check.h"
#include "cuda/common/ptx.cuh"
#include "emulation/machine.h"

namespace ringfold::cuda {

inline std::byte* dynamic_shared() { return emulation::current()->shared; }

template <auto kernel, class... Params>
Status start(const char* what, dim3 grid, int threads, int shared_bytes, void* stream, const Params&... params) {
  emulation::Launch launch;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.threads = threads;
  launch.shared_bytes = shared_bytes;
  launch.thread = [params...] { kernel(params...); };
  return check(emulation::enqueue(launch, stream), what);
}

}  // namespace ringfold::cuda
