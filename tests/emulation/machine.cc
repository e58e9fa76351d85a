#include "emulation/machine.h"

#include <boost/context/fiber.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "emulation/stack.h"

namespace emulation {
namespace {

enum class State { ready, meets, at_block_barrier, at_barrier, done };

struct Copy {
  std::byte* to;
  const void* from;
  int bytes, group;
};

/// A barrier in shared memory. A phase is over when `left` is 0; then the next begins.
struct Barrier {
  int16_t arrivals, left;
  uint32_t phase;
};
static_assert(sizeof(Barrier) == 8);

class Machine;

/// A thread of the block. The fiber lives on, for the threads of later blocks.
struct Worker : Thread {
  explicit Worker(Machine& machine);
  boost::context::fiber own, scheduler;
  FiberStack stack;
  State state = State::done;
  Instruction instruction{};
  int group = 0;  // of copies, not committed yet
  std::deque<Copy> copies;
  const Barrier* barrier = nullptr;
  uint32_t parity = 0;
};

struct Warp {
  int arrived = 0, meeting = 0;
  Lanes words[2];  // of this meeting, and of the last one, which slower lanes still read
};

Worker& self() { return *static_cast<Worker*>(running); }

class Machine {
 public:
  bool run(const Launch& launch) {
    launch_ = &launch;
    fault_ = nullptr;
    if (launch.threads % kLanes != 0 || launch.threads < kLanes || launch.threads > kMostThreads)
      return report("a block of other than 32, 64, .. 1024 threads");
    if (launch.shared_bytes > kMostSharedBytes) return report("more shared memory than a block has");
    while (workers_.size() < static_cast<size_t>(launch.threads)) workers_.push_back(std::make_unique<Worker>(*this));
    std::vector<uint64_t> blocks(size_t{launch.grid.x} * launch.grid.y * launch.grid.z);
    std::iota(blocks.begin(), blocks.end(), uint64_t{0});
    std::shuffle(blocks.begin(), blocks.end(), chance_);
    for (uint64_t block : blocks) {
      const auto x = static_cast<unsigned>(block % launch.grid.x), yz = static_cast<unsigned>(block / launch.grid.x);
      if (!run_block({x, yz % launch.grid.y, yz / launch.grid.y})) return false;
    }
    return true;
  }

  void work(Worker& worker) {
    launch_->thread();
    finish_copies(worker, 0);
    worker.state = State::done;
  }

  const Lanes& meet(Instruction instruction, const Words& mine) {
    Worker& me = self();
    Warp& warp = warps_[static_cast<size_t>(me.warp)];
    const int meeting = warp.meeting;
    Lanes& words = warp.words[meeting & 1];
    words[static_cast<size_t>(me.lane)] = mine;
    me.instruction = instruction;
    if (++warp.arrived < kLanes) {
      me.state = State::meets;
      wait();
      return words;
    }
    warp.arrived = 0;
    ++warp.meeting;
    for (int i = 0; i < kLanes; ++i) {
      Worker& other = *workers_[static_cast<size_t>(me.warp * kLanes + i)];
      if (other.instruction != instruction) fault("lanes of a warp wait for each other at different instructions");
      other.state = State::ready;
    }
    // Give way now and then, so that warps do not always come this far in one go.
    if (chance_() % 4 == 0) wait();
    return words;
  }

  void sync_threads() {
    self().state = State::at_block_barrier;
    wait();
  }

  void barrier_wait(const Barrier* barrier, int parity) {
    self().barrier = barrier;
    self().parity = static_cast<uint32_t>(parity);
    if (over(self())) return;
    self().state = State::at_barrier;
    wait();
  }

  [[noreturn]] void fault(const char* what) {
    fault_ = what;
    wait();
    std::abort();  // not reached: a worker is not resumed after a fault
  }

  void copy_async(uint32_t to_shared, const void* from, int bytes) {
    const auto size = static_cast<uint32_t>(bytes);
    if (to_shared % size != 0 || reinterpret_cast<uintptr_t>(from) % size != 0) fault("a copy that is not aligned");
    std::byte* to = at_shared(to_shared, size);
    if (chance_() % 2 == 0) {
      std::memcpy(to, from, size);
    } else {
      self().copies.push_back({to, from, bytes, self().group});
    }
  }

  static void finish_copies(Worker& worker, int groups_left) {
    while (!worker.copies.empty() && worker.copies.front().group < worker.group - groups_left) {
      const Copy& copy = worker.copies.front();
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
      worker.copies.pop_front();
    }
  }

  std::byte* at_shared(uint32_t offset, uint32_t bytes) {
    if (offset + uint64_t{bytes} > static_cast<uint64_t>(launch_->shared_bytes))
      fault("an access beyond the block's shared memory");
    return shared_.get() + offset;
  }

  uint32_t shared_offset(const void* p) {
    const auto offset = static_cast<const std::byte*>(p) - shared_.get();
    if (offset < 0 || offset > launch_->shared_bytes) fault("an address that is not in shared memory");
    return static_cast<uint32_t>(offset);
  }

 private:
  bool report(const char* what) {
    std::fprintf(stderr, "emulation: grid (%u, %u, %u), %d threads: %s\n", launch_->grid.x, launch_->grid.y,
                 launch_->grid.z, launch_->threads, what);
    return false;
  }

  void wait() { self().scheduler = leave(self().stack, std::move(self().scheduler)); }

  static bool over(const Worker& worker) { return (worker.barrier->phase & 1) != worker.parity; }

  bool run_block(const Index& block) {
    const auto threads = static_cast<size_t>(launch_->threads);
    shared_ = std::make_unique<std::byte[]>(static_cast<size_t>(launch_->shared_bytes));
    std::memset(shared_.get(), 0xff, static_cast<size_t>(launch_->shared_bytes));
    warps_.assign(threads / kLanes, {});
    for (size_t i = 0; i < threads; ++i) {
      Worker& worker = *workers_[i];
      worker.thread_index = {static_cast<unsigned>(i), 0, 0};
      worker.block_index = block;
      worker.block_size = {static_cast<unsigned>(threads), 1, 1};
      worker.grid_size = launch_->grid;
      worker.shared = shared_.get();
      worker.warp = static_cast<int>(i) / kLanes, worker.lane = static_cast<int>(i) % kLanes;
      worker.group = 0;
      worker.copies.clear();
      worker.state = State::ready;
    }
    size_t left = threads;
    while (left > 0) {
      bool any = false;
      const size_t first = chance_() % warps_.size();
      for (size_t w = 0; w < warps_.size(); ++w) {
        any = run_warp((first + w) % warps_.size(), &left) || any;
        if (fault_ != nullptr) return end_by_fault(block);
      }
      if (!any && !release_block_barrier(left)) {
        fault_ = "threads that wait for each other for ever";
        return end_by_fault(block);
      }
    }
    return true;
  }

  /// Runs the lanes that need not wait, each until it must. Whether there were any.
  bool run_warp(size_t warp, size_t* left) {
    bool any = false;
    const auto first = static_cast<size_t>(chance_() % kLanes);
    for (size_t i = 0; i < kLanes; ++i) {
      Worker& worker = *workers_[warp * kLanes + (first + i) % kLanes];
      if (worker.state == State::at_barrier && over(worker)) worker.state = State::ready;
      if (worker.state != State::ready) continue;
      any = true;
      running = &worker;
      worker.own = enter(worker.stack, std::move(worker.own));
      running = nullptr;
      if (fault_ != nullptr) return any;
      if (worker.state == State::done) --*left;
    }
    return any;
  }

  bool release_block_barrier(size_t left) {
    size_t waiting = 0;
    for (int i = 0; i < launch_->threads; ++i)
      waiting += workers_[static_cast<size_t>(i)]->state == State::at_block_barrier;
    if (waiting != left) return false;
    for (int i = 0; i < launch_->threads; ++i) {
      State& state = workers_[static_cast<size_t>(i)]->state;
      if (state == State::at_block_barrier) state = State::ready;
    }
    return true;
  }

  bool end_by_fault(const Index& block) {
    std::fprintf(stderr, "emulation: block (%u, %u, %u): ", block.x, block.y, block.z);
    report(fault_);
    workers_.clear();  // their fibers are in the middle of the kernel
    return false;
  }

  const Launch* launch_ = nullptr;
  const char* fault_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Warp> warps_;
  std::unique_ptr<std::byte[]> shared_;
  std::minstd_rand chance_;
};

Worker::Worker(Machine& machine) {
  own = boost::context::fiber(std::allocator_arg, StackOf{&stack}, [this, &machine](boost::context::fiber&& from) {
    scheduler = entered(std::move(from));
    for (;;) {
      machine.work(*this);
      scheduler = leave(stack, std::move(scheduler));
    }
    return std::move(scheduler);
  });
}

Machine machine;

}  // namespace

bool run(const Launch& launch) { return machine.run(launch); }

const Lanes& meet(Instruction instruction, const Words& mine) { return machine.meet(instruction, mine); }
void sync_threads() { machine.sync_threads(); }
void fault(const char* what) { machine.fault(what); }
void expect_full(unsigned mask) {
  if (mask != 0xffffffffu) fault("a mask without some lanes, which the emulation does not know");
}

uint32_t shared_offset(const void* p) { return machine.shared_offset(p); }
void copy_async(uint32_t to_shared, const void* from, int bytes) { machine.copy_async(to_shared, from, bytes); }
void commit_copies() { ++self().group; }
void wait_copies(int pending) { Machine::finish_copies(self(), pending); }

void barrier_init(uint32_t barrier, int arrivals) {
  auto* at = reinterpret_cast<Barrier*>(machine.at_shared(barrier, sizeof(Barrier)));
  *at = {static_cast<int16_t>(arrivals), static_cast<int16_t>(arrivals), 0};
}
void barrier_arrive(uint32_t barrier) {
  auto* at = reinterpret_cast<Barrier*>(machine.at_shared(barrier, sizeof(Barrier)));
  if (at->left <= 0) fault("an arrival at something that is no barrier");
  if (--at->left == 0) {
    at->left = at->arrivals;
    ++at->phase;
  }
}
void barrier_wait(uint32_t barrier, int parity) {
  machine.barrier_wait(reinterpret_cast<const Barrier*>(machine.at_shared(barrier, sizeof(Barrier))), parity);
}

}  // namespace emulation
