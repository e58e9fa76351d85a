// A layer for every shape: the recurrence of general.cuh, whose tokens are convolved where they are prepared, and whose
// outputs stay in shared memory until they are normed. One block for each (row, value head). decode_layer moves the
// conv windows of q and k, which all value heads of a key head read, so there a block takes all of them.
#include "cuda/common/start.cuh"
#include "cuda/elementwise/gated_norm.cuh"
#include "cuda/layer/layer.cuh"
#include "cuda/layer/layer.h"
#include "cuda/recurrence/general.cuh"
#include "cuda/tuning.h"

namespace ringfold::cuda {
namespace {

using general::kWarps, general::Place;

/// The description of the recurrence in a layer's call.
Desc recurrence_of(const Desc& layer) {
  Desc d = layer;
  d.op = layer.op == Op::decode_layer ? Op::decode : Op::verify;
  return d;
}

/// The tokens of a layer's row, made of its projections.
struct ProjectedTokens {
  const LayerParams& p;
  float* mixed;  ///< [token, V]: the conv's outputs of v, then, in their place, the mixer's

  /// Records the projections and makes v.
  __device__ void open(const Place& at, int t, int lane) const {
    const Channels v = v_channels(p, at.hv);
    for (int i = lane; i < p.V; i += 32) mixed[t * p.V + i] = convolved(at, v, t, i);
    record(at, v, p.V, t, lane);
    if (!at.records_k) return;
    record(at, q_channels(p, at.h), p.K, t, lane);
    record(at, k_channels(p, at.h), p.K, t, lane);
  }
  __device__ float q(const Place& at, int t, int i) const { return convolved(at, q_channels(p, at.h), t, i); }
  __device__ float k(const Place& at, int t, int i) const { return convolved(at, k_channels(p, at.h), t, i); }
  __device__ float v(const Place&, int t, int i) const { return mixed[t * p.V + i]; }
  __device__ void record_k(const Place&, int, int i, float k, std::byte* ring) const { store(p.k.dtype, ring, i, k); }
  __device__ void record_v(const Place&, int t, int i, std::byte* ring) const {
    store(p.v.dtype, ring, i, mixed[t * p.V + i]);
  }
  __device__ bool wants_output() const { return true; }
  __device__ void output(const Place&, int t, int i, float value) const {
    mixed[t * p.V + i] = rounded(p.norm.x.dtype, value);
  }

 private:
  __device__ float convolved(const Place& at, const Channels& of, int t, int i) const {
    const auto input = [&](int64_t token) { return conv_input(p, of, at.row, token); };
    return rounded(of.from.dtype, conv_output_at(p.conv, at.slot, of.first + i, t, input));
  }
  __device__ void record(const Place& at, const Channels& of, int n, int t, int lane) const {
    if (!p.conv.ring) return;
    const std::byte* from = conv_input(p, of, at.row, t);
    std::byte* to = p.conv.ring.at(0, at.ring, t, 0);
    for (int i = lane; i < n; i += 32) {
      poke_bits(p.conv.ring.dtype, to, of.first + i, peek_bits(of.from.dtype, from, of.first + i));
    }
  }
};

__device__ void norm_outputs(const LayerParams& p, int64_t row, int hv, const float* mixed, int warp, int lane) {
  for (int t = warp; t < p.asked_tokens(row); t += kWarps) {
    float x[arith::kGroup];
#pragma unroll
    for (int i = 0; i < arith::kGroup; ++i) {
      const int v = lane * arith::kGroup + i;
      x[i] = v < p.V ? mixed[t * p.V + v] : 0.0f;
    }
    const int64_t at_row = p.window_row(row), token = p.window_token(row) + t;
    norm_head(p.norm, x, p.norm.z.at(0, at_row, token, hv), p.norm.out.at(0, at_row, token, hv), lane);
  }
}

__global__ void __launch_bounds__(kWarps * 32)
    general_layer_kernel(const __grid_constant__ LayerParams p, int heads, int steps) {
  ptx::begin_kernel();
  auto* const shared = reinterpret_cast<float*>(dynamic_shared());
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int blocks = p.HV / heads, group = p.HV / p.H;  // blocks of a row
  const int64_t row = blockIdx.x / blocks;
  const int first = static_cast<int>(blockIdx.x % blocks) * heads;
  const RowStatus status = judge_layer(p, row);
  if (first == 0 && threadIdx.x == 0) settle_layer(p, row, status);
  if (status == RowStatus::bad_window_bounds) return;
  if (status != RowStatus::done) {
    for (int64_t t = warp; t < p.asked_tokens(row) * heads; t += kWarps) {
      std::byte* out =
          p.out.at(0, p.window_row(row), p.window_token(row) + t / heads, first + static_cast<int>(t % heads));
      for (int v = lane; v < p.V; v += 32) store(p.out.dtype, out, v, 0.0f);
    }
    return;
  }
  const Replay replay = replay_of(p, 0, row);
  if (is_idle(p, replay, 0, row)) return;
  const int count = static_cast<int>(replay.rows + p.asked_tokens(row));
  const general::TokenVectors vectors{shared, p.K, steps};
  float* mixed = shared + general::shared_bytes(p.K, steps) / sizeof(float);
  Place at{0, row, p.slot_ids[row], p.ring_of(row), first / group, first, 0, p.V, false, true, replay};
  for (; at.hv < first + heads; ++at.hv) {
    at.records_k = at.hv == at.h * group;
    general::run_head(p, ProjectedTokens{p, mixed}, at, vectors, count, warp, lane);
    __syncthreads();
    norm_outputs(p, row, at.hv, mixed, warp, lane);
    __syncthreads();
  }
  if (!p.conv.write_state) return;
  const auto move = [&](const Channels& of, int n) {
    for (int i = threadIdx.x; i < n; i += kWarps * 32) advance_window(p, row, of, i);
  };
  move(q_channels(p, at.h), p.K);
  move(k_channels(p, at.h), p.K);
  for (int hv = first; hv < first + heads; ++hv) move(v_channels(p, hv), p.V);
}

int layer_shared_bytes(const Desc& d, int steps) {
  return general::shared_bytes(static_cast<int>(d.K), steps) +
         static_cast<int>(d.window * d.V) * static_cast<int>(sizeof(float));
}

}  // namespace

Refusal general_layer_refusal(const Desc& d) {
  const int bytes = layer_shared_bytes(d, most_steps(recurrence_of(d)));
  if (bytes > current_device().shared_bytes_per_block) {
    return {"needs more shared memory than a block has", "bytes", bytes};
  }
  return {};
}

Status general_layer(const LayerParams& p, const Desc& desc) {
  const int heads = p.conv.write_state ? p.HV / p.H : 1;
  const int64_t blocks = p.rows * (p.HV / heads);
  if (blocks == 0) return {};
  RINGFOLD_RETURN_IF_ERROR(check_grid(blocks));
  RINGFOLD_RETURN_IF_ERROR(allow_shared<general_layer_kernel>(current_device().shared_bytes_per_block));
  const int steps = most_steps(recurrence_of(desc));
  return start<general_layer_kernel>("layer", static_cast<unsigned>(blocks), kWarps * 32,
                                     layer_shared_bytes(desc, steps), p.stream, p, heads, steps);
}

}  // namespace ringfold::cuda
