// What device code may say. Included before every kernel file, as nvcc does it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "emulation/machine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

#define threadIdx (::emulation::current()->thread_index)
#define blockIdx (::emulation::current()->block_index)
#define blockDim (::emulation::current()->block_size)
#define gridDim (::emulation::current()->grid_size)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}

inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __int_as_float(int32_t x) { return std::bit_cast<float>(x); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(uint32_t x) { return std::popcount(x); }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t select) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(bytes >> (select >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}

// Approximations, whose bits nobody may rely on.
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

inline int32_t atomicAdd(int32_t* at, int32_t value) {
  const int32_t before = *at;
  *at += value;
  return before;
}

inline void __syncthreads() { emulation::sync_threads(); }
inline void __syncwarp() { emulation::meet(emulation::Instruction::sync_warp, {}); }

namespace emulation {

template <class T>
T of_lane(unsigned mask, Instruction instruction, T mine, int lane) {
  static_assert(sizeof(T) == sizeof(uint32_t));
  expect_full(mask);
  const Lanes& all = meet(instruction, {std::bit_cast<uint32_t>(mine)});
  return lane >= 0 && lane < kLanes ? std::bit_cast<T>(all[lane][0]) : mine;
}

}  // namespace emulation

template <class T>
T __shfl_sync(unsigned mask, T x, int lane) {
  return emulation::of_lane(mask, emulation::Instruction::shuffle, x, lane & 31);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int bits) {
  return emulation::of_lane(mask, emulation::Instruction::shuffle_xor, x, emulation::lane() ^ bits);
}
template <class T>
T __shfl_down_sync(unsigned mask, T x, unsigned by) {
  return emulation::of_lane(mask, emulation::Instruction::shuffle_down, x, emulation::lane() + static_cast<int>(by));
}
inline int32_t __reduce_min_sync(unsigned mask, int32_t x) {
  emulation::expect_full(mask);
  for (const emulation::Words& of : emulation::meet(emulation::Instruction::reduce, {static_cast<uint32_t>(x)}))
    x = std::min(x, static_cast<int32_t>(of[0]));
  return x;
}
inline int __all_sync(unsigned mask, bool x) {
  emulation::expect_full(mask);
  for (const emulation::Words& of : emulation::meet(emulation::Instruction::vote, {x})) x = x && of[0] != 0;
  return x;
}
