// The pool's memory, its slots' lives, and the views that compute calls take.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "pool/pool_impl.h"

namespace ringfold {
namespace {

template <class T>
AlignedArray<T> zeroed(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  void* p = ::operator new (bytes, std::align_val_t{kPoolAlignment}, std::nothrow);
  if (p != nullptr) std::memset(p, 0, bytes);
  return AlignedArray<T>(static_cast<T*>(p));
}

}  // namespace

bool PoolStore::allocate() {
  for (int part = 0; part < kSectionCount; ++part) {
    if (layout.slot_bytes[part] == 0) continue;
    section[part] = zeroed<std::byte>(config.layers * config.slots * layout.slot_bytes[part]);
    if (section[part] == nullptr) return false;
  }
  generation = zeroed<int32_t>(config.slots);
  acquired = zeroed<uint8_t>(config.slots);
  free_list = zeroed<int32_t>(config.slots);
  scratch = zeroed<std::byte>(layout.slot_total);
  copy_from = zeroed<int32_t>(config.slots);
  copy_uses = zeroed<int32_t>(config.slots);
  copy_ready = zeroed<int32_t>(config.slots);
  return generation && acquired && free_list && scratch && copy_from && copy_uses && copy_ready;
}

void PoolStore::set_pending(int64_t slot, int32_t value) {
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    *pending(layer, slot) = value;
    if (has_conv()) *conv_pending(layer, slot) = value;
  }
}

int32_t PoolStore::shortest_window(int64_t slot) const {
  int32_t shortest = kMaxWindow;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    shortest = std::min(shortest, *pending(layer, slot));
    if (has_conv()) shortest = std::min(shortest, *conv_pending(layer, slot));
  }
  return std::max(shortest, kNoWindow);
}

void PoolStore::clear_slot(int64_t slot) {
  for (int part = kState; part < kSectionCount; ++part) {
    const auto bytes = static_cast<size_t>(layout.slot_bytes[part]);
    if (bytes == 0) continue;
    for (int64_t layer = 0; layer < config.layers; ++layer) std::memset(at(part, layer, slot), 0, bytes);
  }
  set_pending(slot, kNoWindow);
}

Status PoolStore::check(const char* what, Slot slot) const {
  if (slot.id < 0 || slot.id >= config.slots) {
    return {Code::invalid_argument,
            fmt::format("{}: expected a slot id in 0..{}, found {}", what, config.slots - 1, slot.id)};
  }
  if (slot.generation != generation[slot.id]) {
    return {Code::invalid_argument,
            fmt::format("{}: expected generation {} of slot {}, found a handle of generation {}", what,
                        generation[slot.id], slot.id, slot.generation)};
  }
  if (!acquired[slot.id]) {
    return {Code::invalid_argument,
            fmt::format("{}: expected an acquired slot, found slot {}, which is free", what, slot.id)};
  }
  return {};
}

Status PoolStore::check(const char* what, size_t index, Slot slot) const {
  if (slot.id >= 0 && slot.id < config.slots && slot.generation == generation[slot.id] && acquired[slot.id]) return {};
  return check(fmt::format("{}[{}]", what, index).c_str(), slot);
}

Pool::Pool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pool::~Pool() = default;

Status Pool::create(const PoolConfig& config, std::unique_ptr<Pool>* pool) {
  PoolLayout layout;
  if (Status s = make_layout(config, &layout); !s.ok()) return s;
  try {
    auto impl = std::make_unique<Impl>();
    impl->config = config;
    impl->layout = layout;
    if (!impl->allocate()) {
      return {Code::out_of_memory, fmt::format("pool: expected {} bytes of memory, found less", layout.bytes.total())};
    }
    // The list is a stack, so the lowest ids are handed out first.
    impl->free_count = config.slots;
    for (int64_t slot = 0; slot < config.slots; ++slot) {
      impl->free_list[slot] = static_cast<int32_t>(config.slots - 1 - slot);
      impl->copy_from[slot] = -1;
      impl->set_pending(slot, kNotAcquired);
    }
    pool->reset(new Pool(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return {Code::out_of_memory, "pool: memory is exhausted"};
  }
  return {};
}

const PoolConfig& Pool::config() const { return impl_->config; }
PoolBytes Pool::bytes() const { return impl_->layout.bytes; }
int64_t Pool::free_slots() const { return impl_->free_count; }

Status Pool::acquire(Slot* slot) { return acquire(std::span<Slot>(slot, 1)); }

Status Pool::acquire(std::span<Slot> slots) {
  PoolStore& p = *impl_;
  if (slots.size() > static_cast<size_t>(p.free_count)) {
    return {Code::out_of_memory,
            fmt::format("slots: expected {} free slots, found {} of {}", slots.size(), p.free_count, p.config.slots)};
  }
  for (Slot& slot : slots) {
    const int32_t id = p.free_list[--p.free_count];
    p.clear_slot(id);
    p.acquired[id] = 1;
    p.generation[id] = p.generation[id] == std::numeric_limits<int32_t>::max() ? 1 : p.generation[id] + 1;
    slot = {.id = id, .generation = p.generation[id]};
  }
  return {};
}

Status Pool::release(Slot slot) {
  PoolStore& p = *impl_;
  if (Status s = p.check("slot", slot); !s.ok()) return s;
  p.set_pending(slot.id, kNotAcquired);
  p.acquired[slot.id] = 0;
  p.free_list[p.free_count++] = slot.id;
  return {};
}

Status Pool::reset(Slot slot) {
  if (Status s = impl_->check("slot", slot); !s.ok()) return s;
  impl_->clear_slot(slot.id);
  return {};
}

namespace {

/// The layer's part of a view over all layers; empty where there is no such layer.
TensorView layer_of(const TensorView& all, int64_t layer) {
  if (all.empty() || layer < 0 || layer >= all.shape[0]) return {};
  return all.at(layer);
}

}  // namespace

TensorView Pool::state() const {
  const PoolConfig& c = config();
  return {impl_->section[kState].get(), c.state_dtype, {c.layers, c.slots, c.HV, c.V, c.K}};
}

Ring Pool::ring() const {
  const PoolConfig& c = config();
  const auto& s = impl_->section;
  Ring r;
  r.k = {s[kRingK].get(), c.act_dtype, {c.layers, c.slots, c.ring_rows, c.H, c.K}};
  r.v = {s[kRingV].get(), c.act_dtype, {c.layers, c.slots, c.ring_rows, c.HV, c.V}};
  r.g = c.kind == MixerKind::kda ? TensorView(s[kRingG].get(), DType::f32, {c.layers, c.slots, c.ring_rows, c.HV, c.K})
                                 : TensorView(s[kRingG].get(), DType::f32, {c.layers, c.slots, c.ring_rows, c.HV});
  r.beta = {s[kRingBeta].get(), DType::f32, {c.layers, c.slots, c.ring_rows, c.HV}};
  return r;
}

TensorView Pool::pending() const {
  return {impl_->section[kPending].get(), DType::i32, {config().layers, config().slots}};
}

TensorView Pool::conv_state() const {
  const PoolConfig& c = config();
  if (!impl_->has_conv()) return {};
  return {impl_->section[kConvState].get(), c.act_dtype, {c.layers, c.slots, c.conv_channels, c.conv_width - 1}};
}

TensorView Pool::conv_ring() const {
  const PoolConfig& c = config();
  if (!impl_->has_conv()) return {};
  return {impl_->section[kConvRing].get(), c.act_dtype, {c.layers, c.slots, c.ring_rows, c.conv_channels}};
}

TensorView Pool::conv_pending() const {
  if (!impl_->has_conv()) return {};
  return {impl_->section[kConvPending].get(), DType::i32, {config().layers, config().slots}};
}

TensorView Pool::generations() const { return {impl_->generation.get(), DType::i32, {config().slots}}; }

TensorView Pool::state(int64_t layer) const { return layer_of(state(), layer); }
TensorView Pool::pending(int64_t layer) const { return layer_of(pending(), layer); }
TensorView Pool::conv_state(int64_t layer) const { return layer_of(conv_state(), layer); }
TensorView Pool::conv_ring(int64_t layer) const { return layer_of(conv_ring(), layer); }
TensorView Pool::conv_pending(int64_t layer) const { return layer_of(conv_pending(), layer); }

Ring Pool::ring(int64_t layer) const {
  const Ring all = ring();
  Ring r;
  r.k = layer_of(all.k, layer);
  r.v = layer_of(all.v, layer);
  r.g = layer_of(all.g, layer);
  r.beta = layer_of(all.beta, layer);
  return r;
}

void Pool::bind(int64_t layer, VerifyArgs* args) const {
  args->mixer.kind = config().kind;
  args->mixer.qk_l2norm = config().qk_l2norm;
  args->state = state(layer);
  args->ring = ring(layer);
  args->pending = pending(layer);
  args->state_rounding = config().state_rounding;
}

void Pool::bind(int64_t layer, DecodeArgs* args) const {
  args->mixer.kind = config().kind;
  args->mixer.qk_l2norm = config().qk_l2norm;
  args->state = state(layer);
  args->pending = pending(layer);
  args->state_rounding = config().state_rounding;
}

void Pool::bind(int64_t layer, ConvArgs* args) const {
  args->conv_state = conv_state(layer);
  args->conv_ring = conv_ring(layer);
  args->pending = conv_pending(layer);
}

}  // namespace ringfold
