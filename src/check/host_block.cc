#include "check/host_block.h"

#include <cstdint>
#include <map>
#include <mutex>

namespace ringfold::check {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, size_t> blocks;  ///< by first address
};

Registry& registry() {
  static Registry& all = *new Registry;  // outlives every block, those of static objects too
  return all;
}

}  // namespace

HostBlock::HostBlock(void* memory, size_t bytes) : memory_(memory) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.blocks[reinterpret_cast<uintptr_t>(memory)] = bytes;
}

HostBlock::~HostBlock() {
  if (memory_ == nullptr) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.blocks.erase(reinterpret_cast<uintptr_t>(memory_));
}

std::span<std::byte> block_of(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  auto next = all.blocks.upper_bound(at);
  if (next == all.blocks.begin()) return {};
  const auto& [begin, bytes] = *--next;
  if (at >= begin + bytes) return {};
  return {reinterpret_cast<std::byte*>(begin), bytes};
}

}  // namespace ringfold::check
