// How work is cut for CPU threads. Pure functions; results never depend on them (contract C7).
#pragma once

#include <algorithm>
#include <cstdint>

#include "ringfold/registry.h"

namespace ringfold::cpu {

/// V is cut between threads in multiples of this, which is a multiple of every instruction set's block of rows.
inline constexpr int kLeastRows = 32;

/// First row of part `i` of V, spread evenly.
inline int v_part_begin(int V, int parts, int i) {
  const int blocks = (V + kLeastRows - 1) / kLeastRows;
  return std::min(V, blocks * i / parts * kLeastRows);
}

/// Parts that V is cut into: as few as give every thread several tasks; preparing a token's vectors is repeated in
/// each.
inline int v_parts(int64_t heads, int64_t V, int threads) {
  const int64_t most = std::max<int64_t>(1, V / kLeastRows);
  int64_t parts = 1;
  while (parts * 2 <= most && heads * parts < threads) parts *= 2;
  return static_cast<int>(parts);
}

/// Consecutive tasks that a thread takes at a time: large enough to hand on prefetches, small enough to balance.
inline int64_t chunk_size(int64_t tasks, int threads) { return std::clamp<int64_t>(tasks / (threads * 8), 1, 64); }

}  // namespace ringfold::cpu
