// A checkpoint of random weights, written to a directory of its own, for tests of the engine.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "ringfold/types.h"

namespace ringfold::engine::testing {

/// A tensor in the making, fp32; rounded to the checkpoint's dtype when it is written.
struct DraftTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// Edit the members, then write(). The directory is removed with the object.
class TinyModel {
 public:
  /// A small hybrid with awkward sizes: K != V, HV = 2H, dimensions that are no multiples of 8.
  explicit TinyModel(uint64_t seed = 1);
  ~TinyModel();
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  nlohmann::json config;
  std::map<std::string, DraftTensor> tensors;  ///< filled by the constructor from `config`
  DType dtype = DType::bf16;                   ///< of matrices; vectors are F32

  /// Writes config.json and model.safetensors, or two shards and an index.
  void write(bool sharded = false) const;
  const std::string& dir() const { return dir_; }
  /// write() and load; one thread unless the options say otherwise.
  std::unique_ptr<Engine> engine(const EngineOptions& options = {}) const;

 private:
  void fill(uint64_t seed);
  std::string dir_;
};

/// Bytes as tokens.
std::vector<int32_t> tokens_of(const std::string& text);

}  // namespace ringfold::engine::testing
