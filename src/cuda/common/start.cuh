// Starting kernels. An emulation of CUDA has words of its own for what is here and in ptx.cuh (tests/emulation).
#pragma once

#include <cstddef>

#include "cuda/common/check.h"
#include "cuda/common/device.h"
#include "cuda/common/ptx.cuh"  // kernels begin with begin_kernel()

namespace ringfold::cuda {

/// The dynamic shared memory of the block.
__device__ __forceinline__ std::byte* dynamic_shared() {
  extern __shared__ __align__(16) std::byte shared[];
  return shared;
}

/// Where the device can (programmatic dependent launch, from compute capability 9.0 on), the kernel is started while
/// the one ahead of it in the stream ends, whoever's that is; ptx::begin_kernel() waits for it. A launch and the end of
/// a kernel take longer than a small batch's work. `what`: the name of the operation, for errors.
template <auto kernel, class... Params>
Status start(const char* what, dim3 grid, int threads, int shared_bytes, void* stream, const Params&... params) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = kernels_start_early() ? 1 : 0;
  return check(cudaLaunchKernelEx(&config, kernel, params...), what);
}

}  // namespace ringfold::cuda
