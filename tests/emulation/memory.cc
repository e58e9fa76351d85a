#include "emulation/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) (static_cast<void>(at), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) (static_cast<void>(at), static_cast<void>(bytes))
#endif

namespace emulation {
namespace {

constexpr size_t kReserved = size_t{32} << 30, kAlignment = 256;

/// First fit. Every block is followed by bytes that belong to nobody.
class Arena {
 public:
  Arena()
      : base_(static_cast<std::byte*>(
            mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (base_ == MAP_FAILED) base_ = nullptr;
    if (base_ != nullptr) free_[0] = kReserved;
  }
  void* allocate(size_t bytes) {
    const size_t size = (std::max<size_t>(bytes, 1) + 2 * kAlignment - 1) / kAlignment * kAlignment;
    const auto at = std::find_if(free_.begin(), free_.end(), [&](const auto& block) { return block.second >= size; });
    if (at == free_.end()) return nullptr;
    const auto [offset, room] = *at;
    free_.erase(at);
    if (room > size) free_[offset + size] = room - size;
    used_[offset] = size;
    touched_ = std::max(touched_, offset + size);
    std::byte* memory = base_ + offset;
    open();
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    std::memset(memory, 0xff, bytes);
    ASAN_POISON_MEMORY_REGION(memory + bytes, size - bytes);
    close();
    return memory;
  }
  bool release(void* memory) {
    const auto at = used_.find(static_cast<size_t>(static_cast<std::byte*>(memory) - base_));
    if (at == used_.end()) return false;
    auto [offset, size] = *at;
    used_.erase(at);
    ASAN_POISON_MEMORY_REGION(base_ + offset, size);
    if (const auto next = free_.find(offset + size); next != free_.end()) {
      size += next->second;
      free_.erase(next);
    }
    if (auto before = free_.lower_bound(offset); before != free_.begin()) {
      --before;
      if (before->first + before->second == offset) {
        before->second += size;
        return true;
      }
    }
    free_[offset] = size;
    return true;
  }
  bool has(const void* p) const {
    const auto* at = static_cast<const std::byte*>(p);
    return base_ != nullptr && at >= base_ && at < base_ + kReserved;
  }
  void open() {
    if (opened_++ == 0 && touched_ > 0) mprotect(base_, pages(), PROT_READ | PROT_WRITE);
  }
  void close() {
    if (--opened_ == 0 && touched_ > 0) mprotect(base_, pages(), PROT_NONE);
  }

 private:
  static constexpr size_t kPage = 4096;
  size_t pages() const { return (touched_ + kPage - 1) / kPage * kPage; }

  std::byte* base_;
  std::map<size_t, size_t> free_, used_;  // offset, bytes
  size_t touched_ = 0;                    // bytes from the base that were ever used
  int opened_ = 0;
};

Arena& arena() {
  static Arena the_arena;
  return the_arena;
}

}  // namespace

void* allocate(size_t bytes) { return arena().allocate(bytes); }
bool release(void* memory) { return arena().release(memory); }
bool is_device(const void* p) { return arena().has(p); }
DeviceAccess::DeviceAccess() { arena().open(); }
DeviceAccess::~DeviceAccess() { arena().close(); }

}  // namespace emulation
