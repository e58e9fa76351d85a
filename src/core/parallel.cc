#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>

#ifdef RINGFOLD_OPENMP
#include <omp.h>
#else
#include <vector>
#endif

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace ringfold::detail {

#if defined(__x86_64__)
// MXCSR: all exceptions masked, round to nearest, no flush-to-zero, no denormals-are-zero.
constexpr uint32_t kIeeeMxcsr = 0x1F80;
FpGuard::FpGuard() : saved_(_mm_getcsr()) {
  if (saved_ != kIeeeMxcsr) _mm_setcsr(kIeeeMxcsr);
}
FpGuard::~FpGuard() {
  // Sticky exception flags may have been raised; only the caller's control bits and flags come back.
  if (_mm_getcsr() != static_cast<uint32_t>(saved_)) _mm_setcsr(static_cast<uint32_t>(saved_));
}
#elif defined(__aarch64__)
FpGuard::FpGuard() {
  saved_ = __builtin_aarch64_get_fpcr64();
  __builtin_aarch64_set_fpcr64(0);
}
FpGuard::~FpGuard() { __builtin_aarch64_set_fpcr64(saved_); }
#else
#error "FpGuard: how does this machine set rounding and subnormal handling?"
#endif

namespace {
std::atomic<int> g_threads{0};
}

int thread_count(int threads) {
  if (threads > 0) return std::min(threads, kMaxThreads);
  const int set = g_threads.load(std::memory_order_relaxed);
  if (set > 0) return set;
#ifdef RINGFOLD_OPENMP
  return std::clamp(omp_get_num_procs(), 1, kMaxThreads);
#else
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
#endif
}

void set_thread_count(int threads) { g_threads.store(std::clamp(threads, 0, kMaxThreads), std::memory_order_relaxed); }

void parallel_ranges(int64_t tasks, int64_t chunk, int threads, TaskFn fn, void* context) {
  chunk = std::max<int64_t>(1, chunk);
  const int64_t chunks = (tasks + chunk - 1) / chunk;
  const int workers = static_cast<int>(std::min<int64_t>(thread_count(threads), chunks));
  if (workers <= 1) {
    const FpGuard guard;
    if (tasks > 0) fn(context, 0, tasks);
    return;
  }
  std::atomic<int64_t> next{0};
  auto work = [&] {
    const FpGuard guard;
    for (int64_t c; (c = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
      fn(context, c * chunk, std::min(tasks, (c + 1) * chunk));
    }
  };
#ifdef RINGFOLD_OPENMP
  // Always the same team, of which only `workers` work: libgomp ends and starts threads when the size of a team changes
  // from one region to the next, which takes half a millisecond with 16 threads.
  const int team = std::max(workers, thread_count(0));
#pragma omp parallel num_threads(team)
  if (omp_get_thread_num() < workers) work();
#else
  std::vector<std::thread> pool;
  for (int i = 1; i < workers; ++i) pool.emplace_back(work);
  work();
  for (auto& t : pool) t.join();
#endif
}

}  // namespace ringfold::detail
