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

/// The bits of a window: of the last kTaps inputs, the oldest first. A conv of fewer taps has the last of them alone.
using Taps = uint32_t[kTaps];

/// The new window after `tokens` inputs: put(j, bits) for each tap j, the oldest first. `input(t)`: bits of token t.
template <class Input, class Put>
__device__ __forceinline__ void move_window(int width, int64_t tokens, const Taps& old, Input input, Put put) {
  const int skipped = kMaxConvWidth - width;
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    if (j < skipped) continue;
    const int64_t from = j + tokens;
    put(j - skipped, from >= kTaps ? input(from - kTaps) : from == 0 ? old[0] : from == 1 ? old[1] : old[2]);
  }
}

/// The new window of channel c in slot `dst`. `input(t)` is the row of channels of token t.
template <class Input>
__device__ void advance(const ConvParams& p, int64_t layer, int64_t dst, int64_t tokens, int64_t c, const Taps& old,
                        Input input) {
  std::byte* to = p.state.at(layer, dst, 0, 0);
  move_window(
      p.width, tokens, old, [&](int64_t t) { return peek_bits(p.state.dtype, input(t), c); },
      [&](int j, uint32_t bits) {
        poke_bits(p.state.dtype, to, c * p.state_channel_stride + j * p.state_tap_stride, bits);
      });
}

__device__ inline void load_window(const ConvParams& p, int64_t layer, int64_t slot, int64_t c, Taps& old) {
  const std::byte* from = p.state.at(layer, slot, 0, 0);
  const int skipped = kMaxConvWidth - p.width;
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    const int64_t at = c * p.state_channel_stride + (j - skipped) * p.state_tap_stride;
    old[j] = j < skipped ? 0 : peek_bits(p.state.dtype, from, at);
  }
}

/// The value of an element with these bits.
__device__ inline float value_of_bits(DType dtype, uint32_t bits) {
  return dtype == DType::f32    ? __uint_as_float(bits)
         : dtype == DType::bf16 ? arith::from_bf16<S>(static_cast<int32_t>(bits))
                                : arith::from_f16<S>(static_cast<int32_t>(bits));
}

/// One output of a channel: weights w(j) on inputs x(j), of which x(kTaps) is the newest. A conv of fewer taps has the
/// last of them alone.
template <class Params, class Weight, class Input>
__device__ __forceinline__ float conv_output(const Params& p, float bias, Weight w, Input x) {
  float acc = bias;
#pragma unroll
  for (int j = 0; j < kMaxConvWidth; ++j) {
    if (j >= kMaxConvWidth - p.width) acc = S::fma(w(j), x(j), acc);
  }
  return p.silu ? arith::silu<S>(acc) : acc;
}

/// Output of channel c of slot `slot` at token t of a row. `input(t)` is the row of channels of token t.
template <class Input>
__device__ float conv_output_at(const ConvParams& p, int64_t slot, int64_t c, int t, Input input) {
  const std::byte* old = p.state.at(0, slot, 0, 0);
  const int skipped = kMaxConvWidth - p.width;
  const auto weight = [&](int j) { return load(p.weight_dtype, p.weight, c * p.weight_stride + j - skipped); };
  return conv_output(p, p.bias ? load(p.bias_dtype, p.bias, c) : 0.0f, weight, [&](int j) {
    const int at = t + j - kTaps;
    return at >= 0 ? load(p.x.dtype, input(at), c)
                   : load(p.state.dtype, old, c * p.state_channel_stride + (at + p.width - 1) * p.state_tap_stride);
  });
}

}  // namespace ringfold::cuda
