// What a pool owns: one buffer per section, each [layers, slots, slot_bytes], and the cursors of its slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "ringfold/pool.h"

namespace ringfold {

inline constexpr size_t kPoolAlignment = 64;

/// Everything that belongs to a slot, in the order of an exported slot.
enum PoolSection : int {
  kPending,      ///< i32
  kConvPending,  ///< i32
  kState,        ///< [HV,V,K]
  kRingK,        ///< [rows,H,K]
  kRingV,        ///< [rows,HV,V]
  kRingG,        ///< [rows,HV] or [rows,HV,K]
  kRingBeta,     ///< [rows,HV]
  kConvState,    ///< [C,W-1]
  kConvRing,     ///< [rows,C]
  kSectionCount
};

/// Bytes of one slot of one layer in each section; 0: the pool has no such section.
struct PoolLayout {
  std::array<int64_t, kSectionCount> slot_bytes{};
  int64_t slot_total = 0;  ///< bytes of one slot, all sections and layers
  PoolBytes bytes;
};

/// Checks the description and computes every size, refusing those that do not fit 63 bits.
Status make_layout(const PoolConfig& config, PoolLayout* layout);

struct AlignedDelete {
  void operator()(void* p) const { ::operator delete (p, std::align_val_t{kPoolAlignment}); }
};

/// Zeroed memory, or null when there is none.
template <class T>
using AlignedArray = std::unique_ptr<T[], AlignedDelete>;

/// Memory and cursors of a pool. Plain data with the moves of whole slots; the rules are in Pool and commit.
struct PoolStore {
  PoolConfig config;
  PoolLayout layout;
  std::array<AlignedArray<std::byte>, kSectionCount> section;
  AlignedArray<int32_t> generation;  ///< [slots]
  AlignedArray<uint8_t> acquired;    ///< [slots], 0 or 1
  AlignedArray<int32_t> free_list;   ///< [slots], a stack; the first free_count are free
  int64_t free_count = 0;
  AlignedArray<std::byte> scratch;   ///< one slot, all sections and layers
  AlignedArray<int32_t> copy_from;   ///< [slots], source of a slot that a copy writes; else -1
  AlignedArray<int32_t> copy_uses;   ///< [slots], how many copies still read the slot
  AlignedArray<int32_t> copy_ready;  ///< [slots], stack of slots that may be overwritten

  /// Allocates everything; false when memory is exhausted.
  bool allocate();

  bool has_conv() const { return config.conv_channels > 0; }

  /// Address of a slot of a layer in a section.
  std::byte* at(int part, int64_t layer, int64_t slot) const {
    return section[part].get() + (layer * config.slots + slot) * layout.slot_bytes[part];
  }
  int32_t* pending(int64_t layer, int64_t slot) const { return reinterpret_cast<int32_t*>(at(kPending, layer, slot)); }
  int32_t* conv_pending(int64_t layer, int64_t slot) const {
    return reinterpret_cast<int32_t*>(at(kConvPending, layer, slot));
  }
  /// Sets every pending length of a slot.
  void set_pending(int64_t slot, int32_t value);
  /// The shortest pending window over the layers (conv windows included); kNoWindow where one layer has none.
  int32_t shortest_window(int64_t slot) const;

  void clear_slot(int64_t slot);
  void copy_slot(int64_t from, int64_t to);
  void copy_section(int part, int64_t from, int64_t to);
  void save_to_scratch(int64_t slot);
  void load_from_scratch(int64_t slot);

  /// An error that names `what` unless the handle is that of an acquired slot.
  Status check(const char* what, Slot slot) const;
  Status check(const char* what, size_t index, Slot slot) const;
};

struct Pool::Impl : PoolStore {};

}  // namespace ringfold
