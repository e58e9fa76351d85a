// Parameters of one gated delta-rule layer, and the ring that records its windows.
#pragma once

#include <optional>

#include "ringfold/tensor_view.h"

namespace ringfold {

/// A gated delta-rule layer: what turns raw projections into gates, and how q and k are normalised.
/// Formulas: docs/math.md. GDN after Yang et al., "Gated Delta Networks" (2024) with the Qwen3-Next gate;
/// KDA after the Kimi Linear technical report (2025).
struct Mixer {
  MixerKind kind = MixerKind::gdn;
  TensorView A_log;                       ///< f32 [HV], read
  TensorView dt_bias = {};                ///< f32 [HV] (GDN) or [HV,K] (KDA), read; may be absent: zeros
  float softplus_beta = 1.0f;             ///< > 0
  float softplus_threshold = 20.0f;       ///< softplus(x) = x above this value of softplus_beta * x; at most 80
  std::optional<float> lower_bound = {};  ///< KDA safe gate: g = lower_bound * sigmoid(exp(A_log) * x); must be < 0
  std::optional<float> scale = {};        ///< of q; K^-0.5 when absent
  bool qk_l2norm = true;                  ///< q and k are divided by sqrt(sum of squares + 1e-6)
};

/// The ring: raw inputs of the last window of every slot, from which fold replays. Entries are rows, never slots.
/// The gate is there as `g`, or for KDA as `a`, which takes half the memory where it has 16 bits: exactly one of them.
/// All strides but the innermost are free, so [slots,rows,HV,V] and [slots,HV,rows,V] memory both work (permute()).
/// A call that names rings by `ring_ids` has [rings,..] here in place of [slots,..]: see RingOwners.
/// `layers` leads only where the operation takes several layers.
struct Ring {
  TensorView k;       ///< activation dtype [layers?,slots,rows,H,K]
  TensorView v;       ///< activation dtype [layers?,slots,rows,HV,V]
  TensorView g = {};  ///< f32 [layers?,slots,rows,HV] (GDN) or [..,HV,K] (KDA): log decay; absent with `a`
  TensorView beta;    ///< f32 [layers?,slots,rows,HV]
  /// Optional, f32 [layers?,slots,rows,HV,V], 16-byte aligned, for fold policy `lazy`: what each row added to the state
  /// (beta (v - decayed state . k)), derived data from which cuda.fast reads a history without replaying it. verify
  /// writes it for its window. Where it is there, only `fast` verifies are served, and commit folds what is due.
  TensorView u = {};
  /// KDA, in place of g: [layers?,slots,rows,HV,K] in the dtype of window.a, bit for bit what came in. Whoever reads it
  /// computes g as verify did, and needs the mixer for that: the same values as in the verify that wrote the row.
  TensorView a = {};

  bool empty() const { return k.empty(); }
};

/// Rings keyed by request row (fold policy on_commit alone): a call names a ring for each of its rows, `ring_ids`, i32
/// [B], so that a pool of many slots needs but a ring for each row of its largest batch. This says which window lies
/// where. The pending window of slot s is the one in ring r exactly if both say so; verify sets them with `pending`,
/// and a commit of any other pair is refused (window_not_in_ring). Both views or none, beside `pending`; Pool::bind
/// fills them in. They need not be set at first: what they say counts only where `pending` says that there is a window.
struct RingOwners {
  TensorView slot_of_ring = {};  ///< i32 [layers?,rings]: whose window was recorded there last
  TensorView ring_of_slot = {};  ///< i32 [layers?,slots]: where the slot's last window was recorded

  bool empty() const { return slot_of_ring.empty() && ring_of_slot.empty(); }
};

/// What the fold policies on_next_verify and lazy keep for each slot: the history, that is, accepted rows that lie in
/// the ring and not yet in the checkpoint. Row i of it is ring row (base + i) mod rows, and row t of the pending window
/// is ring row (base + live + t) mod rows. All views or none; Pool fills it in. The calls that take it need `ring` and
/// `pending` beside it.
struct History {
  TensorView base = {};  ///< i32 [layers?,slots]: ring row where the history begins, 0 .. rows-1
  TensorView live = {};  ///< i32 [layers?,slots]: its length
  TensorView cuts = {};  ///< i32 [layers?,slots]: bit i: a commit ended with ring row i (where per_commit rounds)
  FoldPolicy policy = FoldPolicy::on_commit;  ///< on_commit: no views
  int64_t max_window = 0;  ///< largest window, 1 .. rows-1; verify refuses longer ones. Not needed by decode and fold

  bool empty() const { return base.empty(); }
};

}  // namespace ringfold
