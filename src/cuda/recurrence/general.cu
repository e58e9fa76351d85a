// One block for each (layer, row, value head, part of V). First its warps prepare the steps (the slot's history, if it
// has one, then the row's tokens), one each: k and q
// normalised, decay, into shared memory, the ring row on the way. Then each warp takes kRows rows of V at a time
// through all tokens, lane c holding group c of K in registers. Everything but the sizes of registers and shared memory
// is decided at run time.
#include <algorithm>

#include "core/scalar_io.h"
#include "cuda/common/gate.cuh"
#include "cuda/common/judging.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/recurrence/general.h"
#include "cuda/tuning.h"

namespace ringfold::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kRows = 4;  // of V, for each warp at a time
constexpr int kGroup = arith::kGroup;

/// Shared memory: k, q and decay of each step, then its beta and kq.
struct TokenVectors {
  float* base;
  int K, tokens;
  __device__ float* k(int t) const { return base + 3 * K * t; }
  __device__ float* q(int t) const { return k(t) + K; }
  __device__ float* decay(int t) const { return k(t) + 2 * K; }
  __device__ float& beta(int t) const { return base[3 * K * tokens + 2 * t]; }
  __device__ float& kq(int t) const { return base[3 * K * tokens + 2 * t + 1]; }
};

int shared_bytes(int K, int tokens) { return (3 * K + 2) * tokens * static_cast<int>(sizeof(float)); }

/// The block's work.
struct Place {
  int64_t layer, row, slot;
  int h, hv, v0, v1;
  bool records_k;     // writes the ring's k: the first value head of a key head
  bool records_gate;  // writes g and beta: the first part of V
  Replay replay;

  /// Step t comes from the ring, or from the window?
  __device__ bool in_ring(const RecurrenceParams& p, int t) const { return p.from_ring || t < replay.rows; }
};

/// Where step t of the block's row is in an array of the window, or of the ring.
struct Source {
  int64_t layer, row, token;
};

__device__ Source source(const RecurrenceParams& p, const Place& at, int t) {
  if (at.in_ring(p, t)) return {at.layer, at.slot, at.replay.ring_row(t)};
  return {0, p.window_row(at.row), p.window_token(at.row) + t - at.replay.rows};
}

__device__ void copy_element(const std::byte* from, std::byte* to, int64_t i, DType dtype) {
  if (dtype == DType::f32) {
    poke(to, i, peek<uint32_t>(from, i));
  } else {
    poke(to, i, peek<uint16_t>(from, i));
  }
}

/// One warp prepares step t.
__device__ void prepare(const RecurrenceParams& p, const Place& at, int t, const TokenVectors& to, int lane) {
  const bool kda = p.kind == MixerKind::kda, window = !at.in_ring(p, t);
  const int k0 = lane * kGroup, n = max(0, min(kGroup, p.K - k0)), groups = (p.K + kGroup - 1) / kGroup;
  const auto [layer, row, token] = source(p, at, t);
  const int64_t ring_row = at.replay.ring_row(t);
  const Array& from_k = window ? p.k : p.ring_k;
  const std::byte* k_bytes = from_k.at(layer, row, token, at.h);
  const bool records = window && p.records();
  float k[kGroup], q[kGroup], g[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    k[i] = i < n ? load(from_k.dtype, k_bytes, k0 + i) : 0.0f;
    if (i < n && records && at.records_k)
      copy_element(k_bytes, p.ring_k.at(0, at.slot, ring_row, at.h), k0 + i, p.k.dtype);
    q[i] = window && i < n ? load(p.q.dtype, p.q.at(0, row, token, at.h), k0 + i) : 0.0f;
  }
  // Gates: one for each k (KDA), or the same in every lane (GDN). From a, or as they are in the ring.
  const Array& from_gate = window ? p.a : p.ring_gate;
  const std::byte* gate = from_gate.at(layer, row, token, at.hv);
  const bool computes = window || p.raw_gate;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    if (kda) {
      g[i] = i < n ? load(from_gate.dtype, gate, k0 + i) : 0.0f;
      if (i < n && computes) g[i] = log_decay(p, layer, at.hv, k0 + i, g[i]);
    } else {
      g[i] = i > 0 ? g[0] : load(from_gate.dtype, gate, 0);
      if (i == 0 && computes) g[0] = log_decay(p, layer, at.hv, 0, g[0]);
    }
  }
  float beta;
  if (window) {
    beta = arith::sigmoid<S>(load(p.b.dtype, p.b.at(0, row, token, at.hv), 0));
    if (records && at.records_gate) {
      std::byte* ring_gate = p.ring_gate.at(0, at.slot, ring_row, at.hv);
      if (p.raw_gate) {
        for (int i = 0; i < n; ++i) copy_element(gate, ring_gate, k0 + i, p.a.dtype);
      } else if (kda) {
        for (int i = 0; i < n; ++i) poke(ring_gate, k0 + i, g[i]);
      } else if (lane == 0) {
        poke(ring_gate, 0, g[0]);
      }
      if (lane == 0) poke(p.ring_beta.at(0, at.slot, ring_row, at.hv), 0, beta);
    }
    if (records) {
      const std::byte* v = p.v.at(0, row, token, at.hv);
      for (int i = at.v0 + lane; i < at.v1; i += 32) {
        copy_element(v, p.ring_v.at(0, at.slot, ring_row, at.hv), i, p.v.dtype);
      }
    }
  } else {
    beta = peek<float>(p.ring_beta.at(layer, row, token, at.hv), 0);
  }
  if (p.qk_l2norm) {
    const float dk = arith::l2_divisor<S>(tree_to_all(group_sum(k, k, n), groups, lane));
    const float dq = arith::l2_divisor<S>(tree_to_all(group_sum(q, q, n), groups, lane));
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      k[i] = S::div(k[i], dk);
      q[i] = S::div(q[i], dq);
    }
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    q[i] = S::mul(q[i], p.scale);
    if (i >= n) continue;
    to.k(t)[k0 + i] = k[i];
    to.q(t)[k0 + i] = q[i];
    to.decay(t)[k0 + i] = arith::exp<S>(g[i]);
  }
  const float kq = tree_to_lane_0(group_sum(k, q, n), groups, lane);
  if (lane == 0) {
    to.beta(t) = beta;
    to.kq(t) = kq;
  }
}

struct Tile {
  float s[kRows][kGroup];
};

__device__ void store_tile(const RecurrenceParams& p, const Tile& tile, std::byte* to, int64_t v_stride, int v,
                           int rows, int k0, int n) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (r < rows && i < n) store(p.state.dtype, to, (v + r) * v_stride + k0 + i, tile.s[r][i]);
    }
  }
}

/// One warp takes rows v .. v+rows-1 through all steps, `count` in all.
__device__ void run_rows(const RecurrenceParams& p, const Place& at, const TokenVectors& tokens, int count, int v,
                         int rows, int lane) {
  const int k0 = lane * kGroup, n = max(0, min(kGroup, p.K - k0)), groups = (p.K + kGroup - 1) / kGroup;
  const std::byte* from = p.state.at(at.layer, at.slot, 0, at.hv);
  const int64_t track = p.track_slot(at.row), track_step = track >= 0 ? p.track_steps[at.row] : -1;
  const int history = static_cast<int>(at.replay.rows);
  Tile tile;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      tile.s[r][i] = r < rows && i < n ? load(p.state.dtype, from, (v + r) * p.state_v_stride + k0 + i) : 0.0f;
    }
  }
  for (int t = 0; t < count; ++t) {
    const auto [layer, row, token] = source(p, at, t);
    const Array& from_v = at.in_ring(p, t) ? p.ring_v : p.v;
    const bool round = p.state.dtype != DType::f32 &&
                       (p.rounding == StateRounding::per_token || (t < history && at.replay.ends_commit(t)));
    const bool out = p.out && t >= history;
    float k[kGroup], decay[kGroup], kd[kGroup], qd[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int at_k = i < n ? k0 + i : 0;
      k[i] = tokens.k(t)[at_k];
      decay[i] = tokens.decay(t)[at_k];
      kd[i] = S::mul(k[i], decay[i]);
      qd[i] = S::mul(tokens.q(t)[at_k], decay[i]);
    }
    const float my_v = lane < rows ? load(from_v.dtype, from_v.at(layer, row, token, at.hv), v + lane) : 0.0f;
    float mine = 0;  // output of row `lane`
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum_p = tree_to_all(group_sum(tile.s[r], kd, n), groups, lane);
      const float u = arith::correction<S>(tokens.beta(t), __shfl_sync(kAllLanes, my_v, r), sum_p);
      if (out) {
        const float w = tree_to_all(group_sum(tile.s[r], qd, n), groups, lane);
        if (lane == r) mine = arith::output<S>(u, tokens.kq(t), w);
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        tile.s[r][i] = arith::updated<S>(tile.s[r][i], decay[i], u, k[i]);
        if (round) tile.s[r][i] = rounded(p.state.dtype, tile.s[r][i]);
      }
    }
    if (out && lane < rows) store(p.out.dtype, p.out.at(0, row, token, at.hv), v + lane, mine);
    if (at.replay.to_checkpoint && t + 1 == history) {
      store_tile(p, tile, p.state.at(at.layer, at.slot, 0, at.hv), p.state_v_stride, v, rows, k0, n);
    }
    if (p.snapshots && t >= history) {
      store_tile(p, tile, p.snapshots.at(0, row, token, at.hv), p.snapshot_v_stride, v, rows, k0, n);
    }
    if (track_step >= 0 && t == history + track_step) {
      store_tile(p, tile, p.state.at(at.layer, track, 0, at.hv), p.state_v_stride, v, rows, k0, n);
    }
  }
  if (p.write_state) {
    store_tile(p, tile, p.state.at(at.layer, p.destination(at.row), 0, at.hv), p.state_v_stride, v, rows, k0, n);
  }
}

__global__ void __launch_bounds__(kWarps * 32)
    general(const __grid_constant__ RecurrenceParams p, const __grid_constant__ Layers layers, int steps) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = blockIdx.x % p.v_parts;
  const int64_t head = blockIdx.x / p.v_parts;
  const int hv = static_cast<int>(head % p.HV);
  if (p.due && head / p.HV >= min(static_cast<int64_t>(p.due[0]), p.most_due)) return;
  const int64_t line = p.due ? p.due[1 + head / p.HV] : head / p.HV;
  const int64_t row = line % p.rows, layer_index = line / p.rows;
  const int per_part = (p.V + p.v_parts - 1) / p.v_parts;
  const int v0 = min(part * per_part, p.V), v1 = min(v0 + per_part, p.V);

  const RowStatus status = p.from_ring ? verdict_on_accepted(p, layers, row) : verdict_on_window(p, row);
  const bool speaks = hv == 0 && part == 0 && layer_index == 0 && threadIdx.x == 0;
  if (p.from_ring) {
    if (speaks && p.row_status) p.row_status[row] = static_cast<int32_t>(status);
  } else if (speaks) {
    settle_window(p, row, status);
  }
  if (status != RowStatus::done) {
    if (!p.out || status == RowStatus::bad_window_bounds) return;
    for (int64_t t = warp; t < p.asked_tokens(row); t += kWarps) {
      std::byte* out = p.out.at(0, p.window_row(row), p.window_token(row) + t, hv);
      for (int v = v0 + lane; v < v1; v += 32) store(p.out.dtype, out, v, 0.0f);
    }
    return;
  }
  const int64_t slot = p.slot_ids[row], layer = layers(layer_index);
  const Replay replay = replay_of(p, layer, row);
  if (is_idle(p, replay, layer, row)) return;
  const int count = static_cast<int>(replay.rows + p.asked_tokens(row));
  const int h = hv / (p.HV / p.H);
  const Place at{layer, row, slot, h, hv, v0, v1, hv == h * (p.HV / p.H) && part == 0, part == 0, replay};
  const TokenVectors tokens{shared, p.K, steps};
  for (int t = warp; t < count; t += kWarps) prepare(p, at, t, tokens, lane);
  __syncthreads();
  for (int v = v0 + warp * kRows; v < v1; v += kWarps * kRows) {
    run_rows(p, at, tokens, count, v, min(kRows, v1 - v), lane);
  }
}

}  // namespace

int general_v_parts(int64_t heads, int64_t V, int sms) {
  const int64_t most = (V + kWarps * kRows - 1) / (kWarps * kRows);
  return static_cast<int>(std::clamp<int64_t>((4 * sms + heads - 1) / std::max<int64_t>(heads, 1), 1, most));
}

Refusal general_refusal(const Desc& d) {
  if (d.op != Op::verify && d.op != Op::decode && d.op != Op::fold) return {};
  const int bytes = shared_bytes(static_cast<int>(d.K), most_steps(d));
  if (bytes > current_device().shared_bytes_per_block) {
    return {"needs more shared memory than a block has", "bytes", bytes};
  }
  return {};
}

Status general_recurrence(const RecurrenceParams& p, const Desc& desc) {
  const int64_t blocks = p.layers * p.rows * p.HV * p.v_parts;
  if (blocks == 0) return {};
  Layers layers;
  RINGFOLD_RETURN_IF_ERROR(list_layers(p, &layers));
  RINGFOLD_RETURN_IF_ERROR(check_grid(blocks));
  RINGFOLD_RETURN_IF_ERROR(allow_shared<general>(current_device().shared_bytes_per_block));
  const int steps = most_steps(desc);
  general<<<static_cast<unsigned>(blocks), kWarps * 32, shared_bytes(p.K, steps),
            static_cast<cudaStream_t>(p.stream)>>>(p, layers, steps);
  return check(cudaGetLastError(), "recurrence");
}

}  // namespace ringfold::cuda
