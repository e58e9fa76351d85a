// Which instance serves, and how its work is cut.
#include "cuda/recurrence/exact.h"

#include "core/plan.h"
#include "cuda/recurrence/exact_launch.cuh"

namespace ringfold::cuda {
namespace {

/// May 16-byte accesses be used on rows of this array?
bool aligned(const Array& a) {
  const int64_t size = static_cast<int64_t>(size_of(a.dtype));
  const int64_t all = static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.data)) |
                      size * (a.layer_stride | a.row_stride | a.token_stride | a.head_stride);
  return all % 16 == 0;
}

Desc desc_of(const RecurrenceParams& p) {
  Desc d;
  d.op = p.from_ring ? Op::fold : p.write_state ? Op::decode : Op::verify;
  d.kind = p.kind;
  d.state_dtype = p.state.dtype;
  d.act_dtype = p.from_ring ? p.ring_v.dtype : p.v.dtype;
  d.H = p.H, d.HV = p.HV, d.K = p.K, d.V = p.V;
  d.rows = p.rows, d.window = p.max_window, d.layers = p.layers;
  return d;
}

}  // namespace

Refusal exact_refusal(const Desc& d) {
  if (d.op != Op::verify && d.op != Op::decode && d.op != Op::fold) return {};
  if (d.K != 64 && d.K != 128) return {"needs K of 64 or 128", "K", d.K};
  if (d.V % 16 != 0) return {"needs V to be a multiple of 16", "V", d.V};
  if (d.window > kExactWindow) return {"needs a window of at most 16 tokens", "T", d.window};
  if (d.state_alignment < 16) return {"needs state rows aligned to 16 bytes", "alignment", d.state_alignment};
  if (d.layers * d.rows * d.HV * (d.V / 16) > INT32_MAX / 2) return {"needs fewer than 2^30 tiles", "rows", d.rows};
  return {};
}

Plan exact_plan(const Desc& d) {
  Plan plan = traffic(d);
  if (d.op != Op::verify && d.op != Op::decode && d.op != Op::fold) return plan;
  const ExactTiles tiles = exact_tiles(d, current_device());
  plan.tasks = tiles.units;
  plan.v_parts = d.V / tiles.rows;
  plan.threads = tiles.threads;
  return plan;
}

Status exact_recurrence(const RecurrenceParams& params) {
  exact::ExactParams p{params};
  if (p.from_ring) {
    p.aligned_inputs = aligned(p.ring_k) && aligned(p.ring_v);
  } else {
    p.aligned_inputs = aligned(p.q) && aligned(p.k) && aligned(p.v);
    p.aligned_ring = p.ring_k && aligned(p.ring_k) && aligned(p.ring_v);
  }
  const DeviceProperties& device = current_device();
  const ExactTiles tiles = exact_tiles(desc_of(p), device);
  if (tiles.units == 0) return {};
  static const exact::Instances all[2][2] = {{exact::window_64(), exact::window_128()},
                                             {exact::ring_64(), exact::ring_128()}};
  const exact::Instances& of = all[p.from_ring][p.K == 128];
  return of.of[p.state.dtype == DType::f32 ? 0 : 1][p.kind == MixerKind::kda](p, tiles, device.shared_bytes_per_block);
}

}  // namespace ringfold::cuda
