// How a call is cut into blocks: pure functions of what is asked and of the device, testable without one.
#pragma once

#include "cuda/common/device.h"
#include "ringfold/registry.h"

namespace ringfold::cuda {

/// The most steps that a row of a call may have: rows of its history that are replayed, and its own tokens.
inline int most_steps(const Desc& d) {
  if (d.history_rows == 0) return static_cast<int>(d.window);
  return static_cast<int>(d.op == Op::decode ? d.history_rows + d.window : d.history_rows);
}

/// Tiles of the exact recurrence. Comparable and printable.
struct ExactTiles {
  int threads = 256;      ///< of a block, which takes threads / 2 rows of V
  int v_parts = 1;        ///< V / (threads / 2)
  int64_t heads = 0;      ///< (layer, row, value head)
  int blocks = 0;         ///< for each part of V; each takes a range of heads. 0: does not fit the device
  int heads_of_line = 0;  ///< most heads of one (layer, row) in a block's range
  int blocks_per_sm = 2;
  int vector_buffers = 3;  ///< token vectors of so many heads at a time: 3, or 2 where there is no room
  int raw_steps = 8;       ///< steps of a head whose q and k are on their way at a time, a multiple of the warps
  int shared_bytes = 0;
  bool operator==(const ExactTiles&) const = default;
};

/// Bytes of shared memory of a block: the next head's state, token vectors of two or three heads, v of two, raw inputs,
/// gates. Of `tiles`, threads, heads_of_line, vector_buffers and raw_steps count.
int exact_shared_bytes(const Desc& desc, const ExactTiles& tiles);
ExactTiles exact_tiles(const Desc& desc, const DeviceProperties& device);

/// Of shared memory, the driver's, for each block.
inline constexpr int kReservedSharedBytes = 1024;

/// Of what a block keeps of a line in shared memory.
inline constexpr int kExactLineBytes = 128;

/// The most threads of a block. Two such blocks share the registers of a multiprocessor.
inline constexpr int kExactThreads = 256;

/// Tiles of the exact recurrence without a pipeline. Comparable and printable.
struct DirectTiles {
  int warps = 4;    ///< of a block, which takes 8 rows of V in each; and there is one more
  int v_parts = 1;  ///< of V; the last one's last warps may have no rows
  bool operator==(const DirectTiles&) const = default;
};

DirectTiles direct_tiles(const Desc& desc, const DeviceProperties& device);

/// The most heads (row, value head) of a call for which it is ahead of the others, as measured.
int64_t direct_heads(const Desc& desc, const DeviceProperties& device);

/// The longest window, most warps of a block, rows of V of a warp. A warp prepares two tokens at most.
inline constexpr int kDirectTokens = 8;
inline constexpr int kDirectWarps = 4;
inline constexpr int kDirectWarpRows = 8;
/// The largest V of a layer in one call, whose blocks have all of it.
inline constexpr int kDirectLayerV = 128;

/// Tiles of the verify with `fast` numerics. Comparable and printable.
struct FastTiles {
  int rows = 128;   ///< of V, of a block
  int v_parts = 1;  ///< V / rows
  int tokens = 4;   ///< that the kernel is made for: 4, 8 or 16
  int heads = 1;    ///< value heads of a key head that a block takes one after the other: GDN, large batches
  bool operator==(const FastTiles&) const = default;
};

/// Where cuda.exact takes less time than cuda.fast for a verify, as measured on an H200: the pairs of tokens that KDA's
/// `fast` forms cost more than the order of the sums. (For small batches, see direct_heads().)
bool exact_beats_fast(const Desc& desc, const DeviceProperties& device);

FastTiles fast_tiles(const Desc& desc, const DeviceProperties& device);

/// The most value heads of a block. (Four were no faster than two where there are four to a key head.)
inline constexpr int kFastHeadsOfBlock = 3;
/// The longest window, and the fewest rows of V of a block.
inline constexpr int kFastTokens = 16;
inline constexpr int kFastRows = 64;
/// The most value heads: divisions by multiplication are right up to there.
inline constexpr int kFastHeads = 4096;

}  // namespace ringfold::cuda
