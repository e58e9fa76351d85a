// The pool's memory, its slots' lives, and the views that compute calls take.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/check_view.h"
#include "pool/pool_impl.h"

namespace ringfold {

using detail::kCleared;

namespace {

template <class T>
AlignedArray<T> zeroed(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  void* p = ::operator new (bytes, std::align_val_t{kPoolAlignment}, std::nothrow);
  if (p != nullptr) std::memset(p, 0, bytes);
  return AlignedArray<T>(static_cast<T*>(p));
}

}  // namespace

Status PoolStore::allocate() {
  RINGFOLD_RETURN_IF_ERROR(find_memory(config.device, &memory));
  for (int part = 0; part < kSectionCount; ++part) {
    if (layout.slot_bytes[part] == 0) continue;
    const int64_t bytes = config.layers * layout.count[part] * layout.slot_bytes[part];
    RINGFOLD_RETURN_IF_ERROR(PoolMemory::allocate(*memory, bytes, &section[part]));
  }
  RINGFOLD_RETURN_IF_ERROR(PoolMemory::allocate(*memory, layout.slot_total, &scratch));
  if (layout.gate_count > 0) {
    const auto bytes = layout.gate_count * static_cast<int64_t>(sizeof(float));
    RINGFOLD_RETURN_IF_ERROR(PoolMemory::allocate(*memory, bytes, &gates));
  }
  if (on_device()) {
    constexpr int64_t kInt = sizeof(int32_t);
    RINGFOLD_RETURN_IF_ERROR(PoolMemory::allocate(*memory, config.slots * kInt, &device_generation));
    RINGFOLD_RETURN_IF_ERROR(PoolMemory::allocate(*memory, kIndexCount * kInt, &device_index));
    if (due_count() > 0) RINGFOLD_RETURN_IF_ERROR(PoolMemory::allocate(*memory, due_count() * kInt, &device_due));
  }
  generation = zeroed<int32_t>(config.slots);
  acquired = zeroed<uint8_t>(config.slots);
  free_list = zeroed<int32_t>(config.slots);
  copy_from = zeroed<int32_t>(config.slots);
  copy_uses = zeroed<int32_t>(config.slots);
  copy_ready = zeroed<int32_t>(config.slots);
  if (!generation || !acquired || !free_list || !copy_from || !copy_uses || !copy_ready) {
    return {Code::out_of_memory, "memory: expected more, found less"};
  }
  // The list is a stack, so the lowest ids are handed out first.
  free_count = config.slots;
  SlotMover cursors(*this, kCursors, kNotAcquired);
  for (int64_t slot = 0; slot < config.slots; ++slot) {
    free_list[slot] = static_cast<int32_t>(config.slots - 1 - slot);
    copy_from[slot] = -1;
    cursors.add(kCleared, static_cast<int32_t>(slot));
  }
  RINGFOLD_RETURN_IF_ERROR(cursors.finish());
  return memory->synchronise(stream);
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

Status PoolStore::check_all(std::span<const Slot> slots) const {
  for (size_t i = 0; i < slots.size(); ++i) RINGFOLD_RETURN_IF_ERROR(check("slots", i, slots[i]));
  return {};
}

Status PoolStore::give_back(std::span<const Slot> slots) {
  const auto mark = [&](size_t count, uint8_t value) {
    for (const Slot& slot : slots.first(count)) acquired[slot.id] = value;
  };
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!acquired[slots[i].id]) {
      mark(i, 1);
      return {Code::invalid_argument,
              fmt::format("slots[{}]: expected every slot once, found slot {} again", i, slots[i].id)};
    }
    acquired[slots[i].id] = 0;
  }
  SlotMover cursors(*this, kCursors, kNotAcquired);
  for (const Slot& slot : slots) cursors.add(kCleared, slot.id);
  if (Status s = cursors.finish(); !s.ok()) {
    mark(slots.size(), 1);
    return s;
  }
  for (const Slot& slot : slots) free_list[free_count++] = slot.id;
  return {};
}

Status PoolStore::clear(std::span<const Slot> slots) {
  SlotMover all(*this, kAllSections);
  for (const Slot& slot : slots) all.add(kCleared, slot.id);
  return all.finish();
}

Pool::Pool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pool::~Pool() = default;

Status Pool::create(const PoolConfig& config, std::unique_ptr<Pool>* pool) {
  PoolLayout layout;
  if (Status s = make_layout(config, &layout); !s.ok()) return s;
  try {
    auto impl = std::make_unique<Impl>();
    impl->config = config;
    impl->config.max_window = largest_window(config);
    impl->layout = layout;
    if (Status s = impl->allocate(); s.code() == Code::out_of_memory) {
      return {Code::out_of_memory, fmt::format("pool: expected {} bytes of memory, found less", layout.bytes.total())};
    } else if (!s.ok()) {
      return s;
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
void Pool::set_stream(void* stream) { impl_->stream = stream; }

Status Pool::acquire(std::span<Slot> slots) {
  PoolStore& p = *impl_;
  if (slots.size() > static_cast<size_t>(p.free_count)) {
    return {Code::out_of_memory,
            fmt::format("slots: expected {} free slots, found {} of {}", slots.size(), p.free_count, p.config.slots)};
  }
  const auto next = [&](size_t i) -> Slot {
    const int32_t id = p.free_list[p.free_count - 1 - static_cast<int64_t>(i)], old = p.generation[id];
    return {.id = id, .generation = old == std::numeric_limits<int32_t>::max() ? 1 : old + 1};
  };
  SlotMover all(p, kAllSections | kDeviceGenerations);
  for (size_t i = 0; i < slots.size(); ++i) all.add(kCleared, next(i).id, next(i).generation);
  RINGFOLD_RETURN_IF_ERROR(all.finish());
  for (Slot& slot : slots) {
    slot = next(0);
    p.acquired[slot.id] = 1;
    p.generation[slot.id] = slot.generation;
    --p.free_count;
  }
  return {};
}

Status Pool::release(Slot slot) {
  RINGFOLD_RETURN_IF_ERROR(impl_->check("slot", slot));
  return impl_->give_back({&slot, 1});
}

Status Pool::release(std::span<const Slot> slots) {
  RINGFOLD_RETURN_IF_ERROR(impl_->check_all(slots));
  return impl_->give_back(slots);
}

Status Pool::reset(Slot slot) {
  RINGFOLD_RETURN_IF_ERROR(impl_->check("slot", slot));
  return impl_->clear({&slot, 1});
}

Status Pool::reset(std::span<const Slot> slots) {
  RINGFOLD_RETURN_IF_ERROR(impl_->check_all(slots));
  return impl_->clear(slots);
}

namespace {

/// A section, or other memory of the pool, as a tensor.
TensorView view_of(const PoolStore& p, const void* data, DType dtype, std::initializer_list<int64_t> shape) {
  TensorView view(data, dtype, shape);
  view.device = p.config.device;
  return view;
}

TensorView view_of(const PoolStore& p, int part, DType dtype, std::initializer_list<int64_t> shape) {
  return view_of(p, p.section[part].get(), dtype, shape);
}

/// The layer's part of a view over all layers; empty where there is no such layer.
TensorView layer_of(const TensorView& all, int64_t layer) {
  if (all.empty() || layer < 0 || layer >= all.shape[0]) return {};
  return all.at(layer);
}

}  // namespace

TensorView Pool::state() const {
  const PoolConfig& c = config();
  return view_of(*impl_, kState, c.state_dtype, {c.layers, c.slots, c.HV, c.V, c.K});
}

Ring Pool::ring() const {
  const PoolStore& p = *impl_;
  const PoolConfig& c = config();
  const int64_t rings = p.layout.count[kRingK];
  Ring r;
  r.k = view_of(p, kRingK, c.act_dtype, {c.layers, rings, c.ring_rows, c.H, c.K});
  r.v = view_of(p, kRingV, c.act_dtype, {c.layers, rings, c.ring_rows, c.HV, c.V});
  TensorView& gate = c.ring_a ? r.a : r.g;
  gate = c.kind == MixerKind::kda
             ? view_of(p, kRingGate, c.ring_a.value_or(DType::f32), {c.layers, rings, c.ring_rows, c.HV, c.K})
             : view_of(p, kRingGate, DType::f32, {c.layers, rings, c.ring_rows, c.HV});
  r.beta = view_of(p, kRingBeta, DType::f32, {c.layers, rings, c.ring_rows, c.HV});
  if (c.ring_u) r.u = view_of(p, kRingU, DType::f32, {c.layers, rings, c.ring_rows, c.HV, c.V});
  return r;
}

TensorView Pool::pending() const { return view_of(*impl_, kPending, DType::i32, {config().layers, config().slots}); }

History Pool::history() const {
  const PoolStore& p = *impl_;
  if (!p.has_history()) return {};
  const auto view = [&](int part) { return view_of(p, part, DType::i32, {p.config.layers, p.config.slots}); };
  return {.base = view(kBase),
          .live = view(kLive),
          .cuts = view(kCuts),
          .policy = p.config.fold_policy,
          .max_window = p.config.max_window};
}

namespace {

RingOwners owners_of(const PoolStore& p, int slot_of_ring, int ring_of_slot) {
  if (!p.by_row() || p.layout.slot_bytes[slot_of_ring] == 0) return {};
  const auto view = [&](int part) { return view_of(p, part, DType::i32, {p.config.layers, p.layout.count[part]}); };
  return {.slot_of_ring = view(slot_of_ring), .ring_of_slot = view(ring_of_slot)};
}

RingOwners layer_of(const RingOwners& all, int64_t layer) {
  return {.slot_of_ring = layer_of(all.slot_of_ring, layer), .ring_of_slot = layer_of(all.ring_of_slot, layer)};
}

}  // namespace

RingOwners Pool::owners() const { return owners_of(*impl_, kSlotOfRing, kRingOfSlot); }
RingOwners Pool::conv_owners() const { return owners_of(*impl_, kConvSlotOfRing, kConvRingOfSlot); }
RingOwners Pool::owners(int64_t layer) const { return layer_of(owners(), layer); }
RingOwners Pool::conv_owners(int64_t layer) const { return layer_of(conv_owners(), layer); }

TensorView Pool::conv_state() const {
  const PoolConfig& c = config();
  if (!impl_->has_conv()) return {};
  return view_of(*impl_, kConvState, c.act_dtype, {c.layers, c.slots, c.conv_channels, c.conv_width - 1});
}

TensorView Pool::conv_ring() const {
  const PoolConfig& c = config();
  if (!impl_->has_conv()) return {};
  return view_of(*impl_, kConvRing, c.act_dtype,
                 {c.layers, impl_->layout.count[kConvRing], c.max_window, c.conv_channels});
}

TensorView Pool::conv_pending() const {
  if (!impl_->has_conv()) return {};
  return view_of(*impl_, kConvPending, DType::i32, {config().layers, config().slots});
}

TensorView Pool::generations() const {
  const PoolStore& p = *impl_;
  const void* data = p.generation.get();
  if (p.on_device()) data = p.device_generation.get();
  return view_of(p, data, DType::i32, {p.config.slots});
}

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
  r.u = layer_of(all.u, layer);
  r.a = layer_of(all.a, layer);
  return r;
}

History Pool::history(int64_t layer) const {
  History h = history();
  for (TensorView* view : {&h.base, &h.live, &h.cuts}) *view = layer_of(*view, layer);
  return h;
}

void Pool::bind(int64_t layer, VerifyArgs* args) const {
  args->mixer.kind = config().kind;
  args->mixer.qk_l2norm = config().qk_l2norm;
  impl_->bind_gate(layer, &args->mixer);
  args->state = state(layer);
  args->ring = ring(layer);
  args->pending = pending(layer);
  args->owners = owners(layer);
  args->history = history(layer);
  args->state_rounding = config().state_rounding;
}

void Pool::bind(int64_t layer, DecodeArgs* args) const {
  args->mixer.kind = config().kind;
  args->mixer.qk_l2norm = config().qk_l2norm;
  impl_->bind_gate(layer, &args->mixer);
  args->state = state(layer);
  args->pending = pending(layer);
  if (impl_->has_history()) args->ring = ring(layer);
  args->history = history(layer);
  args->state_rounding = config().state_rounding;
}

void Pool::bind(int64_t layer, ConvArgs* args) const {
  args->conv_state = conv_state(layer);
  args->conv_ring = conv_ring(layer);
  args->pending = conv_pending(layer);
  args->owners = conv_owners(layer);
}

void Pool::bind(int64_t layer, LayerArgs* args) const {
  args->mixer.kind = config().kind;
  args->mixer.qk_l2norm = config().qk_l2norm;
  impl_->bind_gate(layer, &args->mixer);
  args->conv_state = conv_state(layer);
  args->conv_ring = conv_ring(layer);
  args->conv_pending = conv_pending(layer);
  args->conv_owners = conv_owners(layer);
  args->owners = owners(layer);
  args->state = state(layer);
  args->ring = ring(layer);
  args->pending = pending(layer);
  args->history = history(layer);
  args->state_rounding = config().state_rounding;
}

}  // namespace ringfold
