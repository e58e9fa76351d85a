// Stacks of fibers and the switches between them, of which sanitizers are told.
#pragma once

#include <boost/context/fiber.hpp>

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace emulation {

struct FiberStack {
  void* bottom = nullptr;
  size_t size = 0;
  [[maybe_unused]] void* saved = nullptr;  // what the address sanitizer remembers of it
  [[maybe_unused]] void* fiber = nullptr;  // what the thread sanitizer knows it by
};

inline constexpr size_t kStackBytes = 512 << 10;  // touched pages alone count
inline constexpr size_t kGuardBytes = 4096;

/// Allocates the stack of one fiber, and notes where it is.
struct StackOf {
  FiberStack* stack;

  boost::context::stack_context allocate() {
    void* bottom =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bottom == MAP_FAILED) throw std::bad_alloc();
    mprotect(bottom, kGuardBytes, PROT_NONE);
    stack->bottom = bottom, stack->size = kStackBytes;
    boost::context::stack_context context;
    context.size = kStackBytes;
    context.sp = static_cast<char*>(bottom) + kStackBytes;
    return context;
  }
  void deallocate(boost::context::stack_context& context) noexcept {
    munmap(static_cast<char*>(context.sp) - context.size, context.size);
  }
};

/// The stack that fibers are resumed from.
inline FiberStack scheduler_stack;

/// Runs the fiber until it leaves. The result is the fiber where it left.
inline boost::context::fiber enter([[maybe_unused]] FiberStack& to, boost::context::fiber&& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_stack.saved, to.bottom, to.size);
#endif
#if defined(__SANITIZE_THREAD__)
  scheduler_stack.fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.fiber, __tsan_switch_to_fiber_no_sync);
#endif
  boost::context::fiber left = std::move(fiber).resume();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_stack.saved, nullptr, nullptr);
#endif
  return left;
}

/// The first thing that a fiber does.
inline boost::context::fiber entered(boost::context::fiber&& scheduler) {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &scheduler_stack.size);
  scheduler_stack.bottom = const_cast<void*>(bottom);
#endif
  return std::move(scheduler);
}

/// Lets the scheduler go on, until it enters again.
inline boost::context::fiber leave([[maybe_unused]] FiberStack& from, boost::context::fiber&& scheduler) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.saved, scheduler_stack.bottom, scheduler_stack.size);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(scheduler_stack.fiber, __tsan_switch_to_fiber_no_sync);
#endif
  boost::context::fiber back = std::move(scheduler).resume();
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom = nullptr;
  __sanitizer_finish_switch_fiber(from.saved, &bottom, &scheduler_stack.size);
  scheduler_stack.bottom = const_cast<void*>(bottom);
#endif
  return back;
}

}  // namespace emulation
