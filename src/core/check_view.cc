#include "core/check_view.h"

#include <fmt/format.h>

#include <string>

namespace ringfold::detail {
namespace {

std::string shape_text(std::initializer_list<Dim> shape) {
  std::string text = "[";
  const char* separator = "";
  for (const Dim& d : shape) {
    text += fmt::format("{}{}={}", separator, d.symbol, d.size);
    separator = ",";
  }
  return text + "]";
}

}  // namespace

Status invalid(std::string_view argument, std::string_view expected, std::string_view found) {
  return {Code::invalid_argument, fmt::format("{}: expected {}, found {}", argument, expected, found)};
}

Status check_view(const char* name, const TensorView& view, std::initializer_list<Dim> shape, Inner inner) {
  bool fits = view.rank == static_cast<int>(shape.size());
  int i = 0;
  for (const Dim& d : shape) fits = fits && view.shape[i++] == d.size;
  if (!fits) return invalid(name, shape_text(shape), to_string(view));
  if (view.elements() == 0) return {};
  if (view.data == nullptr) return invalid(name, shape_text(shape), "a null pointer");
  if (reinterpret_cast<uintptr_t>(view.data) % size_of(view.dtype) != 0) {
    return invalid(name, fmt::format("an address aligned to {} bytes", size_of(view.dtype)),
                   fmt::format("{}", view.data));
  }
  if (inner == Inner::packed && view.rank > 0 && view.shape[view.rank - 1] > 1 && view.stride[view.rank - 1] != 1) {
    return invalid(name, "innermost stride 1", to_string(view));
  }
  return {};
}

Status check_dtype(const char* name, const TensorView& view, DType expected) {
  if (view.dtype == expected) return {};
  return invalid(name, fmt::format("dtype {}", to_string(expected)), to_string(view.dtype));
}

Status check_float(const char* name, const TensorView& view) {
  if (is_float(view.dtype)) return {};
  return invalid(name, "dtype f32, bf16 or f16", to_string(view.dtype));
}

Status check_ints(const char* name, const TensorView& view, const char* symbol, int64_t n) {
  RINGFOLD_RETURN_IF_ERROR(check_view(name, view, {{symbol, n}}, Inner::free));
  return check_dtype(name, view, DType::i32);
}

Status check_device(std::initializer_list<Named> views) {
  const Named& first = *views.begin();
  for (const Named& v : views) {
    if (v.view.empty() || v.view.device == first.view.device) continue;
    return invalid(v.name, fmt::format("memory of device {}, as {} is", to_string(first.view.device), first.name),
                   fmt::format("memory of device {}", to_string(v.view.device)));
  }
  return {};
}

}  // namespace ringfold::detail
