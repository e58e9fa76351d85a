// Devices as the kit needs them: which implementation works where, memory there, and tensors brought to the host to be
// looked at.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/device_memory.h"
#include "ringfold/status.h"
#include "ringfold/tensor_view.h"

namespace ringfold::check {

/// Every implementation that this machine can run: those of the CPU, best first, then those of CUDA.
std::vector<std::string_view> all_implementations();

/// Where the tensors of this implementation must be. The CPU where the name is empty or unknown.
Device device_of(std::string_view impl);

/// Ok, or why this build or this machine has no such device.
Status usable(Device device);

/// Memory functions of a device. Throws std::runtime_error where this build has none.
const detail::DeviceMemory& memory_of(Device device);

/// Throws std::runtime_error for an error.
void require(const Status& status);

/// A piece of a device's memory. Its owner sees to it that no call works on it any more when it goes.
class DeviceBlock {
 public:
  explicit DeviceBlock(const detail::DeviceMemory& functions) : functions_(&functions) {}
  DeviceBlock(DeviceBlock&& other) noexcept;
  DeviceBlock& operator=(DeviceBlock&&) = delete;
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  ~DeviceBlock() { functions_->release(data_); }

  /// At least `bytes`, contents undefined afterwards. out_of_memory leaves the block empty.
  Status reserve(size_t bytes);
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  const detail::DeviceMemory& functions() const { return *functions_; }

 private:
  const detail::DeviceMemory* functions_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Bytes from the first element of a view to the end of its last one.
size_t extent_of(const TensorView& view);

/// A view whose elements the host can read: the view itself, or a copy of one on a device. Throws std::runtime_error
/// where copying fails.
class Staged {
 public:
  explicit Staged(const TensorView& view);
  const TensorView& view() const { return view_; }
  /// Takes changes of view() to where the elements belong, with the gaps between them as they were.
  void put_back() const;

 private:
  TensorView origin_, view_;
  std::vector<std::byte> copy_;
};

}  // namespace ringfold::check
