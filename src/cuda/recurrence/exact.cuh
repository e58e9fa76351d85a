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

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/judging.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/recurrence/exact_types.cuh"

namespace ringfold::cuda::exact {

template <class T>
class Block {
 public:
  __device__ Block(const ExactParams& params, const Layers& layers, std::byte* memory, int heads_of_line, int buffers)
      : p(params),
        layers_(layers),
        shared{memory, static_cast<int>(blockDim.x), params.max_window, heads_of_line, buffers},
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        c(lane / T::kSide),
        side(lane % T::kSide),
        v0(blockIdx.y * (blockDim.x / 2)) {}

  __device__ void run(int first, int last) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < shared.buffers; ++i) {
        ptx::barrier_init(shared.made(i), warps());
        ptx::barrier_init(shared.read(i), warps());
      }
    }
    const int hv = first % p.HV;
    Turn now{0, hv, hv / p.heads_per_key, 0};
    find_line(first / p.HV, now);
    __syncthreads();
    fetch_inputs(now, false);
    fetch_tile(now, 0);
    make_gates(now, last - first);
    __syncthreads();
    ptx::wait_copies<1>();
    make_vectors(now, now, false);
    if (const Turn next = after(now); first + 1 < last) {
      if (next.hv == 0) open_line(first + 1, last, next);
      fetch_inputs(next, same_key(next));
    }
    ptx::wait_copies<0>();
    for (int head = first; head < last; ++head) {
      const bool more = head + 1 < last;
      ptx::wait_copies<1>();  // the inputs of the next head are there
      if (more) make_vectors(after(now), now, same_key(after(now)));
      if (const Turn then = after(after(now)); head + 2 < last) {
        if (then.hv == 0) open_line(head + 2, last, then);
        fetch_inputs(then, same_key(then));
      } else {
        ptx::commit_copies();
      }
      compute(now, (head - first) & 1, more);
      now = after(now);
    }
  }

 private:
  using State = float[T::kRows][2][kGroup];

  /// A head's turn: the buffer of its line, its number, its key head; and `phase`, which counts the buffers of token
  /// vectors twice over.
  struct Turn {
    int line, hv, key, phase;
  };
  __device__ __forceinline__ Turn after(const Turn& at) const {
    Turn next = at;
    ++next.hv;
    if (next.hv == (at.key + 1) * p.heads_per_key) ++next.key;
    if (next.hv == p.HV) {
      next.hv = next.key = 0;
      if (++next.line == kLineBuffers) next.line = 0;
    }
    if (++next.phase == 2 * shared.buffers) next.phase = 0;
    return next;
  }
  __device__ bool first_of_key(const Turn& at) const { return at.hv == at.key * p.heads_per_key; }
  /// Whether the token vectors of the head before have the same k and q. Never for the first head of a block's range.
  __device__ bool same_key(const Turn& at) const { return T::kReuses && !first_of_key(at); }
  __device__ int buffer(const Turn& at) const { return at.phase < shared.buffers ? at.phase : at.phase - shared.buffers; }
  /// The parity of the barriers of its buffer.
  __device__ int parity(const Turn& at) const { return at.phase < shared.buffers ? 0 : 1; }
  __device__ int warps() const { return blockDim.x / 32; }
  /// The first token that this warp makes the vectors of. The first head of a key is most of the work, so heads and keys
  /// both move it on: each warp has its share.
  __device__ int first_token(const Turn& at) const {
    const int moved = at.hv + (p.heads_per_key == 1 ? 0 : at.key);
    return (warp - moved * p.max_window) & (warps() - 1);
  }

  /// Judges the line that `head` is in, and makes the gates of its heads up to `last`.
  __device__ void open_line(int head, int last, const Turn& at) const {
    __syncthreads();  // nobody reads what was in these buffers
    find_line(head / p.HV, at);
    __syncthreads();
    make_gates(at, last - head);
    __syncthreads();
  }

  __device__ DType act_dtype() const { return T::kFromRing ? p.ring_v.dtype : p.v.dtype; }
  __device__ bool records() const { return !T::kFromRing && p.ring_k; }

  /// The first warp judges a row and finds its arrays.
  __device__ void find_line(int index, const Turn& first) const {
    if (warp != 0) return;
    const int rows = static_cast<int>(p.rows), layer_index = index / rows, row = index - layer_index * rows;
    const int64_t layer = layers_(layer_index);
    const RowStatus status = T::kFromRing ? verdict_on_accepted(p, layers_, row) : verdict_on_window(p, row);
    if (lane != 0) return;
    if (layer_index == 0 && blockIdx.y == 0) {  // several blocks may speak for a row; they say the same
      if constexpr (T::kFromRing) {
        if (p.row_status) p.row_status[row] = static_cast<int32_t>(status);
      } else {
        settle_window(p, row, status);
      }
    }
    Line& line = shared.line(first.line);
    line.first_hv = first.hv;
    const int64_t slot = p.slot_ids[row];
    line.live = status == RowStatus::done;
    line.count = status == RowStatus::bad_window_bounds ? 0 : static_cast<int>(p.asked_tokens(row));
    line.track_step = -1;
    if constexpr (!T::kFromRing) {
      if (status != RowStatus::bad_window_bounds) {
        line.out = p.out.at(0, p.window_row(row), p.window_token(row), 0) + v0 * size_of(p.out.dtype);
      }
    }
    if (!line.live) return;
    line.state = p.state.at(layer, slot, 0, 0) + v0 * T::kRowBytes;
    line.target = p.state.at(layer, p.destination(row), 0, 0) + v0 * T::kRowBytes;
    if (line.count == 0 && line.target == line.state) line.live = false;
    if constexpr (T::kFromRing) {
      line.k = p.ring_k.at(layer, slot, 0, 0);
      line.v = p.ring_v.at(layer, slot, 0, 0) + v0 * 2;
      line.a = p.ring_g.at(layer, slot, 0, 0);
      line.b = p.ring_beta.at(layer, slot, 0, 0);
      if (const int64_t track = p.track_slot(row); track >= 0) {
        line.track = p.state.at(layer, track, 0, 0) + v0 * T::kRowBytes;
        line.track_step = p.track_steps[row];
      }
    } else {
      const int64_t at_row = p.window_row(row), token = p.window_token(row);
      line.q = p.q.at(0, at_row, token, 0);
      line.k = p.k.at(0, at_row, token, 0);
      line.v = p.v.at(0, at_row, token, 0) + v0 * 2;
      line.a = p.a.at(0, at_row, token, 0);
      line.b = p.b.at(0, at_row, token, 0);
      if (records()) {
        line.ring_k = p.ring_k.at(0, slot, 0, 0);
        line.ring_v = p.ring_v.at(0, slot, 0, 0) + v0 * 2;
        line.ring_g = p.ring_g.at(0, slot, 0, 0);
        line.ring_beta = p.ring_beta.at(0, slot, 0, 0);
      }
    }
  }

  template <class Byte>
  static __device__ __forceinline__ Byte* at(Byte* base, const Pitch& pitch, int t, int head) {
    return base + static_cast<int64_t>(head) * pitch.head + static_cast<int64_t>(t) * pitch.token;
  }

  /// Gates and betas of a line's heads from hv0 on, a thread for each token of each head; the ring's g and beta on the
  /// way.
  __device__ void make_gates(const Turn& first, int most) const {
    const Line& line = shared.line(first.line);
    if (!line.live) return;
    const int hv0 = first.hv, heads = min(p.HV - hv0, most), count = line.count;
    for (int i = threadIdx.x; i < heads * count; i += blockDim.x) {
      const int head = i / count, t = i - head * count, hv = hv0 + head;
      const std::byte *a = at(line.a, p.a_at, t, hv), *b = at(line.b, p.b_at, t, hv);
      Gates gates{0, 0};
      float g = 0;
      if constexpr (T::kFromRing) {
        gates.beta = peek<float>(b, 0);
        if constexpr (!T::kKda) g = peek<float>(a, 0);
      } else {
        gates.beta = arith::sigmoid<S>(load(p.b.dtype, b, 0));
        if constexpr (!T::kKda) g = log_decay(p, hv, 0, load(p.a.dtype, a, 0));
        if (records() && blockIdx.y == 0) {
          poke(at(line.ring_beta, p.ring_beta_at, t, hv), 0, gates.beta);
          if constexpr (!T::kKda) poke(at(line.ring_g, p.ring_g_at, t, hv), 0, g);
        }
      }
      if constexpr (!T::kKda) gates.decay = arith::exp<S>(g);
      shared.gates(first.line, head)[t] = gates;
    }
  }

  /// Starts the copies of the raw q and k of the token of a head that this warp makes first.
  __device__ void fetch_inputs(const Turn& at_head, bool same_key) const {
    const Line& line = shared.line(at_head.line);
    const int t = first_token(at_head);
    if (line.live && !same_key && t < line.count && prepares()) {
      ptx::copy_async_16(ptx::shared_address(shared.raw() + threadIdx.x), prepared_source(line, at_head.key, t));
    }
    ptx::commit_copies();
  }

  /// Starts the copies of this warp's part of a head's tile and of its v.
  __device__ void fetch_tile(const Turn& at_head, int v_buffer) const {
    const Line& line = shared.line(at_head.line);
    if (line.live) {
      copy_state(line, at_head.hv);
      const std::byte* v = line.v + static_cast<int64_t>(at_head.hv) * p.v_at.head;
      for_v_chunks(line.count, [&](int t, int byte) {
        ptx::copy_async_16(ptx::shared_address(shared.v(v_buffer, t) + byte),
                           v + static_cast<int64_t>(t) * p.v_at.token + byte);
      });
    }
    ptx::commit_copies();
  }

  /// The 16-byte chunks of this warp's 32 bytes of v of each token, each always by the same lane.
  template <class Visit>
  __device__ __forceinline__ void for_v_chunks(int count, Visit visit) const {
    const int l = ptx::opaque(lane);
#pragma unroll 1
    for (int t = l >> 1; t < count; t += 16) visit(t, warp * 32 + (l & 1) * 16);
  }

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

  /// When a warp prepares a token, its lower 16 lanes have the groups of k, the upper ones those of q.
  __device__ int prepared_group() const { return lane % 16; }
  __device__ bool prepares_q() const { return lane >= 16; }
  __device__ bool prepares() const { return prepared_group() < T::K / kGroup && !(T::kFromRing && prepares_q()); }
  __device__ const std::byte* prepared_source(const Line& line, int key, int t) const {
    const std::byte* from = !T::kFromRing && prepares_q() ? at(line.q, p.q_at, t, key) : at(line.k, p.k_at, t, key);
    return from + ptx::opaque(prepared_group()) * kGroup * 2;
  }

  /// This warp's share of the token vectors of a head, and the ring's k and g on the way. `same_key`: k and q are those
  /// of the head `before`.
  __device__ void make_vectors(const Turn& at_head, const Turn& before, bool same_key) const {
    const Line& line = shared.line(at_head.line);
    if (line.live && first_token(at_head) < line.count) {
      ptx::barrier_wait(shared.read(buffer(at_head)), parity(at_head) ^ 1);
      if (same_key) ptx::barrier_wait(shared.made(buffer(before)), parity(before));
      make_tokens(line, at_head, before, same_key);
    }
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(shared.made(buffer(at_head)));
  }

  __device__ void make_tokens(const Line& line, const Turn& at_head, const Turn& before, bool same_key) const {
    const int hv = at_head.hv, to = buffer(at_head), from = buffer(before), count = line.count;
    const Gates* gates = shared.gates(at_head.line, hv - line.first_hv);
#pragma unroll 1
    for (int t = first_token(at_head); t < count; t += warps()) {
      float x[kGroup] = {}, decay[kGroup], kq = 0;
      if (same_key) {
        if (prepares())
          read_group(shared.vector(from, t, prepares_q() ? T::kQuery : T::kKey), prepared_group(), x);
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
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = S::mul(x[i], decay[i]);
      store_group(shared.vector(to, t, prepares_q() ? T::kQd : T::kKd), group, x);
      if (T::kKda && !prepares_q()) store_group(shared.vector(to, t, T::kDecay), group, decay);
    }
  }

  /// This lane's group of k or q, after l2norm and scale; k.q; the ring's k.
  __device__ void normalise(const Line& line, const Turn& at_head, int t, float (&x)[kGroup], float& kq) const {
    uint4 raw = {};
    if (prepares()) {
      raw = t == first_token(at_head)
                ? shared.raw()[threadIdx.x]
                : *reinterpret_cast<const uint4*>(prepared_source(line, at_head.key, t));
    }
    widen_8(act_dtype(), raw, x);
    if (records() && blockIdx.y == 0 && prepares() && !prepares_q() && first_of_key(at_head)) {
      *reinterpret_cast<uint4*>(at(line.ring_k, p.ring_k_at, t, at_head.key) + prepared_group() * kGroup * 2) = raw;
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
    } else if constexpr (T::kFromRing) {
      const float* g = reinterpret_cast<const float*>(at(line.a, p.a_at, t, hv)) + prepared_group() * kGroup;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) decay[i] = prepares() ? arith::exp<S>(g[i]) : 0.0f;
    } else {
      // The k lane computes the first four, the q lane of the same group the others.
      const int k0 = prepared_group() * kGroup + (prepares_q() ? 4 : 0);
      const std::byte* a = at(line.a, p.a_at, t, hv);
      const float expA = arith::exp_A<S>(p.A_log[hv]);
      float mine[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float g = prepares() ? log_decay(p, hv, k0 + i, load(p.a.dtype, a, k0 + i), expA) : 0.0f;
        if (prepares() && records() && blockIdx.y == 0) poke(at(line.ring_g, p.ring_g_at, t, hv), k0 + i, g);
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
    std::byte* rows =
        slot + static_cast<int64_t>(hv) * p.state_head + (warp * T::kWarpRows + side * T::kRows) * pitch;
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
      // A group is one sector, in one lane, as two pieces of 16 bytes: the neighbours trade halves, write the even lane's
      // group, then the odd lane's.
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

  /// x[r] = the part of row r's sum that this lane's two groups make. `vector` is at the first of them.
  __device__ __forceinline__ void dot(const State& s, const float* vector, float (&x)[T::kRows]) const {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float vec[kGroup];
      read_group(vector, g * T::kLanes, vec);
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

  __device__ __forceinline__ void compute(const Turn& now, int v_buffer, bool more) const {
    const Line& line = shared.line(now.line);
    State s;
    ptx::wait_copies<1>();  // all but the inputs just asked for
    __syncwarp();
    if (line.live) load_state(s);
    __syncwarp();
    if (more) fetch_tile(after(now), v_buffer ^ 1);
    ptx::barrier_wait(shared.made(buffer(now)), parity(now));
    if (line.live) {
      compute_tokens(s, line, now, v_buffer);
    } else if constexpr (!T::kFromRing) {
      zero_outputs(line, now.hv);
    }
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(shared.read(buffer(now)));
  }

  __device__ __forceinline__ void compute_tokens(State& s, const Line& line, const Turn& now, int v_buffer) const {
    const int hv = now.hv;
    if (records()) {
      std::byte* ring = line.ring_v + static_cast<int64_t>(hv) * p.ring_v_at.head;
      for_v_chunks(line.count, [&](int t, int byte) {  // what this lane has copied itself
        *reinterpret_cast<uint4*>(ring + static_cast<int64_t>(t) * p.ring_v_at.token + byte) =
            *reinterpret_cast<const uint4*>(shared.v(v_buffer, t) + byte);
      });
    }
    const bool round = T::kStateBytes == 2 && p.rounding == StateRounding::per_token;
    int t = 0;
#pragma unroll 1
    do {
      const bool tracked = T::kFromRing && t <= line.track_step;  // stop for the snapshot
      const int stop = tracked ? line.track_step + 1 : line.count;
      if (round) {
        run_tokens<true>(s, line, now, v_buffer, t, stop);
      } else {
        run_tokens<false>(s, line, now, v_buffer, t, stop);
      }
      if (T::kFromRing || p.write_state) store_state(s, tracked ? line.track : line.target, hv);
      t = tracked ? stop : -1;
    } while (t >= 0);
  }

  template <bool round>
  __device__ __forceinline__ void run_tokens(State& s, const Line& line, const Turn& now, int v_buffer, int first,
                                             int stop) const {
    const int hv = now.hv;
    const int row = warp * T::kWarpRows + side * T::kRows + twist_of(c);  // whose sums end in this lane
    const bool upper = !T::kFromRing && c >= T::kLanes / 2;               // ends with the q dot
    std::byte* out = nullptr;
    if constexpr (!T::kFromRing) out = at(line.out, p.out_at, 0, hv) + row * (p.out.dtype == DType::f32 ? 4 : 2);
    const std::byte* v_at = shared.v(v_buffer, first) + row * 2;
    const float* vectors = shared.vector(buffer(now), first, 0) + at_half<T>(c, 0);
    const int own = (upper ? T::kQd : T::kKd) * T::K, other = (upper ? T::kKd : T::kQd) * T::K;
#pragma unroll 1
    for (int t = first; t < stop; ++t) {
      const Scalars token = shared.scalars(buffer(now), t);
      const float v = widen_2(act_dtype(), peek<uint16_t>(v_at, 0)).x;
      float u, x[T::kRows];
      dot(s, vectors + own, x);
      if constexpr (T::kFromRing) {
        u = arith::correction<S>(token.beta, v, reduce<T::kRows, T::kLanes / 2>(x));
      } else {
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
      if constexpr (round) {
        with_16_bit(p.state.dtype, [&](DType dtype) {
#pragma unroll
          for (int i = 0; i < T::kRows * 2; ++i) widen_8(dtype, narrow_8(dtype, s[i / 2][i % 2]), s[i / 2][i % 2]);
        });
      }
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

  __device__ void zero_outputs(const Line& line, int hv) const {
    const int rows = blockDim.x / 2;
    for (int i = threadIdx.x; i < line.count * rows; i += blockDim.x) {
      store_one(p.out.dtype, at(line.out, p.out_at, i / rows, hv), i % rows, 0.0f);
    }
  }

  const ExactParams& p;
  const Layers& layers_;
  const Shared<T> shared;
  const int lane, warp, c, side, v0;
};

}  // namespace ringfold::cuda::exact
