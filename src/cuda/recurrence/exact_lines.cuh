// The lines of a block (rows of layers) and the token vectors of its heads: who is served, where its arrays are, gates,
// k and q normalised, and what goes to the ring on the way.
#pragma once

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/judging.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/recurrence/exact_types.cuh"
#include "cuda/recurrence/exact_vectors.cuh"

namespace ringfold::cuda::exact {

/// A step of a line is a row of the slot's history that is replayed, or a token of the row's own: of its window, or
/// accepted in the ring.
template <class T>
class Lines : protected Preparation<T> {
 protected:
  using Preparation<T>::first_decay, Preparation<T>::normalise, Preparation<T>::prepared_group,
      Preparation<T>::prepares, Preparation<T>::prepares_q, Preparation<T>::share_decays, Preparation<T>::write;
  using Preparation<T>::lane;

  __device__ Lines(const ExactParams& params, const Layers& layers, const Cut& cut, std::byte* memory)
      : Preparation<T>{static_cast<int>(threadIdx.x % 32)},
        p(params),
        layers_(layers),
        origins_(cut.origins),
        shared{memory,
               static_cast<int>(blockDim.x),
               params.most_steps,
               cut.tiles.heads_of_line,
               cut.tiles.vector_buffers,
               cut.tiles.raw_steps},
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

  /// Judges the line that comes after `before`, and makes the gates of its heads, `most` at most.
  __device__ void open_line(const Line& before, int most, const Turn& at) const {
    __syncthreads();  // nobody reads what was in these buffers
    find_line(before.index + 1, at);
    __syncthreads();
    make_gates(at, most, nullptr);
    __syncthreads();
  }

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
    Line& line = shared.line(first.line());
    if (lane == 0) line.index = index;
    if (T::kFromRing && p.due) index = p.due[1 + index];
    const int rows = static_cast<int>(p.rows), layer_index = p.layers == 1 ? 0 : index / rows,
              row = index - layer_index * rows;
    const int64_t layer = layers_(layer_index);
    RowStatus status;
    // Addresses while the cursors are on their way. Nobody uses those of a row that is not live.
    if constexpr (T::kFromRing) {
      find_addresses(line, layer, row, p.slot_ids[row], p.ring_of(row));
      status = verdict_on_accepted(p, layers_, row);
    } else {
      const WindowFacts facts = window_facts(p, row, T::kHistory);
      find_addresses(line, layer, row, facts.slot, facts.ring);
      status = judge_window(p, facts, T::kHistory);
    }
    if (lane != 0) return;
    if (layer_index == 0 && blockIdx.y == 0) {  // several blocks may speak for a row; they say the same
      if constexpr (T::kFromRing) {
        if (p.row_status) write_unordered(p.row_status[row], static_cast<int32_t>(status));
      } else {
        settle_window(p, row, status);
      }
    }
    line.first_hv = first.hv;
    line.live = status == RowStatus::done;
    line.count = status == RowStatus::bad_window_bounds ? 0 : static_cast<int>(p.asked_tokens(row));
    line.track_step = -1;
    line.history = line.first_row = 0;
    line.rounds = 0;
    if (!line.live) return;
    if constexpr (!T::kFromRing && !T::kHistory) {
      if (line.count == 0) line.live = false;
    } else {
      const Replay replay = replay_of(p, layer, row);
      if (is_idle(p, replay, layer, row)) line.live = false;
      if (T::kHistory && replay.to_checkpoint) line.track_step = static_cast<int16_t>(replay.rows - 1);
      line.history = static_cast<int>(replay.rows);
      line.first_row = static_cast<int>(replay.first);
      if (line.live) line.count += line.history;
      if (T::kStateBytes == 2) {
        for (int t = 0; t < line.history; ++t) line.rounds |= static_cast<uint32_t>(replay.ends_commit(t)) << t;
      }
    }
    if constexpr (T::kFromRing) {
      if (p.track_slot(row) >= 0) line.track_step = line.history + p.track_steps[row];
    }
  }

  /// Lane i finds address i.
  __device__ void find_addresses(Line& line, int64_t layer, int row, int64_t slot, int64_t ring) const {
    if (lane >= kAddresses) return;
    const Origin& of = origins_[lane];
    const int v0 = blockIdx.y * (blockDim.x / 2);
    std::byte* address = of.data + v0 * of.v + layer * of.layer;
    if (lane <= kOut || (T::kWindow && lane == kTrack)) {
      address += p.window_row(row) * of.row + p.window_token(row) * of.token;
    } else {
      int64_t of_slot = lane < kState ? ring : slot;
      if constexpr (T::kFromRing) {
        if (lane == kTarget) of_slot = p.destination(row);
        if (lane == kTrack) of_slot = p.track_slot(row);
      }
      address += of_slot * of.row;
    }
    line.address(lane) = address;
  }

  template <class Byte>
  static __device__ __forceinline__ Byte* at(Byte* base, const Pitch& pitch, int t, int head) {
    return base + static_cast<int64_t>(head) * pitch.head + static_cast<int64_t>(t) * pitch.token;
  }

  __device__ std::byte* ring_gate(const Line& line, int t, int hv) const {
    return at(line.ring_gate, p.ring_gate_at, ring_row(line, t), hv);
  }
  __device__ std::byte* ring_beta(const Line& line, int t, int hv) const {
    return at(line.ring_beta, p.ring_beta_at, ring_row(line, t), hv);
  }

  /// What a step's beta and GDN's gate are made of, as it is in memory.
  struct RawGates {
    uint32_t a, b;
    float A_log, dt_bias;
  };
  __device__ RawGates raw_gates(const std::byte* a, const std::byte* b, int t, int hv) const {
    RawGates raw{};
    raw.b = load_bits(p.b.dtype, at(b, p.b_at, t, hv));
    if constexpr (!T::kKda) {
      raw.a = load_bits(p.a.dtype, at(a, p.a_at, t, hv));
      raw.A_log = p.A_log[hv];
      raw.dt_bias = p.dt_bias ? p.dt_bias[hv * p.dt_bias_head_stride] : 0.0f;
    }
    return raw;
  }

  /// A thread makes gate `first_gate()` of a line, and those a block further on. The last warp has the first ones,
  /// since the first warp is busy with the line itself.
  __device__ int first_gate() const { return blockDim.x - 1 - threadIdx.x; }

  /// The first line's first gates may be asked for before the line has been found, if there is no history.
  __device__ RawGates fetch_gates(int row, const Turn& first, int most) const {
    if (T::kFromRing || T::kHistory || warp == 0) return {};
    const int64_t begin = p.window_token(row), end = p.cu_seqlens ? p.cu_seqlens[row + 1] : p.window;
    if (p.cu_seqlens && (begin < 0 || end < begin || end > p.total_tokens)) return {};
    const int count = static_cast<int>(end - begin), i = first_gate();
    if (i >= min(p.HV - first.hv, most) * count) return {};
    const int head = i / count;
    return raw_gates(p.a.at(0, p.window_row(row), begin, 0), p.b.at(0, p.window_row(row), begin, 0), i - head * count,
                     first.hv + head);
  }

  /// Gates and betas of a line's heads from hv0 on, a thread for each step of each head; the ring's g and beta on the
  /// way. `fetched`: of fetch_gates(), if the line is a block's first.
  __device__ void make_gates(const Turn& first, int most, const RawGates* fetched) const {
    const Line& line = shared.line(first.line());
    if (!line.live) return;
    const int hv0 = first.hv, heads = min(p.HV - hv0, most), count = line.count;
    const bool early = fetched && !T::kFromRing && !T::kHistory && warp != 0;
    for (int i = first_gate(); i < heads * count; i += blockDim.x) {
      const int head = i / count, t = i - head * count, hv = hv0 + head;
      Gates gates{0, 0};
      float g = 0;
      if (in_ring(line, t)) {
        gates.beta = peek<float>(ring_beta(line, t, hv), 0);
        if constexpr (!T::kKda) g = peek<float>(ring_gate(line, t, hv), 0);
      } else {
        const RawGates raw = early && i == first_gate() ? *fetched : raw_gates(line.a, line.b, t - history(line), hv);
        gates.beta = arith::sigmoid<S>(of_bits(p.b.dtype, raw.b));
        if constexpr (!T::kKda) {
          g = log_decay_of(p, of_bits(p.a.dtype, raw.a), raw.dt_bias, arith::exp_A<S>(raw.A_log));
        }
        if (records() && blockIdx.y == 0) {
          poke(ring_beta(line, t, hv), 0, gates.beta);
          if constexpr (!T::kKda) poke(ring_gate(line, t, hv), 0, g);
        }
      }
      if constexpr (!T::kKda) gates.decay = arith::exp<S>(g);
      shared.gates(first.line(), head)[t] = gates;
    }
  }

  /// Starts the copies of the raw q and k of the tokens of a head that this warp makes first.
  __device__ void fetch_inputs(const Turn& at_head, bool same_key) const {
    const Line& line = shared.line(at_head.line());
    const int first = first_token(at_head);
    if (line.live && !same_key) {
#pragma unroll 1
      for (int t = first; t < line.count && t - first < shared.raw_steps; t += warps()) {
        if (!prepares(line, t)) continue;
        ptx::copy_async_16(ptx::shared_address(&shared.raw(t - first)), prepared_source(line, at_head.key, t));
        if constexpr (T::kKda) {  // what make_decay() loads
          const int hv = at_head.hv, k0 = prepared_group() * kGroup;
          ptx::prefetch(in_ring(line, t) ? ring_gate(line, t, hv) + k0 * size_of(p.ring_gate.dtype)
                                         : at(line.a, p.a_at, t - history(line), hv) + k0 * size_of(p.a.dtype));
        }
      }
    }
    ptx::commit_copies();
  }

  /// Does this lane prepare a group of step t? There is no q in the ring, its lanes get zeros.
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
      float x[1][kGroup] = {}, decay[kGroup], kq[1] = {0};
      if (same_key) {
        if (prepares())
          read_group<T>(shared.vector(from, t, prepares_q() ? T::kQuery : T::kKey), prepared_group(), x[0]);
        if (!T::kFromRing) kq[0] = shared.scalars(from, t).kq;
      } else {
        fetched_inputs(line, at_head, t, x[0]);
        normalise(p, x, kq);
      }
      if (lane == 0) shared.scalars(to, t) = {gates[t].beta, gates[t].decay, kq[0]};
      make_decay(line, hv, t, gates, decay);
      if (prepares()) write(shared.vector(to, t, 0), x[0], decay);
    }
  }

  /// This lane's group of k or q of step t, which goes to the ring on the way.
  __device__ void fetched_inputs(const Line& line, const Turn& at_head, int t, float (&x)[kGroup]) const {
    uint4 raw = {};
    if (prepares(line, t)) {
      const std::byte* source = prepared_source(line, at_head.key, t);
      const int past = t - first_token(at_head);
      raw = past < shared.raw_steps ? shared.raw(past) : *reinterpret_cast<const uint4*>(source);
    }
    widen_8(act_dtype(), raw, x);
    if (records() && !in_ring(line, t) && blockIdx.y == 0 && prepares() && !prepares_q() && first_of_key(at_head)) {
      std::byte* ring = at(line.ring_k, p.ring_k_at, ring_row(line, t), at_head.key);
      *reinterpret_cast<uint4*>(ring + prepared_group() * kGroup * 2) = raw;
    }
  }

  /// Parameters of the gate of a line's layer.
  __device__ const float* A_log(const Line& line) const {
    return T::kFromRing ? reinterpret_cast<const float*>(line.a) : p.A_log;
  }
  __device__ const float* dt_bias(const Line& line) const {
    return T::kFromRing ? reinterpret_cast<const float*>(line.b) : p.dt_bias;
  }
  /// The ring takes g, or a as it came.
  __device__ void record_gate(std::byte* to, const std::byte* a, int k, float g) const {
    if (!p.raw_gate) {
      poke(to, k, g);
    } else if (p.a.dtype == DType::f32) {
      poke(to, k, peek<uint32_t>(a, k));
    } else {
      poke(to, k, peek<uint16_t>(a, k));
    }
  }

  /// Decay of this lane's eight k's.
  __device__ void make_decay(const Line& line, int hv, int t, const Gates* gates, float (&decay)[kGroup]) const {
    if constexpr (!T::kKda) {
      const float all = gates[t].decay;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) decay[i] = all;
    } else {
      const int k0 = first_decay();
      const bool recorded = in_ring(line, t), there = prepared_group() < T::K / kGroup;
      const std::byte* from = recorded ? ring_gate(line, t, hv) : at(line.a, p.a_at, t - history(line), hv);
      const DType dtype = recorded ? p.ring_gate.dtype : p.a.dtype;
      const bool raw = !recorded || p.raw_gate, records_it = there && !recorded && records() && blockIdx.y == 0;
      float mine[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) mine[i] = there ? load(dtype, from, k0 + i) : 0.0f;
      if (raw && there) {
        const float expA = arith::exp_A<S>(A_log(line)[hv]);
#pragma unroll
        for (int i = 0; i < 4; ++i) mine[i] = log_decay(p, dt_bias(line), hv, k0 + i, mine[i], expA);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (records_it) record_gate(ring_gate(line, t, hv), from, k0 + i, mine[i]);
        mine[i] = arith::exp<S>(mine[i]);
      }
      share_decays(mine, decay);
    }
  }

  __device__ void zero_outputs(const Line& line, int hv) const {
    const int rows = blockDim.x / 2;
    for (int i = threadIdx.x; i < line.count * rows; i += blockDim.x) {
      store_one(p.out.dtype, at(line.out, p.out_at, i / rows, hv), i % rows, 0.0f);
    }
  }

  const ExactParams& p;
  const Layers& layers_;
  const Origin (&origins_)[kAddresses];
  const Shared<T> shared;
  const int warp;
};

}  // namespace ringfold::cuda::exact
