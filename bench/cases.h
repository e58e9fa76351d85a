// Which shapes are benchmarked, and one benchmark's tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/twins.h"
#include "ringfold/ringfold.h"

namespace ringfold::bench {

/// A row to be measured: its key and its description.
struct Case {
  std::string key;
  Desc desc;
};

/// decode, verify and fold at the shapes of Qwen3.5-35B (16/32), 27B (16/48), Kimi-Linear (32/32) and K3 at TP8
/// (12/12), K = V = 128.
std::vector<Case> standard_cases();

/// The tensors of one case, with random contents and enough slots that consecutive calls find nothing in the cache.
class Rig {
 public:
  /// `state_bytes`: the least size of all slots' states together; at least one call's slots are made.
  Rig(const Desc& desc, int64_t state_bytes);

  /// One call, on the next set of slots.
  Status call(std::string_view impl);
  /// The memory that the next call would touch, moving on as call() does.
  std::vector<Piece> pieces();
  const std::vector<std::byte>& state() const { return state_; }
  const std::vector<std::byte>& out() const { return out_; }

 private:
  Desc desc_;
  int64_t sets_ = 1, next_ = 0;
  std::vector<std::byte> state_, q_, k_, v_, a_, b_, out_, ring_k_, ring_v_;
  std::vector<float> A_log_, dt_bias_, ring_g_, ring_beta_;
  std::vector<int32_t> slots_, accepted_;
};

/// Runs `impl` and the plain reference on up to two rows of the case and compares outputs and states byte for byte.
Status check_case(const Desc& desc, std::string_view impl);

}  // namespace ringfold::bench
