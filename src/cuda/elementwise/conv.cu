// One thread for each channel of a row. A block covers kThreads channels of one row (and layer).
#include "cuda/elementwise/conv.cuh"

#include "cuda/common/start.cuh"
#include "cuda/elementwise/elementwise.h"

namespace ringfold::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) conv_window(const __grid_constant__ ConvParams p) {
  ptx::begin_kernel();
  const int64_t blocks = (p.channels + kThreads - 1) / kThreads;
  const int64_t row = blockIdx.x / blocks, c = blockIdx.x % blocks * kThreads + threadIdx.x;
  const RowStatus status = verdict_on_window(p, row);
  if (c == 0) settle_window(p, row, status);
  if (c >= p.channels || status == RowStatus::bad_window_bounds) return;
  const int64_t T = p.asked_tokens(row), xr = p.window_row(row), xt = p.window_token(row), slot = p.slot_ids[row];
  const int64_t ring = p.ring_of(row);
  if (status != RowStatus::done) {
    for (int64_t t = 0; t < T; ++t) store(p.out.dtype, p.out.at(0, xr, xt + t, 0), c, 0.0f);
    return;
  }
  Taps old;
  load_window(p, 0, slot, c, old);
  // The last inputs, oldest first; the oldest leaves at each token.
  float x[kMaxConvWidth] = {}, w[kMaxConvWidth] = {};
  const int skipped = kMaxConvWidth - p.width;
#pragma unroll
  for (int j = 0; j < kMaxConvWidth; ++j) {
    if (j >= skipped) w[j] = load(p.weight_dtype, p.weight, c * p.weight_stride + j - skipped);
    if (j < kTaps) x[j + 1] = value_of_bits(p.state.dtype, old[j]);
  }
  const float bias = p.bias ? load(p.bias_dtype, p.bias, c) : 0.0f;
  for (int64_t t = 0; t < T; ++t) {
    const std::byte* input = p.x.at(0, xr, xt + t, 0);
    if (p.ring) poke_bits(p.x.dtype, p.ring.at(0, ring, t, 0), c, peek_bits(p.x.dtype, input, c));
#pragma unroll
    for (int j = 0; j < kTaps; ++j) x[j] = x[j + 1];
    x[kTaps] = load(p.x.dtype, input, c);
    const float y = conv_output(
        p, bias, [&](int j) { return w[j]; }, [&](int j) { return x[j]; });
    store(p.out.dtype, p.out.at(0, xr, xt + t, 0), c, y);
  }
  if (p.write_state) advance(p, 0, slot, T, c, old, [&](int64_t t) { return p.x.at(0, xr, xt + t, 0); });
}

__global__ void __launch_bounds__(kThreads)
    conv_accepted(const __grid_constant__ ConvParams p, const __grid_constant__ Layers layers) {
  ptx::begin_kernel();
  const int64_t blocks = (p.channels + kThreads - 1) / kThreads;
  const int64_t row = blockIdx.x / blocks % p.rows, layer_index = blockIdx.x / blocks / p.rows;
  const int64_t c = blockIdx.x % blocks * kThreads + threadIdx.x;
  const RowStatus status = verdict_on_accepted(p, layers, row);
  if (c == 0 && layer_index == 0 && p.row_status) p.row_status[row] = static_cast<int32_t>(status);
  if (c >= p.channels || status != RowStatus::done) return;
  const int64_t slot = p.slot_ids[row], dst = p.destination(row), accepted = p.num_accepted[row];
  const int64_t layer = layers(layer_index), ring = p.ring_of(row);
  if (accepted == 0 && dst == slot) return;
  Taps old;
  load_window(p, layer, slot, c, old);
  const auto input = [&](int64_t t) { return p.ring.at(layer, ring, t, 0); };
  if (const int64_t target = p.track_slot(row); target >= 0) {
    advance(p, layer, target, p.track_steps[row] + 1, c, old, input);
  }
  advance(p, layer, dst, accepted, c, old, input);
}

}  // namespace

Status conv(const ConvParams& p) {
  const int64_t blocks = p.rows * ((p.channels + kThreads - 1) / kThreads);
  if (blocks == 0) return {};
  RINGFOLD_RETURN_IF_ERROR(check_grid(blocks));
  return start<conv_window>("conv", static_cast<unsigned>(blocks), kThreads, 0, p.stream, p);
}

Status conv_commit(const ConvParams& p) {
  const int64_t blocks = p.layers * p.rows * ((p.channels + kThreads - 1) / kThreads);
  if (blocks == 0) return {};
  Layers layers;
  RINGFOLD_RETURN_IF_ERROR(list_layers(p, &layers));
  RINGFOLD_RETURN_IF_ERROR(check_grid(blocks));
  return start<conv_accepted>("conv_commit", static_cast<unsigned>(blocks), kThreads, 0, p.stream, p, layers);
}

}  // namespace ringfold::cuda
