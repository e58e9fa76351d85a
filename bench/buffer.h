// Memory of the host or of a device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device_memory.h"
#include "ringfold/types.h"

namespace ringfold::bench {

/// A piece of a device's memory. All copies are ordered in the stream; those from or to the host are done with the
/// host's side when they return.
class Buffer {
 public:
  explicit Buffer(Device device = Device::cpu, void* stream = nullptr);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  /// Contents are undefined afterwards. unsupported where the build has no such device.
  Status allocate(int64_t bytes);
  Status write(int64_t at, const void* from, int64_t bytes);
  Status read(int64_t at, void* to, int64_t bytes) const;
  Status fill(int64_t at, int byte, int64_t bytes);
  /// Repeats the first `period` bytes up to the end.
  Status repeat(int64_t period);
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void release();

  Device device_;
  const detail::DeviceMemory* functions_;  // null: the host, or a device that the build does not have
  void* stream_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace ringfold::bench
