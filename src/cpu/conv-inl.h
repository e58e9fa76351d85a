// Short conv (vectors over channels) and gated RMSNorm (vectors over V).
#if defined(RINGFOLD_CPU_CONV_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFOLD_CPU_CONV_INL_H_
#undef RINGFOLD_CPU_CONV_INL_H_
#else
#define RINGFOLD_CPU_CONV_INL_H_
#endif

#include "core/conv_window.h"
#include "core/parallel.h"
#include "cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::cpu {
namespace HWY_NAMESPACE {

using detail::ConvParams;
using detail::NormParams;

/// Channels that one task works on at a time.
constexpr int kConvChunk = 256;

// to[j*kConvChunk + i] = weight[c0+i, j].
HWY_INLINE void LoadTaps(const ConvParams& p, int64_t c0, int n, float* to) {
  alignas(64) float rows[kConvChunk * kMaxConvWidth];
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < p.width; ++j)
      rows[i * p.width + j] = load(p.weight_dtype, p.weight, (c0 + i) * p.weight_stride + j);
  }
  for (int i0 = 0; i0 < n; i0 += kLanes) {
    const std::byte* at[kLanes];
    for (int i = 0; i < kLanes; ++i)
      at[i] = reinterpret_cast<const std::byte*>(rows + HWY_MIN(i0 + i, n - 1) * p.width);
    TransposeIn<DType::f32>(at, 0, p.width, to + i0, kConvChunk);
  }
}

// to[j*kConvChunk + i] = old window's tap j of channel c0+i.
HWY_INLINE void LoadWindow(const ConvParams& p, int64_t slot, int64_t c0, int n, float* to) {
  const std::byte* state = p.state.at(0, slot, 0, 0);
  const auto size = static_cast<int64_t>(size_of(p.state.dtype));
  for (int j = 0; j < p.width - 1; ++j) {
    const std::byte* tap = state + (c0 * p.state_channel_stride + j * p.state_tap_stride) * size;
    if (p.state_channel_stride == 1) {
      LoadRow(p.state.dtype, tap, n, to + j * kConvChunk);
    } else {
      for (int i = 0; i < n; ++i) to[j * kConvChunk + i] = load(p.state.dtype, tap, i * p.state_channel_stride);
    }
  }
}

static HWY_NOINLINE HWY_MAYBE_UNUSED void ConvChannels(const ConvParams& p, int64_t row, int64_t c0, int n) {
  const Vector::D d;
  const int64_t T = p.tokens(row), xr = p.window_row(row), xt = p.window_token(row), slot = p.slot_ids[row];
  const auto x_size = static_cast<int64_t>(size_of(p.x.dtype)), out_size = static_cast<int64_t>(size_of(p.out.dtype));
  alignas(64) float taps[kMaxConvWidth * kConvChunk], bias[kConvChunk] = {}, y[kConvChunk];
  // Old window, then one row for each token.
  alignas(64) float inputs[(kMaxConvWidth - 1 + kMaxWindow) * kConvChunk];
  const int padded = (n + kLanes - 1) / kLanes * kLanes;
  LoadTaps(p, c0, n, taps);
  LoadWindow(p, slot, c0, n, inputs);
  if (p.bias) LoadRow(p.bias_dtype, p.bias + c0 * static_cast<int64_t>(size_of(p.bias_dtype)), n, bias);
  for (int64_t t = 0; t < T; ++t) {
    const std::byte* x = p.x.at(0, xr, xt + t, 0) + c0 * x_size;
    LoadRow(p.x.dtype, x, n, inputs + (p.width - 1 + t) * kConvChunk);
    if (p.ring) std::memcpy(p.ring.at(0, slot, t, 0) + c0 * x_size, x, n * x_size);
  }
  for (int64_t t = 0; t < T; ++t) {
    for (int i = 0; i < padded; i += kLanes) {
      Vector::F acc = hn::Load(d, bias + i);
      for (int j = 0; j < p.width; ++j) {
        acc = Vector::fma(hn::Load(d, taps + j * kConvChunk + i), hn::Load(d, inputs + (t + j) * kConvChunk + i), acc);
      }
      hn::Store(p.silu ? silu<Vector>(acc) : acc, d, y + i);
    }
    StoreRow(p.out.dtype, y, n, p.out.at(0, xr, xt + t, 0) + c0 * out_size);
  }
  if (p.write_state) detail::advance_conv_window(p, row, c0, c0 + n);
}

Status Conv(const ConvParams& p) {
  const int64_t chunks = (p.channels + kConvChunk - 1) / kConvChunk;
  detail::parallel_chunks(p.rows * chunks, 2, p.threads, [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / chunks, c0 = i % chunks * kConvChunk;
      const auto n = static_cast<int>(HWY_MIN(kConvChunk, p.channels - c0));
      if (p.live(row)) {
        ConvChannels(p, row, c0, n);
        continue;
      }
      const auto size = static_cast<int64_t>(size_of(p.out.dtype));
      for (int64_t t = 0; t < p.tokens(row); ++t) {
        std::memset(p.out.at(0, p.window_row(row), p.window_token(row) + t, 0) + c0 * size, 0, n * size);
      }
    }
  });
  return {};
}

Status GatedNorm(const NormParams& p) {
  const int64_t tasks = p.tokens * p.heads;
  detail::parallel_chunks(tasks, HWY_MAX(8, tasks / 64), p.threads, [&](int64_t begin, int64_t end) HWY_ATTR {
    const Vector::D d;
    // What lies behind V is computed and thrown away; it must be a number.
    alignas(64) float x[kMaxHeadDim] = {}, z[kMaxHeadDim] = {}, weight[kMaxHeadDim] = {};
    LoadRow(p.weight_dtype, p.weight, p.V, weight);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = i / p.heads, h = i % p.heads;
      LoadRow(p.x.dtype, p.x.at(0, 0, token, h), p.V, x);
      LoadRow(p.z.dtype, p.z.at(0, 0, token, h), p.V, z);
      const float r = arith::rms_divisor<arith::Scalar>(Dot(x, x, p.V), static_cast<float>(p.V), p.eps);
      for (int v = 0; v < p.V; v += kLanes) {
        hn::Store(
            gated<Vector>(hn::Load(d, x + v), hn::Set(d, r), hn::Load(d, weight + v), hn::Load(d, z + v), p.silu_gate),
            d, x + v);
      }
      StoreRow(p.out.dtype, x, p.V, p.out.at(0, 0, token, h));
      // The padding must stay a number for the next head.
      for (int v = p.V; v < kMaxHeadDim && v < p.V + kLanes; ++v) x[v] = 0.0f;
    }
  });
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#endif
