// Validation of the short conv and of the gated norm.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check_view.h"
#include "core/lower.h"
#include "core/rows.h"

namespace ringfold::detail {
namespace {

std::byte* bytes(const TensorView& v) { return static_cast<std::byte*>(v.data); }

}  // namespace

Status check_conv_width(const char* name, int64_t width) {
  if (width >= kMinConvWidth && width <= kMaxConvWidth) return {};
  return invalid(name, fmt::format("conv width {} .. {}", kMinConvWidth, kMaxConvWidth), fmt::format("{}", width));
}

void set_conv_state(const TensorView& s, ConvParams* p) {
  const int at = s.rank - 3;
  p->state = {bytes(s), s.dtype, at ? s.stride[0] : 0, s.stride[at], 0, 0};
  p->state_channel_stride = s.stride[at + 1];
  p->state_tap_stride = s.stride[at + 2];
}

void set_conv_ring(const TensorView& s, ConvParams* p) {
  const int at = s.rank - 3;
  p->ring = {bytes(s), s.dtype, at ? s.stride[0] : 0, s.stride[at], s.stride[at + 1], 0};
}

Status lower_conv(Op op, const ConvArgs& args, ConvParams* p, Desc* desc) {
  const bool ragged = !args.cu_seqlens.empty();
  const int lead = ragged ? 1 : 2;
  if (args.x.rank != lead + 1) return invalid("x", ragged ? "[tokens,C]" : "[B,T,C]", to_string(args.x));
  if (args.weight.rank != 2) return invalid("weight", "[C,W]", to_string(args.weight));
  if (args.slot_ids.rank != 1) return invalid("slot_ids", "[B]", to_string(args.slot_ids));
  const int64_t C = args.x.shape[lead], W = args.weight.shape[1], B = args.slot_ids.shape[0];
  const int64_t T = ragged ? 0 : args.x.shape[1];
  RINGFOLD_RETURN_IF_ERROR(check_conv_width("weight", W));
  if (args.conv_state.rank != 3) return invalid("conv_state", "[slots,C,W-1]", to_string(args.conv_state));
  const int64_t slots = args.conv_state.shape[0];
  const auto like_x = [&](const char* name, const TensorView& v) {
    return ragged ? check_view(name, v, {{"tokens", args.x.shape[0]}, {"C", C}})
                  : check_view(name, v, {{"B", B}, {"T", T}, {"C", C}});
  };
  RINGFOLD_RETURN_IF_ERROR(like_x("x", args.x));
  RINGFOLD_RETURN_IF_ERROR(like_x("out", args.out));
  RINGFOLD_RETURN_IF_ERROR(check_float("x", args.x));
  RINGFOLD_RETURN_IF_ERROR(check_float("out", args.out));
  RINGFOLD_RETURN_IF_ERROR(check_view("weight", args.weight, {{"C", C}, {"W", W}}));
  RINGFOLD_RETURN_IF_ERROR(check_float("weight", args.weight));
  if (!args.bias.empty()) {
    RINGFOLD_RETURN_IF_ERROR(check_view("bias", args.bias, {{"C", C}}));
    RINGFOLD_RETURN_IF_ERROR(check_float("bias", args.bias));
  }
  RINGFOLD_RETURN_IF_ERROR(
      check_view("conv_state", args.conv_state, {{"slots", slots}, {"C", C}, {"W-1", W - 1}}, Inner::free));
  RINGFOLD_RETURN_IF_ERROR(check_dtype("conv_state", args.conv_state, args.x.dtype));
  if (T > kMaxWindow) return invalid("x", fmt::format("T <= {}", kMaxWindow), fmt::format("T = {}", T));
  if (op == Op::conv_verify && !args.conv_ring.empty()) {
    if (args.conv_ring.rank != 3) return invalid("conv_ring", "[slots,rows,C]", to_string(args.conv_ring));
    const Dim rings = rings_of(!args.ring_ids.empty(), args.conv_ring.shape[0], slots);
    RINGFOLD_RETURN_IF_ERROR(
        check_view("conv_ring", args.conv_ring, {rings, {"rows", args.conv_ring.shape[1]}, {"C", C}}));
    RINGFOLD_RETURN_IF_ERROR(
        lower_ring_ids({"ring_ids", args.ring_ids, args.owners, args.pending, args.conv_ring, slots}, B, p));
    RINGFOLD_RETURN_IF_ERROR(check_dtype("conv_ring", args.conv_ring, args.x.dtype));
    if (T > args.conv_ring.shape[1]) {
      return invalid("x", fmt::format("T <= the ring's {} rows", args.conv_ring.shape[1]), fmt::format("T = {}", T));
    }
    set_conv_ring(args.conv_ring, p);
    RINGFOLD_RETURN_IF_ERROR(check_device({{"conv_state", args.conv_state}, {"conv_ring", args.conv_ring}}));
  }
  RINGFOLD_RETURN_IF_ERROR(check_ints("slot_ids", args.slot_ids, "B", B));
  if (ragged) RINGFOLD_RETURN_IF_ERROR(check_ints("cu_seqlens", args.cu_seqlens, "B+1", B + 1));
  if (!args.pending.empty()) RINGFOLD_RETURN_IF_ERROR(check_ints("pending", args.pending, "slots", slots));
  if (!args.row_status.empty()) RINGFOLD_RETURN_IF_ERROR(check_ints("row_status", args.row_status, "B", B));
  RINGFOLD_RETURN_IF_ERROR(check_device({{"conv_state", args.conv_state},
                                         {"x", args.x},
                                         {"weight", args.weight},
                                         {"bias", args.bias},
                                         {"out", args.out},
                                         {"slot_ids", args.slot_ids},
                                         {"cu_seqlens", args.cu_seqlens},
                                         {"pending", args.pending},
                                         {"row_status", args.row_status}}));

  p->rows = B;
  p->slots = slots;
  p->total_tokens = args.x.shape[0];
  p->longest = p->ring ? std::min<int64_t>(kMaxWindow, args.conv_ring.shape[1]) : kMaxWindow;
  p->move = op == Op::conv_decode ? CursorMove::consume : p->ring ? CursorMove::record : CursorMove::keep;
  p->stream = args.stream;
  p->channels = C;
  p->width = static_cast<int>(W);
  p->silu = args.silu;
  p->write_state = op == Op::conv_decode;
  const auto window = [&](const TensorView& v) {
    return ragged ? Array{bytes(v), v.dtype, 0, 0, v.stride[0], 0}
                  : Array{bytes(v), v.dtype, 0, v.stride[0], v.stride[1], 0};
  };
  p->x = window(args.x);
  p->out = window(args.out);
  p->weight = bytes(args.weight);
  p->weight_dtype = args.weight.dtype;
  p->weight_stride = args.weight.stride[0];
  p->bias = bytes(args.bias);
  p->bias_dtype = args.bias.dtype;
  set_conv_state(args.conv_state, p);
  p->slot_ids = ints(args.slot_ids);
  p->cu_seqlens = ints(args.cu_seqlens);
  p->pending = cursors(args.pending);
  p->row_status = ints(args.row_status);
  p->window = static_cast<int>(T);

  *desc = {};
  desc->op = op;
  desc->device = args.conv_state.device;
  desc->act_dtype = args.x.dtype;
  desc->rows = B;
  desc->window = ragged ? std::min<int64_t>(args.x.shape[0], kMaxWindow) : T;
  desc->channels = C;
  desc->conv_width = W;
  return {};
}

Status lower(const ConvCommitArgs& args, ConvParams* p, Desc* desc) {
  const bool layered = args.conv_state.rank == 4;
  const int at = layered ? 1 : 0;
  if (args.conv_state.rank != 3 && !layered) {
    return invalid("conv_state", "[slots,C,W-1] or [layers,slots,C,W-1]", to_string(args.conv_state));
  }
  if (args.conv_ring.rank != at + 3) {
    return invalid("conv_ring", layered ? "[layers,slots,rows,C]" : "[slots,rows,C]", to_string(args.conv_ring));
  }
  const Dim layers{"layers", layered ? args.conv_state.shape[0] : 1}, slots{"slots", args.conv_state.shape[at]};
  const Dim C{"C", args.conv_state.shape[at + 1]}, taps{"W-1", args.conv_state.shape[at + 2]};
  const Dim rows{"rows", args.conv_ring.shape[at + 1]};
  const Dim rings = rings_of(!args.ring_ids.empty(), args.conv_ring.shape[at], slots.size);
  RINGFOLD_RETURN_IF_ERROR(check_conv_width("weight", taps.size + 1));
  RINGFOLD_RETURN_IF_ERROR(layered ? check_view("conv_state", args.conv_state, {layers, slots, C, taps}, Inner::free)
                                   : check_view("conv_state", args.conv_state, {slots, C, taps}, Inner::free));
  RINGFOLD_RETURN_IF_ERROR(layered ? check_view("conv_ring", args.conv_ring, {layers, rings, rows, C})
                                   : check_view("conv_ring", args.conv_ring, {rings, rows, C}));
  RINGFOLD_RETURN_IF_ERROR(check_float("conv_state", args.conv_state));
  RINGFOLD_RETURN_IF_ERROR(check_dtype("conv_ring", args.conv_ring, args.conv_state.dtype));
  RINGFOLD_RETURN_IF_ERROR(check_device({{"conv_state", args.conv_state}, {"conv_ring", args.conv_ring}}));
  RINGFOLD_RETURN_IF_ERROR(lower_accepted(args, "conv_state", args.conv_state, p));
  RINGFOLD_RETURN_IF_ERROR(lower_ring_ids(
      {"ring_ids", args.ring_ids, {}, {}, args.conv_ring, slots.size, layered ? &layers.size : nullptr}, p->rows, p));

  p->slots = slots.size;
  p->longest = rows.size;
  p->layers = layers.size;
  p->channels = C.size;
  p->width = static_cast<int>(taps.size + 1);
  p->write_state = true;
  set_conv_state(args.conv_state, p);
  set_conv_ring(args.conv_ring, p);

  *desc = {};
  desc->op = Op::conv_commit;
  desc->device = args.conv_state.device;
  desc->act_dtype = args.conv_state.dtype;
  desc->rows = p->rows;
  desc->window = rows.size;
  desc->layers = layers.size;
  desc->channels = C.size;
  desc->conv_width = p->width;
  return {};
}

Status lower(const GatedNormArgs& args, NormParams* p, Desc* desc) {
  if (args.x.rank != 3) return invalid("x", "[tokens,HV,V]", to_string(args.x));
  const int64_t tokens = args.x.shape[0], HV = args.x.shape[1], V = args.x.shape[2];
  if (V < 1 || V > kMaxHeadDim) return invalid("x", fmt::format("V of 1 .. {}", kMaxHeadDim), fmt::format("{}", V));
  for (const auto& [name, view] : {std::pair{"x", &args.x}, {"z", &args.z}, {"out", &args.out}}) {
    RINGFOLD_RETURN_IF_ERROR(check_view(name, *view, {{"tokens", tokens}, {"HV", HV}, {"V", V}}));
    RINGFOLD_RETURN_IF_ERROR(check_float(name, *view));
  }
  RINGFOLD_RETURN_IF_ERROR(check_view("weight", args.weight, {{"V", V}}));
  RINGFOLD_RETURN_IF_ERROR(check_float("weight", args.weight));
  if (!(args.eps >= 0) || std::isinf(args.eps))
    return invalid("eps", "a finite number, 0 or above", fmt::format("{}", args.eps));
  if (args.out.data == args.x.data && args.out.dtype != args.x.dtype) {
    return invalid("out", "the dtype of x when it is x", to_string(args.out.dtype));
  }
  RINGFOLD_RETURN_IF_ERROR(check_device({{"x", args.x}, {"z", args.z}, {"weight", args.weight}, {"out", args.out}}));
  const auto set = [](const TensorView& v) { return Array{bytes(v), v.dtype, 0, 0, v.stride[0], v.stride[1]}; };
  p->stream = args.stream;
  p->tokens = tokens;
  p->heads = HV;
  p->V = static_cast<int>(V);
  p->silu_gate = args.gate == NormGate::silu;
  p->eps = args.eps;
  p->x = set(args.x), p->z = set(args.z), p->out = set(args.out);
  p->weight = bytes(args.weight);
  p->weight_dtype = args.weight.dtype;
  *desc = {};
  desc->op = Op::gated_norm;
  desc->device = args.x.device;
  desc->act_dtype = args.x.dtype;
  desc->HV = HV, desc->V = V;
  desc->rows = tokens;
  return {};
}

}  // namespace ringfold::detail
