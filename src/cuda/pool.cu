// Moves of whole slots. A thread owns one place (layer and offset) of all slots of a section and carries out every move
// there, in order; so threads need no order among each other, and chains and cycles of slots are one launch.
#include "cuda/pool.h"

#include <algorithm>

#include "core/host_device.h"
#include "cuda/common/check.h"
#include "cuda/common/start.cuh"

namespace ringfold::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 20;  // of one section; beyond that the threads take several places

/// Which blocks work on which section, and in words of how many bytes.
struct Shares {
  unsigned first_block[kMaxSlotSections + 1] = {};
  int word_bytes[kMaxSlotSections] = {};
};
static_assert(sizeof(SlotMoves) + sizeof(Shares) <= 4096, "what every CUDA version takes as parameters");

/// Part of a slot that is filled with `value`, four bytes each; `offset` is the word's, in bytes.
__device__ void set(uint4* word, int32_t value, int64_t) {
  const auto v = static_cast<unsigned>(value);
  *word = make_uint4(v, v, v, v);
}
__device__ void set(uint32_t* word, int32_t value, int64_t) { *word = static_cast<uint32_t>(value); }
__device__ void set(uint16_t* word, int32_t value, int64_t offset) {
  *word = static_cast<uint16_t>(static_cast<uint32_t>(value) >> (offset % 4 * 8));
}

template <class Word>
__device__ void move_places(const SlotMoves& m, const SlotSection& s, int64_t thread, int64_t threads) {
  const int64_t words = s.slot_bytes / static_cast<int64_t>(sizeof(Word)), places = s.layers * words;
  for (int64_t place = thread; place < places; place += threads) {
    const int64_t layer = place / words, offset = place % words * static_cast<int64_t>(sizeof(Word));
    const auto at = [&](int32_t slot) {
      std::byte* data =
          slot == kScratchSlot ? s.scratch + layer * s.slot_bytes : s.base + (layer * m.slots + slot) * s.slot_bytes;
      return reinterpret_cast<Word*>(data + offset);
    };
    for (int i = 0; i < m.moves; ++i) {
      const int32_t from = m.move[i].from, to = m.move[i].to;
      if (from == kCleared) {
        set(at(to), s.clear_to_value ? m.move[i].value : s.clear_to, offset);
      } else {
        *at(to) = *at(from);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    move_slots_kernel(const __grid_constant__ SlotMoves m, const __grid_constant__ Shares shares) {
  ptx::begin_kernel();
  int section = 0;
  while (section + 1 < m.sections && blockIdx.x >= shares.first_block[section + 1]) ++section;
  const unsigned first = shares.first_block[section], blocks = shares.first_block[section + 1] - first;
  const int64_t thread = static_cast<int64_t>(blockIdx.x - first) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(blocks) * kThreads;
  const SlotSection& s = m.section[section];
  switch (shares.word_bytes[section]) {
    case 16: return move_places<uint4>(m, s, thread, threads);
    case 4: return move_places<uint32_t>(m, s, thread, threads);
    default: return move_places<uint16_t>(m, s, thread, threads);
  }
}

/// The widest words whose addresses are aligned in every slot.
int word_bytes(const SlotSection& s) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(s.base) | reinterpret_cast<uintptr_t>(s.scratch) |
                        static_cast<uint64_t>(s.slot_bytes);
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 2;
}

}  // namespace

Status move_slots(const SlotMoves& moves, void* stream) {
  if (moves.moves == 0 || moves.sections == 0) return {};
  Shares shares;
  for (int i = 0; i < moves.sections; ++i) {
    const SlotSection& s = moves.section[i];
    shares.word_bytes[i] = word_bytes(s);
    const int64_t places = s.layers * s.slot_bytes / shares.word_bytes[i];
    const int64_t blocks = std::min((places + kThreads - 1) / kThreads, kMaxBlocks);
    shares.first_block[i + 1] = shares.first_block[i] + static_cast<unsigned>(blocks);
  }
  const unsigned blocks = shares.first_block[moves.sections];
  return start<move_slots_kernel>("move_slots", blocks, kThreads, 0, stream, moves, shares);
}

}  // namespace ringfold::cuda
