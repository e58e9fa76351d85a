#include "check/layer_world.h"

#include <algorithm>
#include <type_traits>

namespace ringfold::check {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

Config one_layer(Config c) {
  c.layers = 1;
  return c;
}

Buffer::Pitch pitch_of(const Config& c) {
  return c.layout == Layout::strided ? Buffer::Pitch::padded : Buffer::Pitch::packed;
}

/// Channels first .. first + heads*dim - 1 of [.., C] as [.., heads, dim].
TensorView heads_of(const TensorView& packed, int64_t first, int64_t heads, int64_t dim) {
  TensorView view = packed;
  view.data = static_cast<std::byte*>(packed.data) + first * static_cast<int64_t>(size_of(packed.dtype));
  view.shape[packed.rank - 1] = heads, view.stride[packed.rank - 1] = dim;
  view.shape[packed.rank] = dim, view.stride[packed.rank] = 1;
  ++view.rank;
  return view;
}

/// q, k and v as views of packed channels.
void split(const Config& c, const TensorView& packed, Window* window) {
  window->q = heads_of(packed, 0, c.H, c.K);
  window->k = heads_of(packed, c.H * c.K, c.H, c.K);
  window->v = heads_of(packed, 2 * c.H * c.K, c.HV, c.V);
}

}  // namespace

LayerWorld::LayerWorld(const Config& config, std::string_view impl) : world(one_layer(config), impl) {
  const Config& c = world.config;
  const auto seed = static_cast<int64_t>(c.seed);
  C = 2 * c.H * c.K + c.HV * c.V;
  W = kMinConvWidth + seed % 3;
  silu = seed % 4 != 3;
  norm_gate = seed % 2 == 0 ? NormGate::sigmoid : NormGate::silu;
  norm_eps = seed % 5 == 2 ? 1e-3f : 1e-6f;
  mixer_out = seed / 2 % 2 == 0 ? DType::f32 : c.act;
  out = kFloats[seed / 3 % 3];
  conv_weight = Buffer(c.gates, {C, W}, pitch_of(c));
  conv_bias = Buffer(c.gates, {C});
  norm_weight = Buffer(kFloats[seed % 3], {c.V});
  fill_normal(conv_weight.view(), mix({seed, 60}), 0.5f);
  fill_normal(conv_bias.view(), mix({seed, 61}), 0.5f);
  fill_normal(norm_weight.view(), mix({seed, 62}), 0.3f, 1.0f);
  for (int64_t r = 0; r < c.rows; ++r) {
    z.emplace_back(kFloats[(seed + 1) % 3], std::vector<int64_t>{c.window, c.HV, c.V});
    fill_normal(z.back().view(), mix({seed, 63, r}), 1.5f);
  }
}

LayerWorld::Memory LayerWorld::make_memory() const {
  const Config& c = world.config;
  const int64_t rows = std::min<int64_t>(c.window + 1, kMaxWindow);
  Memory m{world.make_store(), {}, {}, {}, {}, {}, {}, {}, OwnerBuffers(c, world.num_slots), c};
  if (c.layout == Layout::strided) {  // time outside channels in memory
    m.conv_state_buffer = Buffer(c.act, {world.num_slots, W - 1, C}, pitch_of(c));
    m.conv_state = m.conv_state_buffer.view().permute({0, 2, 1});
  } else {
    m.conv_state_buffer = Buffer(c.act, {world.num_slots, C, W - 1});
    m.conv_state = m.conv_state_buffer.view();
  }
  m.conv_ring_buffer = Buffer(c.act, {world.num_slots, rows, C}, pitch_of(c));
  m.conv_ring_argument = m.conv_ring_buffer.view();
  m.conv_ring = rings_by_slot(c, m.conv_ring_argument, 0);
  m.conv_pending_buffer = Buffer(DType::i32, {world.num_slots}, pitch_of(c));
  m.conv_pending = m.conv_pending_buffer.view();
  set_ints(m.conv_pending, std::vector<int32_t>(static_cast<size_t>(world.num_slots), kNoWindow));
  for (int32_t slot : world.slots) {
    fill_normal(m.conv_state.at(slot), mix({static_cast<int64_t>(c.seed), 64, slot}));
  }
  return m;
}

std::vector<std::pair<const char*, TensorView>> LayerWorld::Memory::all() const {
  auto views = store.memory();
  views.insert(views.end(), {{" conv state", conv_state}, {" conv ring", conv_ring}, {" conv pending", conv_pending}});
  if (const RingOwners o = conv_owners.views(); !o.empty()) {
    views.insert(views.end(), {{" conv slot of ring", rings_by_slot(config, o.slot_of_ring, 0)},
                               {" conv ring of slot", o.ring_of_slot}});
  }
  return views;
}

void LayerWorld::Memory::guards(Judge& judge) const {
  store.guards(judge);
  judge.intact(conv_state_buffer, "conv state buffer");
  judge.intact(conv_ring_buffer, "conv ring buffer");
  judge.intact(conv_pending_buffer, "conv pending buffer");
  conv_owners.intact(judge);
}

void LayerWorld::Call::guards(Judge& judge) const {
  batch.guards(judge);
  judge.intact(qkv, "projections buffer");
  judge.intact(z, "gate buffer");
}

LayerWorld::Call LayerWorld::call(std::vector<Row> rows) const {
  const Config& c = world.config;
  Call result{Batch(c, c.layout, std::move(rows), out), {}, {}, c.seed % 3 != 0};
  const Window& w = result.batch.window;
  std::vector<int64_t> shape(w.v.shape.begin(), w.v.shape.begin() + w.v.rank - 2);
  const auto lead = shape.size();
  shape.insert(shape.end(), {c.HV, c.V});
  result.z = Buffer(z.empty() ? DType::f32 : z[0].view().dtype, shape, pitch_of(c));
  for (size_t r = 0; r < result.batch.rows().size(); ++r) {
    const Row& row = result.batch.rows()[r];
    if (row.sequence == nullptr || row.count == 0) continue;
    const TensorView to = lead == 1 ? slice(result.z.view(), result.batch.first_token(r), row.count)
                                    : result.z.view().at(static_cast<int64_t>(r));
    copy(slice(z[r % z.size()].view(), row.first, row.count), to);
  }
  shape.resize(lead);
  shape.push_back(C);
  result.qkv = Buffer(c.act, shape, pitch_of(c));
  Window packed;
  split(c, result.qkv.view(), &packed);
  copy(w.q, packed.q);
  copy(w.k, packed.k);
  copy(w.v, packed.v);
  return result;
}

LayerArgs LayerWorld::args(const Memory& memory, Call& call) const {
  LayerArgs a;
  a.mixer = world.params[0].mixer();
  a.window = call.batch.window;
  if (call.packed) {
    a.qkv = call.qkv.view();
    a.window.q = a.window.k = a.window.v = {};
  }
  a.conv_weight = conv_weight.view();
  if (has_bias()) a.conv_bias = conv_bias.view();
  a.conv_silu = silu;
  a.conv_state = memory.conv_state;
  a.conv_ring = memory.conv_ring_argument;
  a.conv_pending = memory.conv_pending;
  a.conv_owners = memory.conv_owners.views();
  a.owners = memory.store.owners(0);
  a.state = memory.store.state(0);
  a.ring = memory.store.ring_argument(0);
  a.pending = memory.store.pending(0);
  a.history = memory.store.history(0);
  a.z = call.z.view();
  a.norm_weight = norm_weight.view();
  a.norm_gate = norm_gate;
  a.norm_eps = norm_eps;
  a.mixer_out = mixer_out;
  a.out = call.batch.out;
  a.row_status = call.batch.row_status;
  a.state_rounding = world.config.rounding;
  a.impl = world.impl;
  return a;
}

void LayerWorld::verify(Judge& judge, const Memory& memory, Call& call) const {
  judge.ok(mirrored::verify_layer(args(memory, call)), "verify_layer");
  memory.guards(judge);
  call.guards(judge);
}

void LayerWorld::decode(Judge& judge, const Memory& memory, Call& call) const {
  judge.ok(mirrored::decode_layer(args(memory, call)), "decode_layer");
  memory.guards(judge);
  call.guards(judge);
}

Buffer LayerWorld::chain(Judge& judge, bool decodes, const Memory& memory, const Call& call) const {
  const Config& c = world.config;
  const Window& w = call.batch.window;
  const std::vector<int64_t> lead(w.v.shape.begin(), w.v.shape.begin() + w.v.rank - 2);
  int64_t tokens = 1;
  for (const int64_t n : lead) tokens *= n;
  const auto shaped = [&](std::vector<int64_t> inner) {
    inner.insert(inner.begin(), lead.begin(), lead.end());
    return inner;
  };
  const RowBuffers conv_status(std::vector<int32_t>(call.batch.rows().size(), 77));
  const RowBuffers status(std::vector<int32_t>(call.batch.rows().size(), 77));
  const std::vector<RowStatus> done(call.batch.rows().size(), RowStatus::done);

  const Buffer y(c.act, shaped({C}));
  ConvArgs conv;
  conv.x = call.qkv.view();
  conv.weight = conv_weight.view();
  if (has_bias()) conv.bias = conv_bias.view();
  conv.silu = silu;
  conv.conv_state = memory.conv_state;
  conv.conv_ring = memory.conv_ring_argument;
  conv.pending = memory.conv_pending;
  conv.owners = memory.conv_owners.views();
  conv.ring_ids = w.ring_ids;
  conv.out = y.view();
  conv.slot_ids = w.slot_ids;
  conv.cu_seqlens = w.cu_seqlens;
  conv.row_status = conv_status.view;
  conv.impl = world.impl;
  judge.ok(decodes ? mirrored::conv_decode(conv) : mirrored::conv_verify(conv), "conv of the chain");
  judge.rows(conv_status.view, done, "conv of the chain");

  const Buffer mixed(mixer_out, shaped({c.HV, c.V}));
  const auto mix_args = [&](auto a) {
    a.mixer = world.params[0].mixer();
    a.window = w;
    split(c, y.view(), &a.window);
    a.state = memory.store.state(0);
    a.ring = memory.store.ring_argument(0);
    if constexpr (std::is_same_v<decltype(a), VerifyArgs>) a.owners = memory.store.owners(0);
    a.pending = memory.store.pending(0);
    a.history = memory.store.history(0);
    a.out = mixed.view();
    a.row_status = status.view;
    a.state_rounding = c.rounding;
    a.impl = world.impl;
    return a;
  };
  judge.ok(decodes ? mirrored::decode(mix_args(DecodeArgs())) : mirrored::verify(mix_args(VerifyArgs())),
           "mixer of the chain");
  judge.rows(status.view, done, "mixer of the chain");

  Buffer result(out, {tokens, c.HV, c.V});
  const Buffer gate(call.z.view().dtype, shaped({c.HV, c.V}));
  copy(call.z.view(), gate.view());
  const auto flat = [&](const Buffer& b) {
    const std::vector<int64_t> shape{tokens, c.HV, c.V};
    return make_view(b.view().data, b.view().dtype, shape, strides_of(shape, 0));
  };
  GatedNormArgs norm;
  norm.x = flat(mixed);
  norm.z = flat(gate);
  norm.weight = norm_weight.view();
  norm.gate = norm_gate;
  norm.eps = norm_eps;
  norm.out = result.view();
  norm.impl = world.impl;
  judge.ok(mirrored::gated_norm(norm), "norm of the chain");
  return result;
}

void LayerWorld::commit(Judge& judge, const Memory& memory, const std::vector<int32_t>& counts, bool later) const {
  std::vector<int32_t> folded, folded_counts;
  for (size_t r = 0; r < world.slots.size(); ++r) {
    if (later && world.has_history() && memory.store.accept(0, world.slots[r], counts[r])) continue;
    folded.push_back(world.slots[r]);
    folded_counts.push_back(counts[r]);
  }
  if (!folded.empty()) world.fold(judge, memory.store, folded, folded_counts);
  const RowBuffers ids(world.slots), accepted(counts), rings(rings_of(world.config, world.slots));
  ConvCommitArgs a;
  a.conv_state = memory.conv_state;
  a.conv_ring = memory.conv_ring_argument;
  a.slot_ids = ids.view;
  if (world.config.by_row) a.ring_ids = rings.view;
  a.num_accepted = accepted.view;
  a.impl = world.impl;
  judge.ok(mirrored::conv_commit(a), "conv_commit");
  memory.guards(judge);
}

}  // namespace ringfold::check
