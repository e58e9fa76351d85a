// Which instance serves, and what it is told.
#include "cuda/recurrence/direct.h"

#include <algorithm>

#include "core/plan.h"
#include "cuda/layer/layer.h"
#include "cuda/recurrence/direct_launch.cuh"
#include "cuda/recurrence/exact.h"
#include "cuda/tuning.h"

namespace ringfold::cuda {
namespace {

int32_t small(int64_t n) { return static_cast<int32_t>(std::min<int64_t>(n, INT32_MAX)); }

}  // namespace

direct::DirectParams direct::params_of(const RecurrenceParams& p) {
  const auto of_window = [&](const Array& array) { return place_of(array, static_cast<bool>(p.cu_seqlens)); };
  direct::DirectParams d;
  d.slot_ids = p.slot_ids, d.cu_seqlens = p.cu_seqlens;
  d.window = p.window;
  d.heads_per_key = p.HV / p.H;
  d.by_heads_per_key = Divisor(d.heads_per_key);
  d.k = of_window(p.k), d.q = of_window(p.q), d.v = of_window(p.v), d.a = of_window(p.a), d.b = of_window(p.b);
  d.A_log = p.A_log, d.dt_bias = p.dt_bias;
  d.dt_bias_head = static_cast<int32_t>(p.dt_bias_head_stride * static_cast<int64_t>(sizeof(float)));
  d.V = p.V;
  d.state = place_of(p.state);
  d.pending = p.pending;
  d.slots = small(p.slots), d.total_tokens = small(p.total_tokens), d.longest = small(p.longest);
  d.act_dtype = p.v.dtype, d.a_dtype = p.a.dtype, d.b_dtype = p.b.dtype, d.out_dtype = p.out.dtype;
  d.state_dtype = p.state.dtype;
  d.qk_l2norm = p.qk_l2norm, d.safe_gate = p.safe_gate;
  d.softplus_beta = p.softplus_beta, d.softplus_threshold = p.softplus_threshold, d.lower_bound = p.lower_bound;
  d.scale = p.scale;
  d.records = p.records(), d.raw_gate = p.raw_gate, d.write_state = p.write_state;
  d.rounds = p.rounding == StateRounding::per_token;
  d.out = of_window(p.out);
  d.ring_k = place_of(p.ring_k), d.ring_v = place_of(p.ring_v);
  d.ring_gate = place_of(p.ring_gate), d.ring_beta = place_of(p.ring_beta);
  d.move = p.move;
  d.row_status = p.row_status;
  d.ring_ids = p.ring_ids, d.rings = small(p.rings), d.owners = p.owners;
  return d;
}

Refusal direct_window_refusal(const Desc& d) {
  if (d.fold_policy != FoldPolicy::on_commit) return {"needs fold policy on_commit"};
  if (d.snapshots) return {"writes no snapshots"};
  if (d.window > kDirectTokens) return {"needs a window of at most 8 tokens", "T", d.window};
  if (d.HV > kMostGridRows) return {"needs at most 65535 value heads", "HV", d.HV};
  return layout_refusal(d);
}

Refusal direct_refusal(const Desc& d) {
  if (is_layer(d.op)) return direct_layer_refusal(d);
  return d.op == Op::verify || d.op == Op::decode ? direct_window_refusal(d) : exact_refusal(d);
}

Refusal direct_yields(const Desc& d) {
  if (is_layer(d.op)) return {};
  if (d.op != Op::verify && d.op != Op::decode) return {"leaves all but verify and decode to cuda.exact"};
  if (d.rows * d.HV <= direct_heads(d, current_device())) return {};
  return {"leaves this many heads to others", "B*HV", d.rows * d.HV};
}

Plan direct_plan(const Desc& d) {
  if (is_layer(d.op)) return direct_layer_plan(d);
  if (d.op != Op::verify && d.op != Op::decode) return exact_plan(d);
  Plan plan = traffic(d);
  const DirectTiles tiles = direct_tiles(d, current_device());
  plan.v_parts = tiles.v_parts;
  plan.tasks = d.rows * d.HV * tiles.v_parts;
  plan.threads = tiles.warps * 32;
  return plan;
}

Status direct_strides(const Rows& p) {
  if (std::max({p.slot_ids.stride, p.cu_seqlens.stride, p.ring_ids.stride}) <= INT32_MAX) return {};
  return {Code::unsupported,
          "strides: cuda.direct expects fewer than 2147483648 elements between slot ids, ring ids and bounds"};
}

Status direct_recurrence(const RecurrenceParams& p, const Desc& desc) {
  if (p.from_ring) return exact_recurrence(p, desc);
  if (p.rows == 0) return {};
  RINGFOLD_RETURN_IF_ERROR(direct_strides(p));
  const DirectTiles tiles = direct_tiles(desc, current_device());
  static const direct::Instances all[2] = {direct::instances_64(), direct::instances_128()};
  const direct::Launch launch = all[p.K == 128].of[p.state.dtype == DType::f32 ? 0 : 1][p.kind == MixerKind::kda];
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.HV), static_cast<unsigned>(tiles.v_parts));
  return launch(direct::params_of(p), grid, tiles.warps, p.stream);
}

}  // namespace ringfold::cuda
