// The short convolution's counterpart of World: one layer, a few channels, hostile memory.
#pragma once

#include "check/world.h"

namespace ringfold::check {

class ConvWorld {
 public:
  ConvWorld(const Config& config, std::string_view impl);

  Config config;
  std::string impl;
  int64_t C = 0, W = 0;
  bool silu = true;
  std::vector<int32_t> slots;
  std::vector<int64_t> lengths;
  int64_t num_slots = 0;
  Buffer weight, bias;            ///< [C,W], [C]; bias is absent for every third seed
  std::vector<Buffer> sequences;  ///< per row [window,C]

  struct Memory {
    Buffer state_buffer, ring_buffer, pending_buffer;
    OwnerBuffers owners = OwnerBuffers(Config());
    TensorView state;          ///< [slots,C,W-1]
    TensorView ring;           ///< [slots,rows,C], also where rings are keyed by request row
    TensorView ring_argument;  ///< as calls take it
    TensorView pending;        ///< i32 [slots]
  };
  /// Random windows in `slots`, everything else poisoned.
  Memory make_memory() const;

  struct ConvRow {
    TensorView x;  ///< [count,C]; rank 0: poisoned inputs
    int64_t count = 0;
    int32_t slot = -1;
  };
  struct Call {
    ConvArgs args;
    std::vector<int64_t> first;
    std::vector<Buffer> buffers;
    TensorView out_row(int64_t row, int64_t count) const;
  };
  std::vector<ConvRow> rows() const;
  Call call(const Memory& memory, const std::vector<ConvRow>& rows, std::optional<DType> out_dtype = {}) const;

  void verify(Judge& judge, const Memory& memory, Call& call) const;
  void decode(Judge& judge, const Memory& memory, Call& call) const;
  /// Row 0 leaves a snapshot in `track_slot` after its ring row `track_step`, if both are given.
  void commit(Judge& judge, const Memory& memory, const std::vector<int32_t>& slot_ids,
              const std::vector<int32_t>& counts, int32_t track_slot = -1, int32_t track_step = -1) const;
  int32_t free_slot() const;  ///< one that no row has
  void guards(Judge& judge, const Memory& memory, const Call* call) const;
};

}  // namespace ringfold::check
