// The outputs of a window in triangular form, on tensor cores (`fast` numerics).
//
// With P_k = S k_t and P_q = S q_t on the checkpoint S, E_t the decay of tokens 0..t and r_tj that of tokens j+1..t:
//   D_t = beta_t (v_t - E_t P_k,t)        what a token would correct if it stood alone
//   L_tj = beta_t r_tj (k_t.k_j), j < t;  A_tj = r_tj (q_t.k_j), j <= t
//   o = E P_q + M D,                      M (I + L) = A, solved row by row
// For KDA the decays stand inside the sums over K. They are products of the tokens' decays, none of which exceeds 1, so
// that nothing overflows however strong a gate is.
//
// A block takes kBlockRows rows of V of one value head of one row; each warp has 16 or 32 of them and keeps its part of S
// in registers, loaded from global memory in the shape that the tensor cores want. There the token vectors are the factor
// with 16 rows: k_0, q_0, .., k_3, q_3 rounded to bf16 and below them what that loses, so that one instruction forms both
// products; S is the factor with 8 columns (rows of V), split likewise unless it is bf16. K is permuted alike in both, which
// lets a lane load 16 bytes of S at once, and rows of V so that a lane has neighbours in v and o. For the last product, M
// stands above what its rounding loses, too, and D and E P_q, interleaved, are transposed between lanes.
#pragma once

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/judging.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/warp.cuh"

namespace ringfold::cuda::fast {

constexpr int kGroup = arith::kGroup;

/// An array's address and the distances in bytes between its rows (dense windows, slots) or tokens (ragged windows), its
/// heads and its tokens. 32 bits but for the address: 64-bit products would be a good part of the kernel.
struct Place {
  std::byte* data = nullptr;
  int32_t row = 0, head = 0, token = 0;

  __device__ __forceinline__ std::byte* at(int index, int which_head, int more = 0) const {
    return data + static_cast<int64_t>(index) * row + (which_head * head + more);
  }
};

/// n / divisor for n * divisor < 2^32.
struct Divisor {
  uint32_t magic = 0;  // 0: divisor 1

  __device__ __forceinline__ int divides(int n) const {
    return magic == 0 ? n : static_cast<int>(__umulhi(static_cast<uint32_t>(n), magic));
  }
};

struct FastParams : RecurrenceParams {
  Place at_q, at_k, at_v, at_a, at_b, at_out, at_state, at_ring_k, at_ring_v, at_ring_g, at_ring_beta;
  Divisor by_parts, by_heads_of_key;  // of V; of a key head
  int heads_of_key = 1;
  int slot_id_stride = 1;
  uint32_t zero = 0;      // which the compiler does not know
  int state_row = 0;      // bytes between rows of V of a state
  bool out_wide = false;  // rows of `out` are aligned to 16 bytes
};

/// What is known at compile time. Tokens: 4, 8 or 16, at least those of any row. Tiles: of 16 rows of V, in a warp. Blocks:
/// that share a multiprocessor.
template <int K_, DType State, bool Kda, int Tokens, int Tiles, int Warps, int Blocks>
struct Traits {
  static constexpr int K = K_, kTokens = Tokens, kTiles = Tiles, kWarps = Warps, kBlocks = Blocks;
  static constexpr DType kState = State;
  static constexpr bool kKda = Kda;
  static constexpr bool kSplit = State != DType::bf16;  // the state too has high and low parts
  static constexpr int kStateBytes = State == DType::f32 ? 4 : 2;
  static constexpr int kThreads = Warps * 32;
  static constexpr int kBlockRows = Warps * Tiles * 16;
  static constexpr int kStateTiles = Tiles * 2;          // of 8 rows of V, in a warp
  static constexpr int kLaneRows = kStateTiles * 2;      // of v and o: neighbours
  static constexpr int kVectorTiles = Tokens / 4;        // of 8 vectors: k and q of four tokens
  static constexpr int kOctets = (Tokens + 7) / 8;       // of tokens: the rows of M in one factor
  static constexpr int kVectors = Tokens * 2;            // vector 2t is k_t, 2t+1 is q_t
  static constexpr int kChunks = K * kStateBytes / 64;   // 16-byte loads of a lane and row
  static constexpr int kGroups = K / kGroup;             // of a vector
  static constexpr int kItems = (kVectors * kGroups + kThreads - 1) / kThreads;  // groups of vectors that a thread prepares
  static constexpr int kItemTokens = kThreads / kGroups / 2;  // of which all threads together prepare k and q at once
  // KDA: a thread has one k and every kGateStep-th token; in the sums over K, a lane has two k's, a warp 64.
  static constexpr int kGateStep = kThreads / K;
  static constexpr int kGates = Tokens / kGateStep;      // of a thread
  static constexpr int kGatesAtOnce = kGates < 4 ? kGates : 4;
  static constexpr int kParts = Kda ? K / 64 : 1;        // partial sums of a coefficient
  // Four tokens: each warp forms the coefficients for itself (GDN).
  static constexpr bool kAlone = Tokens == 4 && !Kda;

  // Shared memory, in bytes.
  static constexpr int kSteps = K / 16;
  static constexpr int kStepBytes = 512;                 // a vector tile's part of one step: 16 bytes for each lane
  static constexpr int kCoefficientPitch = Tokens + 4;   // floats
  static constexpr int kCoefficientSize = kVectors * kCoefficientPitch;
  static constexpr int kCoefficients = kVectorTiles * kSteps * kStepBytes;
  static constexpr int kFragments = kCoefficients + (kAlone ? Warps : kParts) * kCoefficientSize * 4;
  static constexpr int kFragmentCount = kOctets * (kOctets + 1) / 2;
  static constexpr int kBeta = kFragments + (Tokens == 16 ? kFragmentCount * 512 : 0);
  static constexpr int kHeadLogs = kBeta + Tokens * 4;
  static constexpr int kVerdict = kHeadLogs + Tokens * 4;
  static constexpr int kRatioPitch = Tokens + 1;         // r_t0 .., E_t
  static constexpr int kRatios = kVerdict + 4;
  static constexpr int kPlain = (kRatios + (Kda ? 0 : Tokens * kRatioPitch * 4) + 15) / 16 * 16;
  static constexpr int kDecays = kPlain + (Kda ? kVectors * K * 4 : 0);
  static constexpr int kLogs = kDecays + (Kda ? Tokens * K * 4 : 0);
  static constexpr int kRawVectors = kLogs + (Kda ? Tokens * K * 4 : 0);
  static constexpr int kRawV = kRawVectors + kItems * kThreads * 16;
  static constexpr int kSharedBytes = kRawV + kVectorTiles * kThreads * kStateTiles * 4;
};

__device__ __forceinline__ uint32_t pack(float first, float second) {
  return narrow_2(DType::bf16, first, second);
}
__device__ __forceinline__ float first_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float second_of(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

/// x = high + low, each rounded to nearest; what is lost is below 2^-18 |x|.
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = pack(x, y);
  low = pack(S::sub(x, first_of(high)), S::sub(y, second_of(high)));
}
/// The same with the high parts cut off: below 2^-16 |x|, and no finite x becomes infinite.
__device__ __forceinline__ void cut(float x, float y, uint32_t& high, uint32_t& low) {
  high = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
  low = pack(S::sub(x, first_of(high)), S::sub(y, second_of(high)));
}

/// A raw element, loaded where it is written.
__device__ __forceinline__ uint32_t load_bits(DType dtype, const std::byte* data) {
  return dtype == DType::f32 ? ptx::load_4(data) : ptx::load_2(data);
}
__device__ __forceinline__ float of_bits(DType dtype, uint32_t bits) {
  return dtype == DType::f32 ? __uint_as_float(bits) : widen_2(dtype, bits).x;
}

template <class T>
class Block {
 public:
  __device__ Block(const FastParams& params, std::byte* memory)
      : p(params),
        memory_(memory),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        r(lane / 4),
        c(lane % 4),
        hv(params.by_parts.divides(blockIdx.x)),
        h(params.by_heads_of_key.divides(hv)),
        part(blockIdx.x - hv * params.v_parts),
        v0(part * T::kBlockRows + warp * T::kTiles * 16) {}

  __device__ void run(int row) {
    // Loads first. A state in the pool may be read whatever the verdict on its row will be.
    int slot = static_cast<int>(ptx::load_4(p.slot_ids.data + static_cast<int64_t>(row) * p.slot_id_stride));
    int index = row;  // where the row's inputs begin
    count = p.window;
    if (p.cu_seqlens) {
      const int end = p.cu_seqlens[row + 1];
      index = p.cu_seqlens[row];
      const bool bounded = index >= 0 && index <= end && end <= p.total_tokens && end - index <= p.longest;
      count = bounded ? end - index : 0;
    }
    Inputs in;
    fetch_inputs(index);
    load_gates(in, index);
    // A multiprocessor counts a warp's loads with few counters, and the compiler has one for all of these. What is needed
    // before the state must have arrived before the state is asked for, or it would be waited for with it. (Copies to shared
    // memory have a counter of their own.)
    slot += static_cast<int>(arrived(in) & p.zero);
    State state;
    if (slot >= 0 && slot < p.slots) {
      load_state(state, slot);
      if (p.pending && warp == 0) ptx::prefetch(&p.pending.at(0, slot));
    }
    ptx::wait_copies<0>();
    prepare();
    if (warp == T::kWarps - 1) gates_of_head(in);
    if constexpr (T::kKda) gates_of_channels(in);
    if (warp == 0) {
      const RowStatus status = judge_window(p, row);
      if (lane == 0) verdict() = static_cast<int>(status);
    }
    __syncthreads();
    const auto status = static_cast<RowStatus>(verdict());
    if (blockIdx.x == 0 && threadIdx.x == 0) settle_window(p, row, status);
    if (status != RowStatus::done) {
      if (status != RowStatus::bad_window_bounds) zero_outputs(index, static_cast<int>(p.asked_tokens(row)));
      return;
    }
    if (count == 0) return;
    read_v(in);
    if (p.ring_k) record(in, slot);
    uint4 m[T::kFragmentCount];
    coefficients(m);
    Products products;
    multiply(state, products);
    if constexpr (T::kTokens == 16) read_fragments(m);
    outputs(in, products, m, index);
  }

 private:
  using State = uint4[T::kStateTiles][T::kChunks];
  /// Of vector r of a tile with two rows of V of a state tile.
  using Products = float[T::kVectorTiles][T::kStateTiles][2];

  struct Inputs {
    uint32_t v[T::kVectorTiles][T::kStateTiles];  // of token 4 i + r/2, where r is even; pairs of neighbours
    uint32_t a[T::kKda ? T::kGates : 1], b;       // as they are in memory
    float A_log, dt_bias;
  };

  __device__ bool speaks_for_key() const { return part == 0 && hv == h * p.heads_of_key; }
  __device__ float* floats(int offset) const { return reinterpret_cast<float*>(memory_ + offset); }
  __device__ int& verdict() const { return *reinterpret_cast<int*>(memory_ + T::kVerdict); }
  __device__ float& beta(int t) const { return floats(T::kBeta)[t]; }
  __device__ float& log_of(int t) const { return floats(T::kHeadLogs)[t]; }
  __device__ float& ratio(int t, int j) const { return floats(T::kRatios)[t * T::kRatioPitch + j]; }
  __device__ float total_decay(int t) const { return T::kKda ? 1.0f : ratio(t, T::kTokens); }
  __device__ float* plain(int vector) const { return floats(T::kPlain) + vector * T::K; }
  __device__ float* decays(int t) const { return floats(T::kDecays) + t * T::K; }
  __device__ float* logs(int t) const { return floats(T::kLogs) + t * T::K; }
  /// Row `vector` of the coefficients: L_t for vector 2t, A_t for 2t+1.
  __device__ float* coefficient(int of, int vector) const {
    return floats(T::kCoefficients) + of * T::kCoefficientSize + vector * T::kCoefficientPitch;
  }
  /// A lane's part of a step's factor: pairs of k's, high and low, for two columns.
  __device__ std::byte* step(int tile, int step, int at_lane) const {
    return memory_ + (tile * T::kSteps + step) * T::kStepBytes + at_lane * 16;
  }
  __device__ uint4 step_of(int tile, int which, int at_lane) const {
    return *reinterpret_cast<const uint4*>(step(tile, which, at_lane));
  }
  /// In which step, and which of its four lanes and pairs, a lane of 16 bytes of S has k (even).
  static __device__ __forceinline__ int step_with(int k) {
    return T::kStateBytes == 2 ? k / 32 * 2 + k % 8 / 4 : k / 16;
  }
  static __device__ __forceinline__ int lane_with(int k) { return T::kStateBytes == 2 ? k % 32 / 8 : k % 16 / 4; }
  static __device__ __forceinline__ int pair_with(int k) { return k % 4 / 2; }

  __device__ int item_vector(int i) const { return i * T::kItemTokens * 2 + threadIdx.x / T::kGroups; }
  __device__ int item_token(int i) const { return i * T::kItemTokens + threadIdx.x / T::kGroups / 2; }
  __device__ int item_group() const { return threadIdx.x % T::kGroups; }
  __device__ int gate_token(int i) const { return i * T::kGateStep + threadIdx.x / T::K; }

  __device__ std::byte* raw_vectors(int i) const { return memory_ + T::kRawVectors + (i * T::kThreads + threadIdx.x) * 16; }
  __device__ std::byte* raw_v(int i) const {
    return memory_ + T::kRawV + (i * T::kThreads + threadIdx.x) * T::kStateTiles * 4;
  }

  /// Starts the copies of this thread's parts of k and q, and of v, which no other thread reads; zeros beyond the window.
  __device__ __forceinline__ void fetch_inputs(int index) const {
    // The vectors of a thread are an even number apart: all k's or all q's.
    const Place& of = item_vector(0) % 2 ? p.at_q : p.at_k;
    const int token = of.token;
    const std::byte* from = of.at(index, h, item_vector(0) / 2 * token + item_group() * kGroup * 2);
#pragma unroll
    for (int i = 0; i < T::kItems; ++i) {
      if (item_token(i) < count) {
        ptx::copy_async_16(ptx::shared_address(raw_vectors(i)), from + i * T::kItemTokens * token);
      } else {
        *reinterpret_cast<uint4*>(raw_vectors(i)) = {};
      }
    }
    const std::byte* v = p.at_v.at(index, hv, r / 2 * p.at_v.token + (v0 + c * T::kLaneRows) * 2);
#pragma unroll
    for (int i = 0; i < T::kVectorTiles; ++i) {
      if (r % 2 == 0 && 4 * i + r / 2 < count) {
        if constexpr (T::kTiles == 2) {
          ptx::copy_async_16(ptx::shared_address(raw_v(i)), v + 4 * i * p.at_v.token);
        } else {
          ptx::copy_async_8(ptx::shared_address(raw_v(i)), v + 4 * i * p.at_v.token);
        }
      } else {
#pragma unroll
        for (int n = 0; n < T::kStateTiles; ++n) reinterpret_cast<uint32_t*>(raw_v(i))[n] = 0;
      }
    }
    ptx::commit_copies();
  }

  __device__ __forceinline__ void read_v(Inputs& in) const {
#pragma unroll
    for (int i = 0; i < T::kVectorTiles; ++i) {
      if constexpr (T::kTiles == 2) {
        const uint4 all = *reinterpret_cast<const uint4*>(raw_v(i));
        in.v[i][0] = all.x, in.v[i][1] = all.y, in.v[i][2] = all.z, in.v[i][3] = all.w;
      } else {
        const uint2 all = *reinterpret_cast<const uint2*>(raw_v(i));
        in.v[i][0] = all.x, in.v[i][1] = all.y;
      }
    }
  }

  /// What the gates of this thread need. The last warp has those of the head.
  __device__ __forceinline__ void load_gates(Inputs& in, int index) const {
    in.b = 0;
    in.A_log = in.dt_bias = 0;
#pragma unroll
    for (auto& a : in.a) a = 0;
    if (warp == T::kWarps - 1 && lane < count) {
      in.b = load_bits(p.b.dtype, p.at_b.at(index, hv, lane * p.at_b.token));
      if constexpr (!T::kKda) in.a[0] = load_bits(p.a.dtype, p.at_a.at(index, hv, lane * p.at_a.token));
    }
    if (T::kKda || warp == T::kWarps - 1) {
      const int k = T::kKda ? threadIdx.x % T::K : 0;
      in.A_log = __uint_as_float(ptx::load_4(p.A_log + hv));
      if (p.dt_bias) {
        in.dt_bias = __uint_as_float(ptx::load_4(p.dt_bias + hv * static_cast<int>(p.dt_bias_head_stride) + k));
      }
    }
    if constexpr (T::kKda) {
      const bool wide = p.a.dtype == DType::f32;
      const std::byte* from = p.at_a.at(index, hv, threadIdx.x % T::K * (wide ? 4 : 2) + gate_token(0) * p.at_a.token);
#pragma unroll
      for (int i = 0; i < T::kGates; ++i) {
        if (gate_token(i) < count) in.a[i] = load_bits(p.a.dtype, from);
        from += T::kGateStep * p.at_a.token;
      }
    }
  }

  /// Depends on all that load_gates() loads.
  static __device__ __forceinline__ uint32_t arrived(const Inputs& in) {
    uint32_t all = in.b | __float_as_uint(in.A_log) | __float_as_uint(in.dt_bias);
#pragma unroll
    for (const uint32_t a : in.a) all |= a;
    return all;
  }

  __device__ __forceinline__ void load_state(State& s, int slot) const {
    const int v = v0 + r / 2 * T::kLaneRows + r % 2;
    const std::byte* from = p.at_state.at(slot, hv, v * p.state_row + c * 16);
#pragma unroll
    for (int i = 0; i < T::kStateTiles; ++i) {
#pragma unroll
      for (int j = 0; j < T::kChunks; ++j) s[i][j] = ptx::load_16_past_l1(from + j * 64);
      from += 2 * p.state_row;
    }
  }

  /// The ring's rows.
  __device__ __forceinline__ void record(const Inputs& in, int slot) const {
    if (speaks_for_key() && item_vector(0) % 2 == 0) {
      std::byte* to = p.at_ring_k.at(slot, h, item_vector(0) / 2 * p.at_ring_k.token + item_group() * kGroup * 2);
#pragma unroll
      for (int i = 0; i < T::kItems; ++i) {
        if (item_token(i) < count) {
          *reinterpret_cast<uint4*>(to + i * T::kItemTokens * p.at_ring_k.token) =
              *reinterpret_cast<const uint4*>(raw_vectors(i));
        }
      }
    }
    std::byte* v = p.at_ring_v.at(slot, hv, r / 2 * p.at_ring_v.token + (v0 + c * T::kLaneRows) * 2);
#pragma unroll
    for (int i = 0; i < T::kVectorTiles; ++i) {
      if (r % 2 != 0 || 4 * i + r / 2 >= count) continue;
      std::byte* to = v + 4 * i * p.at_ring_v.token;
      if constexpr (T::kTiles == 2) {
        *reinterpret_cast<uint4*>(to) = {in.v[i][0], in.v[i][1], in.v[i][2], in.v[i][3]};
      } else {
        *reinterpret_cast<uint2*>(to) = {in.v[i][0], in.v[i][1]};
      }
    }
    if (part != 0) return;
    if (warp == T::kWarps - 1 && lane < count) {
      poke(p.at_ring_beta.at(slot, hv, lane * p.at_ring_beta.token), 0, beta(lane));
      if constexpr (!T::kKda) poke(p.at_ring_g.at(slot, hv, lane * p.at_ring_g.token), 0, log_of(lane));
    }
    if constexpr (T::kKda) {
      const int k = threadIdx.x % T::K;
      std::byte* g = p.at_ring_g.at(slot, hv, k * 4);
#pragma unroll 4
      for (int i = 0; i < T::kGates; ++i) {
        const int t = gate_token(i);
        if (t < count) poke(g + t * p.at_ring_g.token, 0, logs(t)[k]);
      }
    }
  }

  /// k and q, normalised: as bf16 halves (GDN), or plain (KDA, whose decays are still to come).
  __device__ __forceinline__ void prepare() const {
#pragma unroll
    for (int i = 0; i < T::kItems; ++i) {
      const int vector = item_vector(i);
      float x[kGroup];
      widen_8(p.v.dtype, *reinterpret_cast<const uint4*>(raw_vectors(i)), x);
      float factor = 1;
      if (p.qk_l2norm) {
        float sum = group_sum(x, x, kGroup);
#pragma unroll
        for (int s = T::kGroups / 2; s >= 1; s /= 2) sum = S::add(sum, __shfl_xor_sync(kAllLanes, sum, s));
        factor = rsqrtf(S::add(sum, 1e-6f));
      }
      if (vector % 2) factor = S::mul(factor, p.scale);
      if (vector >= T::kVectors) continue;
#pragma unroll
      for (int e = 0; e < kGroup; ++e) x[e] = S::mul(x[e], factor);
      if constexpr (T::kKda) {
        float4* to = reinterpret_cast<float4*>(plain(vector) + item_group() * kGroup);
        to[0] = {x[0], x[1], x[2], x[3]};
        to[1] = {x[4], x[5], x[6], x[7]};
      } else {
        uint32_t high[4], low[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) split(x[2 * e], x[2 * e + 1], high[e], low[e]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = item_group() * kGroup + half * 4;
          *reinterpret_cast<uint4*>(step(vector / 8, step_with(k), vector % 8 * 4 + lane_with(k))) = {
              high[2 * half], low[2 * half], high[2 * half + 1], low[2 * half + 1]};
        }
      }
    }
  }

  __device__ __forceinline__ float log_decay_of(float a, float dt, float expA) const {
    return p.safe_gate ? arith::safe_gate<S>(a, dt, expA, p.lower_bound)
                       : arith::softplus_gate<S>(a, dt, expA, p.softplus_beta, p.softplus_threshold);
  }

  /// Beta, and GDN's g and decays, of a head's tokens, by one warp.
  __device__ __forceinline__ void gates_of_head(const Inputs& in) const {
    const bool there = lane < count;
    const float b = arith::sigmoid<S>(of_bits(p.b.dtype, in.b));
    if (lane < T::kTokens) beta(lane) = there ? b : 0.0f;
    if constexpr (!T::kKda) {
      const float g = log_decay_of(of_bits(p.a.dtype, in.a[0]), in.dt_bias, arith::exp_A<S>(in.A_log));
      if (lane < T::kTokens) log_of(lane) = g;
      const float decay = there ? __expf(g) : 1.0f;
      // Lane j < kTokens: r_tj; lane kTokens: E_t.
      float product = 1;
#pragma unroll
      for (int t = 0; t < T::kTokens; ++t) {
        const float its = __shfl_sync(kAllLanes, decay, t);
        if (lane < t || lane == T::kTokens) product = S::mul(product, its);
        if (lane <= t || lane == T::kTokens) ratio(t, lane) = product;
      }
    }
  }

  /// KDA's g and decays, by all threads.
  __device__ __forceinline__ void gates_of_channels(const Inputs& in) const {
    const int k = threadIdx.x % T::K;
    const float expA = arith::exp_A<S>(in.A_log);
    // A few at a time, from shared memory: all at once would be much code.
#pragma unroll
    for (int i = 0; i < T::kGates; ++i) logs(gate_token(i))[k] = of_bits(p.a.dtype, in.a[i]);
#pragma unroll 1
    for (int first = 0; first < T::kGates; first += T::kGatesAtOnce) {
#pragma unroll
      for (int i = 0; i < T::kGatesAtOnce; ++i) {
        const int t = gate_token(first + i);
        const float g = log_decay_of(logs(t)[k], in.dt_bias, expA);
        logs(t)[k] = g;
        decays(t)[k] = t < count ? __expf(g) : 1.0f;
      }
    }
  }

  /// L and A, and from them this lane's parts of M: factors of the last product. 16 tokens: left in shared memory.
  __device__ __forceinline__ void coefficients(uint4 (&m)[T::kFragmentCount]) const {
    if constexpr (T::kKda) {
      decayed_vectors();
      decayed_products();
      __syncthreads();
    } else if constexpr (T::kAlone) {
      products_of_four();
      __syncwarp();
    } else {
      products_of_more();
      __syncthreads();
    }
    if constexpr (T::kTokens < 16) {
      solve<0>(m);
    } else if (warp >= T::kWarps - 2) {
      uint4* to = reinterpret_cast<uint4*>(memory_ + T::kFragments) + lane;
      if (warp == T::kWarps - 2) {
        solve<0>(m);
        to[0] = m[0];
      } else {
        solve<1>(m + 1);
        to[32] = m[1];
        to[64] = m[2];
      }
    }
  }

  __device__ __forceinline__ void read_fragments(uint4 (&m)[T::kFragmentCount]) const {
    __syncthreads();
    const uint4* from = reinterpret_cast<const uint4*>(memory_ + T::kFragments) + lane;
#pragma unroll
    for (int i = 0; i < T::kFragmentCount; ++i) m[i] = from[i * 32];
  }

  /// GDN, four tokens: all products of the eight vectors with the k's.
  __device__ __forceinline__ void products_of_four() const {
    float x[4] = {}, y[4] = {};
#pragma unroll
    for (int i = 0; i < T::kSteps; ++i) {
      const uint4 a = step_of(0, i, lane);
      ptx::mma_16(x, a, a.x, a.z);
      ptx::mma_16(y, a, a.y, a.w);
    }
    const float product = S::add(S::add(x[0], y[0]), S::add(x[2], y[2]));
    const int t = r / 2;
    const float factor = S::mul(ratio(t, c), r % 2 ? 1.0f : beta(t));
    coefficient(warp, r)[c] = S::mul(product, factor);
  }

  /// GDN, more tokens: a warp takes the vectors of four tokens and the k's of eight, not later ones.
  __device__ __forceinline__ void products_of_more() const {
    constexpr int kUnits = T::kTokens == 16 ? 6 : 2;
#pragma unroll 1
    for (int unit = warp; unit < kUnits; unit += T::kWarps) {
      const int tile = unit < 4 ? unit : unit - 2, octet = unit / 4;
      const int k_tile = octet * 2 + r / 4, k_lane = r % 4 * 8 + c;
      float x[4] = {}, y[4] = {};
#pragma unroll
      for (int i = 0; i < T::kSteps; ++i) {
        const uint4 a = step_of(tile, i, lane), b = step_of(k_tile, i, k_lane);
        ptx::mma_16(x, a, b.x, b.z);
        ptx::mma_16(y, a, b.y, b.w);
      }
      const int t = tile * 4 + r / 2, j = octet * 8 + 2 * c;
      const float factor = r % 2 ? 1.0f : beta(t);
      float2 to;
      to.x = S::mul(S::add(S::add(x[0], y[0]), S::add(x[2], y[2])), S::mul(ratio(t, j), factor));
      to.y = S::mul(S::add(S::add(x[1], y[1]), S::add(x[3], y[3])), S::mul(ratio(t, j + 1), factor));
      *reinterpret_cast<float2*>(coefficient(0, tile * 8 + r) + j) = to;
    }
  }

  static constexpr int kHalves = T::K / 64;                   // of K, a warp's
  static constexpr int kTeams = T::kWarps / kHalves;          // that share tokens
  __device__ int first_k() const { return warp % kHalves * 64 + lane * 2; }
  static __device__ __forceinline__ float2 times(float2 x, float2 y) { return {S::mul(x.x, y.x), S::mul(x.y, y.y)}; }

  /// KDA: bf16 halves of k and q with the decay from the checkpoint on.
  __device__ __forceinline__ void decayed_vectors() const {
    const int k = first_k();
    float2 total = {1, 1};
#pragma unroll 4
    for (int t = 0; t < T::kTokens; ++t) {
      total = times(total, *reinterpret_cast<const float2*>(decays(t) + k));
      if (t % kTeams != warp / kHalves) continue;
#pragma unroll
      for (int vector = 2 * t; vector <= 2 * t + 1; ++vector) {
        const float2 x = times(total, *reinterpret_cast<const float2*>(plain(vector) + k));
        uint32_t high, low;
        split(x.x, x.y, high, low);
        std::byte* to = step(vector / 8, step_with(k), vector % 8 * 4 + lane_with(k)) + pair_with(k) * 8;
        *reinterpret_cast<uint2*>(to) = {high, low};
      }
    }
  }

  /// KDA: L and A, four j's at a time. r_j is k_j with the decay up to token t.
  __device__ __forceinline__ void decayed_products() const {
    const int k = first_k();
    const auto vector = [&](int i) { return *reinterpret_cast<const float2*>(plain(i) + k); };
#pragma unroll 1
    for (int tile = kTeams - 1 - warp / kHalves; tile < T::kVectorTiles; tile += kTeams) {
      float2 rj[4];
      const auto token = [&](int t, auto known) {  // the j's of the tile up to `known` - 1 have an r_j
        constexpr int kKnown = decltype(known)::value;
        const float2 kt = vector(2 * t), qt = vector(2 * t + 1);
        const float2 decay = *reinterpret_cast<const float2*>(decays(t) + k);
        float sums[8] = {};
#pragma unroll
        for (int j = 0; j < kKnown; ++j) {
          rj[j] = times(rj[j], decay);
          sums[j] = S::fma(rj[j].x, kt.x, S::mul(rj[j].y, kt.y));
        }
        if constexpr (kKnown < 4) rj[kKnown] = kt;
#pragma unroll
        for (int j = 0; j < 4 && j <= kKnown; ++j) sums[4 + j] = S::fma(rj[j].x, qt.x, S::mul(rj[j].y, qt.y));
        const float sum = sum_of_eight(sums);
        const int i = lane / 4;
        if (lane % 4 == 0) {
          coefficient(warp % kHalves, 2 * t + i / 4)[tile * 4 + i % 4] = i < 4 ? S::mul(sum, beta(t)) : sum;
        }
      };
      token(tile * 4, std::integral_constant<int, 0>());
      token(tile * 4 + 1, std::integral_constant<int, 1>());
      token(tile * 4 + 2, std::integral_constant<int, 2>());
      token(tile * 4 + 3, std::integral_constant<int, 3>());
#pragma unroll 1
      for (int t = tile * 4 + 4; t < T::kTokens; ++t) token(t, std::integral_constant<int, 4>());
    }
  }

  /// Sums of eight values over a warp: that of x[i] in lanes 4i .. 4i+3.
  __device__ __forceinline__ float sum_of_eight(float (&x)[8]) const {
#pragma unroll
    for (int n = 4, s = 16; n >= 1; n /= 2, s /= 2) {
      const bool upper = lane & s;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float keep = upper ? x[i + n] : x[i], give = upper ? x[i] : x[i + n];
        x[i] = S::add(keep, __shfl_xor_sync(kAllLanes, give, s));
      }
    }
    x[0] = S::add(x[0], __shfl_xor_sync(kAllLanes, x[0], 2));
    return S::add(x[0], __shfl_xor_sync(kAllLanes, x[0], 1));
  }

  /// Four coefficients of a row.
  __device__ __forceinline__ float4 four(int vector, int j) const {
    const int of = T::kAlone ? warp : 0;
    float4 x = *reinterpret_cast<const float4*>(coefficient(of, vector) + j);
    if constexpr (T::kParts == 2) {
      const float4 y = *reinterpret_cast<const float4*>(coefficient(1, vector) + j);
      x = {S::add(x.x, y.x), S::add(x.y, y.y), S::add(x.z, y.z), S::add(x.w, y.w)};
    }
    return x;
  }

  /// Row t = 8 octet + r of M, by each lane for itself, and its factors: columns M_tj, (j == t) with j = c + 4, 8, ..
  template <int octet>
  __device__ __forceinline__ void solve(uint4* factors) const {
    constexpr int kCount = T::kTokens == 4 ? 4 : 8 * octet + 8;
    float row[kCount];
    const int t = T::kTokens == 4 ? r % 4 : 8 * octet + r;
#pragma unroll
    for (int j = 0; j < kCount; j += 4) {
      const float4 a = four(2 * t + 1, j);
      row[j] = j <= t ? a.x : 0.0f;
      row[j + 1] = j + 1 <= t ? a.y : 0.0f;
      row[j + 2] = j + 2 <= t ? a.z : 0.0f;
      row[j + 3] = j + 3 <= t ? a.w : 0.0f;
    }
#pragma unroll
    for (int i = kCount - 1; i >= 1; --i) {
      const float factor = S::neg(row[i]);
#pragma unroll
      for (int j = 0; j < i; j += 4) {
        const float4 l = four(2 * i, j);
        row[j] = S::fma(factor, l.x, row[j]);
        if (j + 1 < i) row[j + 1] = S::fma(factor, l.y, row[j + 1]);
        if (j + 2 < i) row[j + 2] = S::fma(factor, l.z, row[j + 2]);
        if (j + 3 < i) row[j + 3] = S::fma(factor, l.w, row[j + 3]);
      }
    }
    uint32_t high[kCount / 4], low[kCount / 4];
#pragma unroll
    for (int j = 0; j < kCount; j += 4) {
      const float low_pair = c & 1 ? row[j + 1] : row[j], high_pair = c & 1 ? row[j + 3] : row[j + 2];
      const float x = c & 2 ? high_pair : low_pair;
      split(x, j + c == t ? 1.0f : 0.0f, high[j / 4], low[j / 4]);
      if (T::kTokens == 4 && r >= 4) high[0] = low[0] = 0;
    }
#pragma unroll
    for (int j = 0; j < (kCount + 7) / 8; ++j) {
      const int next = kCount == 4 ? 0 : 2 * j + 1;
      factors[j] = {high[2 * j], low[2 * j], high[next], low[next]};
    }
  }

  /// P_k and P_q.
  __device__ __forceinline__ void multiply(const State& s, Products& products) const {
    // 16 tokens times 32 rows of V: in two parts, for want of registers.
    constexpr int kAtOnce = T::kVectorTiles * T::kStateTiles > 8 ? T::kVectorTiles / 2 : T::kVectorTiles;
#pragma unroll
    for (int first = 0; first < T::kVectorTiles; first += kAtOnce) {
      float sums[kAtOnce][T::kStateTiles][4];
#pragma unroll
      for (int n = 0; n < kAtOnce * T::kStateTiles * 4; ++n) sums[n / 4 / T::kStateTiles][n / 4 % T::kStateTiles][n % 4] = 0;
#pragma unroll
      for (int i = 0; i < T::kSteps; ++i) {
        uint2 b[T::kStateTiles], rest[T::kStateTiles];
#pragma unroll
        for (int n = 0; n < T::kStateTiles; ++n) state_factor(s[n], i, b[n], rest[n]);
#pragma unroll
        for (int m = 0; m < kAtOnce; ++m) {
          const uint4 a = step_of(first + m, i, lane);
#pragma unroll
          for (int n = 0; n < T::kStateTiles; ++n) {
            ptx::mma_16(sums[m][n], a, b[n].x, b[n].y);
            if constexpr (T::kSplit) ptx::mma_16(sums[m][n], a, rest[n].x, rest[n].y);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kAtOnce; ++m) {
#pragma unroll
        for (int n = 0; n < T::kStateTiles; ++n) {
          products[first + m][n][0] = S::add(sums[m][n][0], sums[m][n][2]);
          products[first + m][n][1] = S::add(sums[m][n][1], sums[m][n][3]);
        }
      }
    }
  }

  /// Four k's of a row of the state as bf16, and what that loses.
  static __device__ __forceinline__ void state_factor(const uint4 (&row)[T::kChunks], int i, uint2& b, uint2& rest) {
    if constexpr (T::kState == DType::f32) {
      const uint4 x = row[i];
      cut(__uint_as_float(x.x), __uint_as_float(x.y), b.x, rest.x);
      cut(__uint_as_float(x.z), __uint_as_float(x.w), b.y, rest.y);
    } else {
      const uint4 x = row[i / 2];
      b = i % 2 ? uint2{x.z, x.w} : uint2{x.x, x.y};
      if constexpr (T::kState == DType::f16) {
        const float2 first = widen_2(DType::f16, b.x), second = widen_2(DType::f16, b.y);
        cut(first.x, first.y, b.x, rest.x);
        cut(second.x, second.y, b.y, rest.y);
      }
    }
  }

  __device__ __forceinline__ void outputs(const Inputs& in, const Products& products,
                                          const uint4 (&m)[T::kFragmentCount], int index) const {
    // D for vectors k, E P_q for vectors q.
    uint32_t high[T::kVectorTiles][T::kStateTiles], low[T::kVectorTiles][T::kStateTiles];
#pragma unroll
    for (int i = 0; i < T::kVectorTiles; ++i) {
      const int t = 4 * i + r / 2;
      const float decay = total_decay(t), of_v = r % 2 ? 0.0f : beta(t);
      const float of_product = r % 2 ? decay : S::neg(S::mul(of_v, decay));
#pragma unroll
      for (int n = 0; n < T::kStateTiles; ++n) {
        const float2 v = widen_2(p.v.dtype, in.v[i][n]);
        const float x = S::fma(products[i][n][0], of_product, S::mul(of_v, v.x));
        const float y = S::fma(products[i][n][1], of_product, S::mul(of_v, v.y));
        uint32_t above, below;
        cut(x, y, above, below);
        high[i][n] = ptx::transpose_8x8(above);
        low[i][n] = ptx::transpose_8x8(below);
      }
    }
    const int v = v0 + c * T::kLaneRows;
    std::byte* out = p.at_out.at(index, hv, r * p.at_out.token + v * (p.out.dtype == DType::f32 ? 4 : 2));
#pragma unroll
    for (int octet = 0; octet < T::kOctets; ++octet) {
      float o[T::kLaneRows];
#pragma unroll
      for (int n = 0; n < T::kStateTiles; ++n) {
        float sum[4] = {};
        if constexpr (T::kTokens == 4) {
          ptx::mma_8(sum, m[0].x, m[0].y, high[0][n]);
          ptx::mma_8(sum, m[0].x, m[0].y, low[0][n]);
        } else {
#pragma unroll
          for (int j = 0; j <= octet; ++j) {
            ptx::mma_16(sum, m[octet + j], high[2 * j][n], high[2 * j + 1][n]);
            ptx::mma_16(sum, m[octet + j], low[2 * j][n], low[2 * j + 1][n]);
          }
        }
        o[2 * n] = S::add(sum[0], sum[2]);
        o[2 * n + 1] = S::add(sum[1], sum[3]);
      }
      if (8 * octet + r < count) store_outputs(out + 8 * octet * p.at_out.token, o);
    }
  }

  __device__ __forceinline__ void store_outputs(std::byte* to, const float (&o)[T::kLaneRows]) const {
    if (!p.out_wide) {
#pragma unroll
      for (int e = 0; e < T::kLaneRows; ++e) store_one(p.out.dtype, to, e, o[e]);
    } else if (p.out.dtype == DType::f32) {
#pragma unroll
      for (int e = 0; e < T::kLaneRows; e += 4) {
        reinterpret_cast<float4*>(to)[e / 4] = {o[e], o[e + 1], o[e + 2], o[e + 3]};
      }
    } else {
      uint32_t words[T::kStateTiles];
#pragma unroll
      for (int n = 0; n < T::kStateTiles; ++n) words[n] = narrow_2(p.out.dtype, o[2 * n], o[2 * n + 1]);
      if constexpr (T::kTiles == 2) {
        *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
      } else {
        *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
      }
    }
  }

  __device__ __forceinline__ void zero_outputs(int index, int tokens) const {
    std::byte* out = p.at_out.at(index, hv) + part * T::kBlockRows * (p.out.dtype == DType::f32 ? 4 : 2);
#pragma unroll 1
    for (int i = threadIdx.x; i < tokens * T::kBlockRows; i += T::kThreads) {
      const int t = i / T::kBlockRows;
      store_one(p.out.dtype, out + static_cast<int64_t>(t) * p.at_out.token, i - t * T::kBlockRows, 0.0f);
    }
  }

  const FastParams& p;
  std::byte* const memory_;
  const int lane, warp, r, c, hv, h, part, v0;  // v0: the warp's first row of V
  int count = 0;                             // tokens
};

}  // namespace ringfold::cuda::fast
