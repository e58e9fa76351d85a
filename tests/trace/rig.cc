#include "trace/rig.h"

#include <gtest/gtest.h>

namespace ringfold::test {
namespace {

using check::fill_normal;
using check::mix;
using check::pack;
using check::slice;

int64_t gate_width(const PoolConfig& c) { return c.kind == MixerKind::kda ? c.HV * c.K : c.HV; }

/// The last dimension of a packed row cut into heads: [..., C] from channel `from` on as [..., heads, dim].
TensorView heads(const TensorView& packed, int64_t from, int64_t count, int64_t dim) {
  TensorView view = packed;
  view.data = static_cast<std::byte*>(packed.data) + from * static_cast<int64_t>(size_of(packed.dtype));
  view.shape[packed.rank - 1] = count;
  view.stride[packed.rank - 1] = dim;
  view.shape[packed.rank] = dim;
  view.stride[packed.rank] = 1;
  view.rank = packed.rank + 1;
  return view;
}

/// [tokens, ...] as [B, T, ...].
TensorView dense(const TensorView& ragged, int64_t rows) {
  TensorView view = ragged;
  view.rank = ragged.rank + 1;
  for (int d = ragged.rank; d > 0; --d) {
    view.shape[d] = ragged.shape[d - 1];
    view.stride[d] = ragged.stride[d - 1];
  }
  view.shape[0] = rows;
  view.shape[1] = ragged.shape[0] / rows;
  view.stride[0] = view.shape[1] * view.stride[1];
  return view;
}

}  // namespace

TensorView StepResult::row(int64_t layer, size_t r) const {
  return slice(out[static_cast<size_t>(layer)].view(), first[r], first[r + 1] - first[r]);
}

Desc describe(const PoolConfig& pool, Op op) {
  return {.op = op,
          .device = pool.device,
          .kind = pool.kind,
          .numerics = pool.ring_u && op == Op::verify ? Numerics::fast : Numerics::exact,
          .state_rounding = pool.state_rounding,
          .fold_policy = is_layer(op) || op == Op::verify || op == Op::decode || op == Op::fold ? pool.fold_policy
                                                                                                : FoldPolicy::on_commit,
          .state_dtype = pool.state_dtype,
          .act_dtype = pool.act_dtype,
          .H = pool.H,
          .HV = pool.HV,
          .K = pool.K,
          .V = pool.V,
          .rows = pool.slots,
          .window = pool.max_window > 0 ? pool.max_window : pool.ring_rows,
          .layers = op == Op::fold || op == Op::conv_commit ? pool.layers : 1,
          .channels = 2 * pool.H * pool.K + pool.HV * pool.V,
          .conv_width = pool.conv_width,
          .history_rows = pool.fold_policy == FoldPolicy::on_commit ? 0 : pool.ring_rows,
          .ring_u = pool.ring_u && op == Op::verify,
          .ring_a = pool.ring_a};
}

Target target_of(const Pool& pool) {
  Target t;
  for (int64_t layer = 0; layer < pool.config().layers; ++layer) {
    t.state.push_back(pool.state(layer));
    t.ring.push_back(pool.ring(layer));
    t.pending.push_back(pool.pending(layer));
    t.history.push_back(pool.history(layer));
    t.owners.push_back(pool.owners(layer));
    t.conv_owners.push_back(pool.conv_owners(layer));
    t.conv_state.push_back(pool.conv_state(layer));
    t.conv_ring.push_back(pool.conv_ring(layer));
    t.conv_pending.push_back(pool.conv_pending(layer));
  }
  return t;
}

Rig::Rig(const RigConfig& config) : config_(config) {
  PoolConfig& c = config_.pool;
  channels_ = 2 * c.H * c.K + c.HV * c.V;
  c.conv_channels = config.conv ? channels_ : 0;
  const auto seed = [&](int64_t what) { return mix({static_cast<int64_t>(config.seed), what}); };
  x_ = Buffer(c.act_dtype, {c.layers, config.vocab, channels_});
  a_ = Buffer(c.ring_a.value_or(DType::f32), {c.layers, config.vocab, gate_width(c)});
  b_ = Buffer(DType::f32, {c.layers, config.vocab, c.HV});
  z_ = Buffer(c.act_dtype, {c.layers, config.vocab, c.HV * c.V});
  norm_weight_ = Buffer(DType::f32, {c.layers, c.V});
  A_log_ = Buffer(DType::f32, {c.layers, c.HV});
  dt_bias_ = Buffer(DType::f32, {c.layers, gate_width(c)});
  conv_weight_ = Buffer(c.act_dtype, {c.layers, channels_, c.conv_width});
  conv_bias_ = Buffer(c.act_dtype, {c.layers, channels_});
  fill_normal(x_.view(), seed(1));
  fill_normal(a_.view(), seed(2), 2.0f);
  fill_normal(b_.view(), seed(3), 1.5f);
  fill_normal(A_log_.view(), seed(4), 0.7f, -1.0f);
  fill_normal(dt_bias_.view(), seed(5), 0.5f);
  fill_normal(conv_weight_.view(), seed(6), 0.5f);
  fill_normal(conv_bias_.view(), seed(7), 0.1f);
  fill_normal(z_.view(), seed(8));
  fill_normal(norm_weight_.view(), seed(9), 0.3f, 1.0f);
}

std::unique_ptr<Pool> Rig::make_pool() const {
  std::unique_ptr<Pool> pool;
  const Status s = Pool::create(config_.pool, &pool);
  EXPECT_TRUE(s.ok()) << s.message();
  give_mixers(pool.get());
  return pool;
}

void Rig::give_mixers(Pool* pool) const {
  if (!config_.pool.ring_a) return;
  std::vector<Mixer> mixers;
  for (int64_t l = 0; l < layers(); ++l) mixers.push_back(mixer(l));
  const Status s = check::mirrored::set_mixers(*pool, mixers);
  EXPECT_TRUE(s.ok()) << s.message();
}

Mixer Rig::mixer(int64_t layer) const {
  const PoolConfig& c = config_.pool;
  Mixer m;
  m.kind = c.kind;
  m.A_log = A_log_.view().at(layer);
  m.dt_bias = dt_bias_.view().at(layer);
  if (c.kind == MixerKind::kda) m.dt_bias = heads(m.dt_bias, 0, c.HV, c.K);
  if (config_.safe_gate) m.lower_bound = -5.0f;
  m.qk_l2norm = c.qk_l2norm;
  return m;
}

Buffer Rig::gather(const Buffer& table, int64_t layer, const std::vector<Row>& rows) const {
  int64_t tokens = 0;
  for (const Row& row : rows) tokens += static_cast<int64_t>(row.tokens.size());
  Buffer out(table.view().dtype, {tokens, table.view().shape[2]});  // poisoned: NaN
  int64_t at = 0;
  for (const Row& row : rows) {
    for (int token : row.tokens) {
      if (token >= 0) check::copy(table.view().at(layer).at(token), out.view().at(at));
      ++at;
    }
  }
  return out;
}

Window Rig::window(const TensorView& packed, const TensorView& a, const TensorView& b) const {
  const PoolConfig& c = config_.pool;
  Window w;
  w.q = heads(packed, 0, c.H, c.K);
  w.k = heads(packed, c.H * c.K, c.H, c.K);
  w.v = heads(packed, 2 * c.H * c.K, c.HV, c.V);
  w.a = c.kind == MixerKind::kda ? heads(a, 0, c.HV, c.K) : a;
  w.b = b;
  return w;
}

StepResult Rig::step(bool decode, const Target& target, const std::vector<Row>& rows,
                     const StepOptions& options) const {
  StepResult result;
  result.first.push_back(0);
  Buffer slot_ids(DType::i32, {static_cast<int64_t>(rows.size())});
  Buffer ring_ids(DType::i32, {static_cast<int64_t>(rows.size())});
  std::vector<int32_t> ids, rings;
  for (const Row& row : rows) {
    ids.push_back(row.slot);
    rings.push_back(row.ring);
    result.first.push_back(result.first.back() + static_cast<int32_t>(row.tokens.size()));
  }
  check::set_ints(slot_ids.view(), ids);
  check::set_ints(ring_ids.view(), rings);
  const Ids both{slot_ids.view(), config_.pool.rings > 0 ? ring_ids.view() : TensorView()};
  result.out.resize(static_cast<size_t>(layers()));
  std::vector<int32_t> order = options.layers;
  for (int32_t layer = 0; options.layers.empty() && layer < layers(); ++layer) order.push_back(layer);
  for (int32_t layer : order) {
    if (config_.fused) {
      run_fused(decode, layer, target, rows, both, options, &result);
    } else {
      run_layer(decode, layer, target, rows, both, options, &result);
    }
  }
  return result;
}

void Rig::note(const Status& s, const Buffer& out, const TensorView& row_status, const StepOptions& options,
               StepResult* result) const {
  if (!s.ok() && result->status.ok()) result->status = s;
  if (result->trouble.empty()) result->trouble = out.damage();
  if (!options.with_status) return;
  const std::vector<int32_t> found = check::ints(row_status);
  if (result->row_status.empty()) result->row_status = found;
  if (result->row_status != found) result->trouble = "two layers disagree about a row";
}

void Rig::run_fused(bool decode, int64_t layer, const Target& target, const std::vector<Row>& rows, const Ids& ids,
                    const StepOptions& options, StepResult* result) const {
  const PoolConfig& c = config_.pool;
  const auto B = static_cast<int64_t>(rows.size());
  const Buffer x = gather(x_, layer, rows), a = gather(a_, layer, rows), b = gather(b_, layer, rows),
               z = gather(z_, layer, rows);
  Buffer& out = result->out[static_cast<size_t>(layer)];
  out = Buffer(config_.out_dtype, {result->first.back(), c.HV, c.V});
  const Buffer cu(DType::i32, {B + 1}), status(DType::i32, {B});
  check::set_ints(cu.view(), result->first);
  const auto shaped = [&](const TensorView& view) { return options.dense ? dense(view, B) : view; };
  LayerArgs args;
  args.mixer = mixer(layer);
  args.qkv = shaped(x.view());
  args.window.a = shaped(c.kind == MixerKind::kda ? heads(a.view(), 0, c.HV, c.K) : a.view());
  args.window.b = shaped(b.view());
  args.window.slot_ids = ids.slots;
  args.window.ring_ids = ids.rings;
  if (!options.dense) args.window.cu_seqlens = cu.view();
  args.conv_weight = conv_weight_.view().at(layer);
  args.conv_bias = conv_bias_.view().at(layer);
  args.conv_state = target.conv_state[layer];
  if (!target.conv_pending.empty()) args.conv_pending = target.conv_pending[layer];
  args.state = target.state[layer];
  if (!target.owners.empty()) args.owners = target.owners[layer], args.conv_owners = target.conv_owners[layer];
  if (!target.pending.empty()) args.pending = target.pending[layer];
  if (!target.history.empty()) args.history = target.history[layer];
  if (!decode || !args.history.empty()) args.ring = target.ring[layer];
  if (!decode) args.conv_ring = target.conv_ring[layer];
  args.z = shaped(heads(z.view(), 0, c.HV, c.V));
  args.norm_weight = norm_weight_.view().at(layer);
  args.norm_gate = c.kind == MixerKind::kda ? NormGate::sigmoid : NormGate::silu;
  args.out = shaped(out.view());
  if (options.with_status) args.row_status = status.view();
  args.state_rounding = c.state_rounding;
  args.impl = options.impl;
  note(decode ? check::mirrored::decode_layer(args) : check::mirrored::verify_layer(args), out, status.view(), options,
       result);
}

void Rig::run_layer(bool decode, int64_t layer, const Target& target, const std::vector<Row>& rows, const Ids& ids,
                    const StepOptions& options, StepResult* result) const {
  const PoolConfig& c = config_.pool;
  const auto B = static_cast<int64_t>(rows.size());
  const int64_t tokens = result->first.back();
  const Buffer x = gather(x_, layer, rows), a = gather(a_, layer, rows), b = gather(b_, layer, rows);
  const Buffer conv_out(c.act_dtype, {tokens, channels_});
  Buffer& out = result->out[static_cast<size_t>(layer)];
  out = Buffer(config_.out_dtype, {tokens, c.HV, c.V});
  const Buffer cu(DType::i32, {B + 1}), status(DType::i32, {B}), conv_status(DType::i32, {B});
  check::set_ints(cu.view(), result->first);
  const auto shaped = [&](const TensorView& view) { return options.dense ? dense(view, B) : view; };

  if (config_.conv) {
    ConvArgs conv;
    conv.x = shaped(x.view());
    conv.weight = conv_weight_.view().at(layer);
    conv.bias = conv_bias_.view().at(layer);
    conv.conv_state = target.conv_state[layer];
    if (!decode) conv.conv_ring = target.conv_ring[layer];
    conv.out = shaped(conv_out.view());
    conv.slot_ids = ids.slots;
    conv.ring_ids = ids.rings;
    if (!target.conv_owners.empty()) conv.owners = target.conv_owners[layer];
    if (!options.dense) conv.cu_seqlens = cu.view();
    if (!target.conv_pending.empty()) conv.pending = target.conv_pending[layer];
    if (options.with_status) conv.row_status = conv_status.view();
    conv.impl = options.impl;
    const Status s = decode ? check::mirrored::conv_decode(conv) : check::mirrored::conv_verify(conv);
    if (!s.ok() && result->status.ok()) result->status = s;
    if (result->trouble.empty()) result->trouble = conv_out.damage();
  }
  const TensorView packed = config_.conv ? conv_out.view() : x.view();
  Window w = window(shaped(packed), shaped(a.view()), shaped(b.view()));
  w.slot_ids = ids.slots;
  w.ring_ids = ids.rings;
  if (!options.dense) w.cu_seqlens = cu.view();

  const auto common = [&](auto& args) {
    args.mixer = mixer(layer);
    args.window = w;
    args.state = target.state[layer];
    args.out = shaped(out.view());
    if (!target.pending.empty()) args.pending = target.pending[layer];
    if (!target.history.empty()) args.history = target.history[layer];
    if (options.with_status) args.row_status = status.view();
    args.state_rounding = c.state_rounding;
    args.impl = options.impl;
  };
  Status s;
  if (decode) {
    DecodeArgs args;
    common(args);
    if (!args.history.empty()) args.ring = target.ring[layer];
    s = check::mirrored::decode(args);
  } else {
    VerifyArgs args;
    common(args);
    args.ring = target.ring[layer];
    if (!target.owners.empty()) args.owners = target.owners[layer];
    if (c.ring_u) args.numerics = Numerics::fast;
    s = check::mirrored::verify(args);
  }
  note(s, out, status.view(), options, result);
  if (options.with_status && config_.conv && check::ints(status.view()) != check::ints(conv_status.view())) {
    result->trouble = "conv and mixer disagree about a row";
  }
}

Plain::State Plain::zero() const {
  const PoolConfig& c = rig_.pool_config();
  const int64_t state = c.HV * c.V * c.K * static_cast<int64_t>(size_of(c.state_dtype));
  const int64_t conv = rig_.channels() * (c.conv_width - 1) * static_cast<int64_t>(size_of(c.act_dtype));
  return {.state = std::vector<Bytes>(static_cast<size_t>(c.layers), Bytes(static_cast<size_t>(state))),
          .conv = std::vector<Bytes>(static_cast<size_t>(c.layers), Bytes(static_cast<size_t>(conv))),
          .history = {}};
}

std::vector<Bytes> Plain::decode(State* s, const std::vector<int>& tokens, std::string_view impl) const {
  const PoolConfig& c = rig_.pool_config();
  std::vector<Bytes> out(static_cast<size_t>(c.layers));
  if (c.state_dtype != DType::f32 && c.state_rounding == StateRounding::per_commit) {
    if (!tokens.empty()) decode_group(s, tokens, impl, &out);
    return out;
  }
  for (int token : tokens) decode_group(s, {token}, impl, &out);
  return out;
}

void Plain::decode_group(State* s, const std::vector<int>& tokens, std::string_view impl,
                         std::vector<Bytes>* out) const {
  for (size_t layer = 0; layer < out->size(); ++layer) decode_layer(s, layer, tokens, impl, &(*out)[layer]);
  s->history.push_back(tokens);
}

void Plain::decode_layer(State* s, size_t layer, const std::vector<int>& tokens, std::string_view impl,
                         Bytes* out) const {
  const PoolConfig& c = rig_.pool_config();
  const auto n = static_cast<int64_t>(tokens.size());
  int32_t slot = 0;
  const TensorView slot_ids(&slot, DType::i32, {1});
  const auto rows_of = [&](const Buffer& table, Bytes* memory) {
    const TensorView all = table.view().at(static_cast<int64_t>(layer));
    for (int token : tokens) {
      const Bytes row = pack(all.at(token));
      memory->insert(memory->end(), row.begin(), row.end());
    }
    return TensorView(memory->data(), all.dtype, {1, n, all.shape[1]});
  };
  Bytes x_memory, a_memory, b_memory;
  TensorView x = rows_of(rig_.x_, &x_memory);
  Bytes conv_out(x_memory.size());
  if (rig_.config_.conv) {
    ConvArgs conv;
    conv.x = x;
    conv.weight = rig_.conv_weight_.view().at(static_cast<int64_t>(layer));
    conv.bias = rig_.conv_bias_.view().at(static_cast<int64_t>(layer));
    conv.conv_state = TensorView(s->conv[layer].data(), c.act_dtype, {1, rig_.channels(), c.conv_width - 1});
    conv.out = TensorView(conv_out.data(), c.act_dtype, {1, n, rig_.channels()});
    conv.slot_ids = slot_ids;
    conv.impl = impl;
    const Status status = conv_decode(conv);
    EXPECT_TRUE(status.ok()) << status.message();
    x = conv.out;
  }
  DecodeArgs args;
  args.mixer = rig_.mixer(static_cast<int64_t>(layer));
  args.window = rig_.window(x, rows_of(rig_.a_, &a_memory), rows_of(rig_.b_, &b_memory));
  args.window.slot_ids = slot_ids;
  args.state = TensorView(s->state[layer].data(), c.state_dtype, {1, c.HV, c.V, c.K});
  const bool fused = rig_.config_.fused;
  const DType out_dtype = rig_.config_.out_dtype, mixed = fused ? DType::f32 : out_dtype;
  Bytes o(static_cast<size_t>(n * c.HV * c.V) * size_of(mixed));
  args.out = TensorView(o.data(), mixed, {1, n, c.HV, c.V});
  args.state_rounding = c.state_rounding;
  args.impl = impl;
  const Status status = ringfold::decode(args);
  EXPECT_TRUE(status.ok()) << status.message();
  if (fused) {
    Bytes z_memory, normed(static_cast<size_t>(n * c.HV * c.V) * size_of(out_dtype));
    GatedNormArgs norm;
    norm.x = TensorView(o.data(), mixed, {n, c.HV, c.V});
    norm.z = TensorView(rows_of(rig_.z_, &z_memory).data, c.act_dtype, {n, c.HV, c.V});
    norm.weight = rig_.norm_weight_.view().at(static_cast<int64_t>(layer));
    norm.gate = c.kind == MixerKind::kda ? NormGate::sigmoid : NormGate::silu;
    norm.out = TensorView(normed.data(), out_dtype, {n, c.HV, c.V});
    norm.impl = impl;
    const Status norm_status = gated_norm(norm);
    EXPECT_TRUE(norm_status.ok()) << norm_status.message();
    o = normed;
  }
  out->insert(out->end(), o.begin(), o.end());
}

Plain::State Plain::replay(const State& s, std::string_view impl) const {
  State again = zero();
  std::vector<Bytes> out(again.state.size());
  for (const std::vector<int>& group : s.history) decode_group(&again, group, impl, &out);
  return again;
}

std::string compare_slot(const Pool& pool, int32_t id, const Plain::State& want) {
  for (int64_t layer = 0; layer < pool.config().layers; ++layer) {
    const auto where = [&](const char* what) {
      return std::string(what) + " of slot " + std::to_string(id) + ", layer " + std::to_string(layer) + " ";
    };
    if (std::string d = check::changed(pool.state(layer).at(id), want.state[layer]); !d.empty())
      return where("state") + d;
    if (pool.conv_state().empty()) continue;
    if (std::string d = check::changed(pool.conv_state(layer).at(id), want.conv[layer]); !d.empty()) {
      return where("conv window") + d;
    }
  }
  return "";
}

}  // namespace ringfold::test
