// The emulation finds the faults of kernels that it says it finds, and its instructions do what CUDA's do.
#include "emulation/machine.h"

#include <cuda_runtime.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/host_device.h"
#include "cuda/common/ptx.cuh"
#include "cuda/common/start.cuh"
#include "emulation/memory.h"

namespace emulation {
namespace {

namespace ptx = ringfold::cuda::ptx;

/// Whether one launch ends without a fault.
bool runs(int threads, int shared_bytes, std::function<void()> thread, unsigned blocks = 1) {
  Launch launch;
  launch.grid = {blocks, 1, 1};
  launch.threads = threads, launch.shared_bytes = shared_bytes, launch.thread = std::move(thread);
  return run(launch);
}

std::string fault_of(int threads, int shared_bytes, std::function<void()> thread) {
  testing::internal::CaptureStderr();
  const bool ran = runs(threads, shared_bytes, std::move(thread));
  const std::string words = testing::internal::GetCapturedStderr();
  return ran ? "none" + words : words;
}

template <class T>
T* shared() {
  return reinterpret_cast<T*>(ringfold::cuda::dynamic_shared());
}

/// What 50 blocks of `thread` leave, thread i of each at [i]; wrong(i, result) judges it. The number of wrong blocks.
template <class Result, class Wrong>
int wrong_blocks(int threads, int shared_bytes, const std::function<Result()>& thread, Wrong wrong) {
  int blocks = 0;
  for (int round = 0; round < 50; ++round) {
    std::vector<Result> results(static_cast<size_t>(threads));
    EXPECT_TRUE(runs(threads, shared_bytes, [&] { results[threadIdx.x] = thread(); }));
    bool any = false;
    for (int i = 0; i < threads; ++i) any = any || wrong(i, results[static_cast<size_t>(i)]);
    blocks += any;
  }
  return blocks;
}

TEST(Emulation, ThreadsKnowWhoTheyAre) {
  std::vector<int> seen(6 * 64);
  Launch launch;
  launch.grid = {3, 2, 1}, launch.threads = 64;
  launch.thread = [&] {
    EXPECT_EQ(gridDim.x * 10 + gridDim.y, 32u);
    EXPECT_EQ(blockDim.x, 64u);
    ++seen[(blockIdx.y * gridDim.x + blockIdx.x) * 64 + threadIdx.x];
  };
  EXPECT_TRUE(run(launch));
  EXPECT_EQ(seen, std::vector<int>(6 * 64, 1));
}

TEST(Emulation, Shuffles) {
  EXPECT_TRUE(runs(64, 0, [] {
    const int lane = threadIdx.x % 32;
    const auto mine = static_cast<float>(threadIdx.x);
    const float warp = static_cast<float>(threadIdx.x / 32 * 32);
    EXPECT_EQ(__shfl_sync(0xffffffffu, mine, 5), warp + 5);
    EXPECT_EQ(__shfl_xor_sync(0xffffffffu, mine, 9), warp + static_cast<float>(lane ^ 9));
    EXPECT_EQ(__shfl_down_sync(0xffffffffu, mine, 4), lane < 28 ? mine + 4 : mine);
    EXPECT_EQ(__reduce_min_sync(0xffffffffu, 40 - lane), 9);
    EXPECT_EQ(__all_sync(0xffffffffu, lane < 31), 0);
    EXPECT_EQ(__all_sync(0xffffffffu, lane < 32), 1);
  }));
}

TEST(Emulation, BytesArePermuted) {
  EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x7531u), 0x77553311u);
  EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x0046u), 0x00004466u);
}

uint32_t pair_of(int low, int high) {
  const auto bf16 = [](int x) { return std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16; };
  return bf16(low) | bf16(high) << 16;
}
int entry_of_a(int row, int k) { return (row * 5 + k * 3) % 11 - 5; }
int entry_of_b(int k, int column) { return (k * 7 + column * 2) % 13 - 6; }

template <int depth>
void multiplies() {
  const int lane = threadIdx.x, r = lane / 4, c = lane % 4;
  const auto a = [&](int row, int k) { return pair_of(entry_of_a(row, k), entry_of_a(row, k + 1)); };
  const auto b = [&](int k) { return pair_of(entry_of_b(k, r), entry_of_b(k + 1, r)); };
  float d[4] = {1, 2, 3, 4};
  if (depth == 16) {
    ptx::mma_16(d, {a(r, 2 * c), a(r + 8, 2 * c), a(r, 2 * c + 8), a(r + 8, 2 * c + 8)}, b(2 * c), b(2 * c + 8));
  } else {
    ptx::mma_8(d, a(r, 2 * c), a(r + 8, 2 * c), b(2 * c));
  }
  for (int e = 0; e < 4; ++e) {
    int sum = e + 1;
    for (int k = 0; k < depth; ++k) sum += entry_of_a(r + e / 2 * 8, k) * entry_of_b(k, 2 * c + e % 2);
    EXPECT_EQ(d[e], static_cast<float>(sum)) << lane << " " << e;
  }
}

TEST(Emulation, TensorCores) {
  EXPECT_TRUE(runs(32, 0, multiplies<16>));
  EXPECT_TRUE(runs(32, 0, multiplies<8>));
  EXPECT_TRUE(runs(32, 0, [] {
    const uint32_t r = threadIdx.x / 4, c = threadIdx.x % 4;
    const auto element = [](uint32_t row, uint32_t column) { return row * 8 + column; };
    EXPECT_EQ(ptx::transpose_8x8(element(r, 2 * c) | element(r, 2 * c + 1) << 16),
              element(2 * c, r) | element(2 * c + 1, r) << 16);
  }));
}

/// Thread i of a block writes i, and reads what another wrote.
std::function<int()> exchange(bool waits, void wait(), int other()) {
  return [=] {
    shared<int>()[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (waits) wait();
    return shared<int>()[other()];
  };
}
const auto kBlocksExchange = [](bool waits) {
  return exchange(waits, __syncthreads, [] { return (static_cast<int>(threadIdx.x) + 40) % 128; });
};
const auto kWarpsExchange = [](bool waits) {
  return exchange(waits, __syncwarp, [] { return static_cast<int>(threadIdx.x ^ 1); });
};
bool wrong_in_block(int i, int result) { return result != (i + 40) % 128; }
bool wrong_in_warp(int i, int result) { return result != (i ^ 1); }

TEST(Emulation, BarriersOrder) {
  EXPECT_EQ(wrong_blocks<int>(128, 512, kBlocksExchange(true), wrong_in_block), 0);
  EXPECT_EQ(wrong_blocks<int>(32, 128, kWarpsExchange(true), wrong_in_warp), 0);
}

#if !defined(__SANITIZE_THREAD__)
TEST(Emulation, MissingBarriersChangeResults) {
  EXPECT_GT(wrong_blocks<int>(128, 512, kBlocksExchange(false), wrong_in_block), 0);
  EXPECT_GT(wrong_blocks<int>(32, 128, kWarpsExchange(false), wrong_in_warp), 0);
}
#else
const auto kRace = testing::ExitedWithCode(66);

TEST(EmulationDeathTest, MissingBarriersAreRaces) {
  const auto run_and_leave = [](int threads, const std::function<int()>& thread) {
    runs(threads, 512, [&] { thread(); });
    std::exit(0);
  };
  EXPECT_EXIT(run_and_leave(128, kBlocksExchange(true)), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run_and_leave(128, kBlocksExchange(false)), kRace, "data race");
  EXPECT_EXIT(run_and_leave(32, kWarpsExchange(true)), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run_and_leave(32, kWarpsExchange(false)), kRace, "data race");
}

/// A write with barriers of the block and of the warp on both sides, none of which orders it with other blocks.
void write_between_barriers(int* word, unsigned writer, bool unordered) {
  const auto wait = [] {
    for (int i = 0; i < 2; ++i) {
      __syncthreads();
      __syncwarp();
    }
  };
  wait();
  if (threadIdx.x == writer) unordered ? ringfold::detail::write_unordered(*word, 7) : static_cast<void>(*word = 7);
  wait();
}

TEST(EmulationDeathTest, BlocksOfALaunchAreNotOrderedAndLaunchesAre) {
  int word = 0;
  const auto blocks_write = [&](unsigned blocks, int launches, bool unordered) {
    for (int i = 0; i < launches; ++i)
      runs(
          64, 0, [&] { write_between_barriers(&word, blockIdx.x, unordered); }, blocks);
    std::exit(0);
  };
  EXPECT_EXIT(blocks_write(2, 1, false), kRace, "data race");
  EXPECT_EXIT(blocks_write(2, 1, true), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(blocks_write(1, 5, false), testing::ExitedWithCode(0), "");
}
#endif

TEST(Emulation, TheWaitForACopyIsMissed) {
  alignas(16) static const int source[4] = {1, 2, 3, 4};
  const auto copies = [](int pending) {
    return [pending] {
      int* to = shared<int>() + threadIdx.x * 8;
      ptx::copy_async_16(ptx::shared_address(to), source);
      ptx::commit_copies();
      ptx::copy_async_8(ptx::shared_address(to + 4), source + 2);
      ptx::commit_copies();
      if (pending == 0) ptx::wait_copies<0>();
      if (pending == 1) ptx::wait_copies<1>();
      return std::pair(to[3], to[5]);
    };
  };
  using Pair = std::pair<int, int>;
  const auto first = [](int, const Pair& x) { return x.first != 4; };
  const auto second = [](int, const Pair& x) { return x.second != 4; };
  EXPECT_EQ(wrong_blocks<Pair>(32, 1024, copies(0), first), 0);
  EXPECT_EQ(wrong_blocks<Pair>(32, 1024, copies(0), second), 0);
  EXPECT_EQ(wrong_blocks<Pair>(32, 1024, copies(1), first), 0);
  EXPECT_GT(wrong_blocks<Pair>(32, 1024, copies(1), second), 0);
  EXPECT_GT(wrong_blocks<Pair>(32, 1024, copies(2), first), 0);
}

TEST(Emulation, BarriersHavePhases) {
  EXPECT_TRUE(runs(64, 16, [] {
    const uint32_t barrier = ptx::shared_address(shared<uint64_t>());
    int* value = shared<int>() + 2;
    if (threadIdx.x == 0) ptx::barrier_init(barrier, 32), *value = 0;
    __syncthreads();
    ptx::barrier_wait(barrier, 1);  // the phase before the first is over
    for (int phase = 0; phase < 5; ++phase) {
      if (threadIdx.x < 32) {
        if (threadIdx.x == 0) *value = phase;
        ptx::barrier_arrive(barrier);
      } else {
        ptx::barrier_wait(barrier, phase & 1);
        EXPECT_EQ(*value, phase);
      }
      __syncthreads();
    }
  }));
}

TEST(Emulation, FaultsEndTheKernel) {
  EXPECT_THAT(fault_of(32, 0, [] {}), testing::Eq("none"));
  EXPECT_THAT(fault_of(64, 0,
                       [] {
                         if (threadIdx.x != 3) __syncwarp();
                       }),
              testing::HasSubstr("wait for each other for ever"));
  EXPECT_THAT(
      fault_of(32, 8,
               [] {
                 if (threadIdx.x == 0) ptx::barrier_init(0, 1);
                 __syncthreads();
                 ptx::barrier_wait(0, 0);
               }),
      testing::HasSubstr("block (0, 0, 0) of (1, 1, 1), 32 threads: threads that wait for each other for ever"));
  EXPECT_THAT(fault_of(32, 0,
                       [] {
                         if (threadIdx.x < 16)
                           __syncwarp();
                         else
                           __shfl_sync(0xffffffffu, 1, 0);
                       }),
              testing::HasSubstr("different instructions"));
  EXPECT_THAT(fault_of(32, 0, [] { __shfl_sync(0xffffu, 1, 0); }), testing::HasSubstr("a mask without some lanes"));
  alignas(16) static const int source[8] = {};
  EXPECT_THAT(fault_of(32, 64, [] { ptx::copy_async_16(0, source + 1); }), testing::HasSubstr("not aligned"));
  EXPECT_THAT(fault_of(32, 64, [] { ptx::copy_async_16(8, source); }), testing::HasSubstr("not aligned"));
  EXPECT_THAT(fault_of(32, 64, [] { ptx::copy_async_16(64, source); }),
              testing::HasSubstr("beyond the block's shared"));
  EXPECT_THAT(fault_of(32, 64, [] { ptx::load_8(source + 1); }), testing::HasSubstr("not aligned"));
  EXPECT_THAT(fault_of(32, 64, [] { ptx::barrier_arrive(0); }), testing::HasSubstr("no barrier"));
  EXPECT_THAT(fault_of(48, 0, [] {}), testing::HasSubstr("32, 64, .. 1024 threads"));
  EXPECT_THAT(fault_of(32, 1 << 20, [] {}), testing::HasSubstr("more shared memory"));
  EXPECT_TRUE(runs(64, 0, [] { __syncthreads(); }));  // it goes on after a fault
}

TEST(Emulation, MemoryIsNotANumberAtFirst) {
  EXPECT_TRUE(runs(32, 128, [] { EXPECT_TRUE(std::isnan(shared<float>()[threadIdx.x])); }));
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  float value = 0;
  ASSERT_EQ(cudaMemcpyAsync(&value, memory, 4, cudaMemcpyDefault, nullptr), cudaSuccess);
  EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

#if defined(__SANITIZE_ADDRESS__)
TEST(EmulationDeathTest, AccessesBeyondAnAllocation) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  const auto write_at = [&](int i) {
    const DeviceAccess access;
    runs(32, 0, [&] { static_cast<volatile int*>(memory)[i] = 1; });
  };
  write_at(15);
  EXPECT_DEATH(write_at(16), "use-after-poison");
  EXPECT_DEATH(runs(32, 64, [] { *const_cast<volatile int*>(shared<int>() + 16) = 1; }), "heap-buffer-overflow");
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}
#endif

TEST(EmulationDeathTest, TheHostCannotTouchDeviceMemory) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  const auto touch_often = [&] {
    int value = 0;
    for (int i = 0; i < 20; ++i) {
      *static_cast<volatile int*>(memory) = 1;
      cudaMemcpyAsync(&value, memory, 4, cudaMemcpyDefault, nullptr);
    }
  };
  EXPECT_DEATH(touch_often(), "");
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST(Emulation, MemoryIsUsedAgain) {
  std::vector<void*> blocks(20);
  for (void*& block : blocks) ASSERT_EQ(cudaMalloc(&block, 10000), cudaSuccess);
  for (size_t i = 0; i < 20; i += 2) ASSERT_EQ(cudaFree(blocks[i]), cudaSuccess);
  for (size_t i = 1; i < 20; i += 2) ASSERT_EQ(cudaFree(blocks[i]), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, size_t{33} << 30), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaMalloc(&memory, 200000), cudaSuccess);
  EXPECT_EQ(memory, blocks[0]);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

int32_t* counter = nullptr;
void add_one() {
  if (threadIdx.x == 0) atomicAdd(counter, 1);
}

TEST(Emulation, WorkIsDoneWhenSomebodyWaits) {
  int32_t count = 0;
  counter = &count;
  EXPECT_TRUE(ringfold::cuda::start<add_one>("add_one", 3, 32, 0, nullptr).ok());
  EXPECT_EQ(count, 0);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(count, 3);
}

TEST(Emulation, GraphsAreLaunchedAnyNumberOfTimes) {
  int32_t count = 0;
  counter = &count;
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  EXPECT_TRUE(ringfold::cuda::start<add_one>("add_one", 1, 32, 0, stream).ok());
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnsupported);
}

}  // namespace
}  // namespace emulation
