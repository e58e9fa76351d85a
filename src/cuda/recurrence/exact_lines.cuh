// The lines of a block (rows of layers) and the token vectors of its heads: who is served, where its arrays are, gates,
// k and q normalised, and what goes to the ring on the way.
#pragma once

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/judging.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/recurrence/exact_types.cuh"

namespace ringfold::cuda::exact {

/// A step of a line is a row of the slot's history that is replayed, or a token of the row's own: of its window, or
/// accepted in the ring.
template <class T>
class Lines {
 protected:
  __device__ Lines(const typename T::Params& params, const Layers& layers, std::byte* memory, int heads_of_line,
                   int buffers)
      : p(params),
        layers_(layers),
        shared{memory, static_cast<int>(blockDim.x), params.most_steps, heads_of_line, buffers, params.max_window},
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32) {}

  /// A head's turn: its number, its key head, and in one register, which the token loop has not two of, the buffer of
  /// its line (times 16) and its phase, which counts the buffers of token vectors twice over.
  struct Turn {
    int hv, key, buffers;
    __device__ int line() const { return buffers >> 4; }
    __device__ int phase() const { return buffers & 15; }
  };
  __device__ __forceinline__ Turn after(const Turn& at) const {
    Turn next = at;
    ++next.hv;
    if (next.hv == (at.key + 1) * p.heads_per_key) ++next.key;
    next.buffers += at.phase() + 1 == 2 * shared.buffers ? -at.phase() : 1;
    if (next.hv == p.HV) {
      next.hv = next.key = 0;
      next.buffers += at.line() + 1 == kLineBuffers ? -16 * at.line() : 16;
    }
    return next;
  }
  __device__ bool first_of_key(const Turn& at) const { return at.hv == at.key * p.heads_per_key; }
  /// Whether the token vectors of the head before have the same k and q. Never for the first head of a block's range.
  __device__ bool same_key(const Turn& at) const { return T::kReuses && !first_of_key(at); }
  __device__ int buffer(const Turn& at) const {
    return at.phase() < shared.buffers ? at.phase() : at.phase() - shared.buffers;
  }
  /// The parity of the barriers of its buffer.
  __device__ int parity(const Turn& at) const { return at.phase() < shared.buffers ? 0 : 1; }
  __device__ int warps() const { return blockDim.x / 32; }
  /// The first token that this warp makes the vectors of. The first head of a key is most of the work, so heads and
  /// keys both move it on: each warp has its share.
  __device__ int first_token(const Turn& at) const {
    const int moved = at.hv + (p.heads_per_key == 1 ? 0 : at.key);
    return (warp - moved * p.most_steps) & (warps() - 1);
  }

  /// Judges the line that `head` is in, and makes the gates of its heads up to `last`.
  __device__ void open_line(int head, int last, const Turn& at) const {
    __syncthreads();  // nobody reads what was in these buffers
    find_line(head / p.HV, at);
    __syncthreads();
    make_gates(at, last - head);
    __syncthreads();
  }

  __device__ LayerWork<T> layer_work() const { return {p, shared, lane, warp}; }
  __device__ DType act_dtype() const { return T::kFromRing ? p.ring_v.dtype : p.v.dtype; }
  __device__ bool records() const { return !T::kFromRing && p.records(); }
  /// Step t of a line comes from the ring, or from the window?
  static __device__ bool in_ring(const Line& line, int t) { return T::kFromRing || (T::kHistory && t < line.history); }
  static __device__ int history(const Line& line) { return T::kFromRing || T::kHistory ? line.history : 0; }
  /// The ring row of step t: of the history, then of the window.
  __device__ int ring_row(const Line& line, int t) const {
    if (!T::kFromRing && !T::kHistory) return t;
    const int row = line.first_row + t;
    return p.history.ring_rows > 0 && row >= p.history.ring_rows ? row - p.history.ring_rows : row;
  }

  /// The first warp judges a row and finds its arrays.
  __device__ void find_line(int index, const Turn& first) const {
    if (warp != 0) return;
    if (T::kFromRing && p.due) index = p.due[1 + index];
    const int rows = static_cast<int>(p.rows), layer_index = index / rows, row = index - layer_index * rows;
    const int64_t layer = layers_(layer_index);
    const int v0 = blockIdx.y * (blockDim.x / 2);
    const RowStatus status = T::kFromRing ? verdict_on_accepted(p, layers_, row)
                             : T::kLayer  ? judge_layer(p, row)
                                          : verdict_on_window(p, row, T::kHistory);
    if (lane != 0) return;
    if (layer_index == 0 && blockIdx.y == 0) {  // several blocks may speak for a row; they say the same
      if constexpr (T::kFromRing) {
        if (p.row_status) p.row_status[row] = static_cast<int32_t>(status);
      } else if constexpr (!T::kLayer) {
        settle_window(p, row, status);
      }
    }
    if constexpr (T::kLayer) layer_work().open_line(first.line(), row, status);
    Line& line = shared.line(first.line());
    line.first_hv = first.hv;
    const int64_t slot = p.slot_ids[row];
    line.live = status == RowStatus::done;
    line.count = status == RowStatus::bad_window_bounds ? 0 : static_cast<int>(p.asked_tokens(row));
    line.track_step = -1;
    line.history = line.first_row = 0;
    line.rounds = 0;
    if constexpr (T::kLayer) {
      line.out = reinterpret_cast<std::byte*>(shared.outputs());
    } else if constexpr (!T::kFromRing) {
      if (status != RowStatus::bad_window_bounds) {
        line.out = p.out.at(0, p.window_row(row), p.window_token(row), 0) + v0 * size_of(p.out.dtype);
      }
    }
    if (!line.live) return;
    line.state = p.state.at(layer, slot, 0, 0) + v0 * T::kRowBytes;
    line.target = p.state.at(layer, p.destination(row), 0, 0) + v0 * T::kRowBytes;
    if constexpr (!T::kFromRing && !T::kHistory) {
      if (line.count == 0 && line.target == line.state) line.live = false;
    } else {
      const Replay replay = replay_of(p, layer, row);
      if (is_idle(p, replay, layer, row)) line.live = false;
      if (T::kHistory && replay.to_checkpoint) {
        line.track = line.state;
        line.track_step = static_cast<int16_t>(replay.rows - 1);
      }
      line.history = static_cast<int>(replay.rows);
      line.first_row = static_cast<int>(replay.first);
      if (line.live) line.count += line.history;
      if (T::kStateBytes == 2) {
        for (int t = 0; t < line.history; ++t) line.rounds |= static_cast<uint32_t>(replay.ends_commit(t)) << t;
      }
    }
    if (p.ring_k) {
      line.ring_k = p.ring_k.at(layer, slot, 0, 0);
      line.ring_v = p.ring_v.at(layer, slot, 0, 0) + v0 * 2;
      line.ring_g = p.ring_g.at(layer, slot, 0, 0);
      line.ring_beta = p.ring_beta.at(layer, slot, 0, 0);
    }
    if constexpr (T::kFromRing) {
      if (const int64_t track = p.track_slot(row); track >= 0) {
        line.track = p.state.at(layer, track, 0, 0) + v0 * T::kRowBytes;
        line.track_step = line.history + p.track_steps[row];
      }
    } else {
      const int64_t at_row = p.window_row(row), token = p.window_token(row);
      line.q = p.q.at(0, at_row, token, 0);
      line.k = p.k.at(0, at_row, token, 0);
      line.v = p.v.at(0, at_row, token, 0) + v0 * 2;
      line.a = p.a.at(0, at_row, token, 0);
      line.b = p.b.at(0, at_row, token, 0);
    }
  }

  template <class Byte>
  static __device__ __forceinline__ Byte* at(Byte* base, const Pitch& pitch, int t, int head) {
    return base + static_cast<int64_t>(head) * pitch.head + static_cast<int64_t>(t) * pitch.token;
  }

  __device__ std::byte* ring_g(const Line& line, int t, int hv) const {
    return at(line.ring_g, p.ring_g_at, ring_row(line, t), hv);
  }
  __device__ std::byte* ring_beta(const Line& line, int t, int hv) const {
    return at(line.ring_beta, p.ring_beta_at, ring_row(line, t), hv);
  }

  /// Gates and betas of a line's heads from hv0 on, a thread for each step of each head; the ring's g and beta on the
  /// way.
  __device__ void make_gates(const Turn& first, int most) const {
    const Line& line = shared.line(first.line());
    if (!line.live) return;
    const int hv0 = first.hv, heads = min(p.HV - hv0, most), count = line.count;
    for (int i = threadIdx.x; i < heads * count; i += blockDim.x) {
      const int head = i / count, t = i - head * count, hv = hv0 + head;
      Gates gates{0, 0};
      float g = 0;
      if (in_ring(line, t)) {
        gates.beta = peek<float>(ring_beta(line, t, hv), 0);
        if constexpr (!T::kKda) g = peek<float>(ring_g(line, t, hv), 0);
      } else {
        const int own = t - history(line);
        gates.beta = arith::sigmoid<S>(load(p.b.dtype, at(line.b, p.b_at, own, hv), 0));
        if constexpr (!T::kKda) g = log_decay(p, hv, 0, load(p.a.dtype, at(line.a, p.a_at, own, hv), 0));
        if (records() && blockIdx.y == 0) {
          poke(ring_beta(line, t, hv), 0, gates.beta);
          if constexpr (!T::kKda) poke(ring_g(line, t, hv), 0, g);
        }
      }
      if constexpr (!T::kKda) gates.decay = arith::exp<S>(g);
      shared.gates(first.line(), head)[t] = gates;
    }
  }

  /// Starts the copies of the raw q and k of the token of a head that this warp makes first.
  __device__ void fetch_inputs(const Turn& at_head, bool same_key) const {
    const Line& line = shared.line(at_head.line());
    const int t = first_token(at_head);
    if (!T::kLayer && line.live && !same_key && t < line.count && prepares(line, t)) {
      ptx::copy_async_16(ptx::shared_address(shared.raw() + threadIdx.x), prepared_source(line, at_head.key, t));
    }
    ptx::commit_copies();
  }

  /// When a warp prepares a token, its lower 16 lanes have the groups of k, the upper ones those of q.
  __device__ int prepared_group() const { return lane % 16; }
  __device__ bool prepares_q() const { return lane >= 16; }
  __device__ bool prepares() const { return prepared_group() < T::K / kGroup && !(T::kFromRing && prepares_q()); }
  /// The same for step t: there is no q in the ring, its lanes get zeros.
  __device__ bool prepares(const Line& line, int t) const { return prepares() && !(in_ring(line, t) && prepares_q()); }
  __device__ const std::byte* prepared_source(const Line& line, int key, int t) const {
    const int own = t - history(line);
    const std::byte* from = in_ring(line, t) ? at(line.ring_k, p.ring_k_at, ring_row(line, t), key)
                            : prepares_q()   ? at(line.q, p.q_at, own, key)
                                             : at(line.k, p.k_at, own, key);
    return from + ptx::opaque(prepared_group()) * kGroup * 2;
  }

  /// This warp's share of the token vectors of a head, and the ring's k and g on the way. `same_key`: k and q are those
  /// of the head `before`.
  __device__ void make_vectors(const Turn& at_head, const Turn& before, bool same_key) const {
    const Line& line = shared.line(at_head.line());
    if (line.live && first_token(at_head) < line.count) {
      ptx::barrier_wait(shared.read(buffer(at_head)), parity(at_head) ^ 1);
      if (same_key) ptx::barrier_wait(shared.made(buffer(before)), parity(before));
      make_tokens(line, at_head, before, same_key);
    }
    __syncwarp();
    ptx::barrier_arrive(shared.made(buffer(at_head)));
  }

  __device__ void make_tokens(const Line& line, const Turn& at_head, const Turn& before, bool same_key) const {
    const int hv = at_head.hv, to = buffer(at_head), from = buffer(before), count = line.count;
    const Gates* gates = shared.gates(at_head.line(), hv - line.first_hv);
#pragma unroll 1
    for (int t = first_token(at_head); t < count; t += warps()) {
      float x[kGroup] = {}, decay[kGroup], kq = 0;
      if (same_key) {
        if (prepares()) read_group(shared.vector(from, t, prepares_q() ? T::kQuery : T::kKey), prepared_group(), x);
        if (!T::kFromRing) kq = shared.scalars(from, t).kq;
      } else {
        normalise(line, at_head, t, x, kq);
      }
      if (lane == 0) shared.scalars(to, t) = {gates[t].beta, gates[t].decay, kq};
      make_decay(line, hv, t, gates, decay);
      if (!prepares()) continue;
      const int group = prepared_group();
      if (!prepares_q()) {
        store_group(shared.vector(to, t, T::kKey), group, x);
      } else if (T::kReuses) {
        store_group(shared.vector(to, t, T::kQuery), group, x);
      }
      if constexpr (T::kHasKd) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) x[i] = S::mul(x[i], decay[i]);
        store_group(shared.vector(to, t, prepares_q() ? T::kQd : T::kKd), group, x);
      }
      if (T::kKda && !prepares_q()) store_group(shared.vector(to, t, T::kDecay), group, decay);
    }
  }

  /// This lane's group of k or q of step t, after l2norm and scale; k.q; the ring's k.
  __device__ void normalise(const Line& line, const Turn& at_head, int t, float (&x)[kGroup], float& kq) const {
    uint4 raw = {};
    if (prepares(line, t)) {
      if (T::kLayer || t != first_token(at_head)) {
        const std::byte* source = prepared_source(line, at_head.key, t);
        if constexpr (T::kLayer) {
          const int own = t - history(line);
          raw = in_ring(line, t) ? *reinterpret_cast<const uint4*>(source)
                                 : layer_work().convolve_key(at_head, own, source, prepares_q(), prepared_group(),
                                                             first_of_key(at_head));
        } else {
          raw = *reinterpret_cast<const uint4*>(source);
        }
      } else {
        raw = shared.raw()[threadIdx.x];
      }
    }
    widen_8(act_dtype(), raw, x);
    if (records() && !in_ring(line, t) && blockIdx.y == 0 && prepares() && !prepares_q() && first_of_key(at_head)) {
      std::byte* ring = at(line.ring_k, p.ring_k_at, ring_row(line, t), at_head.key);
      *reinterpret_cast<uint4*>(ring + prepared_group() * kGroup * 2) = raw;
    }
    if (p.qk_l2norm) {
      const float norm = arith::l2_divisor<S>(tree_16(group_sum(x, x, kGroup)));
      divide_all(x, norm);
    }
    if constexpr (!T::kFromRing) {
      const float scale = prepares_q() ? p.scale : 1.0f;  // a product with 1 is exact
      float other[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        x[i] = S::mul(x[i], scale);
        other[i] = __shfl_xor_sync(kAllLanes, x[i], 16);
      }
      kq = tree_16(group_sum(x, other, kGroup));
    }
  }

  /// The tree over the K/8 groups, lane g of 16 holding group g; the result in all of them.
  static __device__ float tree_16(float x) {
#pragma unroll
    for (int s = T::K / 16; s >= 1; s /= 2) x = S::add(x, __shfl_xor_sync(kAllLanes, x, s));
    return x;
  }

  static __device__ void store_group(float* to, int group, const float (&x)[kGroup]) {
    *reinterpret_cast<float4*>(to + at_half<T>(group, 0)) = {x[0], x[1], x[2], x[3]};
    *reinterpret_cast<float4*>(to + at_half<T>(group, 1)) = {x[4], x[5], x[6], x[7]};
  }
  static __device__ __forceinline__ void read_group(const float* vector, int group, float (&x)[kGroup]) {
    const float4 low = *reinterpret_cast<const float4*>(vector + at_half<T>(group, 0));
    const float4 high = *reinterpret_cast<const float4*>(vector + at_half<T>(group, 1));
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }

  /// Decay of this lane's eight k's.
  __device__ void make_decay(const Line& line, int hv, int t, const Gates* gates, float (&decay)[kGroup]) const {
    if constexpr (!T::kKda) {
      const float all = gates[t].decay;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) decay[i] = all;
    } else if (in_ring(line, t)) {
      const float* g = reinterpret_cast<const float*>(ring_g(line, t, hv)) + prepared_group() * kGroup;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) decay[i] = prepares() ? arith::exp<S>(g[i]) : 0.0f;
    } else if constexpr (!T::kFromRing) {
      // The k lane computes the first four, the q lane of the same group the others.
      const int k0 = prepared_group() * kGroup + (prepares_q() ? 4 : 0);
      const std::byte* a = at(line.a, p.a_at, t - history(line), hv);
      const float expA = arith::exp_A<S>(p.A_log[hv]);
      float mine[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float g = prepares() ? log_decay(p, hv, k0 + i, load(p.a.dtype, a, k0 + i), expA) : 0.0f;
        if (prepares() && records() && blockIdx.y == 0) poke(ring_g(line, t, hv), k0 + i, g);
        mine[i] = arith::exp<S>(g);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float other = __shfl_xor_sync(kAllLanes, mine[i], 16);
        decay[i] = prepares_q() ? other : mine[i];
        decay[i + 4] = prepares_q() ? mine[i] : other;
      }
    }
  }

  __device__ void zero_outputs(const Line& line, int hv) const {
    const int rows = blockDim.x / 2;
    for (int i = threadIdx.x; i < line.count * rows; i += blockDim.x) {
      store_one(p.out.dtype, at(line.out, p.out_at, i / rows, hv), i % rows, 0.0f);
    }
  }

  const typename T::Params& p;
  const Layers& layers_;
  const Shared<T> shared;
  const int lane, warp;
};

}  // namespace ringfold::cuda::exact
