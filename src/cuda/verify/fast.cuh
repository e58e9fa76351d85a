// The outputs of a window in triangular form, on tensor cores (`fast` numerics).
//
// With P_k = S k_t and P_q = S q_t on the checkpoint S, E_t the decay of tokens 0..t and r_tj that of tokens j+1..t:
//   D_t = beta_t (v_t - E_t P_k,t)        what a token would correct if it stood alone
//   L_tj = beta_t r_tj (k_t.k_j), j < t;  A_tj = r_tj (q_t.k_j), j <= t
//   o = E P_q + M D,                      M (I + L) = A, solved row by row
// For KDA the decays stand inside the sums over K. They are products of the tokens' decays, none of which exceeds 1, so
// that nothing overflows however strong a gate is.
//
// A block takes kBlockRows rows of V of one value head of one row, or of a few value heads of a key head, one after the
// other: k and q, their norms and halves are the same. Each warp has 16 or 32 of them and keeps its part of
// S in registers, loaded from global memory in the shape that the tensor cores want. There the token vectors are the
// factor with 16 rows: k_0, q_0, .., k_3, q_3 rounded to bf16 and below them what that loses, so that one instruction
// forms both products; S is the factor with 8 columns (rows of V), split likewise unless it is bf16. K is permuted
// alike in both, which lets a lane load 16 bytes of S at once, and rows of V so that a lane has neighbours in v and o.
// For the last product, M stands above what its rounding loses, too, and D and E P_q, interleaved, are transposed
// between lanes.
#pragma once

#include "cuda/common/convert.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/judging.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/verify/fast_history.cuh"

namespace ringfold::cuda::fast {

template <class T>
class Block : public History<T> {
 public:
  using History<T>::History;

  __device__ void run(int row) {
    // Loads first. A state in the pool may be read whatever the verdict on its row will be.
    int slot = static_cast<int>(ptx::load_4(p.slot_ids.data + static_cast<int64_t>(row) * p.slot_id_stride));
    int index = row;  // where the row's inputs begin
    int end = p.window;
    count = p.window;
    if (p.cu_seqlens) {
      end = p.cu_seqlens[row + 1];
      index = p.cu_seqlens[row];
      const bool bounded = index >= 0 && index <= end && end <= p.total_tokens && end - index <= p.longest;
      count = bounded ? end - index : 0;
    }
    Inputs in;
    fetch_inputs(index);
    load_gates(in, index);
    // A multiprocessor counts a warp's loads with few counters, and the compiler has one for all of these. What is
    // needed before the state must have arrived before the state is asked for, or it would be waited for with it.
    // (Copies to shared memory have a counter of their own.)
    slot += static_cast<int>(arrived(in) & p.zero);
    if constexpr (T::kKda) put_gates_aside(in);
    State state;
    const bool in_pool = slot >= 0 && slot < p.slots;
    if (in_pool) fetch_cursors(row, slot);
    ptx::commit_copies();
    if (in_pool) load_state(state, slot);
    ptx::wait_copies<1>();
    prepare();
    if (T::kHistory || warp == 0) {
      ptx::wait_copies<0>();
      __syncwarp();
    }
    if constexpr (T::kHistory) {
      if (in_pool) {
        find_history();
        fetch_keys(slot);
        fetch_additions(slot);
      }
      ptx::commit_copies();
    }
    if (gates_head() < heads()) gates_of_head(in);
    if constexpr (T::kKda) gates_of_channels(in);
    if (warp == 0) {
      const RowStatus status = judge_window(p, facts(p.cu_seqlens ? index : 0, end, slot, in_pool), T::kHistory);
      if (lane == 0) {
        verdict() = static_cast<int>(status);
        begin() = index, own_slot() = slot;
      }
    }
    __syncthreads();
    const auto status = static_cast<RowStatus>(verdict());
    if (blockIdx.x == 0 && threadIdx.x == 0) settle(row, status, slot, p.cu_seqlens ? end - begin() : p.window);
    if (status != RowStatus::done) {
      ptx::wait_copies<0>();  // of a history
      if (status != RowStatus::bad_window_bounds) {
        for (int i = 0; i < heads(); ++i, ++hv) zero_outputs(index, static_cast<int>(p.asked_tokens(row)));
      }
      return;
    }
    if (count == 0) return ptx::wait_copies<0>();
    while (true) {
      read_v(in);
      if (p.ring_k) record(in, ring_of(own_slot()));
      Fragments m, inverse;
      coefficients(m, inverse);
      if constexpr (T::kHistory) {
        if (history > 0) {
          ptx::wait_copies<0>();
          read_history();
        }
      }
      Products products;
      multiply(state, products);
      if constexpr (T::kTokens == 16) read_fragments(m, inverse);
      if (head() + 1 == heads()) return outputs(in, products, m, inverse, begin(), own_slot());
      // The next head's state comes while this one's outputs are formed.
      ++hv;
      load_state(state, own_slot());
      fetch_v(begin());
      ptx::commit_copies();
      __syncthreads();  // the shared memory of this head is free
      if constexpr (T::kHistory) fetch_additions(own_slot());
      ptx::commit_copies();
      --hv;
      outputs(in, products, m, inverse, begin(), own_slot());
      ++hv;
      ptx::wait_copies<1>();
    }
  }

 private:
  using Base = History<T>;
  using Base::add_history, Base::facts, Base::fetch_additions, Base::fetch_cursors, Base::fetch_keys,
      Base::find_history, Base::head, Base::history, Base::keep_gate, Base::read_history, Base::ring_of, Base::row_of,
      Base::settle;
  using Base::begin, Base::beta, Base::own_slot, Base::decays, Base::lane_with, Base::log_of, Base::logs, Base::memory_,
      Base::plain;
  using Base::c, Base::count, Base::h, Base::hv, Base::lane, Base::p, Base::part, Base::r, Base::v0, Base::warp;
  using Base::coefficients, Base::read_fragments;
  using Base::ratio, Base::speaks_for_key, Base::step, Base::step_of, Base::step_with, Base::total_decay, Base::verdict;
  using typename Base::Fragments;

  using State = uint4[T::kStateTiles][T::kChunks];
  /// Of vector r of a tile with two rows of V of a state tile.
  using Products = float[T::kVectorTiles][T::kStateTiles][2];

  struct Inputs {
    uint32_t v[T::kVectorTiles][T::kStateTiles];  // of token 4 i + r/2, where r is even; pairs of neighbours
    uint32_t a[T::kKda ? T::kGates : 1], b;       // as they are in memory
    float A_log, dt_bias;
  };

  /// How many value heads the block takes, and whose gates this warp makes: the last warp those of the first.
  __device__ int heads() const { return T::kMostHeads == 1 ? 1 : p.heads_of_block; }
  __device__ int gates_head() const { return T::kWarps - 1 - warp; }

  __device__ int item_vector(int i) const { return i * T::kItemTokens * 2 + threadIdx.x / T::kGroups; }
  __device__ int item_token(int i) const { return i * T::kItemTokens + threadIdx.x / T::kGroups / 2; }
  __device__ int item_group() const { return threadIdx.x % T::kGroups; }
  __device__ int gate_token(int i) const { return i * T::kGateStep + threadIdx.x / T::K; }

  __device__ std::byte* raw_vectors(int i) const {
    return memory_ + T::kRawVectors + (i * T::kThreads + threadIdx.x) * 16;
  }
  __device__ std::byte* raw_v(int i) const {
    return memory_ + T::kRawV + (i * T::kThreads + threadIdx.x) * T::kStateTiles * 4;
  }

  /// Starts the copies of this thread's parts of k and q, and of v, which no other thread reads; zeros beyond the
  /// window.
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
    fetch_v(index);
    ptx::commit_copies();
  }
  __device__ __forceinline__ void fetch_v(int index) const {
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

  /// What the gates of this thread need.
  __device__ __forceinline__ void load_gates(Inputs& in, int index) const {
    in.b = 0;
    in.A_log = in.dt_bias = 0;
#pragma unroll
    for (auto& a : in.a) a = 0;
    const int hv_of_gates = T::kMostHeads == 1 ? hv : hv + gates_head();
    if (gates_head() < heads() && lane < count) {
      in.b = load_bits(p.b.dtype, p.at_b.at(index, hv_of_gates, lane * p.at_b.token));
      if constexpr (!T::kKda) in.a[0] = load_bits(p.a.dtype, p.at_a.at(index, hv_of_gates, lane * p.at_a.token));
    }
    if (T::kKda || gates_head() < heads()) {
      const int k = T::kKda ? threadIdx.x % T::K : 0;
      in.A_log = __uint_as_float(ptx::load_4(p.A_log + hv_of_gates));
      // Without a bias its place is taken by what is loaded anyway: a condition here would make the loads wait.
      const float* bias =
          p.dt_bias ? p.dt_bias + hv_of_gates * static_cast<int>(p.dt_bias_head_stride) + k : p.A_log + hv_of_gates;
      in.dt_bias = __uint_as_float(ptx::load_4(bias));
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
  __device__ __forceinline__ void record(const Inputs& in, int ring) const {
    if (speaks_for_key() && item_vector(0) % 2 == 0) {
      std::byte* to = p.at_ring_k.at(ring, h, item_group() * kGroup * 2);
#pragma unroll
      for (int i = 0; i < T::kItems; ++i) {
        if (item_token(i) < count) {
          *reinterpret_cast<uint4*>(to + row_of(item_token(i)) * p.at_ring_k.token) =
              *reinterpret_cast<const uint4*>(raw_vectors(i));
        }
      }
    }
    std::byte* v = p.at_ring_v.at(ring, hv, (v0 + c * T::kLaneRows) * 2);
#pragma unroll
    for (int i = 0; i < T::kVectorTiles; ++i) {
      if (r % 2 != 0 || 4 * i + r / 2 >= count) continue;
      std::byte* to = v + row_of(4 * i + r / 2) * p.at_ring_v.token;
      if constexpr (T::kTiles == 2) {
        *reinterpret_cast<uint4*>(to) = {in.v[i][0], in.v[i][1], in.v[i][2], in.v[i][3]};
      } else {
        *reinterpret_cast<uint2*>(to) = {in.v[i][0], in.v[i][1]};
      }
    }
    if (part != 0) return;
    if (warp == T::kWarps - 1 && lane < count) {
      const int ring_row = row_of(lane);
      poke(p.at_ring_beta.at(ring, hv, ring_row * p.at_ring_beta.token), 0, beta(lane));
      if constexpr (!T::kKda) poke(p.at_ring_gate.at(ring, hv, ring_row * p.at_ring_gate.token), 0, log_of(lane));
    }
    if constexpr (T::kKda) {
      const int k = threadIdx.x % T::K;
      const int size = static_cast<int>(size_of(p.ring_gate.dtype));
      std::byte* gate = p.at_ring_gate.at(ring, hv, k * size);
      const std::byte* a = p.at_a.at(begin(), hv, k * size);  // as it came, where the ring keeps that
#pragma unroll 4
      for (int i = 0; i < T::kGates; ++i) {
        const int t = gate_token(i);
        if (t >= count) continue;
        std::byte* to = gate + row_of(t) * p.at_ring_gate.token;
        if (!p.raw_gate) {
          poke(to, 0, logs(t)[k]);
        } else if (size == 4) {
          poke(to, 0, peek<uint32_t>(a + t * p.at_a.token, 0));
        } else {
          poke(to, 0, peek<uint16_t>(a + t * p.at_a.token, 0));
        }
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

  /// Beta, and GDN's g and decays, of the tokens of one of the block's heads, by one warp.
  __device__ __forceinline__ void gates_of_head(const Inputs& in) {
    hv += T::kMostHeads == 1 ? 0 : gates_head();  // whose gates they are
    const bool there = lane < count;
    const float b = arith::sigmoid<S>(of_bits(p.b.dtype, in.b));
    if (lane < T::kTokens) beta(lane) = there ? b : 0.0f;
    if constexpr (!T::kKda) {
      const float g =
          log_decay_of(p, of_bits(p.a.dtype, in.a[0]), p.dt_bias ? in.dt_bias : 0.0f, arith::exp_A<S>(in.A_log));
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
    hv -= T::kMostHeads == 1 ? 0 : gates_head();
  }

  /// KDA's a, for the same threads later: registers are for the state now.
  __device__ __forceinline__ void put_gates_aside(const Inputs& in) const {
#pragma unroll
    for (int i = 0; i < T::kGates; ++i) logs(gate_token(i))[threadIdx.x % T::K] = of_bits(p.a.dtype, in.a[i]);
  }

  /// KDA's g and decays, by all threads.
  __device__ __forceinline__ void gates_of_channels(const Inputs& in) const {
    const int k = threadIdx.x % T::K;
    const float expA = arith::exp_A<S>(in.A_log), bias = p.dt_bias ? in.dt_bias : 0.0f;
    if constexpr (T::kHistory) keep_gate(expA, bias);
      // A few at a time, from shared memory: all at once would be much code.
#pragma unroll 1
    for (int first = 0; first < T::kGates; first += T::kGatesAtOnce) {
      float g[T::kGatesAtOnce];
#pragma unroll
      for (int i = 0; i < T::kGatesAtOnce; ++i) g[i] = logs(gate_token(first + i))[k];
#pragma unroll
      for (int i = 0; i < T::kGatesAtOnce; ++i) g[i] = log_decay_of(p, g[i], bias, expA);
#pragma unroll
      for (int i = 0; i < T::kGatesAtOnce; ++i) {
        const int t = gate_token(first + i);
        logs(t)[k] = g[i];
        decays(t)[k] = t < count ? __expf(g[i]) : 1.0f;
      }
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
      for (int n = 0; n < kAtOnce * T::kStateTiles * 4; ++n)
        sums[n / 4 / T::kStateTiles][n / 4 % T::kStateTiles][n % 4] = 0;
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
      if constexpr (T::kHistory) add_history(sums, first);
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

  __device__ __forceinline__ void outputs(const Inputs& in, const Products& products, const Fragments& m,
                                          const Fragments& inverse, int index, int slot) const {
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
      last_product(m, high, low, octet, o);
      if constexpr (!T::kHistory) {
        if (8 * octet + r < count) store_outputs(out + 8 * octet * p.at_out.token, o);
      } else if constexpr (T::kTokens == 4) {
        if (r < 4 && r < count) store_outputs(out, o);
        if (r >= 4 && r - 4 < count) store_u(slot, r - 4, o);
      } else {
        if (8 * octet + r < count) store_outputs(out + 8 * octet * p.at_out.token, o);
        last_product(inverse, high, low, octet, o);
        if (8 * octet + r < count) store_u(slot, 8 * octet + r, o);
      }
    }
  }

  /// Eight rows of a product with D and E P_q: row r, and neighbours of V.
  using Split = uint32_t[T::kVectorTiles][T::kStateTiles];
  static __device__ __forceinline__ void last_product(const Fragments& m, const Split& high, const Split& low,
                                                      int octet, float (&o)[T::kLaneRows]) {
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
  }

  /// What a token adds to the state, for the windows after this one.
  __device__ __forceinline__ void store_u(int slot, int t, const float (&u)[T::kLaneRows]) const {
    std::byte* to = p.at_ring_u.at(slot, hv, row_of(t) * p.at_ring_u.token + (v0 + c * T::kLaneRows) * 4);
#pragma unroll
    for (int e = 0; e < T::kLaneRows; e += 4)
      reinterpret_cast<float4*>(to)[e / 4] = {u[e], u[e + 1], u[e + 2], u[e + 3]};
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
};

}  // namespace ringfold::cuda::fast
