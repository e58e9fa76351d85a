// Launching: the list of layers as a kernel parameter, shared memory beyond 48 KB, errors.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

#include "core/check_view.h"
#include "core/params.h"
#include "cuda/common/check.h"

namespace ringfold::cuda {

inline constexpr int kMaxListedLayers = 512;
inline constexpr int64_t kMaxGrid = INT32_MAX;

/// The layers of a call, copied out of host memory. count 0: 0 .. layers-1.
struct Layers {
  int32_t count = 0;
  int16_t at[kMaxListedLayers];

  RF_HD int64_t operator()(int64_t i) const { return count ? at[i] : i; }
};

inline Status list_layers(const detail::Rows& p, Layers* layers) {
  layers->count = 0;
  if (!p.layer_list) return {};
  if (p.layers > kMaxListedLayers) {
    return {Code::unsupported, "layers: expected at most 512 listed layers on CUDA (or all, by an empty list), found " +
                                   std::to_string(p.layers)};
  }
  for (int64_t i = 0; i < p.layers; ++i) {
    if (p.layer_list[i] > INT16_MAX) return {Code::unsupported, "layers: expected layers below 32768 on CUDA"};
    layers->at[i] = static_cast<int16_t>(p.layer_list[i]);
  }
  layers->count = static_cast<int32_t>(p.layers);
  return {};
}

/// Lets `kernel` use up to `bytes` of dynamic shared memory; asked of the driver once for each device and kernel.
/// `per_sm`: all that the blocks of a multiprocessor need, in per cent of what it has; the first-level cache keeps the
/// rest. Negative: as the driver likes.
template <auto kernel>
Status allow_shared(int bytes, int per_sm = -1) {
  constexpr int kDevices = 64;
  static std::once_flag once[kDevices];
  static cudaError_t result[kDevices];
  int ordinal = 0;
  if (cudaError_t e = cudaGetDevice(&ordinal); e != cudaSuccess) return check(e, "cudaGetDevice");
  ordinal = ordinal < kDevices ? ordinal : 0;
  std::call_once(once[ordinal], [&] {
    result[ordinal] = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (per_sm < 0 || result[ordinal] != cudaSuccess) return;
    result[ordinal] = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, per_sm);
  });
  return check(result[ordinal], "cudaFuncSetAttribute");
}

inline Status check_grid(int64_t blocks) {
  if (blocks <= kMaxGrid) return {};
  return {Code::unsupported, "grid: expected at most 2147483647 blocks, found " + std::to_string(blocks)};
}

}  // namespace ringfold::cuda
