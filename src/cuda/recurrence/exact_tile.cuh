// A warp's rows of a state in registers, and what one token does with them.
//
// L = K/16 lanes share a row, lane c of them holding groups c and c+L of K; a thread holds R rows. The two dots of a
// token are reduced together: the first step of the sum's tree parts them (lanes of the upper half read kd and qd the
// other way round), the next ones part the rows. Lane c keeps row r ^ (the bits of c that part rows) in register r, so
// that each step is one shuffle and one addition, with no select. With R = L/2 rows each lane ends with a sum of its
// own; with fewer, kSame neighbours end with the same one. From the ring alone there is one dot.
#pragma once

#include "cuda/common/convert.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/recurrence/exact_types.cuh"

namespace ringfold::cuda::exact {

template <class T>
struct Tile {
  using State = float[T::kRows][2][kGroup];
  static constexpr int kSame = T::kLanes / ((T::kFromRing ? 1 : 2) * T::kRows);

  const int c, side;  // side: which of the warp's row groups

  /// Which row lies in register 0 of lane c.
  static __device__ __forceinline__ int twist_of(int c) { return c / kSame & (T::kRows - 1); }
  /// The row of the warp whose sums end in this lane.
  __device__ int row() const { return side * T::kRows + twist_of(c); }
  /// Does it end with the q dot?
  __device__ bool upper() const { return c >= T::kLanes / 2; }

  /// x[r] = the part of row r's sum that this lane's two groups make. `vector` is at the first of them, and is
  /// multiplied by `decay` where it is decaying.
  template <bool decaying = false>
  static __device__ __forceinline__ void dot(const State& s, const float* vector, float (&x)[T::kRows],
                                             float decay = 1) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float vec[kGroup];
      read_group<T>(vector, g * T::kLanes, vec);
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

  /// The k dot of row(), in upper lanes its q dot. The vectors are those of the token, from this lane's first group on:
  /// `own` is kd (in upper lanes qd), `other` qd (kd); without kd k and q, which are multiplied by `decay`.
  static __device__ __forceinline__ float both_dots(const State& s, const float* own, const float* other, float decay) {
    float x[T::kRows], y[T::kRows];
    dot<!T::kHasKd>(s, own, x, decay);
    dot<!T::kHasKd>(s, other, y, decay);
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      x[r] = S::add(x[r], __shfl_xor_sync(kAllLanes, y[r], T::kLanes / 2 * T::kSide));
    }
    return reduce<T::kRows, T::kLanes / 4>(x);
  }
  /// u of row(), from what both_dots() has left in this lane and in its partner.
  static __device__ __forceinline__ float correction(bool upper, float beta, float v, float sum) {
    const float mine = arith::correction<S>(beta, v, sum);
    const float theirs = __shfl_xor_sync(kAllLanes, mine, T::kLanes / 2 * T::kSide);
    return upper ? theirs : mine;
  }

  /// `vectors`: those of the token, from this lane's first group on; u: of row().
  static __device__ __forceinline__ void update(State& s, const float* vectors, float decay, float u) {
    // Row r ^ twist is in register r; its u is in the lane whose twist differs by r.
    float us[T::kRows];
    us[0] = u;
#pragma unroll
    for (int r = 1; r < T::kRows; ++r) us[r] = __shfl_xor_sync(kAllLanes, u, r * kSame * T::kSide);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float k[kGroup], d[kGroup];
      read_group<T>(vectors + T::kKey * T::K, g * T::kLanes, k);
      if constexpr (T::kKda) read_group<T>(vectors + T::kDecay * T::K, g * T::kLanes, d);
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          s[r][g][i] = arith::updated<S>(s[r][g][i], T::kKda ? d[i] : decay, us[r], k[i]);
        }
      }
    }
  }

  static __device__ __forceinline__ void round(State& s, DType state) {
    with_16_bit(state, [&](DType dtype) {
#pragma unroll
      for (int i = 0; i < T::kRows * 2; ++i) widen_8(dtype, narrow_8(dtype, s[i / 2][i % 2]), s[i / 2][i % 2]);
    });
  }

  /// Stores the state to memory, where the warp's first row is at `warp_rows`.
  __device__ __forceinline__ void store(const State& s, DType state, std::byte* warp_rows) const {
    constexpr int pitch = T::kRowBytes;
    std::byte* rows = warp_rows + side * T::kRows * pitch;
    // A sector of 32 bytes that is written in two instructions costs the memory twice. So neighbours c and c^1, which
    // have half of each, write the same row at a time.
    const int c = ptx::opaque(this->c), twist = twist_of(c & ~1);
    constexpr int kFlip = kSame == 1 ? 1 : 0;  // the neighbour has the same row in register r ^ kFlip
    const bool odd = c & 1;
    if constexpr (T::kStateBytes == 2) {
      with_16_bit(state, [&](DType dtype) {
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
};

}  // namespace ringfold::cuda::exact
