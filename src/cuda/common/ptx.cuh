// Every instruction that C++ has no word for.
#pragma once

#include <cstdint>

namespace ringfold::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// 16 bytes from global to shared memory, through the L1 cache: past it (.cg), the two halves of a 32-byte sector are
/// fetched twice where they go to different places in shared memory.
__device__ __forceinline__ void copy_async_16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for this thread's copies, but the `pending` groups committed last.
template <int pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// x, with nothing known about it: keeps the compiler from computing many things that depend on it before a loop, and
/// holding them in registers that the loop needs.
__device__ __forceinline__ uint32_t opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace ringfold::cuda::ptx
