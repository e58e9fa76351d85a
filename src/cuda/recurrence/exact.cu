// Which instance serves, and how its work is cut.
#include "cuda/recurrence/exact.h"

#include <algorithm>

#include "core/plan.h"
#include "cuda/recurrence/exact_launch.cuh"

namespace ringfold::cuda {
namespace {

using namespace exact;

/// Of a call that exact_refusal() accepts.
ExactParams params_of(const RecurrenceParams& params, const Desc& desc) {
  ExactParams p;
  static_cast<RecurrenceParams&>(p) = params;
  const auto bytes = [](int64_t elements, DType dtype) {  // exact_refusal() has seen that they fit
    return static_cast<int32_t>(elements * static_cast<int64_t>(size_of(dtype)));
  };
  const auto pitch = [&](const Array& array) {
    return array ? Pitch{bytes(array.head_stride, array.dtype), bytes(array.token_stride, array.dtype)} : Pitch{};
  };
  p.q_at = pitch(p.q), p.k_at = pitch(p.k), p.v_at = pitch(p.v), p.a_at = pitch(p.a), p.b_at = pitch(p.b);
  p.out_at = pitch(p.out);
  p.ring_k_at = pitch(p.ring_k), p.ring_v_at = pitch(p.ring_v);
  p.ring_gate_at = pitch(p.ring_gate), p.ring_beta_at = pitch(p.ring_beta);
  p.most_steps = std::max(1, most_steps(desc));
  p.heads_per_key = p.HV / p.H;
  p.state_head = bytes(p.state.head_stride, p.state.dtype);
  return p;
}

Cut cut_of(const RecurrenceParams& p, const ExactTiles& tiles) {
  Cut cut{.tiles = tiles, .origins = {}};
  const auto origin = [](const Array& array, int64_t v_stride = 0) {
    const auto size = static_cast<int64_t>(size_of(array.dtype));
    return Origin{array.data, array.layer_stride * size, array.row_stride * size, array.token_stride * size,
                  v_stride * size};
  };
  cut.origins[kInQ] = origin(p.q), cut.origins[kInK] = origin(p.k), cut.origins[kInV] = origin(p.v, 1);
  cut.origins[kInA] = origin(p.a), cut.origins[kInB] = origin(p.b), cut.origins[kOut] = origin(p.out, 1);
  cut.origins[kRingK] = origin(p.ring_k), cut.origins[kRingV] = origin(p.ring_v, 1);
  cut.origins[kRingGate] = origin(p.ring_gate), cut.origins[kRingBeta] = origin(p.ring_beta);
  if (p.from_ring) {  // no a and b: what a gate in the ring needs of the layer
    const auto parameter = [](const float* data, int64_t layer_stride) {
      return Origin{reinterpret_cast<std::byte*>(const_cast<float*>(data)), data ? layer_stride * 4 : 0};
    };
    cut.origins[kInA] = parameter(p.A_log, p.A_log_layer_stride);
    cut.origins[kInB] = parameter(p.dt_bias, p.dt_bias_layer_stride);
  }
  cut.origins[kState] = cut.origins[kTarget] = cut.origins[kTrack] = origin(p.state, p.K);
  if (p.snapshots) cut.origins[kTrack] = origin(p.snapshots, p.K);
  return cut;
}

}  // namespace

Refusal layout_refusal(const Desc& d) {
  if (d.K != 64 && d.K != 128) return {"needs K of 64 or 128", "K", d.K};
  if (d.V % 16 != 0) return {"needs V to be a multiple of 16", "V", d.V};
  if (size_of(d.act_dtype) != 2) return {"needs bf16 or f16 activations"};
  if (!d.packed_rows) return {"needs the rows of V of a state without gaps"};
  if (d.snapshots && d.history_rows > 0) return {"writes no snapshots behind a history"};
  if (d.input_alignment < 16)
    return {"needs q, k, v and ring rows aligned to 16 bytes", "alignment", d.input_alignment};
  if (d.state_alignment < 16) return {"needs state rows aligned to 16 bytes", "alignment", d.state_alignment};
  if (d.widest_stride > INT32_MAX) {
    return {"needs at most 2147483647 bytes between heads and between tokens", "stride", d.widest_stride};
  }
  if (d.layers * d.rows * d.HV > INT32_MAX) return {"needs at most 2147483647 heads", "rows", d.rows};
  return {};
}

Refusal exact_refusal(const Desc& d) {
  if (d.op != Op::verify && d.op != Op::decode && d.op != Op::fold) return {};
  if (const Refusal r = layout_refusal(d); r.needs) return r;
  if (exact_tiles(d, current_device()).blocks == 0) return {"needs more shared memory than a block has", "T", d.window};
  return {};
}

Plan exact_plan(const Desc& d) {
  Plan plan = traffic(d);
  if (d.op != Op::verify && d.op != Op::decode && d.op != Op::fold) return plan;
  const ExactTiles tiles = exact_tiles(d, current_device());
  plan.tasks = tiles.heads * tiles.v_parts;
  plan.v_parts = tiles.v_parts;
  plan.threads = tiles.threads;
  return plan;
}

Status exact_recurrence(const RecurrenceParams& params, const Desc& desc) {
  const exact::ExactParams p = params_of(params, desc);
  const DeviceProperties& device = current_device();
  const ExactTiles tiles = exact_tiles(desc, device);
  if (tiles.heads == 0) return {};
  static const exact::Instances all[3][2] = {{exact::window_64(), exact::window_128()},
                                             {exact::history_64(), exact::history_128()},
                                             {exact::ring_64(), exact::ring_128()}};
  const exact::Instances& of = all[p.from_ring ? 2 : p.history ? 1 : 0][p.K == 128];
  return of.of[p.state.dtype == DType::f32 ? 0 : 1][p.kind == MixerKind::kda](p, cut_of(params, tiles),
                                                                              device.shared_bytes_per_block);
}

}  // namespace ringfold::cuda
