#include "pool/pool_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/check_view.h"
#include "dispatch/select.h"

namespace ringfold {
namespace {

using namespace detail;

Status usable() { return {}; }

Status allocate(size_t bytes, void** memory) {
  *memory = ::operator new (bytes, std::align_val_t{kPoolAlignment}, std::nothrow);
  if (*memory == nullptr) return {Code::out_of_memory, fmt::format("memory: expected {} bytes, found less", bytes)};
  return {};
}

void release(void* memory) { AlignedDelete()(memory); }

Status fill(void* memory, int byte, size_t bytes, void*) {
  std::memset(memory, byte, bytes);
  return {};
}

Status copy(void* to, const void* from, size_t bytes, void*) {
  std::memcpy(to, from, bytes);
  return {};
}

Status copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows, void*) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (; rows > 0; --rows, target += to_pitch, source += from_pitch) std::memcpy(target, source, bytes);
  return {};
}

void clear(std::byte* slot, size_t bytes, int32_t word) {
  if (word == 0) {
    std::memset(slot, 0, bytes);
  } else {
    std::fill_n(reinterpret_cast<int32_t*>(slot), bytes / sizeof(word), word);
  }
}

Status move_slots(const SlotMoves& m, void*) {
  for (const SlotSection* s = m.section; s != m.section + m.sections; ++s) {
    const auto bytes = static_cast<size_t>(s->slot_bytes);
    for (int64_t layer = 0; layer < s->layers; ++layer) {
      const auto at = [&](int32_t slot) {
        return slot == kScratchSlot ? s->scratch + layer * s->slot_bytes
                                    : s->base + (layer * m.slots + slot) * s->slot_bytes;
      };
      for (const SlotMove* move = m.move; move != m.move + m.moves; ++move) {
        if (move->from == kCleared) {
          clear(at(move->to), bytes, s->clear_to_value ? move->value : s->clear_to);
        } else {
          std::memcpy(at(move->to), at(move->from), bytes);
        }
      }
    }
  }
  return {};
}

Status synchronise(void*) { return {}; }

constexpr DeviceMemory kHostMemory = {usable, allocate, release, fill, copy, copy_rows, move_slots, synchronise};

}  // namespace

Status find_memory(Device device, const DeviceMemory** memory) {
  *memory = device == Device::cpu ? &kHostMemory : device_memory(device);
  if (*memory == nullptr) {
    return {Code::unsupported,
            fmt::format("device: expected cpu, the only device of this build, found {}", to_string(device))};
  }
  const Status s = (*memory)->usable();
  if (s.ok()) return {};
  return {Code::unsupported, fmt::format("device: expected one that this machine has, found {}, which {}",
                                         to_string(device), s.message())};
}

Status PoolMemory::allocate(const DeviceMemory& device, int64_t bytes, PoolMemory* memory) {
  void* p = nullptr;
  RINGFOLD_RETURN_IF_ERROR(device.allocate(static_cast<size_t>(bytes), &p));
  memory->data_ = {static_cast<std::byte*>(p), DeviceRelease{&device}};
  return device.fill(p, 0, static_cast<size_t>(bytes), nullptr);
}

}  // namespace ringfold
