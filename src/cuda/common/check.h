// CUDA errors as Status.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "ringfold/status.h"

namespace ringfold::cuda {

inline Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // or the next call would report it again
  const Code code =
      error == cudaErrorMemoryAllocation ? Code::out_of_memory
      : error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || error == cudaErrorNoKernelImageForDevice
          ? Code::unsupported
          : Code::internal;
  return {code, std::string(what) + ": CUDA says " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")"};
}

}  // namespace ringfold::cuda
