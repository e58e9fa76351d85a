// Slot to slot: copies that happen all at once, and the logical state of a window that is still pending.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check_view.h"
#include "core/history.h"
#include "dispatch/commit_step.h"
#include "pool/pool_impl.h"

namespace ringfold {

using detail::kCleared;
using detail::kMaxSlotMoves;
using detail::kScratchSlot;
using detail::SlotSection;

SlotMover::SlotMover(const PoolStore& pool, unsigned sections, int32_t cursor) : pool_(pool) {
  moves_.slots = pool.config.slots;
  sections &= pool.layout.of_slot | kDeviceGenerations;
  std::byte* scratch = pool.scratch.get();
  const auto add_section = [&](int part, int32_t clear_to) {
    const int64_t bytes = pool.layout.slot_bytes[part];
    if (bytes > 0 && (sections >> part & 1)) {
      moves_.section[moves_.sections++] = {
          pool.section[part].get(), scratch, pool.config.layers, bytes, clear_to, false};
    }
    if (pool.layout.of_slot >> part & 1) scratch += pool.config.layers * bytes;
  };
  // The small ones come last, so that those before them lie aligned in the scratch.
  for (int part = kState; part < kSectionCount; ++part) add_section(part, 0);
  add_section(kPending, cursor);
  add_section(kConvPending, cursor);
  for (const int part : {kBase, kLive, kCuts}) add_section(part, 0);
  if ((sections & kDeviceGenerations) && pool.on_device()) {
    SlotSection& s = moves_.section[moves_.sections++];
    s.base = pool.device_generation.get();
    s.slot_bytes = sizeof(int32_t);
    s.clear_to_value = true;
  }
}

void SlotMover::add(int32_t from, int32_t to, int32_t generation) {
  if (moves_.moves == kMaxSlotMoves) flush();
  moves_.move[moves_.moves++] = {from, to, generation};
}

void SlotMover::flush() {
  if (status_.ok()) status_ = pool_.memory->move_slots(moves_, pool_.stream);
  moves_.moves = 0;
}

Status SlotMover::finish() {
  if (moves_.moves > 0) flush();
  return std::move(status_);
}

Status PoolStore::range(int part, int64_t slot, int32_t flags, int32_t* least, int32_t* most) const {
  constexpr int64_t kAtOnce = 64;
  constexpr size_t kInt = sizeof(int32_t);
  int32_t values[kAtOnce];
  *least = INT32_MAX, *most = INT32_MIN;
  for (int64_t layer = 0; layer < config.layers; layer += kAtOnce) {
    const int64_t count = std::min(kAtOnce, config.layers - layer);
    RINGFOLD_RETURN_IF_ERROR(
        memory->copy_rows(values, kInt, at(part, layer, slot), pitch(part), kInt, static_cast<size_t>(count), stream));
    RINGFOLD_RETURN_IF_ERROR(memory->synchronise(stream));
    for (int64_t i = 0; i < count; ++i) {
      const int32_t value = values[i] < 0 ? values[i] : values[i] & ~flags;
      *least = std::min(*least, value), *most = std::max(*most, value);
    }
  }
  return {};
}

Status PoolStore::find_window(int64_t slot, int32_t* rows, int32_t* ring) const {
  int32_t low = 0, high = 0;
  *rows = kMaxWindow, *ring = -1;
  for (const int part : {kPending, kConvPending}) {
    if (layout.slot_bytes[part] == 0) continue;
    RINGFOLD_RETURN_IF_ERROR(range(part, slot, kFolded, &low, &high));
    *rows = std::min(*rows, low);
  }
  *rows = std::max(*rows, kNoWindow);
  if (!by_row()) return {};
  for (const auto& [home, owner] : {std::pair(kRingOfSlot, kSlotOfRing), {kConvRingOfSlot, kConvSlotOfRing}}) {
    if (layout.slot_bytes[home] == 0) continue;
    RINGFOLD_RETURN_IF_ERROR(range(home, slot, 0, &low, &high));
    if (*ring < 0) *ring = low;
    const bool there = low == *ring && high == *ring && low >= 0 && low < config.rings;
    if (there) RINGFOLD_RETURN_IF_ERROR(range(owner, low, 0, &low, &high));
    if (!there || low != slot || high != slot) *rows = kNoWindow;
  }
  return {};
}

// Every slot is written at most once, so the copies form trees that hang from cycles. A slot that nobody reads any more
// is overwritten, which may free its own source in turn; what is left when no such slot remains are the bare cycles.
Status Pool::copy(std::span<const Slot> src, std::span<const Slot> dst) {
  PoolStore& p = *impl_;
  if (src.size() != dst.size()) {
    return {Code::invalid_argument, fmt::format("dst: expected {} slots as in src, found {}", src.size(), dst.size())};
  }
  for (size_t i = 0; i < src.size(); ++i) {
    RINGFOLD_RETURN_IF_ERROR(p.check("src", i, src[i]));
    RINGFOLD_RETURN_IF_ERROR(p.check("dst", i, dst[i]));
  }
  for (size_t i = 0; i < dst.size(); ++i) {
    if (p.copy_from[dst[i].id] >= 0) {
      for (size_t j = 0; j < i; ++j) p.copy_from[dst[j].id] = -1;
      return {Code::invalid_argument,
              fmt::format("dst[{}]: expected every slot once, found slot {} again", i, dst[i].id)};
    }
    p.copy_from[dst[i].id] = src[i].id;
  }
  for (size_t i = 0; i < dst.size(); ++i) {
    if (src[i].id == dst[i].id) {
      p.copy_from[dst[i].id] = -1;
    } else {
      ++p.copy_uses[src[i].id];
    }
  }

  SlotMover all(p, p.by_row() ? kCheckpoint : kAllSections);
  int64_t ready = 0;
  for (const Slot& d : dst) {
    if (p.copy_from[d.id] >= 0 && p.copy_uses[d.id] == 0) p.copy_ready[ready++] = d.id;
  }
  while (ready > 0) {
    const int32_t to = p.copy_ready[--ready];
    const int32_t from = p.copy_from[to];
    all.add(from, to);
    p.copy_from[to] = -1;
    if (--p.copy_uses[from] == 0 && p.copy_from[from] >= 0) p.copy_ready[ready++] = from;
  }
  for (const Slot& d : dst) {
    if (p.copy_from[d.id] < 0) continue;
    all.add(d.id, kScratchSlot);
    int32_t to = d.id;
    for (int32_t from = p.copy_from[to]; from != d.id; from = p.copy_from[to]) {
      all.add(from, to);
      p.copy_from[to] = -1;
      p.copy_uses[from] = 0;
      to = from;
    }
    all.add(kScratchSlot, to);
    p.copy_from[to] = -1;
    p.copy_uses[d.id] = 0;
  }
  RINGFOLD_RETURN_IF_ERROR(all.finish());
  if (!p.by_row()) return {};
  // A window belongs to the checkpoint that it was verified on, and that is overwritten.
  SlotMover windows(p, kCursors);
  for (size_t i = 0; i < dst.size(); ++i) {
    if (src[i].id != dst[i].id) windows.add(kCleared, dst[i].id);
  }
  return windows.finish();
}

namespace {

// The rows of one slot into the states and conv windows of another, or its own. `values`: what PoolStore::device_index
// holds. The slots were checked.
Status fold_slot(const Pool& pool, const PoolStore& p, int32_t* values, detail::CursorMove move) {
  RINGFOLD_RETURN_IF_ERROR(p.check_mixers());
  void* index = values;
  if (p.on_device()) {
    index = p.device_index.get();
    RINGFOLD_RETURN_IF_ERROR(p.memory->copy(index, values, kIndexCount * sizeof(int32_t), p.stream));
  }
  TensorView indices(index, DType::i32, {kIndexCount, 1});
  indices.device = p.config.device;
  const TensorView from = indices.at(0), to = indices.at(1), count = indices.at(2);
  const TensorView ring = p.by_row() ? indices.at(3) : TensorView();
  detail::CommitStep step;
  step.fold.qk_l2norm = p.config.qk_l2norm;
  if (p.mixer) step.fold.mixer = *p.mixer;
  step.fold.state = pool.state();
  step.fold.ring = pool.ring();
  step.fold.slot_ids = from;
  step.fold.num_accepted = count;
  step.fold.ring_ids = ring;
  step.fold.state_rounding = p.config.state_rounding;
  step.fold.stream = p.stream;
  step.move = move;
  if (p.has_history()) {
    step.fold.pending = pool.pending();
    step.fold.history = pool.history();
  }
  step.dst_slot_ids = to;
  if (p.has_conv()) {
    step.conv.conv_state = pool.conv_state();
    step.conv.conv_ring = pool.conv_ring();
    step.conv.slot_ids = from;
    step.conv.num_accepted = count;
    step.conv.ring_ids = ring;
    step.conv.stream = p.stream;
  }
  return detail::commit_step(step);
}

}  // namespace

Status Pool::materialise(Slot src, int32_t n, Slot dst) {
  PoolStore& p = *impl_;
  RINGFOLD_RETURN_IF_ERROR(p.check("src", src));
  RINGFOLD_RETURN_IF_ERROR(p.check("dst", dst));
  if (src.id == dst.id) {
    return {Code::invalid_argument, fmt::format("dst: expected another slot than src, found slot {}", dst.id)};
  }
  int32_t ring = -1;
  if (n != 0) {
    int32_t window = 0;
    RINGFOLD_RETURN_IF_ERROR(p.find_window(src.id, &window, &ring));
    if (n < 0 || n > window) {
      return {Code::invalid_argument, fmt::format("n: expected 0..{}, the pending rows of slot {}, found {}",
                                                  window < 0 ? 0 : window, src.id, n)};
    }
  }
  if (n == 0 && !p.has_history()) {
    SlotMover checkpoint(p, kCheckpoint);
    checkpoint.add(src.id, dst.id);
    RINGFOLD_RETURN_IF_ERROR(checkpoint.finish());
  } else {
    int32_t values[kIndexCount] = {src.id, dst.id, n, ring};
    RINGFOLD_RETURN_IF_ERROR(fold_slot(*this, p, values, detail::CursorMove::keep));
  }
  SlotMover cursors(p, kCursors);
  cursors.add(kCleared, dst.id);
  return cursors.finish();
}

Status Pool::settle(std::span<const Slot> slots) {
  PoolStore& p = *impl_;
  RINGFOLD_RETURN_IF_ERROR(p.check_all(slots));
  if (!p.has_history()) return {};
  for (const Slot& slot : slots) {
    int32_t values[kIndexCount] = {slot.id, slot.id, 0, -1};
    RINGFOLD_RETURN_IF_ERROR(fold_slot(*this, p, values, detail::CursorMove::settle));
  }
  return {};
}

}  // namespace ringfold
