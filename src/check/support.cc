#include "check/support.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "check/device.h"

namespace ringfold::check {
namespace {

/// Calls fn(pointer, index) for every run of the innermost dimension.
template <class Fn>
void for_each_run(const TensorView& view, Fn fn) {
  if (view.elements() == 0) return;
  std::array<int64_t, TensorView::kMaxRank> index{};
  const auto size = static_cast<int64_t>(size_of(view.dtype));
  const int outer = view.rank - 1;
  for (;;) {
    int64_t offset = 0;
    for (int d = 0; d < outer; ++d) offset += index[d] * view.stride[d];
    fn(static_cast<std::byte*>(view.data) + offset * size, index);
    int d = outer - 1;
    while (d >= 0 && ++index[d] == view.shape[d]) index[d--] = 0;
    if (d < 0) return;
  }
}

int64_t run_length(const TensorView& view) { return view.rank == 0 ? 0 : view.shape[view.rank - 1]; }

/// In elements. A one-dimensional index array may have any stride; otherwise the innermost is 1.
int64_t run_stride(const TensorView& view) { return run_length(view) <= 1 ? 1 : view.stride[view.rank - 1]; }

/// Calls fn(pointer) for every element in row-major order.
template <class Fn>
void for_each(const TensorView& view, Fn fn) {
  const int64_t n = run_length(view);
  const int64_t step = run_stride(view) * static_cast<int64_t>(size_of(view.dtype));
  for_each_run(view, [&](std::byte* p, const auto&) {
    for (int64_t i = 0; i < n; ++i) fn(p + i * step);
  });
}

/// The same for views on any device, read alone and written.
template <class Fn>
void read_each(const TensorView& view, Fn fn) {
  for_each(Staged(view).view(), fn);
}
template <class Fn>
void write_each(const TensorView& view, Fn fn) {
  const Staged staged(view);
  for_each(staged.view(), fn);
  staged.put_back();
}

uint32_t bits_of(DType type, const std::byte* element) {
  uint32_t bits = 0;
  std::memcpy(&bits, element, size_of(type));
  return bits;
}

float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u, fraction = h & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::ldexp(static_cast<float>(1024 + fraction), static_cast<int>(exponent) - 25);
  return sign ? -magnitude : magnitude;
}

uint16_t float_to_half(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = std::fabs(f);
  if (std::isnan(f)) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude == 0) return sign;
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00u);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int quantum = std::max(exponent - 11, -24);  // exponent of the last kept bit
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(static_cast<double>(magnitude), -quantum)));
  if (quantum == -24) return static_cast<uint16_t>(sign | units);  // subnormals, and 1024 units are the first normal
  return static_cast<uint16_t>(sign + ((static_cast<uint32_t>(quantum + 24) << 10) + units));
}

uint16_t float_to_bf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if (std::isnan(f)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

std::string describe(DType type, const std::byte* element) {
  char text[64];
  if (type == DType::i32) {
    std::snprintf(text, sizeof text, "%d", static_cast<int>(bits_of(type, element)));
  } else {
    std::snprintf(text, sizeof text, "%.9g (0x%0*x)", static_cast<double>(load(type, element)),
                  static_cast<int>(2 * size_of(type)), bits_of(type, element));
  }
  return text;
}

template <class Index>
std::string at_text(const TensorView& view, const Index& index, int64_t last) {
  std::string text = "[";
  for (int d = 0; d + 1 < view.rank; ++d) text += std::to_string(index[d]) + ",";
  return text + std::to_string(last) + "]";
}

/// First difference against packed bytes; `exact`: NaN payloads count.
std::string compare(const TensorView& view, const Bytes& want, bool exact) {
  const Staged staged(view);
  const TensorView& got = staged.view();
  const auto size = static_cast<int64_t>(size_of(got.dtype));
  const int64_t n = run_length(got), step = run_stride(got) * size;
  if (static_cast<int64_t>(want.size()) != got.elements() * size) return "sizes differ";
  const std::byte* w = want.data();
  std::string first;
  int64_t differing = 0;
  for_each_run(got, [&](const std::byte* p, const auto& index) {
    if (step == size && std::memcmp(p, w, static_cast<size_t>(n * size)) == 0) {
      w += n * size;
      return;
    }
    for (int64_t i = 0; i < n; ++i, w += size) {
      const std::byte* g = p + i * step;
      if (std::memcmp(g, w, static_cast<size_t>(size)) == 0) continue;
      if (!exact && is_nan(got.dtype, g) && is_nan(got.dtype, w)) continue;
      if (differing++ == 0) {
        first = "at " + at_text(got, index, i) + ": " + describe(got.dtype, g) + ", expected " + describe(got.dtype, w);
      }
    }
  });
  if (differing == 0) return "";
  return first + "; " + std::to_string(differing) + " of " + std::to_string(got.elements()) + " differ";
}

}  // namespace

float load(DType type, const void* element) {
  uint16_t half = 0;
  switch (type) {
    case DType::f32: {
      float f = 0;
      std::memcpy(&f, element, 4);
      return f;
    }
    case DType::i32: {
      int32_t i = 0;
      std::memcpy(&i, element, 4);
      return static_cast<float>(i);
    }
    case DType::bf16: std::memcpy(&half, element, 2); return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
    case DType::f16: std::memcpy(&half, element, 2); return half_to_float(half);
  }
  return 0;
}

void store(DType type, void* element, float value) {
  if (type == DType::f32) {
    std::memcpy(element, &value, 4);
  } else if (type == DType::i32) {
    const auto i = static_cast<int32_t>(value);
    std::memcpy(element, &i, 4);
  } else {
    const uint16_t half = type == DType::bf16 ? float_to_bf16(value) : float_to_half(value);
    std::memcpy(element, &half, 2);
  }
}

bool is_nan(DType type, const void* element) { return is_float(type) && std::isnan(load(type, element)); }

Buffer::Buffer(int64_t bytes, DType poison_as)
    : memory_(static_cast<size_t>(bytes + 2 * kGuard)),
      block_(memory_.data(), memory_.size()),
      poison_(is_float(poison_as) ? std::byte{0xFF} : std::byte{0x7F}) {
  poison();
}

Buffer::Buffer(DType dtype, const std::vector<int64_t>& shape, Pitch pitch) {
  const bool padded = pitch == Pitch::padded;
  const std::vector<int64_t> stride = strides_of(shape, padded ? 3 : 0);
  const auto size = static_cast<int64_t>(size_of(dtype));
  int64_t elements = padded ? 1 : 0;
  if (!shape.empty()) elements += std::max<int64_t>(shape[0], 1) * stride[0];
  *this = Buffer(elements * size, dtype);
  view_ = carve(dtype, shape, stride, padded ? size : 0);
}

TensorView Buffer::carve(DType dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& stride,
                         int64_t byte_offset) {
  const TensorView view = make_view(data() + byte_offset, dtype, shape, stride);
  claim(view);
  return view;
}

void Buffer::claim(const TensorView& view) {
  gaps_.clear();
  const auto add = [&](const std::byte* p, size_t bytes) {
    const auto at = static_cast<size_t>(p - memory_.data());
    if (!claimed_.empty() && claimed_.back().second == at) {
      claimed_.back().second += bytes;
    } else {
      claimed_.emplace_back(at, at + bytes);
    }
  };
  const size_t size = size_of(view.dtype);
  if (run_stride(view) == 1) {
    for_each_run(view, [&](const std::byte* p, const auto&) { add(p, static_cast<size_t>(run_length(view)) * size); });
  } else {
    for_each(view, [&](const std::byte* p) { add(p, size); });
  }
}

void Buffer::poison() { std::fill(memory_.begin(), memory_.end(), poison_); }

std::string Buffer::damage() const {
  if (gaps_.empty()) {
    std::vector<std::pair<size_t, size_t>> taken = claimed_;
    std::sort(taken.begin(), taken.end());
    taken.emplace_back(memory_.size(), memory_.size());
    size_t free_from = 0;
    for (const auto& [begin, end] : taken) {
      if (begin > free_from) gaps_.emplace_back(free_from, begin);
      free_from = std::max(free_from, end);
    }
  }
  for (const auto& [begin, end] : gaps_) {
    for (size_t i = begin; i < end; ++i) {
      if (memory_[i] == poison_) continue;
      const auto size = static_cast<int64_t>(memory_.size()) - 2 * kGuard;
      return "byte " + std::to_string(static_cast<int64_t>(i) - kGuard) + " of " + std::to_string(size) +
             ", outside the view, was overwritten";
    }
  }
  return "";
}

TensorView make_view(void* data, DType dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& stride) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    view.shape[d] = shape[d];
    view.stride[d] = stride[d];
  }
  return view;
}

std::vector<int64_t> strides_of(const std::vector<int64_t>& shape, int64_t pad) {
  std::vector<int64_t> stride(shape.size(), 1);
  for (int d = static_cast<int>(shape.size()) - 2; d >= 0; --d) {
    stride[d] = std::max<int64_t>(shape[d + 1], 1) * stride[d + 1] + pad;
  }
  return stride;
}

TensorView slice(const TensorView& view, int64_t first, int64_t count) {
  TensorView part = view;
  part.data = static_cast<std::byte*>(view.data) + first * view.stride[0] * static_cast<int64_t>(size_of(view.dtype));
  part.shape[0] = count;
  return part;
}

TensorView merge(const TensorView& view, int first, int count) {
  TensorView merged = view;
  for (int d = first + 1; d < first + count; ++d) merged.shape[first] *= view.shape[d];
  merged.stride[first] = view.stride[first + count - 1];
  for (int d = first + count; d < view.rank; ++d) {
    merged.shape[d - count + 1] = view.shape[d];
    merged.stride[d - count + 1] = view.stride[d];
  }
  merged.rank = view.rank - count + 1;
  for (int d = merged.rank; d < TensorView::kMaxRank; ++d) merged.shape[d] = merged.stride[d] = 0;
  return merged;
}

Bytes pack(const TensorView& source) {
  const Staged staged(source);
  const TensorView& view = staged.view();
  Bytes bytes(static_cast<size_t>(view.elements()) * size_of(view.dtype));
  std::byte* to = bytes.data();
  const size_t size = size_of(view.dtype);
  const auto n = static_cast<size_t>(run_length(view));
  const auto stride = static_cast<size_t>(run_stride(view));
  for_each_run(view, [&](const std::byte* p, const auto&) {
    if (stride == 1) {
      std::memcpy(to, p, n * size);
    } else {
      for (size_t i = 0; i < n; ++i) std::memcpy(to + i * size, p + i * stride * size, size);
    }
    to += n * size;
  });
  return bytes;
}

void unpack(const Bytes& bytes, const TensorView& target) {
  const Staged staged(target);
  const TensorView& view = staged.view();
  const std::byte* from = bytes.data();
  const size_t size = size_of(view.dtype);
  const auto n = static_cast<size_t>(run_length(view));
  const auto stride = static_cast<size_t>(run_stride(view));
  for_each_run(view, [&](std::byte* p, const auto&) {
    if (stride == 1) {
      std::memcpy(p, from, n * size);
    } else {
      for (size_t i = 0; i < n; ++i) std::memcpy(p + i * stride * size, from + i * size, size);
    }
    from += n * size;
  });
  staged.put_back();
}

void copy(const TensorView& from, const TensorView& to) { unpack(pack(from), to); }

void fill(const TensorView& view, const std::function<float()>& value) {
  write_each(view, [&](std::byte* p) { store(view.dtype, p, value()); });
}

void fill_normal(const TensorView& view, uint64_t seed, float sigma, float mean) {
  Rng rng(seed);
  write_each(view, [&](std::byte* p) { store(view.dtype, p, mean + sigma * rng.normal()); });
}

void fill_poison(const TensorView& view) {
  const int byte = is_float(view.dtype) ? 0xFF : 0x7F;
  write_each(view, [&](std::byte* p) { std::memset(p, byte, size_of(view.dtype)); });
}

void fill_zero(const TensorView& view) {
  write_each(view, [&](std::byte* p) { std::memset(p, 0, size_of(view.dtype)); });
}

std::vector<float> floats(const TensorView& view) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(view.elements()));
  read_each(view, [&](const std::byte* p) { values.push_back(load(view.dtype, p)); });
  return values;
}

std::vector<int32_t> ints(const TensorView& view) {
  std::vector<int32_t> values;
  read_each(view, [&](const std::byte* p) { values.push_back(static_cast<int32_t>(bits_of(DType::i32, p))); });
  return values;
}

void set_ints(const TensorView& view, const std::vector<int32_t>& values) {
  size_t i = 0;
  write_each(view, [&](std::byte* p) { std::memcpy(p, &values.at(i++), 4); });
}

std::string difference(const TensorView& got, const TensorView& want) {
  bool same_shape = got.rank == want.rank && got.dtype == want.dtype;
  for (int d = 0; same_shape && d < got.rank; ++d) same_shape = got.shape[d] == want.shape[d];
  if (!same_shape) return to_string(got) + " compared with " + to_string(want);
  return compare(got, pack(want), false);
}

std::string changed(const TensorView& view, const Bytes& before) { return compare(view, before, true); }

uint64_t hash(const TensorView& view, uint64_t seed) {
  uint64_t h = seed;
  read_each(view, [&](const std::byte* p) {
    const uint32_t bits = is_nan(view.dtype, p) ? 0xFFFFFFFFu : bits_of(view.dtype, p);
    for (int i = 0; i < 4; ++i) h = (h ^ ((bits >> (8 * i)) & 0xFFu)) * 0x100000001B3ull;
  });
  return h;
}

}  // namespace ringfold::check
