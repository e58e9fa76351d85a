// The recurrence in the exact order for K = 64 and 128.
//
// Blocks are persistent: block (x, y) takes a range of consecutive (layer, row, value head), and part y of V. Mapping:
// L = K/16 lanes share a row, lane c of them holding groups c and c+L of K; a thread holds R = L/2 rows (so 64 or 32
// elements). Lane c keeps row r ^ (its low bits) in register r, so that each step of the sum's tree is one shuffle and
// one addition, with no select; the two dots of a token are reduced together, the first step parting them (lanes of the
// upper half read kd and qd the other way round).
//
// Pipeline. While head i is computed, the token vectors (kd, qd, k, ..) of head i+1 are made, its state tile and its v
// are on their way to shared memory (cp.async), and so are the raw q and k of head i+2. A warp copies the part of the
// tile that it reads itself, so only token vectors pass between warps: they have barriers of their own, `made` and
// `read`, and the warps of a block may be one or two heads apart. A warp that makes a token's vectors is behind those
// that do not; the next head's tokens are made by others. Gates and betas of all heads of a line (a row of a layer) are
// made at once, by all threads.
#pragma once

#include "cuda/recurrence/exact_lines.cuh"

namespace ringfold::cuda::exact {

template <class T>
class Block : Lines<T> {
 public:
  __device__ Block(const ExactParams& params, const Layers& layers, const Cut& cut, std::byte* memory)
      : Lines<T>(params, layers, cut, memory), c(lane / T::kSide), side(lane % T::kSide) {}

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
      Base::in_ring, Base::make_gates, Base::make_vectors, Base::open_line, Base::parity, Base::read_group,
      Base::records, Base::ring_row, Base::same_key, Base::warps, Base::zero_outputs, Base::act_dtype;
  using Base::lane, Base::p, Base::shared, Base::warp;
  using typename Base::RawGates, typename Base::Turn;
  using State = float[T::kRows][2][kGroup];

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

  /// Which row lies in register 0 of lane c: the bits of c that the sum's steps part rows by.
  static __device__ __forceinline__ int twist_of(int c) {
    return T::kFromRing ? c >> 1 & (T::kRows - 1) : c & (T::kRows - 1);
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
    constexpr int pitch = T::kRowBytes;
    std::byte* rows = slot + static_cast<int64_t>(hv) * p.state_head + (warp * T::kWarpRows + side * T::kRows) * pitch;
    // A sector of 32 bytes that is written in two instructions costs the memory twice. So neighbours c and c^1, which
    // have half of each, write the same row at a time.
    const int c = ptx::opaque(this->c), twist = twist_of(c & ~1);
    constexpr int kFlip = T::kFromRing ? 0 : 1;  // the neighbour has the same row in register r ^ kFlip
    const bool odd = c & 1;
    if constexpr (T::kStateBytes == 2) {
      with_16_bit(p.state.dtype, [&](DType dtype) {
#pragma unroll
        for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
          for (int g = 0; g < 2; ++g) {
            const uint4 mine = narrow_8(dtype, s[r][g]), flipped = narrow_8(dtype, s[r ^ kFlip][g]);
            *reinterpret_cast<uint4*>(rows + (r ^ twist) * pitch + (g * T::kLanes + c) * kGroup * 2) =
                odd ? flipped : mine;
          }
        }
      });
    } else {
      // A group is one sector, in one lane, as two pieces of 16 bytes: the neighbours trade halves, write the even
      // lane's group, then the odd lane's.
      std::byte* at = rows + ((c & ~1) * kGroup + (odd ? 4 : 0)) * 4;
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
        std::byte* row = at + (r ^ twist) * pitch;
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          float first[4], second[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float low = odd ? s[r ^ kFlip][g][i] : s[r][g][i];
            const float high = odd ? s[r ^ kFlip][g][i + 4] : s[r][g][i + 4];
            const float traded = __shfl_xor_sync(kAllLanes, odd ? low : high, T::kSide);
            first[i] = odd ? traded : low;
            second[i] = odd ? high : traded;
          }
          std::byte* to = row + g * T::kLanes * kGroup * 4;
          *reinterpret_cast<float4*>(to) = {first[0], first[1], first[2], first[3]};
          *reinterpret_cast<float4*>(to + kGroup * 4) = {second[0], second[1], second[2], second[3]};
        }
      }
    }
  }

  /// x[r] = the part of row r's sum that this lane's two groups make. `vector` is at the first of them, and is
  /// multiplied by `decay` where it is decaying.
  template <bool decaying = false>
  __device__ __forceinline__ void dot(const State& s, const float* vector, float (&x)[T::kRows],
                                      float decay = 1) const {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float vec[kGroup];
      read_group(vector, g * T::kLanes, vec);
      if constexpr (decaying) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) vec[i] = S::mul(vec[i], decay);
      }
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
        const float sum = group_sum(s[r][g], vec, kGroup);
        x[r] = g == 0 ? sum : S::add(x[r], sum);
      }
    }
  }

  /// The rest of the tree: `rows` values become one, each step one shuffle for each value that stays.
  template <int rows, int step>
  static __device__ __forceinline__ float reduce(float* x) {
    if constexpr (rows == 1) {
      if constexpr (step == 0) {
        return x[0];
      } else {
        x[0] = S::add(x[0], __shfl_xor_sync(kAllLanes, x[0], step * T::kSide));
        return reduce<1, step / 2>(x);
      }
    } else {
#pragma unroll
      for (int r = 0; r < rows / 2; ++r) {
        x[r] = S::add(x[r], __shfl_xor_sync(kAllLanes, x[r + rows / 2], step * T::kSide));
      }
      return reduce<rows / 2, step / 2>(x);
    }
  }

  __device__ __forceinline__ void compute(const Turn& now, bool more) const {
    const Line& line = shared.line(now.line());
    State s;
    ptx::wait_copies<1>();  // all but the inputs just asked for
    __syncwarp();
    if (line.live) load_state(s);
    __syncwarp();
    if (more) {
      Turn here = now;
      here.buffers = ptx::opaque(now.buffers);  // not kept from above: the state has taken the registers
      fetch_tile(after(here));
    }
    ptx::barrier_wait(shared.made(buffer(now)), parity(now));
    if (line.live) {
      compute_tokens(s, line, now);
    } else if constexpr (!T::kFromRing) {
      zero_outputs(line, now.hv);
    }
    __syncwarp();
    ptx::barrier_arrive(shared.read(buffer(now)));
  }

  __device__ __forceinline__ void compute_tokens(State& s, const Line& line, const Turn& now) const {
    const int hv = now.hv;
    if (records()) {
      for_v_chunks(history(line), line.count, [&](int t, int byte) {  // what this lane has copied itself
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
      const int stop = replays ? line.history : tracked ? line.track_step + 1 : line.count;
      // A 16-bit state is rounded where a commit of the history ended.
      const uint32_t rounds = T::kStateBytes == 2 && t < 32 ? line.rounds >> t : 0;
      const int cut = rounds != 0 ? t + __ffs(static_cast<int>(rounds)) : INT32_MAX;
      if (cut <= stop && (T::kFromRing || replays)) {
        run_steps<true>(s, line, now, t, cut);
        round_state(s);
        if (cut < stop) {
          t = cut;
          continue;
        }
      } else if (replays) {
        if constexpr (T::kHistory) run_steps<true>(s, line, now, t, stop);
      } else {
        run_steps<T::kFromRing>(s, line, now, t, stop);
      }
      if (tracked || (!replays && (T::kFromRing || p.write_state))) {
        store_state(s, tracked ? line.track : line.target, now.hv);
      }
      t = replays || tracked ? stop : -1;
    } while (t >= 0);
  }

  __device__ __forceinline__ void round_state(State& s) const {
    with_16_bit(p.state.dtype, [&](DType dtype) {
#pragma unroll
      for (int i = 0; i < T::kRows * 2; ++i) widen_8(dtype, narrow_8(dtype, s[i / 2][i % 2]), s[i / 2][i % 2]);
    });
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

  template <bool ring, bool round>
  __device__ __forceinline__ void run_steps(State& s, const Line& line, const Turn& now, int first, int stop) const {
    const int hv = now.hv;
    const int row = warp * T::kWarpRows + side * T::kRows + twist_of(c);  // whose sums end in this lane
    const bool upper = !ring && c >= T::kLanes / 2;                       // ends with the q dot
    std::byte* out = nullptr;
    if constexpr (!ring) {
      out = at(line.out, p.out_at, first - history(line), hv) + row * (p.out.dtype == DType::f32 ? 4 : 2);
    }
    const std::byte* v_at = shared.v(v_buffer(now), first) + row * 2;
    const float* vectors = shared.vector(buffer(now), first, 0) + at_half<T>(c, 0);
    const int own = (upper ? T::kQd : T::kKd) * T::K, other = (upper ? T::kKd : T::kQd) * T::K;
#pragma unroll 1
    for (int t = first; t < stop; ++t) {
      const Scalars token = shared.scalars(buffer(now), t);
      const float v = widen_2(act_dtype(), peek<uint16_t>(v_at, 0)).x;
      float u, x[T::kRows];
      if constexpr (ring) {
        dot<!T::kHasKd>(s, vectors + (T::kHasKd ? T::kKd : T::kKey) * T::K, x, token.decay);
        if constexpr (!T::kFromRing) {  // both halves of the lanes
#pragma unroll
          for (int r = 0; r < T::kRows; ++r) {
            x[r] = S::add(x[r], __shfl_xor_sync(kAllLanes, x[r], T::kLanes / 2 * T::kSide));
          }
        }
        constexpr int kNext = T::kFromRing ? T::kLanes / 2 : T::kLanes / 4;
        u = arith::correction<S>(token.beta, v, reduce<T::kRows, kNext>(x));
      } else {
        dot(s, vectors + own, x);
        float y[T::kRows];
        dot(s, vectors + other, y);
#pragma unroll
        for (int r = 0; r < T::kRows; ++r) {
          x[r] = S::add(x[r], __shfl_xor_sync(kAllLanes, y[r], T::kLanes / 2 * T::kSide));
        }
        const float sum = reduce<T::kRows, T::kLanes / 4>(x);
        const float mine = arith::correction<S>(token.beta, v, sum);
        const float theirs = __shfl_xor_sync(kAllLanes, mine, T::kLanes / 2 * T::kSide);
        u = upper ? theirs : mine;
        if (upper) store_one(p.out.dtype, out, 0, arith::output<S>(u, token.kq, sum));
        if (t + 1 == stop && !p.write_state) break;  // nobody will see the last update
        out += p.out_at.token;
      }
      update(s, vectors, token.decay, u);
      if constexpr (round) round_state(s);
      v_at += shared.threads;
      vectors += T::kTokenFloats;
    }
  }

  /// `vectors`: those of the token, from this lane's first group on.
  __device__ __forceinline__ void update(State& s, const float* vectors, float decay, float u) const {
    // Row r ^ twist is in register r; its u is in the lane whose twist differs by r.
    float us[T::kRows];
    us[0] = u;
#pragma unroll
    for (int r = 1; r < T::kRows; ++r) us[r] = __shfl_xor_sync(kAllLanes, u, (T::kFromRing ? 2 * r : r) * T::kSide);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float k[kGroup], d[kGroup];
      read_group(vectors + T::kKey * T::K, g * T::kLanes, k);
      if constexpr (T::kKda) read_group(vectors + T::kDecay * T::K, g * T::kLanes, d);
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          s[r][g][i] = arith::updated<S>(s[r][g][i], T::kKda ? d[i] : decay, us[r], k[i]);
        }
      }
    }
  }

  const int c, side;
};

}  // namespace ringfold::cuda::exact
