// Which instance serves a layer, and what it is told. decode_layer moves the conv windows of q and k, which all value
// heads of a key head read: where there are several, a second launch moves the windows of all channels.
#include "core/plan.h"
#include "cuda/layer/direct_layer_launch.cuh"
#include "cuda/layer/layer.h"
#include "cuda/recurrence/direct.h"

namespace ringfold::cuda {
namespace {

constexpr int kThreads = 128;  // of a block that moves windows

/// Of a call that direct_layer_refusal() accepts.
direct::DirectLayerParams params_of(const LayerParams& p, bool moves_windows) {
  const auto bytes = [](int64_t elements, DType dtype) {
    return static_cast<int32_t>(elements * static_cast<int64_t>(size_of(dtype)));
  };
  direct::DirectLayerParams d;
  static_cast<direct::DirectParams&>(d) = direct::params_of(p);
  const ConvParams& c = p.conv;
  d.conv_weight = c.weight, d.conv_bias = c.bias;
  d.weight_channel = bytes(c.weight_stride, c.weight_dtype);
  d.first_k = p.H * p.K;
  d.weight_dtype = c.weight_dtype, d.bias_dtype = c.bias_dtype;
  d.silu = c.silu, d.width = c.width;
  d.moves_windows = moves_windows;
  d.conv_state = c.state.data;
  d.conv_slot = static_cast<uint64_t>(c.state.row_stride) * size_of(c.state.dtype);
  d.conv_channel = bytes(c.state_channel_stride, c.state.dtype);
  d.conv_tap = bytes(c.state_tap_stride, c.state.dtype);
  d.conv_pending = p.conv_pending;
  d.conv_ring = direct::place_of(c.ring);
  d.conv_owners = p.conv_owners;
  d.z = direct::place_of(p.norm.z, static_cast<bool>(p.cu_seqlens));
  d.norm = p.norm;
  return d;
}

/// After the layer's kernel: it has moved cursors, but in no way that a verdict goes by.
__global__ void __launch_bounds__(kThreads) move_layer_windows(const __grid_constant__ LayerParams p) {
  ptx::begin_kernel();
  const int64_t row = blockIdx.x, c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= p.conv.channels || judge_layer(p, row) != RowStatus::done) return;
  const int64_t keys = static_cast<int64_t>(p.H) * p.K;
  if (c < keys) {
    advance_window(p, row, q_channels(p, c / p.K), static_cast<int>(c % p.K));
  } else if (c < 2 * keys) {
    advance_window(p, row, k_channels(p, (c - keys) / p.K), static_cast<int>(c % p.K));
  } else {
    advance_window(p, row, v_channels(p, (c - 2 * keys) / p.V), static_cast<int>((c - 2 * keys) % p.V));
  }
}

}  // namespace

Refusal direct_layer_refusal(const Desc& d) {
  if (d.V > kDirectLayerV) return {"needs V of at most 128", "V", d.V};
  if (d.channels > int64_t{kMostGridRows} * kThreads) return {"needs at most 8388480 channels", "C", d.channels};
  return direct_window_refusal(d);
}

Plan direct_layer_plan(const Desc& d) {
  Plan plan = traffic(d);
  plan.tasks = d.rows * d.HV;
  plan.threads = direct::kLayerWarps * 32;
  return plan;
}

Status direct_layer(const LayerParams& p, const Desc&) {
  if (p.rows == 0) return {};
  RINGFOLD_RETURN_IF_ERROR(direct_strides(p));
  static const direct::LayerInstances all[2] = {direct::layer_instances_64(), direct::layer_instances_128()};
  const direct::LaunchLayer launch = all[p.K == 128].of[p.state.dtype == DType::f32 ? 0 : 1][p.kind == MixerKind::kda];
  const bool moves = p.conv.write_state, shared_keys = p.HV != p.H;
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.HV));
  RINGFOLD_RETURN_IF_ERROR(launch(params_of(p, moves && !shared_keys), grid, p.stream));
  if (!moves || !shared_keys) return {};
  const dim3 blocks(static_cast<unsigned>(p.rows), static_cast<unsigned>((p.conv.channels + kThreads - 1) / kThreads));
  return start<move_layer_windows>("layer", blocks, kThreads, 0, p.stream, p);
}

}  // namespace ringfold::cuda
