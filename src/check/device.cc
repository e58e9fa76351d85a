#include "check/device.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "dispatch/select.h"
#include "ringfold/registry.h"

namespace ringfold::check {

std::vector<std::string_view> all_implementations() {
  std::vector<std::string_view> names = implementations(Device::cpu);
  for (std::string_view name : implementations(Device::cuda)) names.push_back(name);
  return names;
}

Device device_of(std::string_view impl) {
  if (impl.empty()) return Device::cpu;
  const std::vector<std::string_view> on_cuda = implementations(Device::cuda);
  return std::find(on_cuda.begin(), on_cuda.end(), impl) == on_cuda.end() ? Device::cpu : Device::cuda;
}

Status usable(Device device) {
  if (device == Device::cpu) return {};
  const detail::DeviceMemory* memory = detail::device_memory(device);
  if (memory == nullptr) return {Code::unsupported, "this build has no CUDA backend; use device cpu"};
  return memory->usable();
}

const detail::DeviceMemory& memory_of(Device device) {
  const detail::DeviceMemory* memory = detail::device_memory(device);
  if (memory == nullptr)
    throw std::runtime_error(std::string("this build has no memory of device ") + to_string(device));
  return *memory;
}

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(to_string(status.code())) + ": " + status.message());
}

DeviceBlock::DeviceBlock(DeviceBlock&& other) noexcept
    : functions_(other.functions_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, size_t{0})) {}

Status DeviceBlock::reserve(size_t bytes) {
  if (bytes <= bytes_) return {};
  functions_->release(std::exchange(data_, nullptr));
  bytes_ = 0;
  const Status status = functions_->allocate(bytes, &data_);
  if (status.ok()) bytes_ = bytes;
  return status;
}

size_t extent_of(const TensorView& view) {
  if (view.elements() == 0) return 0;
  int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) last += (view.shape[d] - 1) * view.stride[d];
  return static_cast<size_t>(last + 1) * size_of(view.dtype);
}

Staged::Staged(const TensorView& view) : origin_(view), view_(view) {
  if (view.device == Device::cpu || extent_of(view) == 0) return;
  copy_.resize(extent_of(view));
  const detail::DeviceMemory& memory = memory_of(view.device);
  require(memory.copy(copy_.data(), view.data, copy_.size(), nullptr));
  require(memory.synchronise(nullptr));
  view_.data = copy_.data();
  view_.device = Device::cpu;
}

void Staged::put_back() const {
  if (copy_.empty()) return;
  const detail::DeviceMemory& memory = memory_of(origin_.device);
  require(memory.copy(origin_.data, copy_.data(), copy_.size(), nullptr));
  require(memory.synchronise(nullptr));
}

}  // namespace ringfold::check
