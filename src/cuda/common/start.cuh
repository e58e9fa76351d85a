// Starting kernels. An emulation of CUDA has words of its own for what is here and in ptx.cuh (tests/emulation).
#pragma once

#include <cstddef>

#include "cuda/common/check.h"

namespace ringfold::cuda {

/// The dynamic shared memory of the block.
__device__ __forceinline__ std::byte* dynamic_shared() {
  extern __shared__ __align__(16) std::byte shared[];
  return shared;
}

/// `what`: the name of the operation, for errors.
template <auto kernel, class... Params>
Status start(const char* what, dim3 grid, int threads, int shared_bytes, void* stream, const Params&... params) {
  kernel<<<grid, threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(params...);
  return check(cudaGetLastError(), what);
}

}  // namespace ringfold::cuda
