// Which rows are benchmarked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ringfold/registry.h"

namespace ringfold::bench {

/// A row to be measured: its key and its description. A fold takes `window` rows of a ring.
struct Case {
  std::string key;
  Desc desc;
  /// The second half of a whole step: `desc` is called on each of `fold->layers` layers, then this once for all of
  /// them, taking `fold->window` of the `desc.window` rows recorded. Times are those of one layer.
  std::optional<Desc> fold;
  /// A whole step by a pool and commit(), under the fold policy of `desc`; timed over whole flush cycles.
  bool pool = false;

  int64_t layers() const { return fold ? fold->layers : desc.layers; }
  /// Bytes of state that one call touches.
  int64_t state_bytes() const;
};

/// On the CPU: decode, verify and fold at the shapes of Qwen3.5-35B (16/32), 27B (16/48), Kimi-Linear (32/32) and K3 at
/// TP8 (12/12), K = V = 128.
/// A whole layer (16/32 and 32/32) is timed beside the chain of its three calls, and whole steps under each fold policy
/// (two layers).
/// On CUDA: the same operations of GDN 16/32 and KDA 32/32 over larger batches, `exact` and `fast`, folds of eight
/// layers in one launch, whole steps under each fold policy, and verify at the shapes of K3 at TP8 and of Qwen3.5-122B
/// (16/64); whole layers beside their chains, as on the CPU. Cases of one shape follow each other.
std::vector<Case> standard_cases(Device device);

}  // namespace ringfold::bench
