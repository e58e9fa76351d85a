// RF_HD: a function for the host and, in CUDA units, for the device too.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define RF_HD __host__ __device__ __forceinline__
#else
#define RF_HD inline __attribute__((always_inline))
#endif

namespace ringfold::detail {

// One word that other threads of the call may write meanwhile, all the same value: whether it is read before or after,
// the reader must come to the same. Plain accesses on a device, whose aligned words are never torn.
RF_HD int32_t read_unordered(const int32_t& word) {
#if defined(__CUDA_ARCH__)
  return word;
#else
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
#endif
}
RF_HD void write_unordered(int32_t& word, int32_t value) {
#if defined(__CUDA_ARCH__)
  word = value;
#else
  __atomic_store_n(&word, value, __ATOMIC_RELAXED);
#endif
}

}  // namespace ringfold::detail
