// A small recurrent model whose tokens are numbers: conv, mixer and pool together, for tests of whole steps.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check/mirror.h"
#include "check/support.h"
#include "ringfold/ringfold.h"

namespace ringfold::test {

using check::Buffer;
using check::Bytes;
using check::Rng;

struct RigConfig {
  /// conv_channels is set by the rig: 2*H*K + HV*V with a conv, else 0. `a` has the dtype of ring_a, or f32.
  PoolConfig pool;
  bool conv = true;
  bool fused = false;      ///< with a conv: verify_layer and decode_layer; plainly the chain of three calls
  bool safe_gate = false;  ///< KDA with lower_bound -5
  int vocab = 48;
  uint64_t seed = 1;
  DType out_dtype = DType::f32;
};

/// A call on a pool's layers, for asking who serves it. Rows and window are the largest of a trace.
Desc describe(const PoolConfig& pool, Op op);

/// One row of a batch: a slot id as the call gets it, and the tokens of its window. Token kNaN: every input is NaN.
struct Row {
  static constexpr int kNaN = -1;
  int32_t slot = -1;
  std::vector<int> tokens{};
  int32_t ring = -1;  ///< where the pool's rings are keyed by request row
};

/// Where a call works: a pool's layers, or plain states without a ring.
struct Target {
  std::vector<TensorView> state, conv_state, conv_ring, pending, conv_pending;
  std::vector<Ring> ring;
  std::vector<History> history;
  std::vector<RingOwners> owners, conv_owners;
};

Target target_of(const Pool& pool);

struct StepOptions {
  std::string_view impl{};
  bool dense = false;             ///< [B,T,..] in place of cu_seqlens; every row has the same number of tokens
  bool with_status = true;        ///< give row_status
  std::vector<int32_t> layers{};  ///< order; empty: ascending, all
};

struct StepResult {
  Status status;                    ///< the first that is not ok
  std::vector<int32_t> row_status;  ///< of the mixer's call; conv and all layers must agree
  std::vector<int32_t> first;       ///< [B+1], token offsets
  std::vector<Buffer> out;          ///< per layer, [tokens,HV,V]
  std::string trouble;              ///< damage around an output, or calls that disagree about a row; "" if none

  /// Outputs of a row in one layer.
  TensorView row(int64_t layer, size_t r) const;
};

class Rig {
 public:
  explicit Rig(const RigConfig& config);

  const RigConfig& config() const { return config_; }
  const PoolConfig& pool_config() const { return config_.pool; }
  int64_t layers() const { return config_.pool.layers; }
  int64_t channels() const { return channels_; }
  std::unique_ptr<Pool> make_pool() const;
  Mixer mixer(int64_t layer) const;
  /// A pool whose ring keeps the raw gate gets the mixers of all layers.
  void give_mixers(Pool* pool) const;

  /// conv_verify + verify, or conv_decode + decode, of every layer; or the layers in one call each.
  StepResult verify(const Target& target, const std::vector<Row>& rows, const StepOptions& options = {}) const {
    return step(false, target, rows, options);
  }
  StepResult decode(const Target& target, const std::vector<Row>& rows, const StepOptions& options = {}) const {
    return step(true, target, rows, options);
  }

 private:
  struct Ids {
    TensorView slots, rings;  ///< of a call's rows
  };
  StepResult step(bool decode, const Target& target, const std::vector<Row>& rows, const StepOptions& options) const;
  void run_layer(bool decode, int64_t layer, const Target& target, const std::vector<Row>& rows, const Ids& ids,
                 const StepOptions& options, StepResult* result) const;
  void run_fused(bool decode, int64_t layer, const Target& target, const std::vector<Row>& rows, const Ids& ids,
                 const StepOptions& options, StepResult* result) const;
  /// Refusals, statuses and damage of a layer's call.
  void note(const Status& status, const Buffer& out, const TensorView& row_status, const StepOptions& options,
            StepResult* result) const;
  Buffer gather(const Buffer& table, int64_t layer, const std::vector<Row>& rows) const;
  Window window(const TensorView& packed, const TensorView& a, const TensorView& b) const;

  friend class Plain;

  RigConfig config_;
  int64_t channels_ = 0;  ///< of x, q k v packed
  Buffer x_, a_, b_, z_;  ///< [layers,vocab,width]
  Buffer A_log_, dt_bias_, conv_weight_, conv_bias_, norm_weight_;
};

/// One request decoded plainly on the CPU, without pool, ring or drafts: what a pool of any device has to reproduce bit
/// for bit.
class Plain {
 public:
  explicit Plain(const Rig& rig) : rig_(rig) {}
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

  struct State {
    std::vector<Bytes> state, conv;         ///< per layer, packed
    std::vector<std::vector<int>> history;  ///< tokens, in the groups that were rounded together
    bool operator==(const State&) const = default;
  };

  State zero() const;
  /// Tokens one at a time; or as one group where a 16-bit state is rounded per commit. Returns outputs per layer
  /// [n,HV,V].
  std::vector<Bytes> decode(State* s, const std::vector<int>& tokens, std::string_view impl) const;
  /// The same history from zero.
  State replay(const State& s, std::string_view impl) const;

 private:
  void decode_group(State* s, const std::vector<int>& tokens, std::string_view impl, std::vector<Bytes>* out) const;
  void decode_layer(State* s, size_t layer, const std::vector<int>& tokens, std::string_view impl, Bytes* out) const;

  const Rig& rig_;
};

/// "" if slot `id` of the pool holds these bits in every layer; otherwise where not. Looks at the checkpoint: with a
/// fold policy other than on_commit, settle the slot, or a copy of it, first.
std::string compare_slot(const Pool& pool, int32_t id, const Plain::State& want);

}  // namespace ringfold::test
