// In place of src/cuda/common/ptx.cuh: what its instructions do, said in C++.
#pragma once

#include "emulation/machine.h"

namespace ringfold::cuda::ptx {

/// Bytes from the start of the block's shared memory.
inline uint32_t shared_address(const void* p) { return emulation::shared_offset(p); }

inline void copy_async_16(uint32_t to_shared, const void* from) { emulation::copy_async(to_shared, from, 16); }
inline void copy_async_8(uint32_t to_shared, const void* from) { emulation::copy_async(to_shared, from, 8); }
inline void copy_async_4(uint32_t to_shared, const void* from) { emulation::copy_async(to_shared, from, 4); }
inline void commit_copies() { emulation::commit_copies(); }
template <int pending>
inline void wait_copies() {
  emulation::wait_copies(pending);
}

inline void barrier_init(uint32_t barrier, int arrivals) { emulation::barrier_init(barrier, arrivals); }
inline void barrier_arrive(uint32_t barrier) { emulation::barrier_arrive(barrier); }
inline void barrier_wait(uint32_t barrier, int parity) { emulation::barrier_wait(barrier, parity); }

inline uint32_t opaque(uint32_t x) { return x; }

inline uint4 load_16_past_l1(const void* from) { return emulation::load<uint4>(from); }
inline uint4 load_16(const void* from) { return emulation::load<uint4>(from); }
inline uint2 load_8(const void* from) { return emulation::load<uint2>(from); }
inline uint32_t load_4(const void* from) { return emulation::load<uint32_t>(from); }
inline uint32_t load_2(const void* from) { return emulation::load<uint16_t>(from); }

inline uint4 load_16_written(const void* from) { return emulation::load<uint4>(from); }
inline uint32_t load_4_at_once(const void* from) { return emulation::load<uint32_t>(from); }

inline void store_4_or_2(void* to, uint32_t four, uint32_t two, int bytes) {
  if (bytes == 4) *static_cast<uint32_t*>(to) = four;
  if (bytes == 1 || bytes == 2) *static_cast<uint16_t*>(to) = static_cast<uint16_t>(two);
}

inline void prefetch(const void*) {}

inline void begin_kernel() {}

inline void meet(int) { __syncthreads(); }

inline uint32_t half_of(uint32_t pair, int i) { return i & 1 ? pair >> 16 : pair & 0xffff; }

inline uint32_t transpose_8x8(uint32_t x) {
  const emulation::Lanes& all = emulation::meet(emulation::Instruction::transpose, {x});
  const int r = emulation::lane() / 4, c = emulation::lane() % 4;
  const auto element = [&](int row, int column) { return half_of(all[row * 4 + column / 2][0], column); };
  return element(2 * c, r) | element(2 * c + 1, r) << 16;
}

/// d += a b for the lane's elements of d: a's words are those of rows r and r + 8 at k 2c, then at k 2c + 8.
inline void multiply(float (&d)[4], const emulation::Lanes& all, int words_of_a) {
  const int r = emulation::lane() / 4, c = emulation::lane() % 4, depth = words_of_a * 4;
  const auto bf16 = [](uint32_t pair, int i) { return static_cast<double>(__uint_as_float(half_of(pair, i) << 16)); };
  for (int e = 0; e < 4; ++e) {
    const int row = r + e / 2 * 8, column = 2 * c + e % 2;
    double sum = d[e];
    for (int k = 0; k < depth; ++k) {
      const int word = k / 8, within = k % 8;
      const double a = bf16(all[row % 8 * 4 + within / 2][word * 2 + row / 8], within);
      const double b = bf16(all[column * 4 + within / 2][words_of_a + word], within);
      sum += a * b;
    }
    d[e] = static_cast<float>(sum);
  }
}

inline void mma_16(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  multiply(d, emulation::meet(emulation::Instruction::mma_16, {a.x, a.y, a.z, a.w, b0, b1}), 4);
}
inline void mma_8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  multiply(d, emulation::meet(emulation::Instruction::mma_8, {a0, a1, b0}), 2);
}

}  // namespace ringfold::cuda::ptx
