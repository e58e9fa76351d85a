// The body of the recurrence for every shape: one block's work on one (layer, row, value head, part of V). First its
// warps prepare the steps (the slot's history, if it has one, then the row's tokens), one each: k and q normalised,
// decay, into shared memory, the ring row on the way. Then each warp takes kRows rows of V at a time through all
// tokens, lane c holding group c of K in registers. Everything but the sizes of registers and shared memory is decided
// at run time. `Tokens` says where q, k and v of a window's tokens come from, and where outputs go: WindowTokens, or a
// layer's.
#pragma once

#include "core/scalar_io.h"
#include "cuda/common/gate.cuh"
#include "cuda/common/judging.cuh"
#include "cuda/common/warp.cuh"

namespace ringfold::cuda::general {

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

constexpr int shared_bytes(int K, int tokens) { return (3 * K + 2) * tokens * static_cast<int>(sizeof(float)); }

/// The block's work.
struct Place {
  int64_t layer, row, slot, ring;
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

__device__ inline Source source(const RecurrenceParams& p, const Place& at, int t) {
  if (at.in_ring(p, t)) return {at.layer, at.ring, at.replay.ring_row(t)};
  return {0, p.window_row(at.row), p.window_token(at.row) + t - at.replay.rows};
}

__device__ inline void copy_element(const std::byte* from, std::byte* to, int64_t i, DType dtype) {
  if (dtype == DType::f32) {
    poke(to, i, peek<uint32_t>(from, i));
  } else {
    poke(to, i, peek<uint16_t>(from, i));
  }
}

/// The tokens of a window as a caller gives them, and outputs where the caller wants them.
struct WindowTokens {
  const RecurrenceParams& p;

  /// What the warp that prepares token t does first.
  __device__ void open(const Place&, int, int) const {}
  /// Element i of token t of the row's own.
  __device__ float q(const Place& at, int t, int i) const { return load(p.q.dtype, place(p.q, at, t, at.h), i); }
  __device__ float k(const Place& at, int t, int i) const { return load(p.k.dtype, place(p.k, at, t, at.h), i); }
  __device__ float v(const Place& at, int t, int i) const { return load(p.v.dtype, place(p.v, at, t, at.hv), i); }
  /// The same into the ring's row, bit for bit.
  __device__ void record_k(const Place& at, int t, int i, float, std::byte* ring) const {
    copy_element(place(p.k, at, t, at.h), ring, i, p.k.dtype);
  }
  __device__ void record_v(const Place& at, int t, int i, std::byte* ring) const {
    copy_element(place(p.v, at, t, at.hv), ring, i, p.v.dtype);
  }
  __device__ bool wants_output() const { return static_cast<bool>(p.out); }
  __device__ void output(const Place& at, int t, int i, float value) const {
    store(p.out.dtype, place(p.out, at, t, at.hv), i, value);
  }

 private:
  __device__ std::byte* place(const Array& a, const Place& at, int t, int head) const {
    return a.at(0, p.window_row(at.row), p.window_token(at.row) + t, head);
  }
};

/// One warp prepares step t.
template <class Tokens>
__device__ void prepare(const RecurrenceParams& p, const Tokens& tokens, const Place& at, int t, const TokenVectors& to,
                        int lane) {
  const bool kda = p.kind == MixerKind::kda, window = !at.in_ring(p, t);
  const int k0 = lane * kGroup, n = max(0, min(kGroup, p.K - k0)), groups = (p.K + kGroup - 1) / kGroup;
  const auto [layer, row, token] = source(p, at, t);
  const int64_t ring_row = at.replay.ring_row(t);
  const int own = t - static_cast<int>(at.replay.rows);  // of the window
  const bool records = window && p.records();
  float k[kGroup], q[kGroup], g[kGroup];
  if (window) tokens.open(at, own, lane);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    k[i] = q[i] = 0;
    if (i >= n) continue;
    k[i] = window ? tokens.k(at, own, k0 + i) : load(p.ring_k.dtype, p.ring_k.at(layer, row, token, at.h), k0 + i);
    if (records && at.records_k) tokens.record_k(at, own, k0 + i, k[i], p.ring_k.at(0, at.ring, ring_row, at.h));
    if (window) q[i] = tokens.q(at, own, k0 + i);
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
      std::byte* ring_gate = p.ring_gate.at(0, at.ring, ring_row, at.hv);
      if (p.raw_gate) {
        for (int i = 0; i < n; ++i) copy_element(gate, ring_gate, k0 + i, p.a.dtype);
      } else if (kda) {
        for (int i = 0; i < n; ++i) poke(ring_gate, k0 + i, g[i]);
      } else if (lane == 0) {
        poke(ring_gate, 0, g[0]);
      }
      if (lane == 0) poke(p.ring_beta.at(0, at.ring, ring_row, at.hv), 0, beta);
    }
    if (records) {
      std::byte* ring_v = p.ring_v.at(0, at.ring, ring_row, at.hv);
      for (int i = at.v0 + lane; i < at.v1; i += 32) tokens.record_v(at, own, i, ring_v);
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

__device__ inline void store_tile(const RecurrenceParams& p, const Tile& tile, std::byte* to, int64_t v_stride, int v,
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
template <class Tokens>
__device__ void run_rows(const RecurrenceParams& p, const Tokens& tokens, const Place& at, const TokenVectors& vectors,
                         int count, int v, int rows, int lane) {
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
    const bool in_ring = at.in_ring(p, t);
    const bool round = p.state.dtype != DType::f32 &&
                       (p.rounding == StateRounding::per_token || (t < history && at.replay.ends_commit(t)));
    const bool out = tokens.wants_output() && t >= history;
    float k[kGroup], decay[kGroup], kd[kGroup], qd[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int at_k = i < n ? k0 + i : 0;
      k[i] = vectors.k(t)[at_k];
      decay[i] = vectors.decay(t)[at_k];
      kd[i] = S::mul(k[i], decay[i]);
      qd[i] = S::mul(vectors.q(t)[at_k], decay[i]);
    }
    float my_v = 0;
    if (lane < rows) {
      my_v = in_ring ? load(p.ring_v.dtype, p.ring_v.at(layer, row, token, at.hv), v + lane)
                     : tokens.v(at, t - history, v + lane);
    }
    float mine = 0;  // output of row `lane`
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum_p = tree_to_all(group_sum(tile.s[r], kd, n), groups, lane);
      const float u = arith::correction<S>(vectors.beta(t), __shfl_sync(kAllLanes, my_v, r), sum_p);
      if (out) {
        const float w = tree_to_all(group_sum(tile.s[r], qd, n), groups, lane);
        if (lane == r) mine = arith::output<S>(u, vectors.kq(t), w);
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        tile.s[r][i] = arith::updated<S>(tile.s[r][i], decay[i], u, k[i]);
        if (round) tile.s[r][i] = rounded(p.state.dtype, tile.s[r][i]);
      }
    }
    if (out && lane < rows) tokens.output(at, t - history, v + lane, mine);
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

/// A block's work on its head, `count` steps.
template <class Tokens>
__device__ void run_head(const RecurrenceParams& p, const Tokens& tokens, const Place& at, const TokenVectors& vectors,
                         int count, int warp, int lane) {
  for (int t = warp; t < count; t += kWarps) prepare(p, tokens, at, t, vectors, lane);
  __syncthreads();
  for (int v = at.v0 + warp * kRows; v < at.v1; v += kWarps * kRows) {
    run_rows(p, tokens, at, vectors, count, v, min(kRows, at.v1 - v), lane);
  }
}

}  // namespace ringfold::cuda::general
