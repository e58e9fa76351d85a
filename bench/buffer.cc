#include "bench/buffer.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "dispatch/select.h"

namespace ringfold::bench {

Buffer::Buffer(Device device, void* stream)
    : device_(device), functions_(detail::device_memory(device)), stream_(stream) {}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_),
      functions_(other.functions_),
      stream_(other.stream_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(functions_, other.functions_);
  std::swap(stream_, other.stream_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() { release(); }

void Buffer::release() {
  if (functions_) {
    functions_->release(data_);
  } else {
    delete[] data_;
  }
  data_ = nullptr;
  bytes_ = 0;
}

Status Buffer::allocate(int64_t bytes) {
  release();
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  if (functions_) {
    void* memory = nullptr;
    if (Status s = functions_->allocate(size, &memory); !s.ok()) return s;
    data_ = static_cast<std::byte*>(memory);
  } else {
    if (device_ != Device::cpu) return {Code::unsupported, "this build has no CUDA backend; use device cpu"};
    data_ = new (std::nothrow) std::byte[size];
    if (!data_) return {Code::out_of_memory, "not enough memory for the benchmark's tensors"};
  }
  bytes_ = bytes;
  return {};
}

Status Buffer::write(int64_t at, const void* from, int64_t bytes) {
  if (functions_) return functions_->copy(data_ + at, from, static_cast<size_t>(bytes), stream_);
  std::memcpy(data_ + at, from, static_cast<size_t>(bytes));
  return {};
}

Status Buffer::read(int64_t at, void* to, int64_t bytes) const {
  if (!functions_) {
    std::memcpy(to, data_ + at, static_cast<size_t>(bytes));
    return {};
  }
  if (Status s = functions_->copy(to, data_ + at, static_cast<size_t>(bytes), stream_); !s.ok()) return s;
  return functions_->synchronise(stream_);
}

Status Buffer::fill(int64_t at, int byte, int64_t bytes) {
  if (functions_) return functions_->fill(data_ + at, byte, static_cast<size_t>(bytes), stream_);
  std::memset(data_ + at, byte, static_cast<size_t>(bytes));
  return {};
}

Status Buffer::repeat(int64_t period) {
  for (int64_t done = period; done < bytes_; done *= 2) {
    if (Status s = write(done, data_, std::min(done, bytes_ - done)); !s.ok()) return s;
  }
  return {};
}

}  // namespace ringfold::bench
