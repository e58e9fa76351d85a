#include "bench/rig.h"

#include <algorithm>

#include "core/check_view.h"
#include "core/scalar_io.h"

namespace ringfold::bench {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Uniform in (-1, 1).
float noise(uint64_t i) {
  return static_cast<float>(static_cast<int32_t>(mix(i * 0x9e3779b97f4a7c15u) >> 32)) * 0x1p-31f;
}

struct Range {
  const char* name;
  float scale, shift;
};
// Log decays are negative, betas between 0 and 1.
constexpr Range kRanges[kFields] = {{"q", 1, 0},
                                    {"k", 1, 0},
                                    {"v", 1, 0},
                                    {"a", 2, 0},
                                    {"b", 2, 0},
                                    {"out", 1, 0},
                                    {"state", 0.1f, 0},
                                    {"ring_k", 1, 0},
                                    {"ring_v", 1, 0},
                                    {"ring_gate", 0.5f, -0.5f},
                                    {"ring_beta", 0.5f, 0.5f},
                                    {"conv_state", 1, 0},
                                    {"conv_ring", 1, 0},
                                    {"A_log", 1, 0},
                                    {"dt_bias", 1, 0},
                                    {"qkv", 1, 0},
                                    {"z", 1, 0},
                                    {"conv_weight", 0.5f, 0},
                                    {"norm_weight", 0.5f, 1},
                                    {"conv_out", 1, 0},
                                    {"mixed", 1, 0}};

// Drawing is slow beside copying. An odd number, so that no two rows or slots are the same.
constexpr int64_t kMostDrawn = 1'000'003;

}  // namespace

const char* to_string(Field field) { return kRanges[static_cast<size_t>(field)].name; }

DType Layout::dtype(Field f) const {
  switch (f) {
    case Field::state: return desc.state_dtype;
    case Field::out: return out;
    case Field::ring_gate: return desc.ring_a.value_or(DType::f32);
    case Field::ring_beta:
    case Field::A_log:
    case Field::dt_bias:
    case Field::mixed: return DType::f32;
    default: return desc.act_dtype;
  }
}

int64_t Layout::item_bytes(Field f) const {
  const Desc& d = desc;
  const int64_t T = d.window, gates = d.kind == MixerKind::kda ? d.K : 1;
  const auto elements = [&]() -> int64_t {
    switch (f) {
      case Field::q:
      case Field::k:
      case Field::ring_k: return T * d.H * d.K;
      case Field::v:
      case Field::out:
      case Field::ring_v: return T * d.HV * d.V;
      case Field::a:
      case Field::ring_gate: return T * d.HV * gates;
      case Field::b:
      case Field::ring_beta: return T * d.HV;
      case Field::state: return d.HV * d.V * d.K;
      case Field::A_log: return d.HV;
      case Field::dt_bias: return d.HV * gates;
      case Field::conv_state: return d.channels * (d.conv_width - 1);
      case Field::qkv:
      case Field::conv_out:
      case Field::conv_ring: return T * d.channels;
      case Field::conv_weight: return d.channels * d.conv_width;
      case Field::z:
      case Field::mixed: return is_layer(d.op) ? T * d.HV * d.V : 0;
      case Field::norm_weight: return is_layer(d.op) ? d.V : 0;
    }
    return 0;
  };
  return elements() * static_cast<int64_t>(size_of(dtype(f)));
}

int64_t Layout::items(Field f) const {
  if (f == Field::A_log || f == Field::dt_bias || f == Field::conv_weight || f == Field::norm_weight) return 1;
  return pooled(f) ? layers * slots() : desc.rows;
}

Status draw(Buffer* buffer, DType type, float scale, float shift, uint64_t seed, int64_t most_drawn) {
  const auto size = static_cast<int64_t>(size_of(type));
  const int64_t n = std::min(buffer->bytes() / size, most_drawn);
  if (n == 0) return {};
  std::vector<std::byte> bytes(static_cast<size_t>(n * size));
  for (int64_t i = 0; i < n; ++i)
    detail::store(type, bytes.data(), i, shift + scale * noise(seed * 0x100000001u + static_cast<uint64_t>(i)));
  RINGFOLD_RETURN_IF_ERROR(buffer->write(0, bytes.data(), n * size));
  return buffer->repeat(n * size);
}

Tensors::Tensors(Device device, void* stream) : device_(device), stream_(stream) {
  for (int f = 0; f < kFields; ++f) buffers_.emplace_back(device, stream);
}

Status Tensors::allocate(std::span<const Layout> layouts, bool drawn) {
  for (int i = 0; i < kFields; ++i) {
    const auto f = static_cast<Field>(i);
    int64_t bytes = 0;
    for (Layout layout : layouts) {
      layout.out = DType::f32;  // the largest
      bytes = std::max(bytes, layout.item_bytes(f) * layout.items(f));
    }
    Buffer& buffer = buffers_[static_cast<size_t>(i)];
    RINGFOLD_RETURN_IF_ERROR(buffer.allocate(bytes));
    if (!drawn || f == Field::out) continue;
    const Range& range = kRanges[i];
    RINGFOLD_RETURN_IF_ERROR(
        draw(&buffer, layouts.front().dtype(f), range.scale, range.shift, static_cast<uint64_t>(i + 1), kMostDrawn));
  }
  return {};
}

Rig::Rig(const Case& c, const Layout& layout, const Impls& impls, Tensors* tensors)
    : case_(c),
      layout_(layout),
      impls_(impls),
      tensors_(tensors),
      slot_ids_(tensors->device(), tensors->stream()),
      accepted_(tensors->device(), tensors->stream()) {}

Status Rig::prepare() {
  const int64_t B = layout_.desc.rows, slots = layout_.slots();
  // A set's slots lie scattered over the pool.
  slots_.resize(static_cast<size_t>(slots));
  for (int64_t i = 0; i < slots; ++i)
    slots_[static_cast<size_t>(i)] = static_cast<int32_t>(i % B * layout_.sets + i / B);
  const Desc& last = case_.fold ? *case_.fold : case_.desc;
  const std::vector<int32_t> accepted(static_cast<size_t>(B), static_cast<int32_t>(last.window));
  RINGFOLD_RETURN_IF_ERROR(slot_ids_.allocate(slots * 4));
  RINGFOLD_RETURN_IF_ERROR(slot_ids_.write(0, slots_.data(), slots * 4));
  RINGFOLD_RETURN_IF_ERROR(accepted_.allocate(B * 4));
  return accepted_.write(0, accepted.data(), B * 4);
}

Status Rig::turn(int64_t by) {
  std::rotate(slots_.begin(), slots_.begin() + by % layout_.sets * layout_.desc.rows, slots_.end());
  return slot_ids_.write(0, slots_.data(), layout_.slots() * 4);
}

const int32_t* Rig::slot_ids(int64_t set) const {
  return reinterpret_cast<const int32_t*>(slot_ids_.data()) + set * layout_.desc.rows;
}

int64_t Rig::item(Field f, int64_t layer, int64_t set, int64_t row) const {
  if (layout_.items(f) == 1) return 0;
  return layout_.pooled(f) ? layer * layout_.slots() + slot(set, row) : row;
}

TensorView Rig::view(Field f, std::initializer_list<int64_t> shape) {
  TensorView view((*tensors_)[f].data(), layout_.dtype(f), shape);
  view.device = tensors_->device();
  return view;
}

TensorView Rig::ints(const Buffer& buffer, int64_t at, int64_t n) const {
  TensorView view(buffer.data() + at * 4, DType::i32, {n});
  view.device = buffer.device();
  return view;
}

Status Rig::call(int64_t index) {
  const int64_t set = index % layout_.sets;
  if (!case_.fold) return operate(case_.desc, impls_.call, set, 0);
  for (int64_t layer = 0; layer < layout_.layers; ++layer)
    RINGFOLD_RETURN_IF_ERROR(operate(case_.desc, impls_.call, set, layer));
  return operate(*case_.fold, impls_.fold, far_set(set), 0);
}

namespace {

/// A tensor that all layers share.
TensorView with_layers(const TensorView& one, int64_t layers) {
  TensorView all = one;
  ++all.rank;
  all.shape[0] = layers, all.stride[0] = 0;
  for (int i = 0; i < one.rank; ++i) all.shape[i + 1] = one.shape[i], all.stride[i + 1] = one.stride[i];
  return all;
}

Ring layer_of(const Ring& all, int64_t layer) {
  Ring one;
  one.k = all.k.at(layer), one.v = all.v.at(layer), one.beta = all.beta.at(layer);
  if (!all.g.empty()) one.g = all.g.at(layer);
  if (!all.a.empty()) one.a = all.a.at(layer);
  return one;
}

}  // namespace

Ring Rig::ring() {
  const Desc& d = layout_.desc;
  const int64_t L = layout_.layers, S = layout_.slots(), T = d.window;
  Ring ring;
  ring.k = view(Field::ring_k, {L, S, T, d.H, d.K});
  ring.v = view(Field::ring_v, {L, S, T, d.HV, d.V});
  ring.beta = view(Field::ring_beta, {L, S, T, d.HV});
  (d.ring_a ? ring.a : ring.g) =
      d.kind == MixerKind::kda ? view(Field::ring_gate, {L, S, T, d.HV, d.K}) : view(Field::ring_gate, {L, S, T, d.HV});
  return ring;
}

Mixer Rig::mixer() {
  const Desc& d = layout_.desc;
  const bool kda = d.kind == MixerKind::kda;
  Mixer mixer;
  mixer.kind = d.kind;
  mixer.A_log = view(Field::A_log, {d.HV});
  mixer.dt_bias = kda ? view(Field::dt_bias, {d.HV, d.K}) : view(Field::dt_bias, {d.HV});
  if (kda) mixer.lower_bound = -5.0f;
  return mixer;
}

Status Rig::fold(const Desc& part, std::string_view impl, int64_t set) {
  const Desc& d = layout_.desc;
  const int64_t L = layout_.layers, S = layout_.slots();
  FoldArgs args;
  args.state = view(Field::state, {L, S, d.HV, d.V, d.K});
  args.ring = ring();
  if (d.ring_a) {  // one gate for all layers
    args.mixer = mixer();
    args.mixer.A_log = with_layers(args.mixer.A_log, L), args.mixer.dt_bias = with_layers(args.mixer.dt_bias, L);
  }
  if (part.layers == 1) {
    args.state = args.state.at(0);
    args.ring = layer_of(args.ring, 0);
    if (d.ring_a) args.mixer = mixer();
  }
  args.slot_ids = ints(slot_ids_, set * d.rows, d.rows);
  args.num_accepted = ints(accepted_, 0, d.rows);
  args.impl = impl;
  args.stream = tensors_->stream();
  return ringfold::fold(args);
}

VerifyArgs Rig::window_args(const Desc& part, std::string_view impl, int64_t set, int64_t layer) {
  const Desc& d = layout_.desc;
  const int64_t B = d.rows, T = d.window, L = layout_.layers, S = layout_.slots();
  const bool kda = d.kind == MixerKind::kda;
  VerifyArgs args;
  args.mixer = mixer();
  args.window.a = kda ? view(Field::a, {B, T, d.HV, d.K}) : view(Field::a, {B, T, d.HV});
  args.window.b = view(Field::b, {B, T, d.HV});
  args.window.slot_ids = ints(slot_ids_, set * B, B);
  args.state = view(Field::state, {L, S, d.HV, d.V, d.K}).at(layer);
  args.out = view(Field::out, {B, T, d.HV, d.V});
  if (part.op == Op::verify || part.op == Op::verify_layer) args.ring = layer_of(ring(), layer);
  args.numerics = part.numerics;
  args.impl = impl;
  args.stream = tensors_->stream();
  return args;
}

namespace {

Status decode_with(const VerifyArgs& args) {
  DecodeArgs decode_args;
  decode_args.mixer = args.mixer;
  decode_args.window = args.window;
  decode_args.state = args.state;
  decode_args.out = args.out;
  decode_args.numerics = args.numerics;
  decode_args.impl = args.impl;
  decode_args.stream = args.stream;
  return decode(decode_args);
}

}  // namespace

Status Rig::operate(const Desc& part, std::string_view impl, int64_t set, int64_t layer) {
  if (part.op == Op::fold) return fold(part, impl, set);
  if (is_layer(part.op)) return this->layer(part, impl, set);
  const Desc& d = layout_.desc;
  const int64_t B = d.rows, T = d.window;
  VerifyArgs args = window_args(part, impl, set, layer);
  args.window.q = view(Field::q, {B, T, d.H, d.K});
  args.window.k = view(Field::k, {B, T, d.H, d.K});
  args.window.v = view(Field::v, {B, T, d.HV, d.V});
  return part.op == Op::verify ? verify(args) : decode_with(args);
}

Status Rig::layer(const Desc& part, std::string_view impl, int64_t set) {
  const Desc& d = layout_.desc;
  const int64_t B = d.rows, T = d.window, S = layout_.slots(), C = d.channels;
  const VerifyArgs mixer = window_args(part, impl, set, 0);
  LayerArgs args;
  args.mixer = mixer.mixer;
  args.window = mixer.window;
  args.qkv = view(Field::qkv, {B, T, C});
  args.conv_weight = view(Field::conv_weight, {C, d.conv_width});
  args.conv_state = view(Field::conv_state, {S, C, d.conv_width - 1});
  if (part.op == Op::verify_layer) args.conv_ring = view(Field::conv_ring, {S, T, C});
  args.state = mixer.state;
  args.ring = mixer.ring;
  args.z = view(Field::z, {B, T, d.HV, d.V});
  args.norm_weight = view(Field::norm_weight, {d.V});
  args.out = mixer.out;
  args.impl = impl;
  args.stream = tensors_->stream();
  return part.op == Op::verify_layer ? verify_layer(args) : decode_layer(args);
}

Status Rig::chain(int64_t index) {
  const int64_t set = index % layout_.sets;
  const Desc& d = layout_.desc;
  const int64_t B = d.rows, T = d.window, S = layout_.slots(), C = d.channels;
  const bool verifies = d.op == Op::verify_layer;
  ConvArgs conv;
  conv.x = view(Field::qkv, {B, T, C});
  conv.weight = view(Field::conv_weight, {C, d.conv_width});
  conv.conv_state = view(Field::conv_state, {S, C, d.conv_width - 1});
  if (verifies) conv.conv_ring = view(Field::conv_ring, {S, T, C});
  conv.out = view(Field::conv_out, {B, T, C});
  conv.slot_ids = ints(slot_ids_, set * B, B);
  conv.stream = tensors_->stream();
  RINGFOLD_RETURN_IF_ERROR(verifies ? conv_verify(conv) : conv_decode(conv));

  VerifyArgs mixer = window_args(d, impls_.chain, set, 0);
  const auto part = [&](int64_t channel, int64_t heads, int64_t dim) {
    TensorView v(conv.out.data, conv.out.dtype, {B, T, heads, dim}, {T * C, C, dim, 1});
    v.data = static_cast<std::byte*>(v.data) + channel * static_cast<int64_t>(size_of(v.dtype));
    v.device = tensors_->device();
    return v;
  };
  mixer.window.q = part(0, d.H, d.K);
  mixer.window.k = part(d.H * d.K, d.H, d.K);
  mixer.window.v = part(2 * d.H * d.K, d.HV, d.V);
  mixer.out = view(Field::mixed, {B, T, d.HV, d.V});
  RINGFOLD_RETURN_IF_ERROR(verifies ? verify(mixer) : decode_with(mixer));

  GatedNormArgs norm;
  norm.x = view(Field::mixed, {B * T, d.HV, d.V});
  norm.z = view(Field::z, {B * T, d.HV, d.V});
  norm.weight = view(Field::norm_weight, {d.V});
  norm.out = view(Field::out, {B * T, d.HV, d.V});
  norm.stream = tensors_->stream();
  return gated_norm(norm);
}

}  // namespace ringfold::bench
