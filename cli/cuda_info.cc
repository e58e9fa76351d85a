#include "cli/cuda_info.h"

#include <fmt/format.h>

#include "check/device.h"

#if defined(RINGFOLD_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace ringfold::cli {

CudaInfo cuda_info() {
  CudaInfo info;
  info.reason = check::usable(Device::cuda).message();
#if defined(RINGFOLD_CUDA)
  info.built_in = true;
  info.toolkit = RINGFOLD_CUDA_TOOLKIT;
  info.architectures = RINGFOLD_CUDA_BUILT_FOR;
  int count = 0;
  if (!info.reason.empty() || cudaGetDeviceCount(&count) != cudaSuccess) return info;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp device{};
    if (cudaGetDeviceProperties(&device, i) != cudaSuccess) continue;
    info.devices.push_back(fmt::format("{}, compute capability {}.{}, {} multiprocessors, {} GiB", device.name,
                                       device.major, device.minor, device.multiProcessorCount,
                                       device.totalGlobalMem >> 30));
  }
#endif
  return info;
}

}  // namespace ringfold::cli
