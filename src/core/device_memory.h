// What the pool, and whoever moves tensors to a device, needs of its memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ringfold/status.h"

namespace ringfold::detail {

/// One kind of data that every slot of a pool has.
struct SlotSection {
  std::byte* base = nullptr;     ///< [layers,slots,slot_bytes]
  std::byte* scratch = nullptr;  ///< [layers,slot_bytes]: the slot kScratchSlot
  int64_t layers = 1;
  int64_t slot_bytes = 0;       ///< a multiple of two; of four where a slot is cleared to other words than zeros
  int32_t clear_to = 0;         ///< the word that a cleared slot is full of
  bool clear_to_value = false;  ///< it is the move's `value` instead
};

/// A slot becomes a copy of another, or is cleared.
struct SlotMove {
  int32_t from = 0;  ///< a slot, kScratchSlot or kCleared
  int32_t to = 0;    ///< a slot or kScratchSlot
  int32_t value = 0;
};

inline constexpr int32_t kCleared = -1;      ///< no source: the destination is cleared
inline constexpr int32_t kScratchSlot = -2;  ///< the slot that belongs to the pool itself

inline constexpr int kMaxSlotSections = 14;
inline constexpr int kMaxSlotMoves = 128;

/// Moves of whole slots, each one after the one before it. A plain value that fits a kernel's parameters, so that a
/// list made on the host needs no memory on the device.
struct SlotMoves {
  int64_t slots = 0;
  int sections = 0;
  int moves = 0;
  SlotSection section[kMaxSlotSections];
  SlotMove move[kMaxSlotMoves];
};

/// Functions on the current device. `stream` is that of the calls' arguments. Copies and fills are ordered in the
/// stream; copies from or to pageable host memory return when the host memory may be reused or read.
struct DeviceMemory {
  Status (*usable)();                               ///< an error that says why this machine has no such device
  Status (*allocate)(size_t bytes, void** memory);  ///< aligned to 64 bytes at least, contents undefined; out_of_memory
  void (*release)(void* memory);                    ///< null is fine
  Status (*fill)(void* memory, int byte, size_t bytes, void* stream);
  Status (*copy)(void* to, const void* from, size_t bytes, void* stream);  ///< host or device on either side
  /// `rows` pieces of `bytes` each, `to_pitch` and `from_pitch` bytes apart.
  Status (*copy_rows)(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, size_t rows,
                      void* stream);
  Status (*move_slots)(const SlotMoves& moves, void* stream) = nullptr;
  Status (*synchronise)(void* stream);
};

}  // namespace ringfold::detail
