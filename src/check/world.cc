#include "check/world.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ringfold::check {
namespace {

oracle::Doubles doubles(const TensorView& view) {
  const std::vector<float> values = floats(view);
  return {values.begin(), values.end()};
}

std::vector<int64_t> with_channels(const Config& c, std::vector<int64_t> shape) {
  if (c.gate != Gate::gdn) shape.push_back(c.K);
  return shape;
}

Buffer::Pitch pitch_of(const Config& c) {
  return c.layout == Layout::strided ? Buffer::Pitch::padded : Buffer::Pitch::packed;
}

}  // namespace

std::vector<int32_t> rings_of(const Config& config, const std::vector<int32_t>& slots) {
  std::vector<int32_t> rings;
  for (const int32_t slot : slots) rings.push_back(ring_of(config, slot));
  return rings;
}

TensorView rings_by_slot(const Config& config, const TensorView& rings, int d) {
  TensorView view = rings;
  if (!config.by_row) return view;
  const int64_t last = (view.shape[d] - 1) * view.stride[d];
  view.data = static_cast<std::byte*>(view.data) + last * static_cast<int64_t>(size_of(view.dtype));
  view.stride[d] = -view.stride[d];
  return view;
}

OwnerBuffers::OwnerBuffers(const Config& c, int64_t slots, int64_t layers) {
  if (!c.by_row) return;
  const std::vector<int64_t> shape = layers > 0 ? std::vector{layers, slots} : std::vector{slots};
  slot_of_ring = Buffer(DType::i32, shape, pitch_of(c));
  ring_of_slot = Buffer(DType::i32, shape, pitch_of(c));
}

RingOwners OwnerBuffers::views() const { return {slot_of_ring.view(), ring_of_slot.view()}; }

RingOwners OwnerBuffers::views(int64_t layer) const {
  RingOwners all = views();
  if (!all.empty()) all = {all.slot_of_ring.at(layer), all.ring_of_slot.at(layer)};
  return all;
}

void OwnerBuffers::intact(Judge& judge) const {
  if (views().empty()) return;
  judge.intact(slot_of_ring, "slot of ring");
  judge.intact(ring_of_slot, "ring of slot");
}

Params::Params(const Config& c, int64_t layer) : config_(c) {
  A_log = Buffer(DType::f32, {c.HV});
  dt_bias = Buffer(DType::f32, with_channels(c, {c.HV}), pitch_of(c));
  Rng rng(mix({static_cast<int64_t>(c.seed), 1, layer}));
  fill(A_log.view(), [&] { return rng.uniform(-1.5f, 2.7f); });  // rates 0.2 .. 15, as trained models have
  fill(dt_bias.view(), [&] { return rng.uniform(-3.0f, 1.0f); });
  if (c.strong_gate) {  // decays of 1, of 0 and of all between, side by side
    int n = 0;
    fill(dt_bias.view(), [&] { return n++ % 3 == 0 ? -40.0f : n % 3 == 0 ? 60.0f : rng.uniform(-3.0f, 1.0f); });
  }
  if (c.gate == Gate::kda_safe) lower_bound = -5.0f;
  if (c.gate != Gate::kda_safe && c.seed % 3 == 2) {
    softplus_beta = 1.5f;
    softplus_threshold = 2.0f;  // low, so that both branches are taken
  }
}

Mixer Params::mixer() const {
  Mixer m;
  m.kind = config_.gate == Gate::gdn ? MixerKind::gdn : MixerKind::kda;
  m.A_log = A_log.view();
  m.dt_bias = dt_bias.view();
  m.softplus_beta = softplus_beta;
  m.softplus_threshold = softplus_threshold;
  m.lower_bound = lower_bound;
  m.qk_l2norm = config_.qk_l2norm;
  if (config_.seed % 5 == 3) m.scale = 0.3125f;
  return m;
}

oracle::Layer Params::oracle_layer() const {
  const Mixer m = mixer();
  oracle::Layer layer;
  layer.kind = m.kind;
  layer.H = config_.H, layer.HV = config_.HV, layer.K = config_.K, layer.V = config_.V;
  layer.A_log = doubles(A_log.view());
  layer.dt_bias = doubles(dt_bias.view());
  layer.softplus_beta = m.softplus_beta;
  layer.softplus_threshold = m.softplus_threshold;
  if (m.lower_bound) layer.lower_bound = *m.lower_bound;
  if (m.scale) layer.scale = *m.scale;
  layer.qk_l2norm = m.qk_l2norm;
  return layer;
}

Sequence::Sequence(const Config& c, int64_t n, int64_t layer, int64_t stream) : tokens(n) {
  q = Buffer(c.act, {n, c.H, c.K});
  k = Buffer(c.act, {n, c.H, c.K});
  v = Buffer(c.act, {n, c.HV, c.V});
  a = Buffer(c.gates, with_channels(c, {n, c.HV}));
  b = Buffer(c.gates, {n, c.HV});
  const auto seed = [&](int64_t what) { return mix({static_cast<int64_t>(c.seed), 2, layer, stream, what}); };
  // Without l2norm the keys come short enough for the delta rule to contract (|k| about 1).
  const float sigma = c.qk_l2norm ? 1.0f : 0.8f / std::sqrt(static_cast<float>(c.K));
  fill_normal(q.view(), seed(0), sigma);
  fill_normal(k.view(), seed(1), sigma);
  fill_normal(v.view(), seed(2));
  fill_normal(a.view(), seed(3), 1.5f);
  fill_normal(b.view(), seed(4), 2.0f);
}

oracle::Token Sequence::token(int64_t t) const {
  return {doubles(q.view().at(t)), doubles(k.view().at(t)), doubles(v.view().at(t)), doubles(a.view().at(t)),
          doubles(b.view().at(t))};
}

Batch::Batch(const Config& c, Layout layout, std::vector<Row> rows, std::optional<DType> out_dtype)
    : config_(c), layout_(layout), rows_(std::move(rows)) {
  const auto B = static_cast<int64_t>(rows_.size());
  std::vector<int32_t> slot_ids, cu_seqlens{0};
  for (const Row& row : rows_) {
    first_token_.push_back(tokens_);
    tokens_ += row.count;
    slot_ids.push_back(row.slot);
    cu_seqlens.push_back(static_cast<int32_t>(tokens_));
    if (layout != Layout::ragged && row.count != rows_[0].count)
      throw Failure{"kit: rows of a dense batch differ in length"};
  }
  place_inputs();

  const bool ragged = layout == Layout::ragged, strided = layout == Layout::strided;
  std::vector<int64_t> shape =
      ragged ? std::vector<int64_t>{tokens_} : std::vector<int64_t>{B, B == 0 ? 0 : rows_[0].count};
  shape.insert(shape.end(), {c.HV, c.V});
  buffers_.emplace_back(out_dtype.value_or(c.act), shape, strided ? Buffer::Pitch::padded : Buffer::Pitch::packed);
  out = buffers_.back().view();

  RowBuffers ids(slot_ids, strided);
  buffers_.push_back(std::move(ids.buffer));
  window.slot_ids = ids.view;
  if (c.by_row) {
    RowBuffers rings(rings_of(c, slot_ids), strided);
    buffers_.push_back(std::move(rings.buffer));
    window.ring_ids = rings.view;
  }
  RowBuffers statuses(std::vector<int32_t>(slot_ids.size(), 77), strided);
  buffers_.push_back(std::move(statuses.buffer));
  row_status = statuses.view;
  if (ragged) {
    RowBuffers bounds(cu_seqlens);
    buffers_.push_back(std::move(bounds.buffer));
    window.cu_seqlens = bounds.view;
    for (const Row& row : rows_) {  // half of the configs say how long their rows are at most
      if (c.seed % 2 == 0) window.max_window = std::max(window.max_window, row.count);
    }
  }
}

void Batch::place_inputs() {
  const Config& c = config_;
  const bool kda = c.gate != Gate::gdn;
  const int64_t qk = c.H * c.K, vs = c.HV * c.V, as = c.HV * (kda ? c.K : 1), bs = c.HV;
  struct Part {
    TensorView* view;
    DType dtype;
    int64_t width;
    std::vector<int64_t> inner;
    const Buffer Sequence::*source;
  };
  std::vector<int64_t> a_inner{c.HV};
  if (kda) a_inner.push_back(c.K);
  const Part parts[] = {{&window.q, c.act, qk, {c.H, c.K}, &Sequence::q},
                        {&window.k, c.act, qk, {c.H, c.K}, &Sequence::k},
                        {&window.v, c.act, vs, {c.HV, c.V}, &Sequence::v},
                        {&window.a, c.gates, as, a_inner, &Sequence::a},
                        {&window.b, c.gates, bs, {c.HV}, &Sequence::b}};
  const auto B = static_cast<int64_t>(rows_.size());
  const bool strided = layout_ == Layout::strided;
  // Strided: act tensors share one packed row per token, a and b another, with gaps of NaN between them.
  const int64_t gap = 3;
  const int64_t act_row = 2 * qk + vs + 4 * gap, gate_row = as + bs + 3 * gap;
  if (strided) {
    buffers_.emplace_back((tokens_ * act_row + 1) * static_cast<int64_t>(size_of(c.act)), c.act);
    buffers_.emplace_back((tokens_ * gate_row + 1) * static_cast<int64_t>(size_of(c.gates)), c.gates);
  }
  int64_t act_at = gap, gate_at = gap;
  for (const Part& part : parts) {
    TensorView flat;
    std::vector<int64_t> shape{tokens_}, stride;
    shape.insert(shape.end(), part.inner.begin(), part.inner.end());
    if (!strided) {
      buffers_.emplace_back(part.dtype, shape);
      flat = buffers_.back().view();
    } else {
      const bool gates = part.view == &window.a || part.view == &window.b;
      int64_t& at = gates ? gate_at : act_at;
      stride = strides_of(shape, 0);
      stride[0] = gates ? gate_row : act_row;
      flat = buffers_[gates ? 1 : 0].carve(part.dtype, shape, stride, at * static_cast<int64_t>(size_of(part.dtype)));
      at += part.width + gap;
    }
    for (size_t r = 0; r < rows_.size(); ++r) {
      const Row& row = rows_[r];
      if (row.sequence == nullptr || row.count == 0) continue;
      copy(slice((row.sequence->*part.source).view(), row.first, row.count), slice(flat, first_token_[r], row.count));
    }
    *part.view = flat;
    if (layout_ == Layout::ragged) continue;
    std::vector<int64_t> dense{B, B == 0 ? 0 : rows_[0].count}, dense_stride{flat.stride[0] * dense[1], flat.stride[0]};
    for (int d = 1; d < flat.rank; ++d) {
      dense.push_back(flat.shape[d]);
      dense_stride.push_back(flat.stride[d]);
    }
    *part.view = make_view(flat.data, part.dtype, dense, dense_stride);
  }
}

TensorView Batch::out_tokens() const {
  if (layout_ == Layout::ragged) return out;
  if (layout_ == Layout::dense) return merge(out, 0, 2);
  throw Failure{"kit: a strided output has no token dimension"};
}

TensorView Batch::out_row(size_t row) const {
  return layout_ == Layout::ragged ? slice(out, first_token_[row], rows_[row].count)
                                   : out.at(static_cast<int64_t>(row));
}

TensorView Batch::snapshot(size_t row, int64_t t) const {
  return layout_ == Layout::ragged ? snapshots.at(first_token_[row] + t)
                                   : snapshots.at(static_cast<int64_t>(row)).at(t);
}

void Batch::want_snapshots() {
  std::vector<int64_t> shape(out.shape.begin(), out.shape.begin() + out.rank);
  shape.push_back(config_.K);
  buffers_.emplace_back(config_.state, shape,
                        layout_ == Layout::strided ? Buffer::Pitch::padded : Buffer::Pitch::packed);
  snapshots = buffers_.back().view();
}

void Batch::guards(Judge& judge) const {
  for (size_t i = 0; i < buffers_.size(); ++i) judge.intact(buffers_[i], "batch buffer " + std::to_string(i));
}

Store::Store(const Config& c, int64_t num_slots, int64_t rows)
    : config_(c), slots_(num_slots), ring_rows_(rows), owners_(c, num_slots, c.layers) {
  const auto pitch = pitch_of(c);
  const int64_t L = c.layers;
  state_ = Buffer(c.state, {L, slots_, c.HV, c.V, c.K}, pitch);
  pending_ = Buffer(DType::i32, {L, slots_}, pitch);
  if (c.policy != FoldPolicy::on_commit) {
    for (Buffer* cursor : {&base_, &live_, &cuts_}) *cursor = Buffer(DType::i32, {L, slots_}, pitch);
    logical_ = Buffer(c.state, {L, slots_, c.HV, c.V, c.K});
  }
  ring_beta_ = Buffer(DType::f32, {L, slots_, rows, c.HV}, pitch);
  ring_gate_ = Buffer(c.ring_a ? c.gates : DType::f32, with_channels(c, {L, slots_, rows, c.HV}), pitch);
  if (c.ring_u) ring_u_ = Buffer(DType::f32, {L, slots_, rows, c.HV, c.V}, pitch);
  ring_beta_view_ = ring_beta_.view();
  ring_gate_view_ = ring_gate_.view();
  if (c.layout == Layout::strided) {  // heads outside rows in memory, as some engines keep them
    ring_k_ = Buffer(c.act, {L, slots_, c.H, rows, c.K}, pitch);
    ring_v_ = Buffer(c.act, {L, slots_, c.HV, rows, c.V}, pitch);
    ring_k_view_ = ring_k_.view().permute({0, 1, 3, 2, 4});
    ring_v_view_ = ring_v_.view().permute({0, 1, 3, 2, 4});
  } else {
    ring_k_ = Buffer(c.act, {L, slots_, rows, c.H, c.K}, pitch);
    ring_v_ = Buffer(c.act, {L, slots_, rows, c.HV, c.V}, pitch);
    ring_k_view_ = ring_k_.view();
    ring_v_view_ = ring_v_.view();
  }
  fill({});
}

void Store::fill(const std::vector<int32_t>& used, int64_t stream) {
  for (Buffer* buffer : {&state_, &ring_k_, &ring_v_, &ring_gate_, &ring_beta_}) buffer->poison();
  if (config_.ring_u) ring_u_.poison();
  for (int64_t l = 0; l < config_.layers; ++l) {
    for (int32_t slot : used) {
      fill_normal(state(l, slot), mix({static_cast<int64_t>(config_.seed), 3, stream, l, slot}), 0.5f);
    }
  }
  set_ints(pending(), std::vector<int32_t>(static_cast<size_t>(pending().elements()), kNoWindow));
  if (config_.policy == FoldPolicy::on_commit) return;
  for (Buffer* cursor : {&base_, &live_, &cuts_}) fill_zero(cursor->view());
  copy(state(), logical_.view());
}

Ring Store::ring() const {
  Ring by_slot = ring_argument();
  for (TensorView* view : {&by_slot.k, &by_slot.v, &by_slot.g, &by_slot.a, &by_slot.beta, &by_slot.u}) {
    if (!view->empty()) *view = rings_by_slot(config_, *view, 1);
  }
  return by_slot;
}

namespace {

Ring layer_of(const Ring& all, int64_t layer) {
  Ring ring = all;
  for (TensorView* view : {&ring.k, &ring.v, &ring.g, &ring.a, &ring.beta, &ring.u}) {
    if (!view->empty()) *view = view->at(layer);
  }
  return ring;
}

}  // namespace

Ring Store::ring(int64_t layer) const { return layer_of(ring(), layer); }
Ring Store::ring_argument(int64_t layer) const { return layer_of(ring_argument(), layer); }

Ring Store::ring_argument() const {
  Ring ring;
  ring.k = ring_k_view_, ring.v = ring_v_view_, ring.beta = ring_beta_view_;
  (config_.ring_a ? ring.a : ring.g) = ring_gate_view_;
  if (config_.ring_u) ring.u = ring_u_.view();
  return ring;
}

Ring Store::ring_row(int64_t layer, int64_t slot, int64_t t) const {
  const Ring all = ring(layer);
  const Cursors at = cursors(layer, slot);
  const int64_t row = (at.base + at.live + t) % ring_rows_;
  const auto one = [&](const TensorView& view) { return view.at(slot).at(row); };
  Ring ring;
  ring.k = one(all.k), ring.v = one(all.v), ring.beta = one(all.beta);
  (config_.ring_a ? ring.a : ring.g) = one(gate_of(all));
  return ring;
}

void Store::copy_from(const Store& other) {
  const auto from = other.memory(), to = memory();
  for (size_t i = 0; i < from.size(); ++i) copy(from[i].second, to[i].second);
  if (config_.policy != FoldPolicy::on_commit) copy(other.logical_.view(), logical_.view());
}

void Store::guards(Judge& judge) const {
  judge.intact(state_, "state buffer");
  judge.intact(ring_k_, "ring k buffer");
  judge.intact(ring_v_, "ring v buffer");
  judge.intact(ring_gate_, "ring gate buffer");
  judge.intact(ring_beta_, "ring beta buffer");
  judge.intact(pending_, "pending buffer");
  owners_.intact(judge);
  if (config_.ring_u) judge.intact(ring_u_, "ring u buffer");
  if (config_.policy == FoldPolicy::on_commit) return;
  for (const Buffer* cursor : {&base_, &live_, &cuts_}) judge.intact(*cursor, "history cursors");
}

RowBuffers::RowBuffers(const std::vector<int32_t>& values, bool strided) {
  const auto n = static_cast<int64_t>(values.size());
  const int64_t step = strided ? 3 : 1;
  buffer = Buffer(4 * std::max<int64_t>(n * step, 1), DType::i32);
  view = buffer.carve(DType::i32, {n}, {step}, 0);
  set_ints(view, values);
}

World::World(const Config& c, std::string_view name) : config(c), impl(name) {
  num_slots = slots_of(c);
  Rng rng(mix({static_cast<int64_t>(c.seed), 4}));
  slots = rng.permutation(num_slots);
  // Real work on slot 0 and on the last slot: move both among the first `rows` entries.
  const auto bring = [&](int32_t slot, size_t place) {
    std::swap(*std::find(slots.begin(), slots.end(), slot), slots[place]);
  };
  const auto last = static_cast<int32_t>(num_slots - 1);
  bring(c.seed % 2 == 0 || c.rows > 1 ? 0 : last, 0);
  if (c.rows > 1) bring(last, static_cast<size_t>(c.rows - 1));
  slots.resize(static_cast<size_t>(c.rows));
  for (int64_t r = 0; r < c.rows; ++r) {
    const bool whole = c.layout != Layout::ragged || r == 0;
    lengths.push_back(whole ? c.window : r == 2 ? 0 : 1 + rng.below(c.window));
  }
  for (int64_t l = 0; l < c.layers; ++l) {
    params.emplace_back(c, l);
    sequences.emplace_back();
    for (int64_t r = 0; r < c.rows; ++r) sequences.back().emplace_back(c, c.window, l, r);
  }
  if (!c.ring_a) return;
  A_log_ = Buffer(DType::f32, {c.layers, c.HV}, pitch_of(c));
  dt_bias_ = Buffer(DType::f32, {c.layers, c.HV, c.K}, pitch_of(c));
  for (int64_t l = 0; l < c.layers; ++l) {
    copy(params[l].A_log.view(), A_log_.view().at(l));
    copy(params[l].dt_bias.view(), dt_bias_.view().at(l));
  }
}

Mixer World::gates(int64_t layers) const {
  Mixer mixer = params[0].mixer();
  mixer.A_log = slice(A_log_.view(), 0, layers), mixer.dt_bias = slice(dt_bias_.view(), 0, layers);
  return mixer;
}

bool World::takes_snapshots() const {
  Desc desc = describe(config, Op::verify, device_of(impl));
  desc.snapshots = true;
  Explanation explanation;
  return explain(desc, impl, &explanation).ok();
}

std::vector<Row> World::rows(int64_t layer) const {
  std::vector<Row> all;
  for (size_t r = 0; r < slots.size(); ++r) all.push_back({&sequences[layer][r], 0, lengths[r], slots[r]});
  return all;
}

VerifyArgs World::verify_args(const Store& store, int64_t layer, Batch& batch) const {
  VerifyArgs args;
  args.mixer = params[layer].mixer();
  args.window = batch.window;
  args.state = store.state(layer);
  args.out = batch.out;
  args.ring = store.ring_argument(layer);
  args.owners = store.owners(layer);
  args.snapshots = batch.snapshots;
  args.pending = store.pending(layer);
  args.history = store.history(layer);
  args.row_status = batch.row_status;
  args.state_rounding = config.rounding;
  args.impl = impl;
  return args;
}

DecodeArgs World::decode_args(const Store& store, int64_t layer, Batch& batch) const {
  DecodeArgs args;
  args.mixer = params[layer].mixer();
  args.window = batch.window;
  args.state = store.state(layer);
  args.out = batch.out;
  args.pending = store.pending(layer);
  args.history = store.history(layer);
  if (!args.history.empty()) args.ring = store.ring_argument(layer);
  args.row_status = batch.row_status;
  args.state_rounding = config.rounding;
  args.impl = impl;
  return args;
}

FoldArgs World::fold_args(const Store& store, const RowBuffers& slot_ids, const RowBuffers& accepted) const {
  FoldArgs args;
  args.qk_l2norm = config.qk_l2norm;
  if (config.ring_a) args.mixer = gates(store.state().shape[0]);
  args.state = store.state();
  args.ring = store.ring_argument();
  args.owners = store.owners();
  args.slot_ids = slot_ids.view;
  if (config.by_row) {
    args.ring_ids = ring_ids_.emplace_back(rings_of(config, ints(slot_ids.view))).view;
  }
  args.num_accepted = accepted.view;
  args.pending = store.pending();
  args.history = store.history();
  args.state_rounding = config.rounding;
  args.impl = impl;
  return args;
}

void World::verify(Judge& judge, const Store& store, int64_t layer, Batch& batch) const {
  judge.ok(mirrored::verify(verify_args(store, layer, batch)), "verify");
  judge.rows(batch.row_status, std::vector<RowStatus>(batch.rows().size(), RowStatus::done), "verify");
  batch.guards(judge);
  store.guards(judge);
}

void World::decode(Judge& judge, const Store& store, int64_t layer, Batch& batch) const {
  judge.ok(mirrored::decode(decode_args(store, layer, batch)), "decode");
  judge.rows(batch.row_status, std::vector<RowStatus>(batch.rows().size(), RowStatus::done), "decode");
  batch.guards(judge);
  store.guards(judge);
}

void World::fold(Judge& judge, const Store& store, const std::vector<int32_t>& slot_ids,
                 const std::vector<int32_t>& counts) const {
  const bool strided = config.layout == Layout::strided;
  const RowBuffers ids(slot_ids, strided), accepted(counts, strided);
  judge.ok(mirrored::fold(fold_args(store, ids, accepted)), "fold");
  store.guards(judge);
}

Buffer World::decoded_state(Judge& judge, const Store& start, int64_t layer, size_t row, int64_t n) const {
  Config one = config;
  one.layout = Layout::dense;
  one.layers = 1;
  one.policy = FoldPolicy::on_commit;
  one.by_row = false;
  Store own(one, 1, 1);
  own.fill({0});
  copy(start.logical(layer, slots[row]), own.state(0, 0));
  const int64_t step = grouping_matters() ? n : 1;
  for (int64_t t = 0; t < n; t += step) {
    Batch batch(one, Layout::dense, {{&sequences[layer][row], t, step, 0}});
    DecodeArgs args = decode_args(own, 0, batch);
    args.mixer = params[layer].mixer();
    judge.ok(mirrored::decode(args), "decode");
  }
  Buffer result(config.state, {config.HV, config.V, config.K});
  copy(own.state(0, 0), result.view());
  return result;
}

std::string World::where(int64_t layer, int64_t row, int64_t token) {
  std::string text = "layer " + std::to_string(layer) + " row " + std::to_string(row);
  if (token >= 0) text += " token " + std::to_string(token);
  return text;
}

}  // namespace ringfold::check
