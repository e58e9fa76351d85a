#include <array>
#include <mutex>

#include "cuda/common/device.h"

#include <cuda_runtime_api.h>

namespace ringfold::cuda {
namespace {

constexpr int kMaxDevices = 64;

const char* find_reason() {
  int driver = 0, runtime = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    return "needs an NVIDIA driver, found none; use device cpu";
  }
  // Minor versions of one major release run each other's programs.
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess && driver / 1000 < runtime / 1000) {
    return "needs a newer NVIDIA driver than this machine has (ringfold info says which toolkit built this); use "
           "device cpu";
  }
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    cudaGetLastError();
    return "needs an NVIDIA GPU, found none; use device cpu";
  }
  if (current_device().major < 8) return "needs a GPU of compute capability 8.0 or more; use device cpu";
  return nullptr;
}

DeviceProperties ask(int ordinal) {
  DeviceProperties p;
  cudaDeviceGetAttribute(&p.major, cudaDevAttrComputeCapabilityMajor, ordinal);
  cudaDeviceGetAttribute(&p.minor, cudaDevAttrComputeCapabilityMinor, ordinal);
  cudaDeviceGetAttribute(&p.sms, cudaDevAttrMultiProcessorCount, ordinal);
  cudaDeviceGetAttribute(&p.shared_bytes_per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, ordinal);
  cudaDeviceGetAttribute(&p.shared_bytes_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
  cudaDeviceGetAttribute(&p.clock_khz, cudaDevAttrClockRate, ordinal);
  cudaDeviceGetAttribute(&p.memory_khz, cudaDevAttrMemoryClockRate, ordinal);
  cudaDeviceGetAttribute(&p.memory_bits, cudaDevAttrGlobalMemoryBusWidth, ordinal);
  return p;
}

}  // namespace

const char* unavailable() {
  static const char* const reason = find_reason();
  return reason;
}

const DeviceProperties& current_device() {
  static std::array<DeviceProperties, kMaxDevices> known;
  static std::array<std::once_flag, kMaxDevices> once;
  int ordinal = 0;
  if (cudaGetDevice(&ordinal) != cudaSuccess || ordinal >= kMaxDevices) ordinal = 0;
  std::call_once(once[ordinal], [&] { known[ordinal] = ask(ordinal); });
  return known[ordinal];
}

bool kernels_start_early() {
  static const int driver = [] {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
  }();
  return driver >= 12030 && current_device().major >= 9;
}

}  // namespace ringfold::cuda
