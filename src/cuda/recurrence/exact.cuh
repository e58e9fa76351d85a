// The recurrence in the exact order for K = 64 and 128.
//
// A unit of work is a tile of rows of V of one (layer, row, value head); blocks are persistent and take every
// gridDim-th unit. Mapping: L = K/16 lanes share a row, lane c of them holding groups c and c+L of K; a thread holds
// R = L/2 rows (so 64 or 32 elements). Lane c keeps row r ^ (its low bits) in register r, so that each step of the sum's
// tree is one shuffle and one addition, with no select; the two dots of a token are reduced together, the first step
// parting them (lanes of the upper half read kd and qd the other way round).
//
// Pipeline, for unit i: its state tile was copied to shared memory (cp.async) while unit i-1 was computed, its token
// vectors (kd, qd, k, decay) were made by all warps at the end of unit i-1, its gates and betas at the end of unit i-2.
// The warp that copies a part of the tile is the one that reads it, so one barrier for each unit suffices.
#pragma once

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/judging.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/warp.cuh"

namespace ringfold::cuda::exact {

constexpr int kGroup = arith::kGroup;
constexpr int kUnitBuffers = 3;
constexpr int kVectorBuffers = 2;

/// Params of the call, and whether 16-byte accesses may be used.
struct ExactParams : RecurrenceParams {
  bool aligned_inputs = false;  ///< q, k, v of the window, or k, v of the ring that is read
  bool aligned_ring = false;    ///< k, v of the ring that is written
};

/// What is known at compile time. StateBytes: 4, or 2 for bf16 and f16.
template <int K_, int StateBytes, bool Kda, bool FromRing>
struct Traits {
  static constexpr int K = K_;
  static constexpr int kStateBytes = StateBytes;
  static constexpr bool kKda = Kda, kFromRing = FromRing;
  static constexpr int kLanes = K / 16;               // that share a row
  static constexpr int kRows = kLanes / 2;            // of V, in one thread
  static constexpr int kSide = 32 / kLanes;           // row groups of a warp; lane = c * kSide + side
  static constexpr int kWarpRows = 16;                // kSide * kRows
  static constexpr int kHalves = StateBytes == 4 ? 2 : 1;      // 16-byte chunks of a group
  static constexpr int kChunks = kRows * 2 * kHalves;          // of a thread
  static constexpr int kRowChunks = K * StateBytes / 16;       // of a row in memory
  static constexpr int kVectors = Kda ? 4 : 3;                 // kd, qd, k (, decay); from a ring qd stays unused
};

/// Per token: beta, k.q, decay (GDN).
struct alignas(16) Scalars {
  float beta, kq, decay, unused;
};

/// One unit of work. Not `live`: nothing to do but zero outputs.
struct alignas(16) Unit {
  int64_t layer = 0;
  int32_t row = 0, slot = 0;
  int32_t hv = 0, v0 = 0, count = 0;
  bool live = false, exists = false;
};

/// Shared memory of a block, carved from one array.
template <class T>
struct Shared {
  std::byte* base;
  int threads, window, v_bytes;  // v_bytes: of one token's rows of v, a multiple of 16

  __device__ std::byte* state() const { return base; }
  __device__ float* vector(int buffer, int t, int which) const {
    float* vectors = reinterpret_cast<float*>(base + threads * T::kChunks * 16);
    return vectors + ((buffer * window + t) * T::kVectors + which) * T::K;
  }
  __device__ Scalars* scalars(int buffer) const {
    return reinterpret_cast<Scalars*>(vector(kVectorBuffers, 0, 0)) + buffer * window;
  }
  __device__ std::byte* v(int buffer, int t) const {
    return reinterpret_cast<std::byte*>(scalars(kUnitBuffers)) + (buffer * window + t) * v_bytes;
  }
  /// Raw q and k of the first token that a warp prepares: 32 bytes for each thread.
  __device__ std::byte* raw() const { return v(kVectorBuffers, 0); }
  __device__ Unit& unit(int buffer) const { return reinterpret_cast<Unit*>(raw() + threads * 32)[buffer]; }
};

/// Element e of group g of a token vector: halves of groups lie together, so that 16-byte accesses have no conflicts.
template <class T>
__device__ __forceinline__ int at_half(int group, int half) {
  return half * (T::K / 2) + group * 4;
}

/// Where a warp's chunk lies among the 32 of one index: no bank conflicts for the copying lanes (neighbours in memory)
/// nor for the reading ones.
template <class T>
__device__ __forceinline__ int chunk_place(int c, int side, int group_half, int half) {
  if constexpr (T::kLanes == 8) {  // sides: 2 bits, c: 3 bits
    const int twist = T::kStateBytes == 4 ? ((c >> 1 & 1) << 1 | half) : (c >> 1 & 3);
    return (c >> 1) << 3 | (side ^ twist) << 1 | (c & 1);
  } else {  // sides: 3 bits, c: 2 bits
    const int twist = c << 1 | (T::kStateBytes == 4 ? half : group_half);
    return c << 3 | (side ^ twist);
  }
}

template <class T>
__device__ __forceinline__ Unit find_unit(const ExactParams& p, const Layers& layers, int64_t index, int64_t units,
                                          int rows) {
  Unit u;
  if (index >= units) return u;
  u.exists = true;
  const auto i = static_cast<uint32_t>(index);
  const uint32_t parts = static_cast<uint32_t>(p.V / rows), heads = i / parts;
  const uint32_t line = heads / static_cast<uint32_t>(p.HV), row_count = static_cast<uint32_t>(p.rows);
  u.v0 = static_cast<int>(i % parts) * rows;
  u.hv = static_cast<int>(heads % static_cast<uint32_t>(p.HV));
  u.row = static_cast<int32_t>(line % row_count);
  const int64_t layer_index = line / row_count;
  u.layer = layers(layer_index);
  const RowStatus status = T::kFromRing ? verdict_on_accepted(p, layers, u.row) : verdict_on_window(p, u.row);
  if (u.hv == 0 && u.v0 == 0 && layer_index == 0 && threadIdx.x % 32 == 0) {
    if constexpr (T::kFromRing) {
      if (p.row_status) p.row_status[u.row] = static_cast<int32_t>(status);
    } else {
      settle_window(p, u.row, status);
    }
  }
  u.live = status == RowStatus::done;
  u.slot = p.slot_ids[u.row];
  u.count = status == RowStatus::bad_window_bounds ? 0 : static_cast<int>(p.asked_tokens(u.row));
  if (u.live && u.count == 0 && p.destination(u.row) == u.slot) u.live = false;
  return u;
}

/// Where a token of a unit lies in the window or the ring.
template <class T>
struct Source {
  int64_t layer, row, token;
  __device__ Source(const ExactParams& p, const Unit& u)
      : layer(T::kFromRing ? u.layer : 0),
        row(T::kFromRing ? u.slot : p.window_row(u.row)),
        token(T::kFromRing ? 0 : p.window_token(u.row)) {}
  __device__ const std::byte* at(const Array& a, int t, int head) const { return a.at(layer, row, token + t, head); }
};

template <class T>
class Block {
 public:
  __device__ Block(const ExactParams& params, const Layers& layers, std::byte* memory, int64_t units, int rows)
      : p(params),
        layers_(layers),
        shared{memory, static_cast<int>(blockDim.x), params.max_window,
               rows * static_cast<int>(size_of(v_array().dtype))},
        units_(units),
        rows_(rows),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        c(lane / T::kSide),
        side(lane % T::kSide) {}

  __device__ void run() {
    int64_t index = blockIdx.x;
    look_ahead(index, 0);
    look_ahead(index + gridDim.x, 1);
    __syncthreads();
    fetch(shared.unit(0), 0);
    ptx::wait_copies<0>();
    make_vectors(shared.unit(0), 0, 0);
    __syncthreads();
    for (int turn = 0; index < units_; ++turn, index += gridDim.x) {
      const int buffer = turn % kVectorBuffers;
      compute(shared.unit(turn % kUnitBuffers), shared.unit((turn + 1) % kUnitBuffers), buffer, turn % kUnitBuffers);
      ptx::wait_copies<0>();
      make_vectors(shared.unit((turn + 1) % kUnitBuffers), buffer ^ 1, (turn + 1) % kUnitBuffers);
      look_ahead(index + 2 * static_cast<int64_t>(gridDim.x), (turn + 2) % kUnitBuffers);
      __syncthreads();
    }
  }

 private:
  /// Finds a unit, and its gates and betas, by the warp that has least to do elsewhere.
  __device__ void look_ahead(int64_t index, int buffer) {
    if (warp != static_cast<int>(blockDim.x / 32) - 1) return;
    const Unit u = find_unit<T>(p, layers_, index, units_, rows_);
    if (lane == 0) shared.unit(buffer) = u;
    make_scalars(u, buffer);
  }
  __device__ const Array& k_array() const { return T::kFromRing ? p.ring_k : p.k; }
  __device__ const Array& v_array() const { return T::kFromRing ? p.ring_v : p.v; }
  __device__ int key_head(const Unit& u) const { return u.hv / (p.HV / p.H); }
  __device__ bool records(const Unit& u) const { return !T::kFromRing && p.ring_k; }

  /// Starts the copies of a unit's state, of its v, and of the raw q and k that this thread will prepare first.
  __device__ void fetch(const Unit& u, int buffer) {
    if (u.live) {
      fetch_state(u);
      fetch_v(u, buffer);
      if (p.aligned_inputs) fetch_raw(u);
    }
    ptx::commit_copies();
  }

  __device__ void fetch_state(const Unit& u) {
    const std::byte* from = p.state.at(u.layer, u.slot, 0, u.hv);
    const uint32_t to = ptx::shared_address(shared.state() + warp * 32 * T::kChunks * 16);
    const int64_t pitch = p.state_v_stride * T::kStateBytes;
#pragma unroll
    for (int j = 0; j < T::kChunks; ++j) {
      const int at = j * 32 + lane;  // chunk of the warp's rows, in memory order
      const int row = at / T::kRowChunks, s = at % T::kRowChunks;
      const int half = T::kHalves == 2 ? s & 1 : 0, group = s / T::kHalves;
      const int its_c = group % T::kLanes, its_group = group / T::kLanes;
      const int its_side = row / T::kRows, r = (row % T::kRows) ^ twist_of(its_c);
      const int chunk = (r * 2 + its_group) * T::kHalves + half;
      ptx::copy_async_16(to + (chunk * 32 + chunk_place<T>(its_c, its_side, its_group, half)) * 16,
                         from + (u.v0 + warp * T::kWarpRows + row) * pitch + s * 16);
    }
  }

  /// Which row lies in register 0 of lane c: the bits of c that the sum's steps part rows by.
  static __device__ __forceinline__ int twist_of(int c) {
    return T::kFromRing ? c >> 1 & (T::kRows - 1) : c & (T::kRows - 1);
  }

  __device__ void fetch_v(const Unit& u, int buffer) {
    const Source<T> source(p, u);
    const int size = static_cast<int>(size_of(v_array().dtype));
    if (p.aligned_inputs) {
      const int chunks = shared.v_bytes / 16;
      for (int i = threadIdx.x; i < u.count * chunks; i += blockDim.x) {
        const int t = i / chunks, at = i % chunks * 16;
        ptx::copy_async_16(ptx::shared_address(shared.v(buffer, t) + at),
                           source.at(v_array(), t, u.hv) + u.v0 * size + at);
      }
    } else {
      for (int i = threadIdx.x; i < u.count * rows_; i += blockDim.x) {
        const int t = i / rows_, at = i % rows_;
        copy_element(source.at(v_array(), t, u.hv), u.v0 + at, shared.v(buffer, t), at, size);
      }
    }
  }

  static __device__ void copy_element(const std::byte* from, int64_t i, std::byte* to, int64_t j, int size) {
    if (size == 4) {
      poke(to, j, peek<uint32_t>(from, i));
    } else {
      poke(to, j, peek<uint16_t>(from, i));
    }
  }

  /// Group of this lane when a warp prepares a token: the lower 16 lanes have k, the upper ones q.
  __device__ int prepared_group() const { return lane % 16; }
  __device__ bool prepares_q() const { return lane >= 16; }
  __device__ const Array& prepared_array() const { return !T::kFromRing && prepares_q() ? p.q : k_array(); }
  __device__ bool prepares() const { return prepared_group() < T::K / kGroup && !(T::kFromRing && prepares_q()); }

  __device__ void fetch_raw(const Unit& u) {
    if (warp >= u.count || !prepares()) return;
    const Array& from = prepared_array();
    const int bytes = kGroup * static_cast<int>(size_of(from.dtype));
    const std::byte* at = Source<T>(p, u).at(from, warp, key_head(u)) + prepared_group() * bytes;
    const uint32_t to = ptx::shared_address(shared.raw() + threadIdx.x * 32);
    ptx::copy_async_16(to, at);
    if (bytes == 32) ptx::copy_async_16(to + 16, at + 16);
  }

  /// beta (and GDN's decay) of all tokens of a unit, lane t having token t.
  __device__ void make_scalars(const Unit& u, int buffer) {
    if (!u.live || lane >= u.count) return;
    const Source<T> source(p, u);
    Scalars s{};
    float g = 0;
    if constexpr (T::kFromRing) {
      s.beta = peek<float>(source.at(p.ring_beta, lane, u.hv), 0);
      if constexpr (!T::kKda) g = peek<float>(source.at(p.ring_g, lane, u.hv), 0);
    } else {
      s.beta = arith::sigmoid<S>(load(p.b.dtype, source.at(p.b, lane, u.hv), 0));
      if constexpr (!T::kKda) g = log_decay(p, u.hv, 0, load(p.a.dtype, source.at(p.a, lane, u.hv), 0));
      if (records(u) && u.v0 == 0) {
        poke(p.ring_beta.at(0, u.slot, lane, u.hv), 0, s.beta);
        if constexpr (!T::kKda) poke(p.ring_g.at(0, u.slot, lane, u.hv), 0, g);
      }
    }
    if constexpr (!T::kKda) s.decay = arith::exp<S>(g);
    Scalars& to = shared.scalars(buffer)[lane];
    to.beta = s.beta;
    to.decay = s.decay;
  }

  /// kd, qd, k (and KDA's decay) of all tokens of a unit, a warp for each; the ring's k, v and g on the way.
  __device__ void make_vectors(const Unit& u, int buffer, int scalar_buffer) {
    if (!u.live) return;
    if (records(u)) record_v(u, buffer);
    for (int t = warp; t < u.count; t += blockDim.x / 32) make_vectors_of(u, t, buffer, scalar_buffer);
  }

  __device__ void record_v(const Unit& u, int buffer) {
    const int size = static_cast<int>(size_of(p.v.dtype));
    if (p.aligned_inputs && p.aligned_ring) {
      const int chunks = shared.v_bytes / 16;  // each thread stores what it has copied itself
      for (int i = threadIdx.x; i < u.count * chunks; i += blockDim.x) {
        const int t = i / chunks, at = i % chunks * 16;
        *reinterpret_cast<uint4*>(p.ring_v.at(0, u.slot, t, u.hv) + u.v0 * size + at) =
            *reinterpret_cast<const uint4*>(shared.v(buffer, t) + at);
      }
    } else {
      const Source<T> source(p, u);
      for (int i = threadIdx.x; i < u.count * rows_; i += blockDim.x) {
        const int t = i / rows_, at = u.v0 + i % rows_;
        copy_element(source.at(p.v, t, u.hv), at, p.ring_v.at(0, u.slot, t, u.hv), at, size);
      }
    }
  }

  /// Eight elements as they lie in memory, and as floats.
  __device__ void load_group(const Unit& u, int t, uint4 (&raw)[2], float (&x)[kGroup]) const {
    const Array& from = prepared_array();
    const int size = static_cast<int>(size_of(from.dtype));
    const std::byte* at = Source<T>(p, u).at(from, t, key_head(u)) + prepared_group() * kGroup * size;
    if (p.aligned_inputs) {
      const auto* words = reinterpret_cast<const uint4*>(t == warp ? shared.raw() + threadIdx.x * 32 : at);
      raw[0] = words[0];
      if (size == 4) {
        raw[1] = words[1];
        const uint32_t bits[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w, raw[1].x, raw[1].y, raw[1].z, raw[1].w};
#pragma unroll
        for (int i = 0; i < kGroup; ++i) x[i] = __uint_as_float(bits[i]);
      } else {
        widen_8(from.dtype, raw[0], x);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = load(from.dtype, at, i);
    }
  }

  __device__ void record_k(const Unit& u, int t, const uint4 (&raw)[2]) const {
    const int size = static_cast<int>(size_of(p.k.dtype));
    std::byte* to = p.ring_k.at(0, u.slot, t, key_head(u)) + prepared_group() * kGroup * size;
    if (p.aligned_inputs && p.aligned_ring) {
      reinterpret_cast<uint4*>(to)[0] = raw[0];
      if (size == 4) reinterpret_cast<uint4*>(to)[1] = raw[1];
    } else {
      const std::byte* from = Source<T>(p, u).at(p.k, t, key_head(u)) + prepared_group() * kGroup * size;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) copy_element(from, i, to, i, size);
    }
  }

  /// The tree over the K/8 groups, lane g of 16 holding group g; the result in all of them.
  __device__ float tree_16(float x) const {
#pragma unroll
    for (int s = T::K / 16; s >= 1; s /= 2) x = S::add(x, __shfl_xor_sync(kAllLanes, x, s));
    return x;
  }

  __device__ void make_vectors_of(const Unit& u, int t, int buffer, int scalar_buffer) {
    const bool active = prepares();
    const int group = prepared_group();
    uint4 raw[2] = {};
    float x[kGroup] = {}, decay[kGroup];
    if (active) load_group(u, t, raw, x);
    if (active && records(u) && !prepares_q() && u.v0 == 0 && u.hv % (p.HV / p.H) == 0) record_k(u, t, raw);
    make_decay(u, t, scalar_buffer, decay);
    if (p.qk_l2norm) {
      const float norm = arith::l2_divisor<S>(tree_16(group_sum(x, x, kGroup)));
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = S::div(x[i], norm);
    }
    if (!T::kFromRing && prepares_q()) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) x[i] = S::mul(x[i], p.scale);
    }
    if constexpr (!T::kFromRing) {
      float other[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) other[i] = __shfl_xor_sync(kAllLanes, x[i], 16);
      const float kq = tree_16(group_sum(x, other, kGroup));
      if (lane == 0) shared.scalars(scalar_buffer)[t].kq = kq;
    }
    if (!active) return;
    float scaled[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) scaled[i] = S::mul(x[i], decay[i]);
    store_group(shared.vector(buffer, t, prepares_q() ? 1 : 0), group, scaled);
    if (!prepares_q()) {
      store_group(shared.vector(buffer, t, 2), group, x);
      if constexpr (T::kKda) store_group(shared.vector(buffer, t, 3), group, decay);
    }
  }

  static __device__ void store_group(float* to, int group, const float (&x)[kGroup]) {
    *reinterpret_cast<float4*>(to + at_half<T>(group, 0)) = {x[0], x[1], x[2], x[3]};
    *reinterpret_cast<float4*>(to + at_half<T>(group, 1)) = {x[4], x[5], x[6], x[7]};
  }

  /// Decay of this lane's eight k's.
  __device__ void make_decay(const Unit& u, int t, int scalar_buffer, float (&decay)[kGroup]) {
    if constexpr (!T::kKda) {
      const float all = shared.scalars(scalar_buffer)[t].decay;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) decay[i] = all;
    } else if constexpr (T::kFromRing) {
      const bool active = prepares();
      const float* g = reinterpret_cast<const float*>(Source<T>(p, u).at(p.ring_g, t, u.hv)) + prepared_group() * kGroup;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) decay[i] = active ? arith::exp<S>(g[i]) : 0.0f;
    } else {
      // The k lane computes the first four, the q lane of the same group the others.
      const int k0 = prepared_group() * kGroup + (prepares_q() ? 4 : 0);
      const std::byte* a = Source<T>(p, u).at(p.a, t, u.hv);
      const bool active = prepares();
      float mine[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float g = active ? log_decay(p, u.hv, k0 + i, load(p.a.dtype, a, k0 + i)) : 0.0f;
        if (active && records(u) && u.v0 == 0) poke(p.ring_g.at(0, u.slot, t, u.hv), k0 + i, g);
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

  using State = float[T::kRows][2][kGroup];

  __device__ void load_state(State& s) const {
    const std::byte* from = shared.state() + warp * 32 * T::kChunks * 16;
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const auto chunk = [&](int half) {
          const int at = (r * 2 + g) * T::kHalves + half;
          return *reinterpret_cast<const uint4*>(from + (at * 32 + chunk_place<T>(c, side, g, half)) * 16);
        };
        if constexpr (T::kStateBytes == 4) {
          const uint4 low = chunk(0), high = chunk(1);
          const uint32_t bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
          for (int i = 0; i < kGroup; ++i) s[r][g][i] = __uint_as_float(bits[i]);
        } else {
          widen_8(p.state.dtype, chunk(0), s[r][g]);
        }
      }
    }
  }

  /// Stores the tile at `head`, the address of row 0 of the head.
  __device__ void store_state(const State& s, std::byte* head, int64_t v_stride, int v0) const {
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const int row = v0 + warp * T::kWarpRows + side * T::kRows + (r ^ twist_of(c));
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        std::byte* to = head + (row * v_stride + (g * T::kLanes + c) * kGroup) * T::kStateBytes;
        if constexpr (T::kStateBytes == 4) {
          reinterpret_cast<float4*>(to)[0] = {s[r][g][0], s[r][g][1], s[r][g][2], s[r][g][3]};
          reinterpret_cast<float4*>(to)[1] = {s[r][g][4], s[r][g][5], s[r][g][6], s[r][g][7]};
        } else {
          *reinterpret_cast<uint4*>(to) = narrow_8(p.state.dtype, s[r][g]);
        }
      }
    }
  }

  static __device__ __forceinline__ void read_group(const float* vector, int group, float (&x)[kGroup]) {
    const float4 low = *reinterpret_cast<const float4*>(vector + at_half<T>(group, 0));
    const float4 high = *reinterpret_cast<const float4*>(vector + at_half<T>(group, 1));
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }

  /// x[r] = the part of row r's sum that this lane's two groups make.
  __device__ __forceinline__ void dot(const State& s, const float* vector, float (&x)[T::kRows]) const {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float vec[kGroup];
      read_group(vector, g * T::kLanes + c, vec);
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

  __device__ float v_of(int buffer, int t, int row) const {
    const DType dtype = v_array().dtype;
    const std::byte* v = shared.v(buffer, t);
    if (dtype == DType::f32) return peek<float>(v, row);
    return widen(dtype, peek<uint16_t>(v, row)).x;
  }

  __device__ void compute(const Unit& u, const Unit& next, int buffer, int scalar_buffer) {
    State s;
    if (u.live) load_state(s);
    __syncwarp();
    fetch(next, buffer ^ 1);
    if (!u.live) {
      if (!T::kFromRing) zero_outputs(u);
      return;
    }
    const bool round = T::kStateBytes == 2 && p.rounding == StateRounding::per_token;
    const bool keeps = T::kFromRing || p.write_state || p.snapshots;  // else the last token needs no update
    const int64_t track = T::kFromRing ? p.track_slot(u.row) : -1;
    const int track_step = track >= 0 ? p.track_steps[u.row] : -1;
    const int row = warp * T::kWarpRows + side * T::kRows + twist_of(c);  // whose sums end in this lane
    const Source<T> source(p, u);
#pragma unroll 1
    for (int t = 0; t < u.count; ++t) {
      const Scalars token = shared.scalars(scalar_buffer)[t];
      const float v = v_of(buffer, t, row);
      float ut;
      if constexpr (T::kFromRing) {
        float x[T::kRows];
        dot(s, shared.vector(buffer, t, 0), x);
        const float sum_p = reduce<T::kRows, T::kLanes / 2>(x);
        ut = arith::correction<S>(token.beta, v, sum_p);
      } else {
        const bool upper = c >= T::kLanes / 2;  // ends with the q dot
        float x[T::kRows], y[T::kRows];
        dot(s, shared.vector(buffer, t, upper ? 1 : 0), x);
        dot(s, shared.vector(buffer, t, upper ? 0 : 1), y);
#pragma unroll
        for (int r = 0; r < T::kRows; ++r) {
          x[r] = S::add(x[r], __shfl_xor_sync(kAllLanes, y[r], T::kLanes / 2 * T::kSide));
        }
        const float sum = reduce<T::kRows, T::kLanes / 4>(x);
        const float mine = arith::correction<S>(token.beta, v, sum);
        const float other = __shfl_xor_sync(kAllLanes, mine, T::kLanes / 2 * T::kSide);
        ut = upper ? other : mine;
        if (upper) {
          store_one(p.out.dtype, p.out.at(0, source.row, source.token + t, u.hv), u.v0 + row,
                    arith::output<S>(ut, token.kq, sum));
        }
        if (t + 1 == u.count && !keeps) break;
      }
      update(s, buffer, t, token.decay, ut);
      if (round) {
#pragma unroll
        for (int i = 0; i < T::kRows * 2 * kGroup; ++i) {
          float& e = s[i / (2 * kGroup)][i / kGroup % 2][i % kGroup];
          e = round_16(p.state.dtype, e);
        }
      }
      if (!T::kFromRing && p.snapshots) {
        store_state(s, p.snapshots.at(0, source.row, source.token + t, u.hv), p.snapshot_v_stride, u.v0);
      }
      if (t == track_step) store_state(s, p.state.at(u.layer, track, 0, u.hv), p.state_v_stride, u.v0);
    }
    if (T::kFromRing || p.write_state) {
      store_state(s, p.state.at(u.layer, p.destination(u.row), 0, u.hv), p.state_v_stride, u.v0);
    }
  }

  __device__ __forceinline__ void update(State& s, int buffer, int t, float decay, float u) const {
    // Row r ^ twist is in register r; its u is in the lane whose twist differs by r.
    float us[T::kRows];
    us[0] = u;
#pragma unroll
    for (int r = 1; r < T::kRows; ++r) us[r] = __shfl_xor_sync(kAllLanes, u, (T::kFromRing ? 2 * r : r) * T::kSide);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float k[kGroup], d[kGroup];
      read_group(shared.vector(buffer, t, 2), g * T::kLanes + c, k);
      if constexpr (T::kKda) read_group(shared.vector(buffer, t, 3), g * T::kLanes + c, d);
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          s[r][g][i] = arith::updated<S>(s[r][g][i], T::kKda ? d[i] : decay, us[r], k[i]);
        }
      }
    }
  }

  __device__ void zero_outputs(const Unit& u) const {
    for (int i = threadIdx.x; i < u.count * rows_; i += blockDim.x) {
      store_one(p.out.dtype, p.out.at(0, p.window_row(u.row), p.window_token(u.row) + i / rows_, u.hv),
                u.v0 + i % rows_, 0.0f);
    }
  }

  const ExactParams& p;
  const Layers& layers_;
  const Shared<T> shared;
  const int64_t units_;
  const int rows_;
  const int lane, warp, c, side;
};

}  // namespace ringfold::cuda::exact
