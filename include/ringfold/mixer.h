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
/// All strides but the innermost are free, so [slots,rows,HV,V] and [slots,HV,rows,V] memory both work (permute()).
/// `layers` leads only where the operation takes several layers.
struct Ring {
  TensorView k;     ///< activation dtype [layers?,slots,rows,H,K]
  TensorView v;     ///< activation dtype [layers?,slots,rows,HV,V]
  TensorView g;     ///< f32 [layers?,slots,rows,HV] (GDN) or [layers?,slots,rows,HV,K] (KDA): log decay
  TensorView beta;  ///< f32 [layers?,slots,rows,HV]

  bool empty() const { return k.empty(); }
};

}  // namespace ringfold
