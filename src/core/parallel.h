// The one way in which CPU code runs in parallel.
#pragma once

#include <cstdint>
#include <type_traits>

namespace ringfold::detail {

/// Sets the calling thread's floating-point environment to IEEE defaults (round to nearest even, subnormals kept, no
/// traps) and puts back what was there at the end of its life. Every worker of parallel_for has one.
class FpGuard {
 public:
  FpGuard();
  ~FpGuard();
  FpGuard(const FpGuard&) = delete;
  FpGuard& operator=(const FpGuard&) = delete;

 private:
  uint64_t saved_;
};

/// More threads are never asked of the system, which may end the process when it has no more to give.
inline constexpr int kMaxThreads = 1024;
/// `threads` when positive, else the setting of set_num_threads(), else the number of cores; kMaxThreads at most.
int thread_count(int threads);
void set_thread_count(int threads);

using TaskFn = void (*)(void* context, int64_t begin, int64_t end);
void parallel_ranges(int64_t tasks, int64_t chunk, int threads, TaskFn fn, void* context);

/// Calls f(begin, end) for ranges of at most `chunk` that cover 0 .. tasks-1, on up to `threads` threads, in any order.
/// Returns when all are done. f must not throw. Allocates nothing (with OpenMP).
template <class F>
void parallel_chunks(int64_t tasks, int64_t chunk, int threads, F&& f) {
  parallel_ranges(
      tasks, chunk, threads,
      [](void* context, int64_t begin, int64_t end) {
        (*static_cast<std::remove_reference_t<F>*>(context))(begin, end);
      },
      const_cast<void*>(static_cast<const void*>(&f)));
}

/// Calls f(i) for i = 0 .. tasks-1.
template <class F>
void parallel_for(int64_t tasks, int threads, F&& f) {
  parallel_chunks(tasks, 1, threads, [&f](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

}  // namespace ringfold::detail
