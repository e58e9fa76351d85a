// From the structs, tensors and numbers of the ABI to those of the C++ API.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "ringfold/c_api.h"
#include "ringfold/status.h"
#include "ringfold/tensor_view.h"

namespace ringfold::capi {

Status invalid(std::string_view argument, std::string_view expected, std::string_view found);

/// Structs of up to this size are read; a larger struct_size is taken for memory that was never set.
inline constexpr size_t kLargestStruct = 4096;

/// The struct_size of a caller's struct: an error unless a version of the struct can have that size. `alignment`: of
/// the struct, which ends at a multiple of it.
Status check_struct_size(const char* name, const void* given, size_t alignment);

/// An error unless the bytes of a caller's struct behind the `known` ones are zeros.
Status check_tail(const char* name, const void* given, size_t known);

/// An error unless `given` is a struct that write() can fill.
template <class T>
Status check_writable(const char* name, const T* given) {
  if (given == nullptr) return invalid(name, "a struct to write", "NULL");
  return check_struct_size(name, given, alignof(T));
}

/// Fills a caller's struct of any version; struct_size stays.
template <class T>
void write(const T& value, T* given) {
  const size_t size = given->struct_size;
  auto* bytes = reinterpret_cast<unsigned char*>(given);
  const size_t known = std::min(size, sizeof(T)), head = sizeof(size_t);
  std::memcpy(bytes + head, reinterpret_cast<const unsigned char*>(&value) + head, known - head);
  std::memset(bytes + known, 0, size - known);
}

/// Translates the arguments of one call. The first error is kept, and what follows is as good as absent.
class Arguments {
 public:
  static constexpr int32_t kAnyDevice = -1;

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  void fail(Status status) {
    if (ok()) status_ = std::move(status);
  }

  /// A caller's struct of any version as this version has it.
  template <class T>
  T required(const char* name, const T* given) {
    if (given == nullptr) fail(invalid(name, "a struct", "NULL"));
    return optional(name, given);
  }
  /// The same; NULL gives zeros.
  template <class T>
  T optional(const char* name, const T* given) {
    T known = {};
    if (given == nullptr || !ok()) return known;
    fail(check_struct_size(name, given, alignof(T)));
    if (ok()) fail(check_tail(name, given, sizeof(T)));
    if (ok()) std::memcpy(&known, given, std::min(given->struct_size, sizeof(T)));
    return known;
  }

  /// CUDA tensors of this call lie on this device. With kAnyDevice they lie where the first of them does.
  void expect_device_id(int32_t id) { device_id_ = id; }
  /// NULL gives an empty view.
  TensorView tensor(const char* name, const DLTensor* given);

  /// An enumeration with the values 0 .. last.
  template <class Enum>
  Enum choice(const char* name, int32_t value, Enum last) {
    in_range(name, value, static_cast<int32_t>(last));
    return ok() ? static_cast<Enum>(value) : Enum{};
  }
  bool flag(const char* name, int32_t value) {
    in_range(name, value, 1);
    return ok() && value == 1;
  }
  void in_range(const char* name, int64_t value, int64_t last);
  /// `count` elements at `data`; NULL is for none.
  template <class T>
  std::span<T> array(const char* name, T* data, size_t count) {
    if (data == nullptr && count > 0) fail(invalid(name, std::to_string(count) + " elements", "NULL"));
    return ok() && data != nullptr ? std::span<T>(data, count) : std::span<T>();
  }

 private:
  Status status_;
  int32_t device_id_ = kAnyDevice;
};

inline std::string_view text(const char* given) { return given == nullptr ? std::string_view() : given; }

}  // namespace ringfold::capi
