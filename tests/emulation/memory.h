// The memory of the emulated device: a range of addresses that the host cannot touch, but while the device works.
#pragma once

#include <cstddef>

namespace emulation {

/// Null: no memory left. The bytes are 0xff, a NaN in every format.
void* allocate(size_t bytes);
/// False: not what allocate() gave.
bool release(void* memory);
bool is_device(const void* p);

/// The device's memory can be read and written while there is one.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace emulation
