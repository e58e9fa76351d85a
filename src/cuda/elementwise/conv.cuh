// The short conv of one channel, and how its window moves on: for the conv's own kernels and for whole layers.
#pragma once

#include "core/scalar_io.h"
#include "cuda/common/judging.cuh"
#include "cuda/common/warp.cuh"

namespace ringfold::cuda {

inline constexpr int kTaps = kMaxConvWidth - 1;

/// Bits of an element, moved as they are.
__device__ inline uint32_t peek_bits(DType dtype, const std::byte* data, int64_t i) {
  return size_of(dtype) == 4 ? peek<uint32_t>(data, i) : peek<uint16_t>(data, i);
}
__device__ inline void poke_bits(DType dtype, std::byte* data, int64_t i, uint32_t bits) {
  if (size_of(dtype) == 4) {
    poke(data, i, bits);
  } else {
    poke(data, i, static_cast<uint16_t>(bits));
  }
}

/// The new window of channel c in slot `dst`: the last taps of (old window, `tokens` inputs). `input(t)` is the row of
/// channels of token t. `old` holds the bits of the old window.
template <class Input>
__device__ void advance(const ConvParams& p, int64_t layer, int64_t dst, int64_t tokens, int64_t c,
                        const uint32_t (&old)[kTaps], Input input) {
  const int taps = p.width - 1;
  std::byte* to = p.state.at(layer, dst, 0, 0);
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    if (j >= taps) break;
    const int64_t t = tokens - taps + j;
    uint32_t bits;
    if (t >= 0) {
      bits = peek_bits(p.state.dtype, input(t), c);
    } else {
      const int64_t from = j + tokens;  // < taps
      bits = from == 0 ? old[0] : from == 1 ? old[1] : old[2];
    }
    poke_bits(p.state.dtype, to, c * p.state_channel_stride + j * p.state_tap_stride, bits);
  }
}

__device__ inline void load_window(const ConvParams& p, int64_t layer, int64_t slot, int64_t c,
                                   uint32_t (&old)[kTaps]) {
  const std::byte* from = p.state.at(layer, slot, 0, 0);
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    old[j] = j < p.width - 1 ? peek_bits(p.state.dtype, from, c * p.state_channel_stride + j * p.state_tap_stride) : 0;
  }
}

/// The value of an element with these bits.
__device__ inline float value_of_bits(DType dtype, uint32_t bits) {
  return dtype == DType::f32    ? __uint_as_float(bits)
         : dtype == DType::bf16 ? arith::from_bf16<S>(static_cast<int32_t>(bits))
                                : arith::from_f16<S>(static_cast<int32_t>(bits));
}

/// One output of a channel: weights w(0) .. w(width-1) on inputs x(0), the oldest, to x(width-1).
template <class Weight, class Input>
__device__ __forceinline__ float conv_output(const ConvParams& p, float bias, Weight w, Input x) {
  float acc = bias;
#pragma unroll
  for (int j = 0; j < kMaxConvWidth; ++j) {
    if (j < p.width) acc = S::fma(w(j), x(j), acc);
  }
  return p.silu ? arith::silu<S>(acc) : acc;
}

/// Output of channel c of slot `slot` at token t of a row. `input(t)` is the row of channels of token t.
template <class Input>
__device__ float conv_output_at(const ConvParams& p, int64_t slot, int64_t c, int t, Input input) {
  const std::byte* old = p.state.at(0, slot, 0, 0);
  const auto weight = [&](int j) { return load(p.weight_dtype, p.weight, c * p.weight_stride + j); };
  return conv_output(p, p.bias ? load(p.bias_dtype, p.bias, c) : 0.0f, weight, [&](int j) {
    const int at = t + j - (p.width - 1);
    return at >= 0 ? load(p.x.dtype, input(at), c)
                   : load(p.state.dtype, old, c * p.state_channel_stride + (at + p.width - 1) * p.state_tap_stride);
  });
}

}  // namespace ringfold::cuda
