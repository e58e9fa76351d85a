// The recurrence in the exact order for K = 64 and 128.
//
// Blocks are persistent: block (x, y) takes a range of consecutive (layer, row, value head), and part y of V. The state
// lies in registers as exact_tile.cuh says, with R = L/2 rows in a thread (so 64 or 32 elements).
//
// Pipeline. While head i is computed, the token vectors (kd, qd, k, ..) of head i+1 are made, its state tile and its v
// are on their way to shared memory (cp.async), and so are the raw q and k of head i+2. A warp copies the part of the
// tile that it reads itself, so only token vectors pass between warps: they have barriers of their own, `made` and
// `read`, and the warps of a block may be one or two heads apart. A warp that makes a token's vectors is behind those
// that do not; the next head's tokens are made by others. Gates and betas of all heads of a line (a row of a layer) are
// made at once, by all threads.
#pragma once

#include "cuda/recurrence/exact_lines.cuh"
#include "cuda/recurrence/exact_tile.cuh"

namespace ringfold::cuda::exact {

template <class T>
class Block : Lines<T>, Tile<T> {
 public:
  __device__ Block(const ExactParams& params, const Layers& layers, const Cut& cut, std::byte* memory)
      : Lines<T>(params, layers, cut, memory), Tile<T>{lane / T::kSide, lane % T::kSide} {}

  __device__ void run(int first, int last) {
    if (threadIdx.x < shared.barrier_count()) ptx::barrier_init(shared.barrier(threadIdx.x), warps() * kArrivals);
    const int index = first / p.HV, hv = first - index * p.HV;
    Turn now{hv, hv / p.heads_per_key, 0};
    const RawGates gates = fetch_gates(index, now, last - first);
    find_line(index, now);
    __syncthreads();
    fetch_inputs(now, false);
    fetch_tile(now);
    make_gates(now, last - first, &gates);
    __syncthreads();
    ptx::wait_copies<1>();
    make_vectors(now, now, false);
    if (const Turn next = after(now); first + 1 < last) {
      if (next.hv == 0) open_line(shared.line(now.line()), last - first - 1, next);
      fetch_inputs(next, same_key(next));
    }
    ptx::wait_copies<0>();
    for (int left = last - first; left > 0; --left) {
      const bool more = left > 1;
      ptx::wait_copies<1>();  // the inputs of the next head are there
      if (more) make_vectors(after(now), now, same_key(after(now)));
      if (const Turn then = after(after(now)); left > 2) {
        if (then.hv == 0) open_line(shared.line(after(now).line()), left - 2, then);
        fetch_inputs(then, same_key(then));
      } else {
        ptx::commit_copies();
      }
      compute(now, static_cast<int>(ptx::opaque(left)) > 1);  // `more`, not kept in a register until there
      now = after(now);
    }
  }

 private:
  using Base = Lines<T>;
  using Base::after, Base::at, Base::buffer, Base::fetch_gates, Base::fetch_inputs, Base::find_line, Base::history,
      Base::in_ring, Base::make_gates, Base::make_vectors, Base::open_line, Base::origins_, Base::parity, Base::records,
      Base::ring_row, Base::same_key, Base::warps, Base::zero_outputs, Base::act_dtype;
  using Base::lane, Base::p, Base::shared, Base::warp;
  using typename Base::RawGates, typename Base::Turn;
  using Tile<T>::both_dots, Tile<T>::correction, Tile<T>::round, Tile<T>::twist_of, Tile<T>::update;
  using Tile<T>::c, Tile<T>::side;
  using typename Tile<T>::State;

  /// Starts the copies of this warp's part of a head's tile and of its v.
  __device__ void fetch_tile(const Turn& at_head) const {
    const Line& line = shared.line(at_head.line());
    if (line.live) {
      copy_state(line, at_head.hv);
      for_v_chunks(0, line.count, [&](int t, int byte) {
        const std::byte* v = in_ring(line, t) ? at(line.ring_v, p.ring_v_at, ring_row(line, t), at_head.hv)
                                              : at(line.v, p.v_at, t - history(line), at_head.hv);
        ptx::copy_async_16(ptx::shared_address(shared.v(v_buffer(at_head), t) + byte), v + byte);
      });
    }
    ptx::commit_copies();
  }

  /// The 16-byte chunks of this warp's 32 bytes of v of steps first .. count-1, each always by the same lane.
  template <class Visit>
  __device__ __forceinline__ void for_v_chunks(int first, int count, Visit visit) const {
    const int l = ptx::opaque(lane);
#pragma unroll 1
    for (int t = l >> 1; t < count; t += 16) {
      if ((!T::kFromRing && !T::kHistory) || t >= first) visit(t, warp * 32 + (l & 1) * 16);
    }
  }

  /// There are two, and an even number of phases.
  static __device__ int v_buffer(const Turn& at) { return at.phase() & 1; }

  __device__ void copy_state(const Line& line, int hv) const {
    // Chunk j * 32 + lane of the warp's rows, in memory order.
    constexpr int kRowsAtOnce = 32 / T::kRowChunks;
    const int l = ptx::opaque(lane), s = l % T::kRowChunks, first_row = l / T::kRowChunks;
    const uint32_t to = ptx::shared_address(shared.state() + (warp * T::kWarpRows + first_row) * T::kRowBytes);
    const uint32_t byte = (s ^ T::swizzle(first_row)) * 16;
    const std::byte* from = line.state + static_cast<int64_t>(hv) * p.state_head +
                            (warp * T::kWarpRows + first_row) * T::kRowBytes + s * 16;
#pragma unroll
    for (int j = 0; j < T::kChunks; ++j) {
      const int row = j * kRowsAtOnce;  // its swizzle and that of first_row have no bit in common
      ptx::copy_async_16(to + (byte ^ T::swizzle(row) * 16) + row * T::kRowBytes, from + row * T::kRowBytes);
    }
  }

  __device__ void load_state(State& s) const {
    if constexpr (T::kStateBytes == 4) {
      read_tile([&](int r, int g, const uint4& low, const uint4& high) {
        const uint32_t bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < kGroup; ++i) s[r][g][i] = __uint_as_float(bits[i]);
      });
    } else {
      with_16_bit(p.state.dtype, [&](DType dtype) {
        read_tile([&](int r, int g, const uint4& raw, const uint4&) { widen_8(dtype, raw, s[r][g]); });
      });
    }
  }

  /// visit(register row, group, its first 16 bytes, its second 16 bytes where the state is fp32)
  template <class Visit>
  __device__ __forceinline__ void read_tile(Visit visit) const {
    const std::byte* from = shared.state() + (warp * T::kWarpRows + side * T::kRows) * T::kRowBytes;
    const uint32_t mine = ptx::opaque(c * T::kHalves ^ T::swizzle(side * T::kRows));
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const std::byte* row = from + (r ^ twist_of(c)) * T::kRowBytes;
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const auto chunk = [&](int half) {
          return *reinterpret_cast<const uint4*>(row + (mine ^ half ^ g * T::kLanes * T::kHalves) * 16);
        };
        visit(r, g, chunk(0), T::kHalves == 2 ? chunk(1) : uint4{});
      }
    }
  }

  /// Stores the tile of a head into the slot whose head 0 is at `slot`.
  __device__ void store_state(const State& s, std::byte* slot, int hv) const {
    this->store(s, p.state.dtype, slot + static_cast<int64_t>(hv) * p.state_head + warp * T::kWarpRows * T::kRowBytes);
  }

  /// And into the snapshot of step t of a window.
  __device__ void store_snapshot(const State& s, const Line& line, int t, int hv) const {
    const int64_t head = p.snapshots.head_stride * T::kStateBytes;
    this->store(s, p.state.dtype,
                line.track + t * origins_[kTrack].token + hv * head + warp * T::kWarpRows * T::kRowBytes);
  }
  __device__ bool takes_snapshots() const { return T::kWindow && p.snapshots; }

  __device__ __forceinline__ void compute(const Turn& now, bool more) const {
    const Line& line = shared.line(now.line());
    const int count = line.live ? line.count : -1;  // read once: each reading is waited for
    State s;
    ptx::wait_copies<1>();  // all but the inputs just asked for
    __syncwarp();
    if (count >= 0) load_state(s);
    __syncwarp();
    if (more) {
      Turn here = now;
      here.buffers = ptx::opaque(now.buffers);  // not kept from above: the state has taken the registers
      fetch_tile(after(here));
    }
    ptx::barrier_wait(shared.made(buffer(now)), parity(now));
    if (count >= 0) {
      compute_tokens(s, line, count, now);
    } else if constexpr (!T::kFromRing) {
      zero_outputs(line, now.hv);
    }
    __syncwarp();
    ptx::barrier_arrive(shared.read(buffer(now)));
  }

  __device__ __forceinline__ void compute_tokens(State& s, const Line& line, int count, const Turn& now) const {
    const int hv = now.hv;
    if (records()) {
      for_v_chunks(history(line), count, [&](int t, int byte) {  // what this lane has copied itself
        *reinterpret_cast<uint4*>(at(line.ring_v, p.ring_v_at, ring_row(line, t), hv) + byte) =
            *reinterpret_cast<const uint4*>(shared.v(v_buffer(now), t) + byte);
      });
    }
    int t = 0;
#pragma unroll 1
    do {
      const bool replays = T::kHistory && t < line.history;
      // Stop for the snapshot, or where the checkpoint takes the history.
      const bool tracked = (T::kFromRing || T::kHistory) && t <= line.track_step;
      const int stop = replays ? line.history : tracked ? line.track_step + 1 : takes_snapshots() ? t + 1 : count;
      // A 16-bit state is rounded where a commit of the history ended.
      const uint32_t rounds = T::kStateBytes == 2 && t < 32 ? line.rounds >> t : 0;
      const int cut = rounds != 0 ? t + __ffs(static_cast<int>(rounds)) : INT32_MAX;
      if (cut <= stop && (T::kFromRing || replays)) {
        run_steps<true>(s, line, now, t, cut);
        round(s, p.state.dtype);
        if (cut < stop) {
          t = cut;
          continue;
        }
      } else if (replays) {
        if constexpr (T::kHistory) run_steps<true>(s, line, now, t, stop);
      } else {
        run_steps<T::kFromRing>(s, line, now, t, stop);
      }
      if (takes_snapshots()) store_snapshot(s, line, t, hv);
      if (takes_snapshots() && stop < count) {
        t = stop;
        continue;
      }
      if (tracked || (!replays && (T::kFromRing || p.write_state))) {
        store_state(s, tracked ? line.track : line.target, now.hv);
      }
      t = replays || tracked ? stop : -1;
    } while (t >= 0);
  }

  /// Steps first .. stop-1, which come from the ring, or from the window.
  template <bool ring>
  __device__ __forceinline__ void run_steps(State& s, const Line& line, const Turn& now, int first, int stop) const {
    if (T::kStateBytes == 2 && p.rounding == StateRounding::per_token) {
      run_steps<ring, true>(s, line, now, first, stop);
    } else {
      run_steps<ring, false>(s, line, now, first, stop);
    }
  }

  /// One output, where `bytes` is 4 as fp32, 2 bf16, 1 f16, 0 not at all. A branch by the dtype would be taken in the
  /// middle of what the next token waits for.
  static __device__ __forceinline__ void store_output(std::byte* to, int bytes, float x) {
    const uint32_t narrow = bytes == 2 ? narrow_2(DType::bf16, x, 0.0f) : narrow_2(DType::f16, x, 0.0f);
    ptx::store_4_or_2(to, __float_as_uint(x), narrow, bytes);
  }

  template <bool ring, bool rounds>
  __device__ __forceinline__ void run_steps(State& s, const Line& line, const Turn& now, int first, int stop) const {
    const int hv = now.hv;
    const int row = warp * T::kWarpRows + Tile<T>::row();
    const bool upper = !ring && Tile<T>::upper();
    std::byte* out = nullptr;
    int of_output = 0;
    if constexpr (!ring) {
      const int bytes = !upper ? 0 : p.out.dtype == DType::f32 ? 4 : p.out.dtype == DType::bf16 ? 2 : 1;
      // Nobody will see the last token's update. (One register for both.)
      const int unseen = p.write_state || takes_snapshots() ? -1 : stop;
      of_output = static_cast<int>(ptx::opaque(unseen * 8 + bytes));
      out = at(line.out, p.out_at, first - history(line), hv) + row * (p.out.dtype == DType::f32 ? 4 : 2);
    }
    const std::byte* v_at = shared.v(v_buffer(now), first) + row * 2;
    const float* vectors = shared.vector(buffer(now), first, 0) + at_half<T>(c, 0);
    const int own = (upper ? T::kQd : T::kKd) * T::K, other = (upper ? T::kKd : T::kQd) * T::K;
#pragma unroll 1
    for (int t = first; t < stop; ++t) {
      const Scalars token = shared.scalars(buffer(now), t);
      const float v = widen_2(act_dtype(), peek<uint16_t>(v_at, 0)).x;
      float u;
      if constexpr (ring) {
        float x[T::kRows];
        Tile<T>::template dot<!T::kHasKd>(s, vectors + (T::kHasKd ? T::kKd : T::kKey) * T::K, x, token.decay);
        if constexpr (!T::kFromRing) {  // both halves of the lanes
#pragma unroll
          for (int r = 0; r < T::kRows; ++r) {
            x[r] = S::add(x[r], __shfl_xor_sync(kAllLanes, x[r], T::kLanes / 2 * T::kSide));
          }
        }
        constexpr int kNext = T::kFromRing ? T::kLanes / 2 : T::kLanes / 4;
        u = arith::correction<S>(token.beta, v, Tile<T>::template reduce<T::kRows, kNext>(x));
      } else {
        const float sum = both_dots(s, vectors + own, vectors + other, token.decay);
        u = correction(upper, token.beta, v, sum);
        store_output(out, of_output & 7, arith::output<S>(u, token.kq, sum));
        if (t + 1 == of_output >> 3) break;
        out += p.out_at.token;
      }
      update(s, vectors, token.decay, u);
      if constexpr (rounds) round(s, p.state.dtype);
      v_at += shared.threads;
      vectors += T::kTokenFloats;
    }
  }
};

}  // namespace ringfold::cuda::exact
