// How a call is cut into blocks: pure functions of what is asked and of the device, testable without one.
#pragma once

#include "cuda/common/device.h"
#include "ringfold/registry.h"

namespace ringfold::cuda {

/// Tiles of the exact recurrence. Comparable and printable.
struct ExactTiles {
  int threads = 256;       ///< of a block; it takes threads / 2 rows of V at a time
  int rows = 128;          ///< of V, of one unit of work
  int64_t units = 0;       ///< (layer, row, head, rows of V)
  int blocks = 0;          ///< persistent: each takes every blocks-th unit
  int blocks_per_sm = 2;
  int shared_bytes = 0;
  bool operator==(const ExactTiles&) const = default;
};

/// Bytes of shared memory of a block: the next unit's state, token vectors of two units, raw inputs.
int exact_shared_bytes(const Desc& desc, int threads);
ExactTiles exact_tiles(const Desc& desc, const DeviceProperties& device);

/// The largest window of the exact tuned kernels.
inline constexpr int kExactWindow = 16;
/// Threads for each of which ptxas may use 128 registers when two blocks of 256 share a multiprocessor.
inline constexpr int kExactThreads = 256;

}  // namespace ringfold::cuda
