// A tensor that somebody else owns: pointer, type, shape and strides.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "ringfold/types.h"

namespace ringfold {

/// View of caller-owned memory. Strides are in elements. Whether a view is read or written is said where it is
/// a parameter. The innermost dimension must have stride 1 (or size 1); every other stride is free, so a view into a
/// packed row, a column of a wider table (for one-dimensional index arrays) or a padded pool needs no copy.
struct TensorView {
  static constexpr int kMaxRank = 6;

  void* data = nullptr;
  DType dtype = DType::f32;
  Device device = Device::cpu;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};

  TensorView() = default;
  /// Row-major packed view.
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape);
  TensorView(const void* data, DType dtype, std::initializer_list<int64_t> shape)
      : TensorView(const_cast<void*>(data), dtype, shape) {}
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> stride);

  /// Absent optional argument.
  bool empty() const { return rank == 0; }
  int64_t elements() const;
  bool packed() const;
  /// The sub-tensor at `index` of the first dimension (no bounds check; validation happens where it is used).
  TensorView at(int64_t index) const;
  /// A view with dimensions reordered: result dimension i is dimension order[i] of this one.
  TensorView permute(std::initializer_list<int> order) const;
};

/// "f32[4,2,16,16]" ; with strides when the view is not packed.
std::string to_string(const TensorView& view);

}  // namespace ringfold
