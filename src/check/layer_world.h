// A whole layer (conv, mixer, gated norm) in a small world: the fused calls, and the chain of three that they equal.
#pragma once

#include "check/world.h"

namespace ringfold::check {

class LayerWorld {
 public:
  LayerWorld(const Config& config, std::string_view impl);

  World world;  ///< one layer; its sequences' q, k and v are projections here
  int64_t C = 0, W = 0;
  bool silu = true;
  NormGate norm_gate = NormGate::silu;
  float norm_eps = 1e-6f;
  DType mixer_out = DType::f32, out = DType::f32;
  Buffer conv_weight, conv_bias, norm_weight;
  std::vector<Buffer> z;  ///< per row [window,HV,V]

  /// All that a call may write but for its outputs.
  struct Memory {
    Store store;
    Buffer conv_state_buffer, conv_ring_buffer, conv_pending_buffer;
    TensorView conv_state, conv_ring, conv_pending;  ///< the ring by slot
    TensorView conv_ring_argument = {};
    OwnerBuffers conv_owners = OwnerBuffers(Config());
    Config config = {};
    std::vector<std::pair<const char*, TensorView>> all() const;
    void guards(Judge& judge) const;
  };
  /// Random states and conv windows, histories where the policy has them; everything else poisoned.
  Memory make_memory() const;

  /// One call's inputs and outputs.
  struct Call {
    Batch batch;
    Buffer qkv, z;
    bool packed = true;  ///< the projections are given as `qkv`, else as views
    void guards(Judge& judge) const;
  };
  Call call(std::vector<Row> rows) const;
  Call call() const { return call(world.rows(0)); }

  LayerArgs args(const Memory& memory, Call& call) const;
  void verify(Judge& judge, const Memory& memory, Call& call) const;
  void decode(Judge& judge, const Memory& memory, Call& call) const;
  /// The same by three calls on packed tensors, on rows that are all done. Returns the outputs, [tokens,HV,V].
  Buffer chain(Judge& judge, bool decodes, const Memory& memory, const Call& call) const;

  /// Accepts counts[r] tokens of row r. `later`: rows join the history where there is room for them.
  void commit(Judge& judge, const Memory& memory, const std::vector<int32_t>& counts, bool later) const;

 private:
  bool has_bias() const { return world.config.seed % 3 != 1; }
};

}  // namespace ringfold::check
