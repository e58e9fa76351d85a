// The recurrence of a window in the exact order, made for small batches: a block for each (row, value head, part of V),
// no pipeline.
//
// What a small batch waits for is latency, so everything is asked for as early as can be. The warps that have rows of V
// ask for the slot id, for what q, k and v are made of, which needs the row alone, and as soon as the slot id is there
// for the state, straight into the registers that exact_tile.cuh says; a slot in range may be read whatever the verdict
// on the row will be. While the state is on its way they make the vectors of the tokens, warp w those of token w and of
// the one a block further on. One more warp, the head's, judges the row and makes gates and betas meanwhile, a lane for
// each token. Then the tokens, one after the other, from shared memory.
//
// Where q, k and v come from and where outputs go is said by Own, the class that derives from this one: WindowBlock
// (direct_window.cuh), or a layer's block (cuda/layer/direct_layer.cuh).
#pragma once

#include "cuda/common/gate.cuh"
#include "cuda/common/judging.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/recurrence/direct_params.cuh"
#include "cuda/recurrence/exact_tile.cuh"
#include "cuda/recurrence/exact_vectors.cuh"

namespace ringfold::cuda::direct {

template <class T, class Own>
class Body : protected exact::Preparation<T>, protected exact::Tile<T> {
 public:
  __device__ Body(const DirectParams& params, Shared<T>& memory)
      : exact::Preparation<T>{static_cast<int>(threadIdx.x % 32)},
        exact::Tile<T>{lane / T::kSide, lane % T::kSide},
        p(params),
        shared(memory),
        row(static_cast<int>(blockIdx.x + (threadIdx.x & p.zero))),
        hv(static_cast<int>(ptx::opaque(blockIdx.y))),
        key(static_cast<int>(ptx::opaque(p.by_heads_per_key.divides(blockIdx.y)))),
        warp(static_cast<int>(ptx::opaque(threadIdx.x / 32))),
        warps(static_cast<int>(blockDim.x / 32) - 1),
        v0((blockIdx.z * warps + warp) * kDirectWarpRows) {}

  __device__ void run() {
    int slot = element(p.slot_ids, row);
    WindowFacts facts;
    facts.end = p.window;
    int index = row;  // where the row's inputs begin
    count = p.window;
    if (p.cu_seqlens) {
      const int begin = element(p.cu_seqlens, row), end = element(p.cu_seqlens, row + 1);
      facts.begin = index = begin, facts.end = end;
      const bool bounded = begin >= 0 && end >= begin && end <= p.total_tokens && end - begin <= kDirectTokens;
      count = bounded ? end - begin : 0;
    }
    if (warp == warps) return run_head(facts, index, slot);

    own().fetch_inputs(index);
    Channels channels;
    Raw state;
    if constexpr (T::kKda) fetch_channels(channels, index);
    // A multiprocessor counts a warp's loads with few counters, and the compiler has one for all of these: what is
    // loaded before the state must have arrived before the state is asked for, or it would be waited for with it.
    // (Copies to shared memory have a counter of their own.)
    const uint32_t before = arrived(channels) | own().arrived_inputs();
    slot = static_cast<int>(ptx::opaque(slot)) + static_cast<int>(before & p.zero);
    own().fetch_of_slot(slot);
    if (in_pool(slot) && has_rows()) fetch_state(state, slot);
    own().fetch_rest(index);
    own().prepare(channels);
    ptx::wait_copies<0>();
    ptx::meet(blockDim.x);
    if (shared.status != RowStatus::done) {
      if (shared.status != RowStatus::bad_window_bounds) {
        const auto zero = [](int, int) { return 0.0f; };
        if (has_rows()) write_outputs(index, static_cast<int>(facts.end - facts.begin), zero);
      }
      return;
    }
    if (count == 0) return;
    if constexpr (T::kKda) {
      if (p.records && blockIdx.z == 0) record_gates(channels, p.ring_ids ? element(p.ring_ids, row) : slot);
    }
    if (has_rows()) run_tokens(state, index, slot);
    own().close(index);
  }

 protected:
  using exact::Preparation<T>::lane;
  using exact::Preparation<T>::first_decay, exact::Preparation<T>::normalise, exact::Preparation<T>::prepared_group,
      exact::Preparation<T>::prepares, exact::Preparation<T>::prepares_q, exact::Preparation<T>::share_decays,
      exact::Preparation<T>::write;
  using exact::Tile<T>::both_dots, exact::Tile<T>::correction, exact::Tile<T>::kSame, exact::Tile<T>::update;
  using exact::Tile<T>::c, exact::Tile<T>::side;
  using typename exact::Tile<T>::State;

  static constexpr int kTurns = T::kTurns;

  /// A thread's part of the state as it is in memory.
  using Raw = uint4[T::kRows][2][T::kHalves];

  /// KDA's gates of four k's of each token that the warp prepares: what they are made of as it is in memory, and g.
  struct Channels {
    uint32_t a[kTurns * 4];
    float A_log, dt_bias[4];
    float g[kTurns * 4];
  };

  /// A row's number is not the same in all lanes, as far as the compiler knows. Otherwise it would move what comes of
  /// it to registers of the warp, and wait for each load where it is written.
  static __device__ int element(const Ints& of, int i) {
    return static_cast<int>(ptx::load_4_at_once(of.data + static_cast<int64_t>(i) * static_cast<int>(of.stride)));
  }
  /// The token that this warp prepares in its n-th turn.
  __device__ int token(int n) const { return warp + n * warps; }
  __device__ bool in_pool(int slot) const { return judge_slot(slot, p.slots) == RowStatus::done; }
  /// The last part of V may be smaller than the others.
  __device__ bool has_rows() const { return v0 < p.V; }

  /// This thread's group of k or q of the n-th token that the warp prepares.
  __device__ uint4& raw(int n) const { return shared.raw[n][threadIdx.x]; }
  __device__ Own& own() { return *static_cast<Own*>(this); }
  __device__ const Own& own() const { return *static_cast<const Own*>(this); }

  /// The head's warp: gates and betas of all tokens, lane t those of token t, the row's verdict, and the ring.
  __device__ __forceinline__ void run_head(WindowFacts& facts, int index, int slot) {
    const bool mine = lane < count;
    const int ring_id = p.ring_ids ? element(p.ring_ids, row) : 0;
    uint32_t a = 0, b = 0;
    float A_log = 0, dt_bias = 0;
    if (mine) {
      b = load_bits(p.b_dtype, p.b.at(index, hv, lane));
      if constexpr (!T::kKda) {
        a = load_bits(p.a_dtype, p.a.at(index, hv, lane));
        A_log = __uint_as_float(ptx::load_4(p.A_log + hv));
        if (p.dt_bias) dt_bias = __uint_as_float(ptx::load_4(bias(0)));
      }
    }
    typename Own::Copies copies;
    if (p.records) own().fetch_copies(copies, index);
    facts.slot = slot = static_cast<int>(ptx::opaque(slot));
    const int ring = p.ring_ids ? ring_id : slot;
    facts.ring = ring;
    if (in_pool(slot) && p.pending) facts.pending = read_unordered(p.pending.at(0, slot));
    own().look_at_slot(slot);
    const float beta = arith::sigmoid<S>(of_bits(p.b_dtype, b));
    float g = 0, decay = 0;
    if constexpr (!T::kKda) {
      g = log_decay_of(p, of_bits(p.a_dtype, a), dt_bias, arith::exp_A<S>(A_log));
      decay = arith::exp<S>(g);
    }
    if (mine) shared.scalars(lane).beta = beta, shared.scalars(lane).decay = decay;
    const Rows rows = own().rows();
    const RowStatus status = own().judge(rows, facts);
    if (lane == 0) shared.status = status;
    own().meet();
    ptx::meet(blockDim.x);
    if (p.records && status == RowStatus::done) {
      own().store_copies(copies, ring);
      if (mine && blockIdx.z == 0) {
        poke(p.ring_beta.at(ring, hv, lane), 0, beta);
        if constexpr (!T::kKda) poke(p.ring_gate.at(ring, hv, lane), 0, g);
      }
    }
    if (hv == 0 && blockIdx.z == 0 && lane == 0) own().settle(rows, status);
    if (status == RowStatus::done && count > 0) own().close_head();
  }

  /// Of the head, from channel k on.
  __device__ const std::byte* bias(int k) const {
    return reinterpret_cast<const std::byte*>(p.dt_bias + k) + static_cast<int64_t>(hv) * p.dt_bias_head;
  }

  __device__ __forceinline__ void fetch_channels(Channels& of, int index) const {
    const int k = first_decay();
    const bool there = k < T::K, wide = p.a_dtype == DType::f32;
    of.A_log = __uint_as_float(ptx::load_4(p.A_log + hv));
#pragma unroll
    for (float& x : of.dt_bias) x = 0;
    if (there && p.dt_bias) {
      const std::byte* from = bias(k);
#pragma unroll
      for (int i = 0; i < 4; ++i) of.dt_bias[i] = __uint_as_float(ptx::load_4(from + i * 4));
    }
    const std::byte* a = p.a.at(index, hv, warp) + k * (wide ? 4 : 2);
#pragma unroll
    for (int n = 0; n < kTurns; ++n) {
      const std::byte* from = a + n * warps * p.a.token;
#pragma unroll
      for (int i = 0; i < 4; ++i) of.a[n * 4 + i] = 0;
      if (!there || token(n) >= count) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) of.a[n * 4 + i] = wide ? ptx::load_4(from + i * 4) : ptx::load_2(from + i * 2);
    }
  }
  /// A number that all of them go into.
  static __device__ uint32_t arrived(const Channels& of) {
    uint32_t all = 0;
    if constexpr (T::kKda) {
      all = __float_as_uint(of.A_log);
#pragma unroll
      for (const uint32_t a : of.a) all ^= a;
#pragma unroll
      for (const float bias : of.dt_bias) all ^= __float_as_uint(bias);
    }
    return all;
  }

  /// Where the warp's rows of the state are.
  __device__ std::byte* warp_rows(int slot) const { return p.state.at(slot, hv) + v0 * T::kRowBytes; }

  __device__ __forceinline__ void fetch_state(Raw& state, int slot) const {
    const std::byte* from = warp_rows(slot) + side * T::kRows * T::kRowBytes + c * T::kHalves * 16;
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const std::byte* of_row = from + (r ^ this->twist_of(c)) * T::kRowBytes;
#pragma unroll
      for (int g = 0; g < 2; ++g) {
#pragma unroll
        for (int half = 0; half < T::kHalves; ++half) {
          state[r][g][half] = ptx::load_16_written(of_row + (g * T::kLanes * T::kHalves + half) * 16);
        }
      }
    }
  }

  /// The vectors of this warp's tokens, of which there are N, from q and k in shared memory.
  template <int N>
  __device__ __forceinline__ void make_vectors(const float (&decay)[N][kGroup]) const {
    float x[N][kGroup], kq[N];
#pragma unroll
    for (int n = 0; n < N; ++n) widen_8(p.act_dtype, prepares() ? raw(n) : uint4{}, x[n]);
    normalise(p, x, kq);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (lane == 0) shared.scalars(token(n)).kq = kq[n];
      if (prepares()) write(shared.tokens[token(n)], x[n], decay[n]);
    }
  }

  /// KDA's decays of the same tokens.
  template <int N>
  __device__ __forceinline__ void make_decays(Channels& of, float (&decay)[N][kGroup]) const {
    const float expA = arith::exp_A<S>(of.A_log);
#pragma unroll 1
    for (int n = 0; n < N; ++n) {
      float g[4], mine[4], all[kGroup];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        g[i] = log_decay_of(p, of_bits(p.a_dtype, n == 0 ? of.a[i] : of.a[4 + i]), of.dt_bias[i], expA);
        mine[i] = arith::exp<S>(g[i]);
      }
      share_decays(mine, all);
      // An index that the compiler does not know would put the arrays into local memory.
#pragma unroll
      for (int m = 0; m < N; ++m) {
        if (m != n) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) of.g[m * 4 + i] = g[i];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) decay[m][i] = all[i];
      }
    }
  }

  /// The ring's gates of this warp's tokens, by one block for each value head.
  __device__ __forceinline__ void record_gates(const Channels& channels, int ring) const {
    if (prepared_group() >= T::K / kGroup) return;
#pragma unroll
    for (int n = 0; n < kTurns; ++n) {
      if (token(n) >= count) break;
      std::byte* gate = p.ring_gate.at(ring, hv, token(n));
#pragma unroll
      for (int i = 0; i < 4; ++i) record_gate(gate, first_decay() + i, channels.a[n * 4 + i], channels.g[n * 4 + i]);
    }
  }
  /// The ring takes g, or a as it came.
  __device__ void record_gate(std::byte* to, int k, uint32_t a, float g) const {
    if (!p.raw_gate) {
      poke(to, k, g);
    } else if (p.a_dtype == DType::f32) {
      poke(to, k, a);
    } else {
      poke(to, k, static_cast<uint16_t>(a));
    }
  }

  __device__ __forceinline__ void widen(const Raw& raw, State& s) const {
    if constexpr (T::kStateBytes == 4) {
#pragma unroll
      for (int i = 0; i < T::kRows * 4; ++i) {
        const uint4& x = raw[i / 4][i / 2 % 2][i % 2];
        float* to = &s[i / 4][i / 2 % 2][i % 2 * 4];
        to[0] = __uint_as_float(x.x), to[1] = __uint_as_float(x.y);
        to[2] = __uint_as_float(x.z), to[3] = __uint_as_float(x.w);
      }
    } else {
      with_16_bit(p.state_dtype, [&](DType dtype) {
#pragma unroll
        for (int i = 0; i < T::kRows * 2; ++i) widen_8(dtype, raw[i / 2][i % 2][0], s[i / 2][i % 2]);
      });
    }
  }

  __device__ __forceinline__ void run_tokens(const Raw& raw, int index, int slot) {
    State s;
    widen(raw, s);
    const int own_row = exact::Tile<T>::row();  // of the warp
    const bool upper = this->upper(), writes = upper && c % kSame == 0;
    const int own_dot = (upper ? T::kSecondDot : T::kFirstDot) * T::K,
              other_dot = (upper ? T::kFirstDot : T::kSecondDot) * T::K;
    const int updates = p.write_state ? count : count - 1;  // nobody would see the last one
    float result = 0;
    // A token is a chain of sums, shuffles and the update, and a scheduler has few warps that go along it. So outputs
    // wait in shared memory; storing them was a fifth of the loop.
#pragma unroll 1
    for (int t = 0; t < count; ++t) {
      const Scalars scalars = shared.scalars(t);
      const float v = widen_2(p.act_dtype, shared.v[t][warp][own_row]).x;
      const float* vectors = shared.tokens[t] + exact::at_half<T>(c, 0);
      const float sum = both_dots(s, vectors + own_dot, vectors + other_dot, scalars.decay);
      const float u = correction(upper, scalars.beta, v, sum);
      result = arith::output<S>(u, scalars.kq, sum);
      if (writes) shared.out[t][warp][own_row] = result;
      if (t == updates) break;
      update(s, vectors, scalars.decay, u);
      if constexpr (T::kStateBytes == 2) {
        if (p.rounds) this->round(s, p.state_dtype);
      }
    }
    own().deliver(index, writes, own_row, result);
    if (p.write_state) this->store(s, p.state_dtype, warp_rows(slot));
  }

  /// value(t, row): of the warp's rows.
  template <class Value>
  __device__ __forceinline__ void write_outputs(int index, int tokens, const Value& value) const {
    const int row = lane % kDirectWarpRows;
    for (int t = lane / kDirectWarpRows; t < tokens; t += 32 / kDirectWarpRows) {
      store_one(p.out_dtype, p.out.at(index, hv, t), v0 + row, value(t, row));
    }
  }

  const DirectParams& p;
  Shared<T>& shared;
  const int row, hv, key, warp, warps, v0;
  int count = 0;
};

}  // namespace ringfold::cuda::direct
