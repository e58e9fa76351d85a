// Memory of a pool on the host or on a device, behind one table of functions.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "core/device_memory.h"
#include "ringfold/types.h"

namespace ringfold {

inline constexpr size_t kPoolAlignment = 64;

/// The functions of `device`: the CPU's are memcpy and its like. Error unsupported, with the reason, where this build
/// or this machine has no such device.
Status find_memory(Device device, const detail::DeviceMemory** memory);

struct DeviceRelease {
  const detail::DeviceMemory* device = nullptr;
  void operator()(std::byte* p) const { device->release(p); }
};

/// Owns memory of one device.
class PoolMemory {
 public:
  /// `bytes` of zeros; on a device they are zeros for what follows in the default stream.
  static Status allocate(const detail::DeviceMemory& device, int64_t bytes, PoolMemory* memory);
  std::byte* get() const { return data_.get(); }

 private:
  std::unique_ptr<std::byte, DeviceRelease> data_;
};

struct AlignedDelete {
  void operator()(void* p) const { ::operator delete (p, std::align_val_t{kPoolAlignment}); }
};

/// Zeroed memory of the host, or null when there is none.
template <class T>
using AlignedArray = std::unique_ptr<T[], AlignedDelete>;

}  // namespace ringfold
