#include "bench/pool_rig.h"

#include <fmt/format.h>

#include <cstring>

#include "bench/check_case.h"
#include "core/check_view.h"
#include "dispatch/select.h"

namespace ringfold::bench {
namespace {

constexpr int64_t kMostDrawn = 1'000'003;  // an odd number, so that no two rows are the same

}  // namespace

PoolRig::PoolRig(const Case& c, const Impls& impls, int64_t sets, Device device, void* stream)
    : case_(c),
      impls_(impls),
      sets_(sets),
      device_(device),
      stream_(stream),
      slot_ids_(device, stream),
      accepted_(device, stream) {
  layout_.desc = c.desc;
  layout_.layers = c.layers();
  layout_.sets = sets;
  for (int f = 0; f < kFields; ++f) fields_.emplace_back(device, stream);
}

int64_t PoolRig::period() const {
  const Desc& d = case_.desc;
  if (d.fold_policy != FoldPolicy::lazy) return 1;
  return (d.history_rows - (d.ring_u ? 1 : 2) * d.window) / accepted() + 1;
}

int64_t PoolRig::history(int64_t i) const {
  const Desc& d = case_.desc;
  if (d.fold_policy == FoldPolicy::on_commit) return 0;
  return (d.fold_policy == FoldPolicy::lazy && d.ring_u ? i : i + 1) * accepted();
}

bool PoolRig::stores(int64_t i) const {
  const Desc& d = case_.desc;
  return d.fold_policy != FoldPolicy::on_commit && !d.ring_u && i == period() - 1;
}

int64_t PoolRig::folds(int64_t i) const {
  const Desc& d = case_.desc;
  if (d.fold_policy != FoldPolicy::on_commit && !d.ring_u) return 0;
  return i == period() - 1 ? (i + 1) * accepted() : 0;
}

int64_t PoolRig::input_bytes() const {
  int64_t bytes = 0;
  for (const Field f : kInputs) bytes += layout_.item_bytes(f);
  return bytes;
}
int64_t PoolRig::output_bytes() const { return layout_.item_bytes(Field::out); }
int64_t PoolRig::ring_row_bytes() const { return footprint(case_.desc).ring_row_bytes; }

TensorView PoolRig::view(Field f, std::initializer_list<int64_t> shape) const {
  TensorView v(fields_[static_cast<size_t>(f)].data(), layout_.dtype(f), shape);
  v.device = device_;
  return v;
}

Status PoolRig::place(Field f, int64_t rows) {
  Buffer& buffer = fields_[static_cast<size_t>(f)];
  RINGFOLD_RETURN_IF_ERROR(buffer.allocate(rows * layout_.item_bytes(f)));
  const bool gates = f == Field::a || f == Field::b;
  return draw(&buffer, layout_.dtype(f), gates ? 2 : 1, 0, static_cast<uint64_t>(f) + 1, kMostDrawn);
}

Status PoolRig::prepare(DType out) {
  const Desc& d = case_.desc;
  const int64_t B = d.rows;
  layout_.out = out;
  PoolConfig config{.layers = layers(), .slots = slots(), .H = d.H, .HV = d.HV, .K = d.K, .V = d.V, .kind = d.kind};
  config.state_dtype = d.state_dtype, config.act_dtype = d.act_dtype;
  config.ring_rows = d.fold_policy == FoldPolicy::on_commit ? d.window : d.history_rows;
  config.max_window = d.window;
  config.fold_policy = d.fold_policy, config.ring_u = d.ring_u, config.device = device_;
  RINGFOLD_RETURN_IF_ERROR(Pool::create(config, &pool_));
  pool_->set_stream(stream_);
  handles_.resize(static_cast<size_t>(slots()));
  RINGFOLD_RETURN_IF_ERROR(pool_->acquire(std::span<Slot>(handles_)));
  // A set's slots lie scattered over the pool.
  ids_.resize(handles_.size());
  for (int64_t i = 0; i < slots(); ++i)
    ids_[static_cast<size_t>(i)] = handles_[static_cast<size_t>(i % B * sets_ + i / B)].id;
  RINGFOLD_RETURN_IF_ERROR(slot_ids_.allocate(slots() * 4));
  RINGFOLD_RETURN_IF_ERROR(slot_ids_.write(0, ids_.data(), slots() * 4));
  const std::vector<int32_t> accepted(static_cast<size_t>(B), static_cast<int32_t>(this->accepted()));
  RINGFOLD_RETURN_IF_ERROR(accepted_.allocate(B * 4));
  RINGFOLD_RETURN_IF_ERROR(accepted_.write(0, accepted.data(), B * 4));
  for (const Field f : kInputs) RINGFOLD_RETURN_IF_ERROR(place(f, B));
  for (const Field f : {Field::A_log, Field::dt_bias}) RINGFOLD_RETURN_IF_ERROR(place(f, 1));
  return fields_[static_cast<size_t>(Field::out)].allocate(B * layout_.item_bytes(Field::out));
}

Status PoolRig::step(int64_t set) {
  const Desc& d = case_.desc;
  const int64_t B = d.rows, T = d.window;
  const bool kda = d.kind == MixerKind::kda;
  const auto ints = [&](const Buffer& buffer, int64_t at) {
    TensorView v(buffer.data() + at * 4, DType::i32, {B});
    v.device = device_;
    return v;
  };
  for (int64_t layer = 0; layer < layers(); ++layer) {
    VerifyArgs args;
    args.mixer.A_log = view(Field::A_log, {d.HV});
    args.mixer.dt_bias = kda ? view(Field::dt_bias, {d.HV, d.K}) : view(Field::dt_bias, {d.HV});
    if (kda) args.mixer.lower_bound = -5.0f;
    args.window.q = view(Field::q, {B, T, d.H, d.K});
    args.window.k = view(Field::k, {B, T, d.H, d.K});
    args.window.v = view(Field::v, {B, T, d.HV, d.V});
    args.window.a = kda ? view(Field::a, {B, T, d.HV, d.K}) : view(Field::a, {B, T, d.HV});
    args.window.b = view(Field::b, {B, T, d.HV});
    args.window.slot_ids = ints(slot_ids_, set * B);
    args.out = view(Field::out, {B, T, d.HV, d.V});
    args.numerics = d.numerics;
    args.impl = impls_.call;
    args.stream = stream_;
    pool_->bind(layer, &args);
    RINGFOLD_RETURN_IF_ERROR(verify(args));
  }
  CommitArgs commit_args;
  commit_args.slot_ids = ints(slot_ids_, set * B);
  commit_args.num_accepted = ints(accepted_, 0);
  commit_args.impl = impls_.fold;
  commit_args.stream = stream_;
  return commit(*pool_, commit_args);
}

Status PoolRig::read(const TensorView& from, int64_t at, int64_t bytes, std::byte* to) const {
  if (device_ == Device::cpu) {
    std::memcpy(to, static_cast<const std::byte*>(from.data) + at, static_cast<size_t>(bytes));
    return {};
  }
  const detail::DeviceMemory* memory = detail::device_memory(device_);
  RINGFOLD_RETURN_IF_ERROR(
      memory->copy(to, static_cast<const std::byte*>(from.data) + at, static_cast<size_t>(bytes), stream_));
  return memory->synchronise(stream_);
}

Status PoolRig::check(std::string* difference) {
  const int64_t B = case_.desc.rows, rows = std::min<int64_t>(2, B);
  const auto row = [&](int64_t i) { return i == 0 ? 0 : B - 1; };
  Case small = case_;
  small.desc.device = Device::cpu, small.desc.numerics = Numerics::exact, small.desc.ring_u = false;
  small.desc.fold_policy = FoldPolicy::on_commit, small.desc.history_rows = 0, small.desc.rows = rows;
  PoolRig expected(small, {"reference", "reference"}, 1, Device::cpu, nullptr);
  RINGFOLD_RETURN_IF_ERROR(expected.prepare(layout_.out));
  const auto size_of_item = [&](Field f) { return layout_.item_bytes(f); };
  for (const Field f : {Field::q, Field::k, Field::v, Field::a, Field::b, Field::A_log, Field::dt_bias}) {
    const bool shared = f == Field::A_log || f == Field::dt_bias;
    for (int64_t i = 0; i < (shared ? 1 : rows); ++i) {
      std::vector<std::byte> bytes(static_cast<size_t>(size_of_item(f)));
      RINGFOLD_RETURN_IF_ERROR(
          fields_[static_cast<size_t>(f)].read((shared ? 0 : row(i)) * size_of_item(f), bytes.data(), size_of_item(f)));
      RINGFOLD_RETURN_IF_ERROR(
          expected.fields_[static_cast<size_t>(f)].write(i * size_of_item(f), bytes.data(), size_of_item(f)));
    }
  }
  // Outputs read by u do not see where a 16-bit state is rounded within a history (docs/ring.md): they are compared
  // where it is empty.
  const bool unrounded = case_.desc.ring_u && case_.desc.state_dtype != DType::f32;
  for (int64_t i = 0; i < period() + (unrounded ? 1 : 2); ++i) {
    // The twins and the number of steps in a graph go by this.
    const int64_t ahead = case_.desc.ring_u ? i : i - 1;
    int32_t live = 0;
    if (case_.desc.fold_policy != FoldPolicy::on_commit && ahead >= 0) {
      RINGFOLD_RETURN_IF_ERROR(
          read(pool_->history(0).live, int64_t{4} * slot(0, 0), 4, reinterpret_cast<std::byte*>(&live)));
      if (live != history(ahead % period())) {
        *difference = fmt::format("step {} has a history of {} rows, not {}", i, live, history(ahead % period()));
        return {};
      }
    }
    RINGFOLD_RETURN_IF_ERROR(step(0));
    RINGFOLD_RETURN_IF_ERROR(expected.step(0));
  }
  const int64_t state = size_of_item(Field::state), out = size_of_item(Field::out);
  for (int64_t i = 0; i < rows && difference->empty(); ++i) {
    const Slot mine = handles_[static_cast<size_t>(row(i) * sets_)];
    RINGFOLD_RETURN_IF_ERROR(pool_->settle(std::span<const Slot>(&mine, 1)));
    std::vector<std::byte> a(static_cast<size_t>(out)), b(a.size());
    RINGFOLD_RETURN_IF_ERROR(fields_[static_cast<size_t>(Field::out)].read(row(i) * out, a.data(), out));
    RINGFOLD_RETURN_IF_ERROR(expected.fields_[static_cast<size_t>(Field::out)].read(i * out, b.data(), out));
    const bool fast = case_.desc.numerics == Numerics::fast;
    if (fast ? !(relative_error(a, b) <= kFastBound) : a != b) *difference = "out differs from the reference's";
    a.resize(static_cast<size_t>(state)), b.resize(static_cast<size_t>(state));
    for (int64_t layer = 0; layer < layers(); ++layer) {
      RINGFOLD_RETURN_IF_ERROR(read(pool_->state(layer), slot(0, row(i)) * state, state, a.data()));
      RINGFOLD_RETURN_IF_ERROR(
          expected.read(expected.pool_->state(layer), expected.slot(0, i) * state, state, b.data()));
      if (a != b) *difference = fmt::format("state of layer {} differs from the reference's", layer);
    }
  }
  // The settled slots begin their next cycle earlier than the others do.
  RINGFOLD_RETURN_IF_ERROR(pool_->reset(std::span<const Slot>(handles_)));
  return fields_[static_cast<size_t>(Field::out)].allocate(B * out);
}

}  // namespace ringfold::bench
