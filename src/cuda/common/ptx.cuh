// Every instruction that C++ has no word for.
#pragma once

#include <cstdint>

namespace ringfold::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// The first statement of every kernel. A kernel may be started while the one ahead of it in the stream ends
/// (start.cuh): its blocks take their places, and wait here till all that one wrote is seen. So no load of a kernel may
/// say (.nc) that nobody writes while it lives.
__device__ __forceinline__ void begin_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// 16 bytes from global to shared memory, past the L1 cache.
__device__ __forceinline__ void copy_async_16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_8(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_4(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for this thread's copies, but the `pending` groups committed last.
template <int pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// A barrier of `threads` threads, whole warps, that come to it in different places of the code, as those of
/// __syncthreads() must not.
__device__ __forceinline__ void meet(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }

/// A barrier in shared memory that threads arrive at and wait for separately. It counts phases; each is over when
/// `arrivals` threads have arrived. What a thread wrote before it arrived is seen by those that waited.
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("{ .reg .b64 token; mbarrier.arrive.shared.b64 token, [%0]; }" ::"r"(barrier) : "memory");
}
/// Waits for the end of the phase with this parity: the first phase has 0, the one before it, 1, counts as over.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity) {
  uint32_t over = 0;
  while (!over) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
  }
}

/// x, with nothing known about it: keeps the compiler from computing many things that depend on it before a loop, and
/// holding them in registers that the loop needs.
__device__ __forceinline__ uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Loads that are issued where they are written: the compiler moves none of them past another or past a barrier.
/// `past_l1` is for what nobody reads again.
__device__ __forceinline__ uint4 load_16_past_l1(const void* from) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}
__device__ __forceinline__ uint4 load_16(const void* from) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
  return x;
}
__device__ __forceinline__ uint2 load_8(const void* from) {
  uint2 x;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
  return x;
}
__device__ __forceinline__ uint32_t load_4(const void* from) {
  uint32_t x;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(from));
  return x;
}
__device__ __forceinline__ uint32_t load_2(const void* from) {
  uint16_t x;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(x) : "l"(from));
  return x;
}

/// The same of what the kernel itself writes later.
__device__ __forceinline__ uint4 load_16_written(const void* from) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
  return x;
}

/// A load that the compiler does not put off either, until behind a branch for example, as it does with the others.
__device__ __forceinline__ uint32_t load_4_at_once(const void* from) {
  uint32_t x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from));
  return x;
}

/// Stores `four` where `bytes` is 4, the low half of `two` where it is 1 or 2, nothing where it is 0. No branch.
__device__ __forceinline__ void store_4_or_2(void* to, uint32_t four, uint32_t two, int bytes) {
  asm volatile(
      "{ .reg .pred wide, narrow; .reg .u16 low; cvt.u16.u32 low, %2;"
      "setp.eq.s32 wide, %3, 4; setp.lt.u32 narrow, %4, 2;"
      "@wide st.global.u32 [%0], %1; @narrow st.global.u16 [%0], low; }" ::"l"(to),
      "r"(four), "r"(two), "r"(bytes), "r"(bytes - 1)
      : "memory");
}

/// Brings a line close.
__device__ __forceinline__ void prefetch(const void* at) { asm volatile("prefetch.global.L1 [%0];" ::"l"(at)); }

/// An 8 x 8 matrix of 16-bit elements, of which lane 4 r + c has (row r, columns 2c, 2c+1), transposed.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// d += a b on tensor cores, bf16 factors in pairs, fp32 sums. With lane = 4 r + c: a holds (row r, k 2c), (row r+8, k
/// 2c), (row r, k 2c+8), (row r+8, k 2c+8) and their right neighbours; b (k 2c, column r), (k 2c+8, column r) and the k
/// below; d (row r, columns 2c, 2c+1), (row r+8, the same).
__device__ __forceinline__ void mma_16(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
/// The same for 8 k's.
__device__ __forceinline__ void mma_8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

}  // namespace ringfold::cuda::ptx
