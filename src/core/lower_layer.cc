// Validation of a whole layer's arguments: those of its recurrence, of its conv and of its norm.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "core/check_view.h"
#include "core/lower.h"
#include "core/rows.h"

namespace ringfold::detail {
namespace {

std::byte* bytes(const TensorView& v) { return static_cast<std::byte*>(v.data); }

// A head dimension cut out of packed channels: [.., C] from channel `first` on as [.., heads, dim].
TensorView heads_of(const TensorView& packed, int64_t first, int64_t heads, int64_t dim) {
  TensorView view = packed;
  const int last = packed.rank - 1;
  if (view.data) view.data = bytes(packed) + first * static_cast<int64_t>(size_of(packed.dtype));
  view.shape[last] = heads, view.stride[last] = dim;
  view.shape[last + 1] = dim, view.stride[last + 1] = 1;
  ++view.rank;
  return view;
}

/// The window with q, k and v as views, whichever way they were given.
Status split_projections(const LayerArgs& args, Window* window) {
  *window = args.window;
  const bool views = !args.window.q.empty() || !args.window.k.empty() || !args.window.v.empty();
  const int lead = args.window.cu_seqlens.empty() ? 2 : 1;
  const char* shape = lead == 1 ? "[tokens,C]" : "[B,T,C]";
  if (args.qkv.empty()) {
    return views ? Status{} : invalid("qkv", fmt::format("{}, or window.q, window.k and window.v", shape), "nothing");
  }
  if (views) return invalid("qkv", "nothing beside window.q, window.k and window.v", to_string(args.qkv));
  if (args.qkv.rank != lead + 1) return invalid("qkv", shape, to_string(args.qkv));
  if (args.state.rank != 4) return invalid("state", "[slots,HV,V,K]", to_string(args.state));
  RINGFOLD_RETURN_IF_ERROR(check_float("qkv", args.qkv));
  const int64_t C = args.qkv.shape[lead], HV = args.state.shape[1], V = args.state.shape[2], K = args.state.shape[3];
  const Dim channels{"C", C};
  RINGFOLD_RETURN_IF_ERROR(
      lead == 1 ? check_view("qkv", args.qkv, {{"tokens", args.qkv.shape[0]}, channels})
                : check_view("qkv", args.qkv, {{"B", args.qkv.shape[0]}, {"T", args.qkv.shape[1]}, channels}));
  const int64_t keys = C - HV * V;
  if (K < 1 || HV < 1 || V < 1 || keys < 2 * K || keys % (2 * K) != 0) {
    return invalid("qkv",
                   fmt::format("C = 2*H*K + HV*V channels with HV = {}, V = {} and K = {} of the state", HV, V, K),
                   to_string(args.qkv));
  }
  const int64_t H = keys / (2 * K);
  window->q = heads_of(args.qkv, 0, H, K);
  window->k = heads_of(args.qkv, H * K, H, K);
  window->v = heads_of(args.qkv, 2 * H * K, HV, V);
  return {};
}

/// The recurrence's arguments of either kind.
template <class Args>
Args recurrence_args(const LayerArgs& args, const Window& window) {
  Args r;
  r.mixer = args.mixer;
  r.window = window;
  r.state = args.state;
  r.out = args.out;
  r.ring = args.ring;
  r.pending = args.pending;
  if constexpr (std::is_same_v<Args, VerifyArgs>) r.owners = args.owners;
  r.history = args.history;
  r.row_status = args.row_status;
  r.numerics = args.numerics;
  r.state_rounding = args.state_rounding;
  r.stream = args.stream;
  return r;
}

Status both_or_none(const char* name, const TensorView& view, const char* other_name, const TensorView& other) {
  if (view.empty() == other.empty()) return {};
  return view.empty() ? invalid(name, fmt::format("a tensor, as {} is given", other_name), "nothing")
                      : invalid(other_name, fmt::format("a tensor, as {} is given", name), "nothing");
}

Status lower_layer_conv(Op op, const LayerArgs& args, LayerParams* p, Desc* desc) {
  const DType act = p->v.dtype;
  const int64_t C = 2 * p->H * p->K + p->HV * p->V;
  const Dim slots{"slots", p->slots}, channels{"C", C};
  if (args.conv_weight.rank != 2) return invalid("conv_weight", "[C,W]", to_string(args.conv_weight));
  const int64_t W = args.conv_weight.shape[1];
  RINGFOLD_RETURN_IF_ERROR(check_conv_width("conv_weight", W));
  RINGFOLD_RETURN_IF_ERROR(check_view("conv_weight", args.conv_weight, {channels, {"W", W}}));
  RINGFOLD_RETURN_IF_ERROR(check_float("conv_weight", args.conv_weight));
  if (!args.conv_bias.empty()) {
    RINGFOLD_RETURN_IF_ERROR(check_view("conv_bias", args.conv_bias, {channels}));
    RINGFOLD_RETURN_IF_ERROR(check_float("conv_bias", args.conv_bias));
  }
  RINGFOLD_RETURN_IF_ERROR(check_view("conv_state", args.conv_state, {slots, channels, {"W-1", W - 1}}, Inner::free));
  RINGFOLD_RETURN_IF_ERROR(check_dtype("conv_state", args.conv_state, act));
  RINGFOLD_RETURN_IF_ERROR(both_or_none("pending", args.pending, "conv_pending", args.conv_pending));
  if (!args.conv_pending.empty()) {
    RINGFOLD_RETURN_IF_ERROR(check_ints("conv_pending", args.conv_pending, "slots", p->slots));
  }
  if (op == Op::verify_layer) {
    RINGFOLD_RETURN_IF_ERROR(both_or_none("ring", args.ring.k, "conv_ring", args.conv_ring));
    if (!args.conv_ring.empty()) {
      if (args.conv_ring.rank != 3) return invalid("conv_ring", "[slots,rows,C]", to_string(args.conv_ring));
      const int64_t rows = args.conv_ring.shape[1];
      const Dim rings = rings_of(static_cast<bool>(p->ring_ids), p->rings, p->slots);  // as the other ring
      RINGFOLD_RETURN_IF_ERROR(check_view("conv_ring", args.conv_ring, {rings, {"rows", rows}, channels}));
      const RingIds ids{"window.ring_ids", args.window.ring_ids, args.conv_owners,
                        args.conv_pending, args.conv_ring,       p->slots};
      RINGFOLD_RETURN_IF_ERROR(lower_owners("conv_owners", ids, &p->conv_owners));
      RINGFOLD_RETURN_IF_ERROR(check_dtype("conv_ring", args.conv_ring, act));
      if (p->window > rows) {
        return invalid("window.v", fmt::format("T <= the conv ring's {} rows", rows), fmt::format("T = {}", p->window));
      }
      set_conv_ring(args.conv_ring, &p->conv);
      p->longest = std::min<int64_t>(p->longest, rows);
      p->max_window = static_cast<int>(std::min<int64_t>(p->max_window, rows));
      RINGFOLD_RETURN_IF_ERROR(check_device({{"state", args.state}, {"conv_ring", args.conv_ring}}));
    }
  }
  RINGFOLD_RETURN_IF_ERROR(check_device({{"state", args.state},
                                         {"conv_weight", args.conv_weight},
                                         {"conv_bias", args.conv_bias},
                                         {"conv_state", args.conv_state},
                                         {"conv_pending", args.conv_pending}}));
  ConvParams& c = p->conv;
  c.channels = C;
  c.width = static_cast<int>(W);
  c.silu = args.conv_silu;
  c.write_state = op == Op::decode_layer;
  c.x.dtype = c.out.dtype = act;
  c.weight = bytes(args.conv_weight);
  c.weight_dtype = args.conv_weight.dtype;
  c.weight_stride = args.conv_weight.stride[0];
  c.bias = bytes(args.conv_bias);
  c.bias_dtype = args.conv_bias.dtype;
  set_conv_state(args.conv_state, &c);
  p->conv_pending = cursors(args.conv_pending);
  desc->window = p->max_window;
  desc->channels = C;
  desc->conv_width = W;
  return {};
}

Status lower_layer_norm(const LayerArgs& args, bool ragged, LayerParams* p) {
  const Dim HV{"HV", p->HV}, V{"V", p->V};
  RINGFOLD_RETURN_IF_ERROR(ragged ? check_view("z", args.z, {{"tokens", p->total_tokens}, HV, V})
                                  : check_view("z", args.z, {{"B", p->rows}, {"T", p->window}, HV, V}));
  RINGFOLD_RETURN_IF_ERROR(check_float("z", args.z));
  RINGFOLD_RETURN_IF_ERROR(check_view("norm_weight", args.norm_weight, {V}));
  RINGFOLD_RETURN_IF_ERROR(check_float("norm_weight", args.norm_weight));
  if (!(args.norm_eps >= 0) || std::isinf(args.norm_eps))
    return invalid("norm_eps", "a finite number, 0 or above", fmt::format("{}", args.norm_eps));
  if (args.mixer_out != DType::f32 && args.mixer_out != p->v.dtype) {
    return invalid("mixer_out", fmt::format("f32 or {} (the activation dtype)", to_string(p->v.dtype)),
                   to_string(args.mixer_out));
  }
  RINGFOLD_RETURN_IF_ERROR(check_device({{"state", args.state}, {"z", args.z}, {"norm_weight", args.norm_weight}}));
  NormParams& n = p->norm;
  n.stream = args.stream;
  n.tokens = p->total_tokens;
  n.heads = p->HV;
  n.V = p->V;
  n.silu_gate = args.norm_gate == NormGate::silu;
  n.eps = args.norm_eps;
  n.x.dtype = args.mixer_out;
  const TensorView& z = args.z;
  n.z = ragged ? Array{bytes(z), z.dtype, 0, 0, z.stride[0], z.stride[1]}
               : Array{bytes(z), z.dtype, 0, z.stride[0], z.stride[1], z.stride[2]};
  n.out = p->out;
  n.weight = bytes(args.norm_weight);
  n.weight_dtype = args.norm_weight.dtype;
  return {};
}

/// Of the arrays that are the layer's alone.
int64_t widest_stride(const LayerParams& p) {
  const ConvParams& c = p.conv;
  const std::pair<int64_t, DType> strides[] = {
      {c.weight_stride, c.weight_dtype},       {c.state_channel_stride, c.state.dtype},
      {c.state_tap_stride, c.state.dtype},     {c.ring.token_stride, c.ring.dtype},
      {p.norm.z.token_stride, p.norm.z.dtype}, {p.norm.z.head_stride, p.norm.z.dtype}};
  int64_t widest = 0;
  for (const auto& [elements, dtype] : strides) {
    widest = std::max(widest, std::abs(elements) * static_cast<int64_t>(size_of(dtype)));
  }
  return widest;
}

}  // namespace

Status lower_layer(Op op, const LayerArgs& args, LayerParams* p, Desc* desc) {
  Window window;
  RINGFOLD_RETURN_IF_ERROR(split_projections(args, &window));
  RINGFOLD_RETURN_IF_ERROR(op == Op::verify_layer
                               ? lower_verify(op, recurrence_args<VerifyArgs>(args, window), p, desc)
                               : lower_decode(op, recurrence_args<DecodeArgs>(args, window), p, desc));
  RINGFOLD_RETURN_IF_ERROR(lower_layer_conv(op, args, p, desc));
  RINGFOLD_RETURN_IF_ERROR(lower_layer_norm(args, !args.window.cu_seqlens.empty(), p));
  desc->input_alignment = std::min(desc->input_alignment, alignment({p->conv.ring}));
  desc->widest_stride = std::max(desc->widest_stride, widest_stride(*p));
  return {};
}

}  // namespace ringfold::detail
