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

/// How a layer's call is cut. A task has whole key heads of a row with all of their value heads, so that q and k are
/// convolved and normalised once; where that leaves threads idle, a key head is several tasks.
struct LayerCut {
  int keys = 1;   ///< key heads of a task
  int heads = 1;  ///< value heads of each
  int v_parts = 1;
  int tasks_per_key = 1;  ///< more than 1: then `keys` is 1
};

/// What the tasks of one key head share lies on the stack of the calling thread: a counter for each key head, and
/// where V is cut, the mixer's outputs.
inline constexpr int64_t kMostSharedKeys = 64;
inline constexpr int64_t kMostSharedFloats = 8192;

/// Bytes that hold the conv's outputs of a task: at least q, k and one v of the longest window and the largest heads.
inline constexpr int64_t kLayerBuffer = int64_t{3} * kMaxWindow * kMaxHeadDim * 4;

/// Key heads that a task has at most.
inline constexpr int64_t kMostKeys = 16;

/// Value heads whose v fit the buffer beside q and k of the task's key heads; the mixer's outputs take their places.
inline int layer_batch(int64_t tokens, int64_t K, int64_t V, int keys, int heads, int64_t act_size) {
  const int64_t value_bytes = std::max<int64_t>(1, keys * tokens * V * 4);
  return static_cast<int>(
      std::clamp<int64_t>((kLayerBuffer - 2 * keys * tokens * K * act_size) / value_bytes, 1, heads));
}

/// `Shape` has rows, H, HV, K, V and max_window.
template <class Shape>
LayerCut layer_cut(const Shape& s, int64_t act_size, int threads) {
  const int group = static_cast<int>(s.HV / s.H);
  const int64_t keys = s.rows * s.H;
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
    if (cut.heads == 1 && heads * s.max_window * s.V <= kMostSharedFloats) cut.v_parts = v_parts(heads, s.V, threads);
  }
  cut.tasks_per_key = group / cut.heads * cut.v_parts;
  if (cut.tasks_per_key > 1) return cut;
  // As many key heads at a time as fit, but two tasks or more for each of several threads.
  const int64_t bytes = s.max_window * (2 * s.K * act_size + group * s.V * 4);
  const int64_t fit = std::min<int64_t>(kMostKeys, kLayerBuffer / std::max<int64_t>(1, bytes));
  cut.keys = static_cast<int>(std::clamp<int64_t>(std::min(fit, threads == 1 ? keys : keys / (2 * threads)), 1, s.H));
  return cut;
}

/// Consecutive tasks that a thread takes at a time: large enough to hand on prefetches, small enough to balance.
inline int64_t chunk_size(int64_t tasks, int threads) { return std::clamp<int64_t>(tasks / (threads * 8), 1, 64); }

}  // namespace ringfold::cpu
