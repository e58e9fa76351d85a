// Elements between memory formats and fp32, eight at a time. The bits are those of core/scalar_io.h: the hardware
// rounds to nearest even, and its NaN of either 16-bit format is 0x7fff.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/scalar_io.h"
#include "cuda/common/ptx.cuh"

namespace ringfold::cuda {

using detail::peek;
using detail::poke;

__device__ __forceinline__ float2 widen_2(DType dtype, uint32_t pair) {
  if (dtype == DType::bf16) return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

/// The bits of one element, loaded where this is written.
__device__ __forceinline__ uint32_t load_bits(DType dtype, const std::byte* data) {
  return dtype == DType::f32 ? ptx::load_4(data) : ptx::load_2(data);
}
__device__ __forceinline__ float of_bits(DType dtype, uint32_t bits) {
  return dtype == DType::f32 ? __uint_as_float(bits) : widen_2(dtype, bits).x;
}

__device__ __forceinline__ uint32_t narrow_2(DType dtype, float low, float high) {
  if (dtype == DType::bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ void widen_8(DType dtype, const uint4& raw, float* to) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = widen_2(dtype, words[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ uint4 narrow_8(DType dtype, const float* x) {
  return {narrow_2(dtype, x[0], x[1]), narrow_2(dtype, x[2], x[3]), narrow_2(dtype, x[4], x[5]),
          narrow_2(dtype, x[6], x[7])};
}

/// Calls visit(dtype) with a dtype that the compiler knows, bf16 or f16: one branch for all elements of a tile.
template <class Visit>
__device__ __forceinline__ void with_16_bit(DType dtype, Visit visit) {
  if (dtype == DType::bf16) {
    visit(DType::bf16);
  } else {
    visit(DType::f16);
  }
}

__device__ __forceinline__ void store_one(DType dtype, std::byte* data, int64_t i, float x) {
  if (dtype == DType::f32) {
    poke(data, i, x);
  } else {
    poke(data, i, static_cast<uint16_t>(narrow_2(dtype, x, 0.0f)));
  }
}

}  // namespace ringfold::cuda
