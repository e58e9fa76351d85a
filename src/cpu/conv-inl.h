// Short conv (vectors over channels) and gated RMSNorm (vectors over V).
#if defined(RINGFOLD_CPU_CONV_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFOLD_CPU_CONV_INL_H_
#undef RINGFOLD_CPU_CONV_INL_H_
#else
#define RINGFOLD_CPU_CONV_INL_H_
#endif

#include <algorithm>

#include "core/conv_window.h"
#include "core/parallel.h"
#include "cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::cpu {
namespace HWY_NAMESPACE {

using detail::ConvParams;
using detail::ConvPiece;
using detail::NormParams;

/// Channels that one task works on at a time.
constexpr int kConvChunk = 256;

// to[j*kConvChunk + i] = column j of row i of a table with these strides.
static HWY_NOINLINE HWY_MAYBE_UNUSED void LoadColumns(DType type, const std::byte* from, int64_t row_stride,
                                                      int64_t column_stride, int n, int columns, float* to) {
  const auto size = static_cast<int64_t>(size_of(type));
  if (row_stride == columns && column_stride == 1) {
    const Vector::D d;
    alignas(64) float rows[kConvChunk * kMaxConvWidth];
    LoadRow(type, from, n * columns, rows);
    for (int i = 0; i < n; i += kLanes) {
      Vector::F c0, c1, c2 = hn::Zero(d), c3 = hn::Zero(d);
      const float* at = rows + i * columns;
      switch (columns) {
        case 1: c0 = c1 = hn::LoadU(d, at); break;
        case 2: hn::LoadInterleaved2(d, at, c0, c1); break;
        case 3: hn::LoadInterleaved3(d, at, c0, c1, c2); break;
        default: hn::LoadInterleaved4(d, at, c0, c1, c2, c3); break;
      }
      hn::Store(c0, d, to + i);
      if (columns > 1) hn::Store(c1, d, to + kConvChunk + i);
      if (columns > 2) hn::Store(c2, d, to + 2 * kConvChunk + i);
      if (columns > 3) hn::Store(c3, d, to + 3 * kConvChunk + i);
    }
    return;
  }
  for (int j = 0; j < columns; ++j) {
    const std::byte* column = from + j * column_stride * size;
    if (row_stride == 1) {
      LoadRow(type, column, n, to + j * kConvChunk);
    } else {
      for (int i = 0; i < n; ++i) to[j * kConvChunk + i] = load(type, column, i * row_stride);
    }
  }
}

/// Outputs of a piece of at most kConvChunk channels. `records`: its inputs go to the ring, where there is one.
static HWY_NOINLINE HWY_MAYBE_UNUSED void ConvChannels(const ConvParams& p, const ConvPiece& piece, bool records) {
  const Vector::D d;
  const int n = piece.n, taps = p.width - 1;
  const auto x_size = static_cast<int64_t>(size_of(p.x.dtype));
  // What lies behind the last channel is computed and thrown away.
  alignas(64) float weights[kMaxConvWidth * kConvChunk], bias[kConvChunk], y[kConvChunk];
  // Old window, then one row for each token.
  alignas(64) float inputs[(kMaxConvWidth - 1 + kMaxWindow) * kConvChunk];
  const int padded = (n + kLanes - 1) / kLanes * kLanes;
  LoadColumns(p.weight_dtype, p.weight + piece.first * p.weight_stride * static_cast<int64_t>(size_of(p.weight_dtype)),
              p.weight_stride, 1, n, p.width, weights);
  LoadColumns(p.state.dtype, p.state.at(0, piece.slot, 0, 0) + piece.first * p.state_channel_stride * x_size,
              p.state_channel_stride, p.state_tap_stride, n, taps, inputs);
  if (!p.bias) std::fill_n(bias, padded, 0.0f);
  if (p.bias) LoadRow(p.bias_dtype, p.bias + piece.first * static_cast<int64_t>(size_of(p.bias_dtype)), n, bias);
  for (int64_t t = 0; t < piece.tokens; ++t) {
    const std::byte* x = piece.x + t * piece.x_step;
    LoadRow(p.x.dtype, x, n, inputs + (taps + t) * kConvChunk);
    if (p.ring && records) std::memcpy(p.ring.at(0, piece.ring, t, 0) + piece.first * x_size, x, n * x_size);
  }
  for (int64_t t = 0; t < piece.tokens; ++t) {
    for (int i = 0; i < padded; i += kLanes) {
      Vector::F acc = hn::Load(d, bias + i);
      for (int j = 0; j < p.width; ++j) {
        acc =
            Vector::fma(hn::Load(d, weights + j * kConvChunk + i), hn::Load(d, inputs + (t + j) * kConvChunk + i), acc);
      }
      hn::Store(p.silu ? silu<Vector>(acc) : acc, d, y + i);
    }
    StoreRow(p.out.dtype, y, n, piece.out + t * piece.out_step);
  }
}

static HWY_MAYBE_UNUSED Status Conv(const ConvParams& p) {
  const int64_t chunks = (p.channels + kConvChunk - 1) / kConvChunk;
  detail::parallel_chunks(p.rows * chunks, 2, p.threads, [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / chunks, c0 = i % chunks * kConvChunk;
      const auto n = static_cast<int>(HWY_MIN(kConvChunk, p.channels - c0));
      if (p.live(row)) {
        const ConvPiece piece = detail::conv_piece(p, row, c0, n);
        ConvChannels(p, piece, true);
        if (p.write_state) detail::advance_conv_window(p, piece);
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

/// One head of one token; p's dtypes alone count. `weight` has V floats, and numbers behind them.
static HWY_NOINLINE HWY_MAYBE_UNUSED void NormHead(const NormParams& p, const float* weight, const std::byte* from,
                                                   const std::byte* gate, std::byte* to) {
  const Vector::D d;
  // What lies behind V is computed and thrown away.
  alignas(64) float x[kMaxHeadDim], z[kMaxHeadDim];
  for (int v = p.V; v % kLanes != 0; ++v) x[v] = z[v] = 0.0f;
  LoadRow(p.x.dtype, from, p.V, x);
  LoadRow(p.z.dtype, gate, p.V, z);
  const float r = arith::rms_divisor<arith::Scalar>(Dot(x, x, p.V), static_cast<float>(p.V), p.eps);
  for (int v = 0; v < p.V; v += kLanes) {
    hn::Store(
        gated<Vector>(hn::Load(d, x + v), hn::Set(d, r), hn::Load(d, weight + v), hn::Load(d, z + v), p.silu_gate), d,
        x + v);
  }
  StoreRow(p.out.dtype, x, p.V, to);
}

static HWY_MAYBE_UNUSED Status GatedNorm(const NormParams& p) {
  const int64_t tasks = p.tokens * p.heads;
  detail::parallel_chunks(tasks, HWY_MAX(8, tasks / 64), p.threads, [&](int64_t begin, int64_t end) HWY_ATTR {
    alignas(64) float weight[kMaxHeadDim] = {};
    LoadRow(p.weight_dtype, p.weight, p.V, weight);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = i / p.heads, h = i % p.heads;
      NormHead(p, weight, p.x.at(0, 0, token, h), p.z.at(0, 0, token, h), p.out.at(0, 0, token, h));
    }
  });
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#endif
