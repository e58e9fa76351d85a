// What a pool owns: one buffer per section, each [layers, slots, slot_bytes], and the cursors of its slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "pool/pool_memory.h"
#include "ringfold/pool.h"

namespace ringfold {

/// Everything that belongs to a slot, in the order of an exported slot. Where rings are keyed by request row, what lies
/// in a ring belongs to a ring.
enum PoolSection : int {
  kPending,      ///< i32
  kConvPending,  ///< i32
  kBase,         ///< i32; the history's three are there with fold policies other than on_commit
  kLive,         ///< i32
  kCuts,         ///< i32
  kState,        ///< [HV,V,K]
  kRingK,        ///< [rows,H,K]
  kRingV,        ///< [rows,HV,V]
  kRingGate,     ///< g [rows,HV] or [rows,HV,K], or a [rows,HV,K]
  kRingBeta,     ///< [rows,HV]
  kRingU,        ///< [rows,HV,V], where the config asks for it
  kConvState,    ///< [C,W-1]
  kConvRing,     ///< [max_window,C]
  kSlotOfRing,   ///< i32; these four are there with rings keyed by request row, and are moved with no slot
  kRingOfSlot,   ///< i32
  kConvSlotOfRing,
  kConvRingOfSlot,
  kSectionCount
};

/// Sets of sections.
inline constexpr unsigned kHistory = 1u << kBase | 1u << kLive | 1u << kCuts;
inline constexpr unsigned kCursors = 1u << kPending | 1u << kConvPending | kHistory;
inline constexpr unsigned kCheckpoint = 1u << kState | 1u << kConvState;
inline constexpr unsigned kRings =
    1u << kRingK | 1u << kRingV | 1u << kRingGate | 1u << kRingBeta | 1u << kRingU | 1u << kConvRing;
inline constexpr unsigned kByRing = kRings | 1u << kSlotOfRing | 1u << kConvSlotOfRing;
inline constexpr unsigned kOwners =
    1u << kSlotOfRing | 1u << kRingOfSlot | 1u << kConvSlotOfRing | 1u << kConvRingOfSlot;
inline constexpr unsigned kAllSections = (1u << kSectionCount) - 1;
inline constexpr unsigned kDeviceGenerations = 1u << kSectionCount;  ///< on the CPU there are none

/// What commit_step gets from materialise and settle: source, destination, number of rows, ring.
inline constexpr int64_t kIndexCount = 4;

/// Bytes of one slot (or ring) of one layer in each section; 0: the pool has no such section.
struct PoolLayout {
  std::array<int64_t, kSectionCount> slot_bytes{};
  std::array<int64_t, kSectionCount> count{};  ///< slots, or rings
  unsigned of_slot = kAllSections;             ///< sections that are moved with a slot
  unsigned exported = kAllSections;
  int64_t slot_total = 0;    ///< bytes of one slot, all layers and of_slot
  int64_t export_total = 0;  ///< the same of `exported`
  int64_t due_count = 0;     ///< elements of PoolStore::device_due
  int64_t gate_count = 0;    ///< elements of PoolStore::gates
  PoolBytes bytes;
};

/// The largest window that a slot takes.
int64_t largest_window(const PoolConfig& config);

/// Checks the description and computes every size, refusing those that do not fit 63 bits.
Status make_layout(const PoolConfig& config, PoolLayout* layout);

/// Memory and cursors of a pool. Plain data; the rules are in Pool and commit.
struct PoolStore {
  PoolConfig config;  ///< max_window filled in
  PoolLayout layout;
  const detail::DeviceMemory* memory = nullptr;  ///< of config.device
  void* stream = nullptr;
  std::array<PoolMemory, kSectionCount> section;
  PoolMemory scratch;                ///< one slot, all sections and layers
  PoolMemory device_generation;      ///< [slots], what `generation` says; null on the CPU
  PoolMemory device_index;           ///< [kIndexCount]; null on the CPU
  PoolMemory gates;                  ///< f32 A_log [layers,HV], then dt_bias [layers,HV,K]; with ring_a
  std::optional<Mixer> mixer;        ///< what set_mixers gave, its views those of `gates`; of all layers
  PoolMemory device_due;             ///< [1 + layers * slots], zero between calls; where there are histories
  AlignedArray<int32_t> generation;  ///< [slots]
  AlignedArray<uint8_t> acquired;    ///< [slots], 0 or 1
  AlignedArray<int32_t> free_list;   ///< [slots], a stack; the first free_count are free
  int64_t free_count = 0;
  AlignedArray<int32_t> copy_from;   ///< [slots], source of a slot that a copy writes; else -1
  AlignedArray<int32_t> copy_uses;   ///< [slots], how many copies still read the slot
  AlignedArray<int32_t> copy_ready;  ///< [slots], stack of slots that may be overwritten

  /// Allocates everything, and marks every slot as free.
  Status allocate();

  bool has_conv() const { return config.conv_channels > 0; }
  bool has_history() const { return config.fold_policy != FoldPolicy::on_commit; }
  /// Elements of device_due.
  int64_t due_count() const { return layout.due_count; }
  /// Are rings keyed by request row?
  bool by_row() const { return config.rings > 0; }
  bool on_device() const { return config.device != Device::cpu; }

  /// An error where a fold would need parameters that nobody has given.
  Status check_mixers() const;
  /// The gate of a layer goes into a call's mixer, where the pool has it.
  void bind_gate(int64_t layer, Mixer* mixer) const;

  /// Address of a slot (or ring) of a layer in a section.
  std::byte* at(int part, int64_t layer, int64_t slot) const {
    return section[part].get() + (layer * layout.count[part] + slot) * layout.slot_bytes[part];
  }
  /// Bytes from a slot of a section to the same slot of the next layer.
  size_t pitch(int part) const { return static_cast<size_t>(layout.count[part] * layout.slot_bytes[part]); }

  /// The smallest and the largest value of a slot (or ring) over the layers, in a section of i32, values that are not
  /// negative without the bits of `flags`. Waits for the stream.
  Status range(int part, int64_t slot, int32_t flags, int32_t* least, int32_t* most) const;
  /// The shortest pending window over the layers (conv windows included), and its ring; kNoWindow where one layer has
  /// none, or where the ring has another slot's. Waits for the stream.
  Status find_window(int64_t slot, int32_t* rows, int32_t* ring) const;

  /// An error that names `what` unless the handle is that of an acquired slot.
  Status check(const char* what, Slot slot) const;
  Status check(const char* what, size_t index, Slot slot) const;
  Status check_all(std::span<const Slot> slots) const;

  /// release and reset of slots that were checked.
  Status give_back(std::span<const Slot> slots);
  Status clear(std::span<const Slot> slots);
};

/// Moves slots of a pool in the order of add(), many at a time, in the pool's stream.
class SlotMover {
 public:
  /// `sections`: what of a slot is moved. `cursor`: the pending lengths of slots that are cleared.
  SlotMover(const PoolStore& pool, unsigned sections, int32_t cursor = kNoWindow);
  /// `from` may be kCleared; both may be kScratchSlot. `generation` goes to a cleared slot's device_generation.
  void add(int32_t from, int32_t to, int32_t generation = 0);
  /// Does what is left; the first error of all.
  Status finish();

 private:
  void flush();

  const PoolStore& pool_;
  detail::SlotMoves moves_;
  Status status_;
};

struct Pool::Impl : PoolStore {};

}  // namespace ringfold
