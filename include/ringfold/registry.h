// What can serve a request, why not, and how it would be run.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ringfold/status.h"
#include "ringfold/types.h"

namespace ringfold {

/// What is asked, without any pointer. Comparable and printable.
struct Desc {
  Op op = Op::verify;
  Device device = Device::cpu;
  MixerKind kind = MixerKind::gdn;
  Numerics numerics = Numerics::exact;
  StateRounding state_rounding = StateRounding::per_commit;
  FoldPolicy fold_policy = FoldPolicy::on_commit;
  DType state_dtype = DType::f32;
  DType act_dtype = DType::f32;
  int64_t H = 0, HV = 0, K = 0, V = 0;
  int64_t rows = 1;              ///< B
  int64_t window = 1;            ///< T, the largest of the batch
  int64_t layers = 1;            ///< fold, conv_commit
  int64_t channels = 0;          ///< C, conv and layer operations (and footprint(): of the layer's conv)
  int64_t conv_width = 4;        ///< W, conv and layer operations
  int64_t state_alignment = 16;  ///< bytes: largest power of two up to 16 that divides the address of every state row
  int64_t input_alignment = 16;  ///< the same for rows of q, k and v, of the ring's k and v, and of a layer's conv ring
  int64_t widest_stride = 0;     ///< bytes: the largest distance between neighbouring heads, tokens or conv channels
  bool packed_rows = true;       ///< the rows of V of a state, and of a snapshot, follow each other without gaps
  int64_t history_rows = 0;      ///< rows of a ring that holds a history; 0: fold policy on_commit
  bool ring_u = false;           ///< the ring keeps u beside the raw rows (Ring::u)
  std::optional<DType> ring_a = {};  ///< KDA: the ring keeps `a` in this dtype in place of g (Ring::a)
  bool snapshots = false;            ///< verify also writes the state after each token
  int threads = 0;                   ///< CPU threads; 0: num_threads()
  bool operator==(const Desc&) const = default;
};

/// How it will be run. Comparable and printable.
struct Plan {
  std::string_view impl;  ///< name of the implementation
  int64_t tasks = 0;      ///< independent pieces of work
  int64_t v_parts = 1;    ///< pieces that one head's V is cut into
  int threads = 1;
  int64_t bytes_read = 0;  ///< of states, rings, inputs, for all rows (no cache effects)
  int64_t bytes_written = 0;
  int64_t fmas = 0;  ///< multiply-add instructions' worth of work, per element, for all rows
  bool operator==(const Plan&) const = default;
};

struct Candidate {
  std::string_view impl;
  bool serves = false;
  std::string reason;  ///< why not; otherwise "chosen", "forced", or "serves", and then perhaps why it was not chosen
};

/// Bytes that one request needs, and bytes that one step moves, for one layer.
struct Footprint {
  int64_t state_bytes = 0;          ///< one checkpoint
  int64_t ring_row_bytes = 0;       ///< one ring row of one slot, u included where the ring keeps it
  int64_t ring_bytes = 0;           ///< the ring of one slot: `window` rows
  int64_t conv_state_bytes = 0;     ///< the short conv's window: C * (W-1) inputs; 0 where `channels` is 0
  int64_t conv_ring_row_bytes = 0;  ///< one recorded conv input: C channels; a slot has `window` of them
  int64_t snapshot_bytes = 0;       ///< the alternative: one state per draft token, `window` of them
  int64_t step_on_commit = 0;       ///< bytes of state and ring moved per step and request: 3 passes over the state
  int64_t step_on_next_verify = 0;  ///< 2 passes
  int64_t step_lazy = 0;            ///< 1 pass + 2 per flush cycle + history reads
  int64_t step_snapshot = 0;        ///< window + 1 passes
  bool operator==(const Footprint&) const = default;
};

struct Explanation {
  Desc desc;
  std::vector<Candidate> candidates;  ///< in order of preference
  Plan plan;                          ///< of the chosen one
  Footprint footprint;
};

/// Names of the implementations of this build that this machine can run, best first.
std::vector<std::string_view> implementations(Device device = Device::cpu);

/// Every candidate with its reason, and the plan. Pure: same arguments, same answer.
/// Errors: not_found (`impl` unknown), unsupported (no candidate serves, or the forced one does not; candidates are
/// filled in all the same).
Status explain(const Desc& desc, std::string_view impl, Explanation* explanation);

/// Footprint of a layer with this description (rows is ignored). `accepted_per_step` is used by the lazy policy.
Footprint footprint(const Desc& desc, double accepted_per_step = 3.0);

std::string to_string(const Desc&);
std::string to_string(const Plan&);

/// Threads of CPU calls: all cores, unless set; 1024 at most. Results do not depend on it (contract C7).
int num_threads();
void set_num_threads(int threads);

/// "0.1.0"
std::string_view version();

}  // namespace ringfold
