// Eight elements at a time between memory formats and fp32. The bits are those of core/scalar_io.h; NaNs become the
// quiet NaN of the format there too.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/scalar_io.h"

namespace ringfold::cuda {

using detail::peek;
using detail::poke;

__device__ __forceinline__ float2 widen(DType dtype, uint32_t pair) {
  if (dtype == DType::bf16) return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

__device__ __forceinline__ void widen_8(DType dtype, const uint4& raw, float* to) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = widen(dtype, words[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

/// One 16-bit element, rounded to nearest even.
__device__ __forceinline__ uint32_t narrow(DType dtype, float x) {
  if (dtype == DType::bf16) {
    return x == x ? static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(x))) : 0x7fc0u;
  }
  return x == x ? static_cast<uint32_t>(__half_as_ushort(__float2half_rn(x))) : 0x7e00u;
}

__device__ __forceinline__ uint4 narrow_8(DType dtype, const float* x) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = narrow(dtype, x[2 * i]) | narrow(dtype, x[2 * i + 1]) << 16;
  return {words[0], words[1], words[2], words[3]};
}

/// x as it would come back from memory of that dtype.
__device__ __forceinline__ float round_16(DType dtype, float x) {
  const float2 back = widen(dtype, narrow(dtype, x));
  return back.x;
}

__device__ __forceinline__ void store_one(DType dtype, std::byte* data, int64_t i, float x) {
  if (dtype == DType::f32) {
    poke(data, i, x);
  } else {
    poke(data, i, static_cast<uint16_t>(narrow(dtype, x)));
  }
}

}  // namespace ringfold::cuda
