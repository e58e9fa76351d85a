// What lies behind the ABI's handles.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "capi/arguments.h"
#include "ringfold/c_api.h"
#include "ringfold/pool.h"
#include "ringfold/registry.h"

namespace ringfold::capi {

/// A view of a pool as DLPack has it; `dl` points into `view`, so it stays where it was made.
struct PoolTensor {
  TensorView view;
  DLTensor dl = {};
};

inline constexpr int kPoolTensors = RINGFOLD_POOL_CONV_RING_OF_SLOT + 1;

}  // namespace ringfold::capi

struct ringfold_pool {
  std::unique_ptr<ringfold::Pool> pool;
  int32_t device_id = ringfold::capi::Arguments::kAnyDevice;  ///< of a CUDA pool
  /// For each kind: of all layers, then of each layer.
  std::array<std::vector<ringfold::capi::PoolTensor>, ringfold::capi::kPoolTensors> tensors;
};

struct ringfold_plan {
  ringfold::Explanation explanation;
  std::vector<std::string> names;  ///< of the candidates
  std::string chosen;              ///< empty: none serves
  std::string text;
};
