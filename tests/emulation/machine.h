// One multiprocessor: blocks run one after the other, in an order of chance; the threads of a block are fibers, which
// take turns, in an order of chance, where they wait for each other. README.md says what it finds, and what not.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>

#include <cuda_runtime_api.h>

namespace emulation {

inline constexpr int kLanes = 32;
inline constexpr int kMostThreads = 1024;
inline constexpr int kMostSharedBytes = 227 * 1024;  // of a block, as on a H200

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// What the running thread may ask for.
struct Thread {
  Index thread_index, block_index, block_size, grid_size;
  std::byte* shared = nullptr;
  int warp = 0, lane = 0;
};
inline Thread* running = nullptr;
inline const Thread* current() { return running; }
inline int lane() { return running->lane; }

/// What the lanes of a warp bring to an instruction that all of them execute.
using Words = std::array<uint32_t, 6>;
using Lanes = std::array<Words, kLanes>;
enum class Instruction { sync_warp, shuffle, shuffle_xor, shuffle_down, reduce, vote, transpose, mma_16, mma_8 };

/// Waits for the other lanes of the warp. Their words stay until the lane's next meeting. Lanes that meet at different
/// instructions are a fault of the kernel.
const Lanes& meet(Instruction instruction, const Words& mine);
void sync_threads();

/// A fault of the kernel unless all lanes are named.
void expect_full(unsigned mask);

/// Ends the kernel with cudaErrorLaunchFailure, and says why on stderr.
[[noreturn]] void fault(const char* what);

uint32_t shared_offset(const void* p);
/// Happens at once or at the wait, as chance has it.
void copy_async(uint32_t to_shared, const void* from, int bytes);
void commit_copies();
void wait_copies(int pending);
void barrier_init(uint32_t barrier, int arrivals);
void barrier_arrive(uint32_t barrier);
void barrier_wait(uint32_t barrier, int parity);

/// A load from global memory, which must be aligned.
template <class T>
T load(const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(T) != 0) fault("a load that is not aligned");
  return *static_cast<const T*>(from);
}

struct Launch {
  Index grid;
  int threads = 0, shared_bytes = 0;
  std::function<void()> thread;  ///< what each thread executes
};
/// Behind what is in the stream already.
cudaError_t enqueue(const Launch& launch, void* stream);

/// Runs all blocks. False: a fault ended it.
bool run(const Launch& launch);

}  // namespace emulation
