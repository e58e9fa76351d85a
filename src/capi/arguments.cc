#include "capi/arguments.h"

#include <fmt/format.h>

#include <cstdint>

namespace ringfold::capi {
namespace {

size_t struct_size_of(const void* given) {
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  return size;
}

std::string words(DLDataType t) { return fmt::format("code {} with {} bits, lanes {}", t.code, t.bits, t.lanes); }

Status read_dtype(const char* name, const DLTensor& t, TensorView* view) {
  const auto is = [&](int code, int bits) { return t.dtype.code == code && t.dtype.bits == bits; };
  if (t.dtype.lanes != 1) return invalid(name, "a dtype with lanes 1", words(t.dtype));
  if (is(kDLFloat, 32)) {
    view->dtype = DType::f32;
  } else if (is(kDLFloat, 16)) {
    view->dtype = DType::f16;
  } else if (is(kDLBfloat, 16)) {
    view->dtype = DType::bf16;
  } else if (is(kDLInt, 32)) {
    view->dtype = DType::i32;
  } else {
    return invalid(name, "dtype f32, f16, bf16 or i32", words(t.dtype));
  }
  return {};
}

Status read_device(const char* name, const DLTensor& t, TensorView* view) {
  int32_t type = 0;  // a caller's number need not be one of the enumeration
  std::memcpy(&type, &t.device.device_type, sizeof type);
  if (type == kDLCPU || type == kDLCUDAHost) {
    view->device = Device::cpu;
  } else if (type == kDLCUDA || type == kDLCUDAManaged) {
    view->device = Device::cuda;
  } else {
    return invalid(name, "device kDLCPU, kDLCUDAHost, kDLCUDA or kDLCUDAManaged", fmt::format("device type {}", type));
  }
  return {};
}

Status read_shape(const char* name, const DLTensor& t, TensorView* view) {
  if (t.ndim < 1 || t.ndim > TensorView::kMaxRank) {
    return invalid(name, fmt::format("1 to {} dimensions", TensorView::kMaxRank), fmt::format("ndim {}", t.ndim));
  }
  if (t.shape == nullptr) return invalid(name, fmt::format("a shape of {} sizes", t.ndim), "NULL");
  view->rank = t.ndim;
  int64_t elements = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] < 0) return invalid(name, "sizes of 0 or more", fmt::format("shape[{}] = {}", i, t.shape[i]));
    view->shape[i] = t.shape[i];
    view->stride[i] = t.strides != nullptr ? t.strides[i] : elements;
    if (__builtin_mul_overflow(elements, std::max<int64_t>(t.shape[i], 1), &elements)) {
      return invalid(name, "sizes whose product is below 2^63", fmt::format("shape[{}] = {}", i, t.shape[i]));
    }
  }
  return {};
}

Status read_data(const char* name, const DLTensor& t, TensorView* view) {
  if (t.data == nullptr) return {};  // fine for a tensor without elements; otherwise the C++ API says so
  uintptr_t address = 0;
  if (__builtin_add_overflow(reinterpret_cast<uintptr_t>(t.data), t.byte_offset, &address)) {
    return invalid(name, "a byte_offset within the address space", fmt::format("{}", t.byte_offset));
  }
  view->data = static_cast<unsigned char*>(t.data) + t.byte_offset;
  return {};
}

}  // namespace

Status invalid(std::string_view argument, std::string_view expected, std::string_view found) {
  return {Code::invalid_argument, fmt::format("{}: expected {}, found {}", argument, expected, found)};
}

Status check_struct_size(const char* name, const void* given, size_t alignment) {
  const size_t size = struct_size_of(given);
  if (size >= sizeof size && size % alignment == 0 && size <= kLargestStruct) return {};
  return invalid(fmt::format("{}.struct_size", name), "the sizeof of the struct", fmt::format("{}", size));
}

Status check_tail(const char* name, const void* given, size_t known) {
  const auto* bytes = static_cast<const unsigned char*>(given);
  const size_t size = struct_size_of(given);
  for (size_t i = known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return invalid(fmt::format("{}.struct_size", name),
                   fmt::format("{} bytes, which this library knows, or zeros behind them", known),
                   fmt::format("{} bytes and byte {} set", size, i));
  }
  return {};
}

TensorView Arguments::tensor(const char* name, const DLTensor* given) {
  TensorView view;
  if (given == nullptr || !ok()) return {};
  for (const auto read : {read_dtype, read_device, read_shape, read_data}) {
    if (Status s = read(name, *given, &view); !s.ok()) {
      fail(std::move(s));
      return {};
    }
  }
  if (view.device == Device::cuda) {
    const int32_t id = given->device.device_id;
    if (id < 0) fail(invalid(name, "a device_id of 0 or more", fmt::format("{}", id)));
    if (device_id_ == kAnyDevice) device_id_ = id;
    if (id != device_id_) {
      fail(invalid(name, fmt::format("device_id {}, as the call's other tensors have", device_id_),
                   fmt::format("{}", id)));
    }
    if (!ok()) return {};
  }
  return view;
}

void Arguments::in_range(const char* name, int64_t value, int64_t last) {
  if (value < 0 || value > last) fail(invalid(name, fmt::format("0 .. {}", last), fmt::format("{}", value)));
}

}  // namespace ringfold::capi
