#include "emulation/machine.h"

#include <boost/context/fiber.hpp>

#include <algorithm>
#include <array>
#include <bit>
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

Thread* running = nullptr;

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

/// A thread of the block. The context lives on, for the threads of later blocks.
struct Worker : Thread, Context {
  explicit Worker(Machine& machine);
  State state = State::done;
  int group = 0;  // of copies, not committed yet
  std::deque<Copy> copies;
  const Barrier* barrier = nullptr;
  uint32_t parity = 0;
};

struct Warp {
  uint32_t ready = 0xffffffffu;  // lanes that need not wait
  int arrived = 0, meeting = 0;
  Instruction instruction{};  // that those that have arrived execute
  Lanes words[2];             // of this meeting, and of the last one, which slower lanes still read
};

/// What a block has of its own. What its threads wait for each other by is not the same for the thread sanitizer as
/// that of other blocks, or these would be ordered by it.
struct BlockMemory {
  explicit BlockMemory(size_t bytes) : shared(new std::byte[bytes]), orders(new Orders) {}
  struct Orders {
    char of_block[2];                        // of this barrier, and of the one before
    char of_warp[kMostThreads / kLanes][2];  // of this meeting, and of the one before
  };
  std::unique_ptr<std::byte[]> shared;
  std::unique_ptr<Orders> orders;
};

Worker& self() { return *static_cast<Worker*>(running); }

class Machine {
  static constexpr size_t kMostKeptBytes = 64 << 20;

 public:
  bool run(const Launch& launch) {
    launch_ = &launch;
    fault_ = nullptr;
    if (launch.threads % kLanes != 0 || launch.threads < kLanes || launch.threads > kMostThreads)
      return report("a block of other than 32, 64, .. 1024 threads");
    if (launch.shared_bytes > kMostSharedBytes) return report("more shared memory than a block has");
    scheduler_.fiber = this_fiber();
    std::vector<uint64_t> blocks(size_t{launch.grid.x} * launch.grid.y * launch.grid.z);
    std::iota(blocks.begin(), blocks.end(), uint64_t{0});
    std::shuffle(blocks.begin(), blocks.end(), chance_);
    for (uint64_t block : blocks) {
      const auto x = static_cast<unsigned>(block % launch.grid.x), yz = static_cast<unsigned>(block / launch.grid.x);
      if (!run_block({x, yz % launch.grid.y, yz / launch.grid.y})) return false;
    }
    end_blocks();
    return true;
  }

  void work(Worker& worker) {
    acquire(&launch_);
    launch_->thread();
    finish_copies(worker, 0);
    release(&left_);
    --left_;
    wait(State::done);
  }

  const Lanes& meet(Instruction instruction, const Words& mine) {
    Warp& warp = warps_[static_cast<size_t>(self().warp)];
    Lanes& words = warp.words[warp.meeting & 1];
    words[static_cast<size_t>(self().lane)] = mine;
    if (warp.arrived == 0) warp.instruction = instruction;
    if (warp.instruction != instruction) fault("lanes of a warp that wait for each other at different instructions");
    char* const order = &blocks_.back().orders->of_warp[self().warp][warp.meeting & 1];
    release(order);
    if (++warp.arrived < kLanes) {
      wait(State::meets);
      acquire(order);
      return words;
    }
    acquire(order);
    warp.arrived = 0;
    ++warp.meeting;
    warp.ready = 0xffffffffu;
    // Gives way now and then, so that warps do not always come this far in one go.
    if (chance_() % 4 == 0) switch_to(self(), scheduler_);
    return words;
  }

  void sync_threads() {
    char* const order = &blocks_.back().orders->of_block[block_barrier_ & 1];
    release(order);
    wait(State::at_block_barrier);
    acquire(order);
  }

  void barrier_wait(const Barrier* barrier, int parity) {
    self().barrier = barrier;
    self().parity = static_cast<uint32_t>(parity);
    if (!over(self())) wait(State::at_barrier);
    acquire(const_cast<Barrier*>(barrier));
  }

  [[noreturn]] void fault(const char* what) {
    fault_ = what;
    switch_to(self(), scheduler_);
    std::abort();  // not reached: nothing goes on after a fault
  }

  void copy_async(uint32_t to_shared, const void* from, int bytes) {
    const auto size = static_cast<uint32_t>(bytes);
    if (to_shared % size != 0 || reinterpret_cast<uintptr_t>(from) % size != 0) fault("a copy that is not aligned");
    std::byte* to = at_shared(to_shared, size);
    if (chance_() % 2 == 0) {
      copy(to, from, bytes);
    } else {
      self().copies.push_back({to, from, bytes, self().group});
    }
  }

  static void copy(std::byte* to, const void* from, int bytes) {
    if (bytes == 4) {  // perhaps a cursor, see read_unordered()
      const int32_t word = read_word(from);
      std::memcpy(to, &word, 4);
    } else {
      std::memcpy(to, from, static_cast<size_t>(bytes));
    }
  }

  static void finish_copies(Worker& worker, int groups_left) {
    while (!worker.copies.empty() && worker.copies.front().group < worker.group - groups_left) {
      const Copy& next = worker.copies.front();
      copy(next.to, next.from, next.bytes);
      worker.copies.pop_front();
    }
  }

  std::byte* at_shared(uint32_t offset, uint32_t bytes) {
    if (offset + uint64_t{bytes} > static_cast<uint64_t>(launch_->shared_bytes))
      fault("an access beyond the block's shared memory");
    return shared() + offset;
  }

  uint32_t shared_offset(const void* p) {
    const auto offset = static_cast<const std::byte*>(p) - shared();
    if (offset < 0 || offset > launch_->shared_bytes) fault("an address that is not in shared memory");
    return static_cast<uint32_t>(offset);
  }

 private:
  std::byte* shared() const { return blocks_.back().shared.get(); }

  /// All that the blocks did happens before what follows. Their memory is kept until then.
  void end_blocks() {
    acquire(&left_);
    blocks_.clear();
  }

  bool report(const char* what, const Index& block = {}) {
    const Index& grid = launch_->grid;
    std::fprintf(stderr, "emulation: block (%u, %u, %u) of (%u, %u, %u), %d threads: %s\n", block.x, block.y, block.z,
                 grid.x, grid.y, grid.z, launch_->threads, what);
    return false;
  }

  /// Goes on with the next lane of the warp that need not wait, or else with the scheduler.
  void wait(State state) {
    Worker& me = self();
    Warp& warp = warps_[static_cast<size_t>(me.warp)];
    me.state = state;
    warp.ready &= ~(1u << me.lane);
    if (warp.ready == 0) {
      switch_to(me, scheduler_);
    } else {
      go_on(me, me.warp, me.lane);
    }
  }

  /// With the first lane of `warp` from `lane` on that need not wait.
  void go_on(Context& from, int warp, int lane) {
    const uint32_t ready = std::rotr(warps_[static_cast<size_t>(warp)].ready, lane);
    const int next = (lane + std::countr_zero(ready)) % kLanes;
    Worker& to = *workers_[static_cast<size_t>(warp * kLanes + next)];
    to.state = State::ready;
    running = &to;
    switch_to(from, to);
  }

  static bool over(const Worker& worker) { return (worker.barrier->phase & 1) != worker.parity; }

  bool run_block(const Index& block) {
    // Threads of different blocks are in no order, so they are not the same for the thread sanitizer.
    std::swap(workers_, others_);
    const auto threads = static_cast<size_t>(launch_->threads);
    while (workers_.size() < threads) workers_.push_back(std::make_unique<Worker>(*this));
    const auto bytes = static_cast<size_t>(launch_->shared_bytes);
    if (bytes * blocks_.size() > kMostKeptBytes) end_blocks();
    blocks_.emplace_back(bytes);
    std::memset(shared(), 0xff, bytes);
    release(&launch_);
    warp_count_ = launch_->threads / kLanes;
    std::fill_n(warps_.begin(), warp_count_, Warp{});
    for (size_t i = 0; i < threads; ++i) {
      Worker& worker = *workers_[i];
      worker.thread_index = {static_cast<unsigned>(i), 0, 0};
      worker.block_index = block;
      worker.block_size = {static_cast<unsigned>(threads), 1, 1};
      worker.grid_size = launch_->grid;
      worker.shared = shared();
      worker.warp = static_cast<int>(i) / kLanes, worker.lane = static_cast<int>(i) % kLanes;
      worker.group = 0;
      worker.copies.clear();
      worker.state = State::ready;
    }
    left_ = launch_->threads;
    while (left_ > 0) {
      bool any = false;
      const int warps = warp_count_, first = static_cast<int>(chance_() % static_cast<unsigned>(warps));
      for (int i = 0; i < warps; ++i) {
        any = run_warp((first + i) % warps) || any;
        if (fault_ != nullptr) return end_by_fault(block);
      }
      if (!any && !release_block_barrier()) {
        fault_ = "threads that wait for each other for ever";
        return end_by_fault(block);
      }
    }
    return true;
  }

  /// Runs the lanes that need not wait, until all must. Whether there were any.
  bool run_warp(int warp) {
    uint32_t& ready = warps_[static_cast<size_t>(warp)].ready;
    for (int i = 0; i < kLanes; ++i) {
      const Worker& worker = *workers_[static_cast<size_t>(warp * kLanes + i)];
      if (worker.state == State::at_barrier && over(worker)) ready |= 1u << i;
    }
    if (ready == 0) return false;
    go_on(scheduler_, warp, static_cast<int>(chance_() % kLanes));
    running = nullptr;
    return true;
  }

  bool release_block_barrier() {
    int waiting = 0;
    for (int i = 0; i < launch_->threads; ++i)
      waiting += workers_[static_cast<size_t>(i)]->state == State::at_block_barrier;
    if (waiting != left_) return false;
    ++block_barrier_;
    for (int i = 0; i < launch_->threads; ++i) {
      if (workers_[static_cast<size_t>(i)]->state == State::at_block_barrier)
        warps_[static_cast<size_t>(i / kLanes)].ready |= 1u << i % kLanes;
    }
    return true;
  }

  bool end_by_fault(const Index& block) {
    report(fault_, block);
    blocks_.clear();
    abandoned_.push_back(std::move(workers_));  // in the middle of the kernel, and never to go on
    workers_.clear();
    return false;
  }

  const Launch* launch_ = nullptr;
  const char* fault_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_, others_;
  std::vector<std::vector<std::unique_ptr<Worker>>> abandoned_;
  std::array<Warp, kMostThreads / kLanes> warps_;
  std::vector<BlockMemory> blocks_;  // that have run, the running one last
  std::minstd_rand chance_;
  Context scheduler_;
  int left_ = 0, warp_count_ = 0;  // threads and warps of the block
  int block_barrier_ = 0;
};

Worker::Worker(Machine& machine) {
  fiber = new_fiber();
  suspended = boost::context::fiber(std::allocator_arg, StackOf{this}, [this, &machine](boost::context::fiber&& from) {
    arrive(std::move(from), nullptr);
    for (;;) machine.work(*this);
    return boost::context::fiber();
  });
}

Machine& machine = *new Machine;  // never destroyed: sanitizers do not like the unwinding of suspended contexts

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
  release(at);
  if (--at->left == 0) {
    at->left = at->arrivals;
    ++at->phase;
  }
}
void barrier_wait(uint32_t barrier, int parity) {
  machine.barrier_wait(reinterpret_cast<const Barrier*>(machine.at_shared(barrier, sizeof(Barrier))), parity);
}

}  // namespace emulation
