// A history that the checkpoint lacks, read by what its rows added to the state (fold policy lazy).
//
// After J rows with keys k_j, corrections u_j and decays d_j the state is E S + sum_j w_j u_j k_j', with E the product
// of all decays and w_j that of the decays after row j. So a token vector x has the product E (S x) + sum_j w_j u_j W_j
// with W_j = k_j.x: one more product on tensor cores, whose sum runs over rows of the ring. Keys are raw, as in
// the ring, and exact in bf16; W and u are split into high and low parts. Where a block takes one value head, W takes
// w with it; where it takes several, for which W is the same, u does.
//
// For KDA E and w_j are vectors over K: S meets E .* x, and W_j = (w_j .* k_j).x. The rows' log decays come with their
// keys; from the newest row backwards a thread with a channel of its own puts w_j k_j in their place, and what is left
// is E. W is formed from the token vectors, then these are formed again, times E.
#pragma once

#include "cuda/common/judging.cuh"
#include "cuda/verify/fast_coefficients.cuh"

namespace ringfold::cuda::fast {

template <class T>
class History : public Coefficients<T> {
 public:
  using Coefficients<T>::Coefficients;

 protected:
  using Base = Coefficients<T>;
  using Base::decayed_vectors, Base::first_k, Base::first_row, Base::floats, Base::history, Base::own_row;
  using Base::h, Base::hv, Base::p, Base::part, Base::r, Base::v0, Base::warp;
  using Base::lane, Base::memory_, Base::c, Base::step_of;

  __device__ int ring_row(int first, int i) const {
    const int row = first + i;
    return row >= p.history.ring_rows ? row - p.history.ring_rows : row;
  }
  /// The ring row of token t.
  __device__ int row_of(int t) const { return T::kHistory ? ring_row(own_row, t) : t; }
  __device__ int octets() const { return (history + 7) / 8; }

  /// Where the row's ring lies. Rings are keyed by request row with fold policy on_commit alone; the first warp has
  /// fetched the id then.
  __device__ __forceinline__ int ring_of(int slot) const {
    return !T::kHistory && p.ring_ids ? reinterpret_cast<const int*>(memory_ + T::kOfWarp)[1] : slot;
  }

  /// Starts the copy of a slot's cursors, and of the id of the row's ring. (Loads would be waited for together with the
  /// state.)
  __device__ __forceinline__ void fetch_cursors(int row, int slot) const {
    if (!T::kHistory && warp == 0 && lane == 1 && p.ring_ids) {
      ptx::copy_async_4(ptx::shared_address(of_warp() + 1), &p.ring_ids[row]);
    }
    if (T::kHistory ? lane >= 3 : lane != 0 || warp != 0 || !p.pending) return;
    const Cursors& from = !T::kHistory || lane == 0 ? p.pending : lane == 1 ? p.history.base : p.history.live;
    ptx::copy_async_4(ptx::shared_address(of_warp() + lane), &from.at(0, slot));
  }

  /// What a row is judged by. The cursors are there.
  __device__ __forceinline__ WindowFacts facts(int begin, int end, int slot, bool in_pool) const {
    WindowFacts f{.begin = begin, .end = end, .slot = slot};
    if (in_pool && p.pending) f.pending = of_warp()[0];
    if (in_pool && !T::kHistory && p.ring_ids) f.ring = ring_of(slot);
    if (in_pool && T::kHistory) f.base = of_warp()[1], f.live = of_warp()[2];
    return f;
  }

  /// Sets the length of the window that a row has recorded. Its slot's history stays as it is, so the other blocks of
  /// the row may read the cursors before or after.
  __device__ __forceinline__ void settle(int row, RowStatus status, int slot, int tokens) const {
    if (p.row_status) write_unordered(p.row_status[row], static_cast<int32_t>(status));
    if (status != RowStatus::done || !p.pending || p.move == CursorMove::keep) return;
    write_unordered(p.pending.at(0, slot), tokens | (T::kHistory && is_folded(of_warp()[0]) ? kFolded : 0));
    if (!T::kHistory && p.owners) p.owners.set(0, slot, ring_of(slot));
  }

  /// KDA: what a raw gate needs, from the threads that will need it, while they have it.
  __device__ __forceinline__ void keep_gate(float expA, float bias) const {
    if (threadIdx.x < T::K) floats(T::kHistoryGate)[threadIdx.x] = bias;
    if (threadIdx.x == 0) floats(T::kHistoryGate)[T::K] = expA;
  }

  /// Which rows the slot's history and the window have. The cursors are there.
  __device__ __forceinline__ void find_history() {
    const int rows = p.history.ring_rows, base = of_warp()[1], live = of_warp()[2];
    const bool sound = base >= 0 && base < rows && live >= 0 && live <= rows;  // if not, the verdict says so
    first_row = sound ? base : 0;
    history = sound && !is_folded(of_warp()[0]) ? live : 0;
    own_row = ring_row(first_row, sound ? live : 0);
  }

  /// Starts the copies of the history's keys.
  __device__ __forceinline__ void fetch_keys(int slot) const {
    const int group = threadIdx.x % T::kGroups;
    const std::byte* from = p.at_ring_k.at(slot, h, group * 16);
#pragma unroll(T::kTokens == 16 ? 1 : 2)
    for (int row = threadIdx.x / T::kGroups; row < history; row += T::kThreads / T::kGroups) {
      ptx::copy_async_16(ptx::shared_address(key(row) + group * 16),
                         from + ring_row(first_row, row) * p.at_ring_k.token);
    }
  }

  /// Starts the copies of what a head's history adds, and of its log decays; zeros of u up to a multiple of 16 rows.
  __device__ __forceinline__ void fetch_additions(int slot) const {
    constexpr int kChunks = T::kBlockRows / 4;
    const int chunk = threadIdx.x % kChunks, rows = (history + 15) / 16 * 16;
    const std::byte* from = p.at_ring_u.at(slot, hv, (part * T::kBlockRows + chunk * 4) * 4);
#pragma unroll(T::kTokens == 16 ? 1 : 2)
    for (int row = threadIdx.x / kChunks; row < rows; row += T::kThreads / kChunks) {
      float* to = u(row) + T::u_chunk(row, chunk) * 4;
      if (row < history) {
        ptx::copy_async_16(ptx::shared_address(to), from + ring_row(first_row, row) * p.at_ring_u.token);
      } else {
        *reinterpret_cast<float4*>(to) = {};
      }
    }
    if constexpr (T::kKda) {
      fetch_logs(slot);
    } else if (lane < history) {
      ptx::copy_async_4(ptx::shared_address(of_warp() + 4 + lane),
                        p.at_ring_gate.at(slot, hv, ring_row(first_row, lane) * p.at_ring_gate.token));
    }
  }

  /// Makes W and, for KDA, the token vectors times E. By all threads; the history's copies are there.
  __device__ __forceinline__ void read_history() {
    __syncthreads();
    if constexpr (T::kKda) {
      decayed_keys();
      __syncthreads();
    } else {
      history_decays();
    }
    if (this->head() == 0) {
      history_factors();
      __syncthreads();
    }
    if constexpr (T::kKda) {
      decayed_vectors(*reinterpret_cast<const float2*>(floats(T::kHistoryDecay) + first_k()));
      __syncthreads();
    }
  }

  /// GDN: w_j in lane j, and E. The history is there.
  __device__ __forceinline__ void history_decays() {
    float since = lane < history ? __expf(__int_as_float(of_warp()[4 + lane])) : 1.0f;  // of rows j ..
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
      const float later = __shfl_down_sync(kAllLanes, since, s);
      if (lane + s < 32) since = S::mul(since, later);
    }
    decay_after = __shfl_down_sync(kAllLanes, since, 1);
    if (lane == 31) decay_after = 1;
    decay_of_all = __shfl_sync(kAllLanes, since, 0);
  }

  /// W, as factors, for all heads: a warp takes a tile of vectors and eight rows at a time.
  __device__ __forceinline__ void history_factors() const {
#pragma unroll 1
    for (int unit = warp; unit < T::kVectorTiles * octets(); unit += T::kWarps) {
      const int octet = unit / T::kVectorTiles, tile = unit - octet * T::kVectorTiles, row = octet * 8 + r;
      const int k = c * (T::kStateBytes == 2 ? 8 : 4);  // of this lane's four in step 0
      float x[4] = {}, squares = 0;
#pragma unroll
      for (int i = 0; i < T::kSteps; ++i) {
        const int more = T::kStateBytes == 2 ? i / 2 * 32 + i % 2 * 4 : i * 16;
        const uint2 raw = *reinterpret_cast<const uint2*>(key(row) + (k + more) * 2);
        float2 first = widen_2(p.v.dtype, raw.x), second = widen_2(p.v.dtype, raw.y);
        squares = S::fma(first.x, first.x, S::fma(first.y, first.y, squares));
        squares = S::fma(second.x, second.x, S::fma(second.y, second.y, squares));
        const uint4 a = step_of(tile, i, lane);
        if (!T::kKda && p.v.dtype == DType::bf16) {
          ptx::mma_16(x, a, raw.x, raw.y);
        } else {
          if constexpr (T::kKda) {
            const float4 decayed = *reinterpret_cast<const float4*>(history_logs(row) + k + more);
            first = {decayed.x, decayed.y}, second = {decayed.z, decayed.w};
          }
          uint2 high, low;
          split(first.x, first.y, high.x, low.x);
          split(second.x, second.y, high.y, low.y);
          ptx::mma_16(x, a, high.x, high.y);
          ptx::mma_16(x, a, low.x, low.y);
        }
      }
      squares = S::add(squares, __shfl_xor_sync(kAllLanes, squares, 1));
      squares = S::add(squares, __shfl_xor_sync(kAllLanes, squares, 2));
      float factor = p.qk_l2norm ? rsqrtf(S::add(squares, 1e-6f)) : 1.0f;
      if constexpr (T::kDecayedFactors) factor = S::mul(factor, __shfl_sync(kAllLanes, decay_after, row));
      const float left = __shfl_sync(kAllLanes, factor, c * 8), right = __shfl_sync(kAllLanes, factor, c * 8 + 4);
      const int j = octet * 8 + 2 * c;  // rows beyond the history have anything in them
      uint2 w;
      split(j < history ? S::mul(S::add(x[0], x[2]), left) : 0.0f,
            j + 1 < history ? S::mul(S::add(x[1], x[3]), right) : 0.0f, w.x, w.y);
      *factors(tile, octet) = w;
    }
  }

  /// Turns sums over the checkpoint into sums over the state behind the history. `first`: the vector tile of sums[0].
  template <int kAtOnce>
  __device__ __forceinline__ void add_history(float (&sums)[kAtOnce][T::kStateTiles][4], int first) const {
    if (history == 0) return;
    if constexpr (!T::kKda) {
#pragma unroll
      for (int i = 0; i < kAtOnce * T::kStateTiles * 4; ++i) {
        float& sum = sums[i / 4 / T::kStateTiles][i / 4 % T::kStateTiles][i % 4];
        sum = S::mul(sum, decay_of_all);
      }
    }
#pragma unroll 1
    for (int step = 0; step < (history + 15) / 16; ++step) {
      uint2 b[T::kStateTiles], rest[T::kStateTiles];
      const int row = step * 16 + 2 * c;
      float w[4];
      if constexpr (T::kMostHeads > 1) {
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = __shfl_sync(kAllLanes, decay_after, row + i / 2 * 8 + i % 2);
      }
#pragma unroll
      for (int n = 0; n < T::kStateTiles; ++n) {
        const int v = v0 - part * T::kBlockRows + r / 2 * T::kLaneRows + r % 2 + 2 * n;
        const auto at = [&](int i) {
          const int of = row + i / 2 * 8 + i % 2;
          const float x = u(of)[T::u_chunk(of, v / 4) * 4 + v % 4];
          return T::kMostHeads > 1 ? S::mul(w[i], x) : x;
        };
        cut(at(0), at(1), b[n].x, rest[n].x);
        cut(at(2), at(3), b[n].y, rest[n].y);
      }
#pragma unroll
      for (int m = 0; m < kAtOnce; ++m) {
        const uint2 low = *factors(first + m, 2 * step);
        const uint2 high = 2 * step + 1 < octets() ? *factors(first + m, 2 * step + 1) : uint2{};
        const uint4 a = {low.x, low.y, high.x, high.y};
#pragma unroll
        for (int n = 0; n < T::kStateTiles; ++n) {
          ptx::mma_16(sums[m][n], a, b[n].x, b[n].y);
          ptx::mma_16(sums[m][n], a, rest[n].x, rest[n].y);
        }
      }
    }
  }

 private:
  float decay_after = 1, decay_of_all = 1;  // GDN

  /// KDA: starts the copies of the rows' log decays, or of their `a`: two of 16 bits where the log decays of the two
  /// channels will be.
  __device__ __forceinline__ void fetch_logs(int slot) const {
    const auto copies = [&](auto per_row, auto copy) {
      for (int i = threadIdx.x; i < history * per_row; i += T::kThreads) {
        const int row = i / per_row, part_of_row = i % per_row;
        copy(ptx::shared_address(history_logs(row)), part_of_row,
             p.at_ring_gate.at(slot, hv, ring_row(first_row, row) * p.at_ring_gate.token));
      }
    };
    if (p.ring_gate.dtype == DType::f32) {
      copies(std::integral_constant<int, T::K / 4>(),
             [](uint32_t to, int i, const std::byte* from) { ptx::copy_async_16(to + i * 16, from + i * 16); });
    } else {
      copies(std::integral_constant<int, T::K / 2>(),
             [](uint32_t to, int i, const std::byte* from) { ptx::copy_async_4(to + i * 8, from + i * 4); });
    }
  }

  /// KDA: log decays in place of a raw gate; by the threads of a channel, each some of the rows.
  __device__ __forceinline__ void history_gates() const {
    const int k = threadIdx.x % T::K;
    const DType dtype = p.ring_gate.dtype;
    const float expA = floats(T::kHistoryGate)[T::K], bias = floats(T::kHistoryGate)[k];
#pragma unroll 1
    for (int row = threadIdx.x / T::K; row < history; row += T::kGateStep) {
      float* log = history_logs(row) + k;
      const auto* pair = reinterpret_cast<const std::byte*>(log - k % 2);
      const uint32_t a = dtype == DType::f32 ? __float_as_uint(*log) : peek<uint16_t>(pair, k % 2);
      const float g = log_decay_of(p, of_bits(dtype, a), bias, expA);
      __syncwarp();  // the neighbour has its 16 bits
      *log = g;
    }
  }

  /// KDA: each row's key times the decay of the rows after it, in place of its log decays, and E.
  __device__ __forceinline__ void decayed_keys() const {
    if (p.raw_gate) {
      history_gates();
      __syncthreads();
    }
    const int k = threadIdx.x;
    if (k >= T::K) return;
    float since = 1;  // decay of later rows
#pragma unroll 1
    for (int first = (history - 1) / 4 * 4; first >= 0; first -= 4) {
      float decay[4], x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool there = first + i < history;
        decay[i] = there ? __expf(history_logs(first + i)[k]) : 1.0f;
        x[i] = there ? of_bits(p.v.dtype, peek<uint16_t>(key(first + i), k)) : 0.0f;
      }
#pragma unroll
      for (int i = 3; i >= 0; --i) {
        if (first + i < history) history_logs(first + i)[k] = S::mul(x[i], since);
        since = S::mul(since, decay[i]);
      }
    }
    floats(T::kHistoryDecay)[k] = since;
  }

  /// This warp's copies of pending, base and live, and of the log decays (as bits) from [4] on.
  __device__ int* of_warp() const { return reinterpret_cast<int*>(memory_ + T::kOfWarp) + warp * (4 + T::kHeadRows); }
  __device__ std::byte* key(int row) const { return memory_ + T::kHistoryKeys + row * T::kKeyPitch; }
  __device__ float* history_logs(int row) const { return floats(T::kHistoryLogs + row * T::kLogPitch); }
  __device__ float* u(int row) const { return floats(T::kHistoryU) + row * T::kBlockRows; }
  /// This lane's part of a factor: high and low.
  __device__ uint2* factors(int tile, int octet) const {
    return reinterpret_cast<uint2*>(memory_ + T::kHistoryFactors) + (tile * (T::kHistoryRows / 8) + octet) * 32 + lane;
  }
};

}  // namespace ringfold::cuda::fast
