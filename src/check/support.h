// Hostile memory, fixed-seed values and bitwise comparison for tests and the conformance kit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "check/host_block.h"
#include "ringfold/status.h"
#include "ringfold/tensor_view.h"

namespace ringfold::check {

/// SplitMix64. The same seed gives the same values on every machine.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x1234567ull) {}
  uint64_t next();
  /// 0 .. n-1
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  float uniform(float low, float high);
  /// Sum of four uniforms: mean 0, variance 1, within +-3.5 (no libm, so the same bits everywhere).
  float normal();
  /// 0 .. n-1 in random order.
  std::vector<int32_t> permutation(int64_t n);

 private:
  uint64_t state_;
};

/// A seed made of several numbers: distinct tuples give unrelated streams.
uint64_t mix(std::initializer_list<int64_t> parts);

/// Element access. Written here once more on purpose: the kit shares no conversion with what it judges.
float load(DType type, const void* element);
/// Nearest even; NaN stays NaN.
void store(DType type, void* element, float value);
bool is_nan(DType type, const void* element);

using Bytes = std::vector<std::byte>;

/// Memory with guard words on both sides. Everything, also gaps between the rows of a view, starts as 0xFF bytes (NaN
/// in every float type; 0x7F7F7F7F, a hostile index, for i32), and damage() tells whether a byte outside the claimed
/// views changed.
class Buffer {
 public:
  enum class Pitch { packed, padded };

  Buffer() = default;
  Buffer(Buffer&&) = default;  // views stay valid: the memory does not move
  Buffer& operator=(Buffer&&) = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  /// Raw memory of `bytes`, from which views are carved.
  explicit Buffer(int64_t bytes, DType poison_as = DType::f32);
  /// One tensor. `padded`: every stride but the innermost is wider than need be, by an odd number of elements, and the
  /// first element is not aligned to more than its size.
  Buffer(DType dtype, const std::vector<int64_t>& shape, Pitch pitch = Pitch::packed);

  /// The whole tensor (second constructor).
  const TensorView& view() const { return view_; }
  /// A view into the memory; its elements are claimed, so that damage() does not look at them.
  TensorView carve(DType dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& stride,
                   int64_t byte_offset);
  std::byte* data() { return memory_.data() + kGuard; }
  /// Everything poisoned again, claimed elements too.
  void poison();
  /// "" if guard words and gaps are intact; otherwise where the first changed byte lies.
  std::string damage() const;

  static constexpr int64_t kGuard = 128;

 private:
  void claim(const TensorView& view);

  Bytes memory_;
  HostBlock block_;                                      ///< guard words included
  std::vector<std::pair<size_t, size_t>> claimed_;       ///< [begin, end) of bytes that belong to views
  mutable std::vector<std::pair<size_t, size_t>> gaps_;  ///< the rest, guard words included; made by damage()
  std::byte poison_{0xFF};
  TensorView view_;
};

TensorView make_view(void* data, DType dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& stride);
/// Row-major strides, the dimensions before the last widened by `pad` elements each (0: packed).
std::vector<int64_t> strides_of(const std::vector<int64_t>& shape, int64_t pad);

/// `count` entries of the first dimension from `first` on.
TensorView slice(const TensorView& view, int64_t first, int64_t count);
/// The view with its dimensions [first, first + count) merged into one (they must be mergeable).
TensorView merge(const TensorView& view, int first, int count);

// The functions from here on also take views on a device; what they need of it is copied to the host and back.

/// Row-major bytes of a view, and back.
Bytes pack(const TensorView& view);
void unpack(const Bytes& bytes, const TensorView& view);
void copy(const TensorView& from, const TensorView& to);
/// Every element from value(), in row-major order, rounded to the dtype.
void fill(const TensorView& view, const std::function<float()>& value);
void fill_normal(const TensorView& view, uint64_t seed, float sigma = 1.0f, float mean = 0.0f);
void fill_poison(const TensorView& view);
void fill_zero(const TensorView& view);
/// Elements as float / int32 in row-major order.
std::vector<float> floats(const TensorView& view);
std::vector<int32_t> ints(const TensorView& view);
void set_ints(const TensorView& view, const std::vector<int32_t>& values);

/// "" if both views hold the same bits (any NaN equals any NaN); otherwise the first difference: index, both bit
/// patterns and values, and how many elements differ.
std::string difference(const TensorView& got, const TensorView& want);
/// The same against bytes packed earlier; here NaN payloads count too (for memory that must not have been touched).
std::string changed(const TensorView& view, const Bytes& before);

/// 64-bit FNV-1a of the packed bytes, NaNs made equal first.
uint64_t hash(const TensorView& view, uint64_t seed = 0xCBF29CE484222325ull);

}  // namespace ringfold::check
