// Contexts (stacks of their own) and the switches between them, of which sanitizers are told.
#pragma once

#include <boost/context/fiber.hpp>

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(RINGFOLD_TSAN)  // this unit is not instrumented, but others are
#include <sanitizer/tsan_interface.h>
extern "C" int __tsan_atomic32_load(const volatile int* at, int order);  // GCC has no header for it
#endif

namespace emulation {

/// Something that runs, and can be switched from and to.
struct Context {
  boost::context::fiber suspended;  // where it goes on
  const void* bottom = nullptr;     // of its stack
  size_t size = 0;
  [[maybe_unused]] void* saved = nullptr;  // what the address sanitizer keeps of it
  [[maybe_unused]] void* fiber = nullptr;  // what the thread sanitizer knows it by
};

// What one thread did before it releases `at` happens before what another does once it has acquired `at`.
inline void release([[maybe_unused]] void* at) {
#if defined(RINGFOLD_TSAN)
  __tsan_release(at);
#endif
}
inline void acquire([[maybe_unused]] void* at) {
#if defined(RINGFOLD_TSAN)
  __tsan_acquire(at);
#endif
}
/// A load that does not race with stores of the same kind.
inline int32_t read_word(const void* from) {
#if defined(RINGFOLD_TSAN)
  return __tsan_atomic32_load(static_cast<const volatile int*>(from), 0);
#else
  return *static_cast<const int32_t*>(from);
#endif
}
inline void* new_fiber() {
#if defined(RINGFOLD_TSAN)
  return __tsan_create_fiber(0);
#else
  return nullptr;
#endif
}
inline void* this_fiber() {
#if defined(RINGFOLD_TSAN)
  return __tsan_get_current_fiber();
#else
  return nullptr;
#endif
}

inline constexpr size_t kStackBytes = 512 << 10;  // touched pages alone count
inline constexpr size_t kGuardBytes = 4096;

/// Allocates a context's stack, and notes where it is.
struct StackOf {
  Context* context;

  boost::context::stack_context allocate() {
    void* bottom =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bottom == MAP_FAILED) throw std::bad_alloc();
    mprotect(bottom, kGuardBytes, PROT_NONE);
    // At different distances from a page's end: otherwise all stacks' tops would share a few sets of the cache.
    static size_t stacks = 0;
    context->bottom = bottom, context->size = kStackBytes - stacks++ % 61 * 320;
    boost::context::stack_context stack;
    stack.size = context->size;
    stack.sp = static_cast<char*>(bottom) + stack.size;
    return stack;
  }
  void deallocate(boost::context::stack_context& stack) noexcept {
    munmap(static_cast<char*>(stack.sp) - stack.size, kStackBytes);
  }
};

inline Context* left = nullptr;  // the context that was left last

/// What a context does first when it is switched to, `from` being where the one that was left goes on.
inline void arrive(boost::context::fiber&& from, [[maybe_unused]] void* saved) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(saved, &left->bottom, &left->size);
#endif
  left->suspended = std::move(from);
}

/// Goes on in `to`. Returns when something switches to `from`.
inline void switch_to(Context& from, Context& to) {
  left = &from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.saved, to.bottom, to.size);
#endif
#if defined(RINGFOLD_TSAN)
  __tsan_switch_to_fiber(to.fiber, __tsan_switch_to_fiber_no_sync);
#endif
  boost::context::fiber came = std::move(to.suspended).resume();
  arrive(std::move(came), from.saved);
}

}  // namespace emulation
