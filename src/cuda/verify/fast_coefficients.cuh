// The matrix M of fast.cuh: from the token vectors in shared memory to factors of the last product.
#pragma once

#include "cuda/common/warp.cuh"
#include "cuda/verify/fast_params.cuh"

namespace ringfold::cuda::fast {

/// Which part of the work is this block's and this thread's, and the block's shared memory. A block takes
/// heads_of_block value heads of a key head, the first one first; their gates are made together, and then hv moves on.
template <class T>
class Workspace {
 public:
  __device__ Workspace(const FastParams& params, std::byte* memory)
      : p(params),
        memory_(memory),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        r(lane / 4),
        c(lane % 4),
        hv(params.by_parts.divides(blockIdx.x)),
        part(blockIdx.x - hv * params.v_parts),
        h(0),
        v0(part * T::kBlockRows + warp * T::kTiles * 16) {
    if constexpr (T::kMostHeads > 1) hv *= p.heads_of_block;
    h = p.by_heads_of_key.divides(hv);
  }

 protected:
  __device__ bool speaks_for_key() const { return part == 0 && hv == h * p.heads_of_key; }
  __device__ float* floats(int offset) const { return reinterpret_cast<float*>(memory_ + offset); }
  __device__ int& verdict() const { return *reinterpret_cast<int*>(memory_ + T::kVerdict); }
  // Not in registers till the end: where the row's inputs begin, and its slot.
  __device__ int& begin() const { return *reinterpret_cast<int*>(memory_ + T::kBegin); }
  __device__ int& own_slot() const { return *reinterpret_cast<int*>(memory_ + T::kSlot); }
  __device__ float& beta(int t) const { return floats(T::kBeta)[of_head(t)]; }
  __device__ float& log_of(int t) const { return floats(T::kHeadLogs)[of_head(t)]; }
  __device__ float& ratio(int t, int j) const { return floats(T::kRatios)[of_head(t) * T::kRatioPitch + j]; }
  /// Which of the block's heads hv is.
  __device__ int head() const {
    return T::kMostHeads == 1 ? 0 : hv - p.by_parts.divides(blockIdx.x) * p.heads_of_block;
  }
  __device__ int of_head(int t) const { return head() * T::kTokens + t; }
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

  const FastParams& p;
  std::byte* const memory_;
  const int lane, warp, r, c;
  int hv;
  const int part;
  int h;
  const int v0;                                 // the warp's first row of V
  int count = 0;                                // tokens
  int history = 0, first_row = 0, own_row = 0;  // its rows; ring rows where it and the window begin
};

template <class T>
class Coefficients : public Workspace<T> {
 public:
  using Workspace<T>::Workspace;

 protected:
  using Base = Workspace<T>;
  using Base::beta, Base::coefficient, Base::decays, Base::lane_with, Base::memory_, Base::pair_with, Base::plain;
  using Base::c, Base::lane, Base::r, Base::warp;
  using Base::ratio, Base::step, Base::step_of, Base::step_with;

  using Fragments = uint4[T::kFragmentCount];

  /// L and A, and from them this lane's parts of M: factors of the last product. 16 tokens: left in shared memory. With
  /// a history also N = (I + L)^-1, which gives u (4 tokens: in the rows of M that are free).
  __device__ __forceinline__ void coefficients(Fragments& m, Fragments& inverse) const {
    if constexpr (T::kKda) {
      decayed_vectors({1, 1});
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
      if constexpr (T::kHistory && T::kTokens == 8) solve<0, true>(inverse);
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
    } else if (T::kHistory && warp < 2) {
      uint4* to = reinterpret_cast<uint4*>(memory_ + T::kFragments) + 96 + lane;
      if (warp == 0) {
        solve<0, true>(m);
        to[0] = m[0];
      } else {
        solve<1, true>(m + 1);
        to[32] = m[1];
        to[64] = m[2];
      }
    }
  }

  __device__ __forceinline__ void read_fragments(Fragments& m, Fragments& inverse) const {
    __syncthreads();
    const uint4* from = reinterpret_cast<const uint4*>(memory_ + T::kFragments) + lane;
#pragma unroll
    for (int i = 0; i < T::kFragmentCount; ++i) m[i] = from[i * 32];
    if constexpr (T::kHistory) {
#pragma unroll
      for (int i = 0; i < T::kFragmentCount; ++i) inverse[i] = from[(T::kFragmentCount + i) * 32];
    }
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

  static constexpr int kHalves = T::K / 64;           // of K, a warp's
  static constexpr int kTeams = T::kWarps / kHalves;  // that share tokens
  __device__ int first_k() const { return warp % kHalves * 64 + lane * 2; }
  static __device__ __forceinline__ float2 times(float2 x, float2 y) { return {S::mul(x.x, y.x), S::mul(x.y, y.y)}; }

  /// KDA: bf16 halves of k and q with the decay up to their tokens; `total` is that before the window.
  __device__ __forceinline__ void decayed_vectors(float2 total) const {
    const int k = first_k();
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

  /// KDA: L and A, a token for a team, backwards from it, four j's at a time.
  __device__ __forceinline__ void decayed_products() const {
    const int k = first_k();
    const auto vector = [&](int i) { return *reinterpret_cast<const float2*>(plain(i) + k); };
#pragma unroll 1
    for (int t = warp / kHalves; t < T::kTokens; t += kTeams) {
      const float2 kt = vector(2 * t), qt = vector(2 * t + 1);
      float2 since = {1, 1};  // decay of tokens j+1 .. t
#pragma unroll 1
      for (int tile = t / 4; tile >= 0; --tile) {
        float sums[8] = {};
#pragma unroll
        for (int n = 3; n >= 0; --n) {
          const int j = 4 * tile + n;
          if (j > t) continue;
          const float2 kj = times(vector(2 * j), since);
          sums[n] = S::fma(kj.x, kt.x, S::mul(kj.y, kt.y));
          sums[4 + n] = S::fma(kj.x, qt.x, S::mul(kj.y, qt.y));
          since = times(since, *reinterpret_cast<const float2*>(decays(j) + k));
        }
        const float sum = sum_of_eight(sums);
        const int i = lane / 4;
        if (lane % 4 == 0) {
          coefficient(warp % kHalves, 2 * t + i / 4)[tile * 4 + i % 4] = i < 4 ? S::mul(sum, beta(t)) : sum;
        }
      }
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
  /// `inverted`: of N, which solves the same equation with the identity in place of A, and has zeros for (j == t).
  template <int octet, bool inverted = false>
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
      if (inverted || (T::kHistory && T::kTokens == 4 && r >= 4)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) row[j + i] = j + i == t ? 1.0f : 0.0f;
      }
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
      const bool adds_product = j + c == t && !inverted && !(T::kTokens == 4 && r >= 4);
      split(x, adds_product ? 1.0f : 0.0f, high[j / 4], low[j / 4]);
      if (!T::kHistory && T::kTokens == 4 && r >= 4) high[0] = low[0] = 0;
    }
#pragma unroll
    for (int j = 0; j < (kCount + 7) / 8; ++j) {
      const int next = kCount == 4 ? 0 : 2 * j + 1;
      factors[j] = {high[2 * j], low[2 * j], high[next], low[next]};
    }
  }
};

}  // namespace ringfold::cuda::fast
