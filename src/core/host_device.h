// RF_HD: a function for the host and, in CUDA units, for the device too.
#pragma once

#if defined(__CUDACC__)
#define RF_HD __host__ __device__ __forceinline__
#else
#define RF_HD inline __attribute__((always_inline))
#endif
