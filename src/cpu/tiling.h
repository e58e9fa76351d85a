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

/// How a layer's call is cut. A key head of a row is one task with all of its value heads, so that its q and k are
/// convolved and normalised once; where that leaves threads idle, it is several.
struct LayerCut {
  int heads = 1;  ///< value heads of a task
  int v_parts = 1;
  int tasks_per_key = 1;  ///< (value heads of a key head) / heads * v_parts
};

/// What the tasks of one key head share lies on the stack of the calling thread: a counter for each key head, and
/// where V is cut, the mixer's outputs.
inline constexpr int64_t kMostSharedKeys = 64;
inline constexpr int64_t kMostSharedFloats = 8192;

/// `keys`: rows times key heads; `group`: value heads of each.
inline LayerCut layer_cut(int64_t keys, int group, int64_t V, int64_t window, int threads) {
  // A key head's conv and normalisation take about a quarter of what a value head takes.
  const auto cost = [&](int heads) {
    const int64_t tasks = keys * (group / heads);
    return (tasks + threads - 1) / threads * (4 * heads + 1);
  };
  LayerCut cut{.heads = group};
  if (keys > 0 && keys <= kMostSharedKeys) {
    for (int heads = group - 1; heads >= 1; --heads) {
      if (group % heads == 0 && cost(heads) < cost(cut.heads)) cut.heads = heads;
    }
    const int64_t heads = keys * group;
    if (cut.heads == 1 && heads * window * V <= kMostSharedFloats) cut.v_parts = v_parts(heads, V, threads);
  }
  cut.tasks_per_key = group / cut.heads * cut.v_parts;
  return cut;
}

/// Consecutive tasks that a thread takes at a time: large enough to hand on prefetches, small enough to balance.
inline int64_t chunk_size(int64_t tasks, int threads) { return std::clamp<int64_t>(tasks / (threads * 8), 1, 64); }

}  // namespace ringfold::cpu
