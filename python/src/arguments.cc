#include "python/src/arguments.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <cstring>

namespace ringfold::python {
namespace {

// Devices of DLPack. Pinned memory is the host's, managed memory the device's.
constexpr int kDLCpu = 1, kDLCuda = 2, kDLCudaHost = 3, kDLCudaManaged = 13;

std::string type_of(const nb::object& value) { return nb::cast<std::string>(nb::str(value.type().attr("__name__"))); }

std::optional<DType> dtype_of(nb::dlpack::dtype dtype) {
  using nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return {};
  const auto code = static_cast<dtype_code>(dtype.code);
  if (code == dtype_code::Float && dtype.bits == 32) return DType::f32;
  if (code == dtype_code::Float && dtype.bits == 16) return DType::f16;
  if (code == dtype_code::Bfloat && dtype.bits == 16) return DType::bf16;
  if (code == dtype_code::Int && dtype.bits == 32) return DType::i32;
  return {};
}

std::string name_of(nb::dlpack::dtype dtype) {
  static constexpr const char* kNames[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const char* name = dtype.code < std::size(kNames) ? kNames[dtype.code] : "other";
  return fmt::format("{}{}{}", name, dtype.bits, dtype.lanes == 1 ? "" : fmt::format("x{}", dtype.lanes));
}

/// A DLPack tensor (or buffer) of the object without a copy, or nothing.
std::optional<nb::ndarray<nb::ro>> imported(const nb::object& value, Access access) {
  if (access == Access::read) {
    nb::ndarray<nb::ro> array;
    if (nb::try_cast(value, array, false)) return array;
    return {};
  }
  // Arrays of JAX are immutable, but not every version of it says so when it exports them.
  if (std::strncmp(Py_TYPE(value.ptr())->tp_name, "jaxlib", 6) == 0) return {};
  nb::ndarray<> array;
  if (nb::try_cast(value, array, false)) return nb::ndarray<nb::ro>(array);
  return {};
}

}  // namespace

nb::object Arguments::get(const char* name) const {
  PyObject* found = PyDict_GetItemString(values_.ptr(), name);
  return found == nullptr ? nb::none() : nb::borrow(found);
}

nb::object Arguments::get(const char* group, const char* name) const {
  const nb::object owner = get(group);
  if (owner.is_none()) return nb::none();
  const nb::object found = nb::steal(PyObject_GetAttrString(owner.ptr(), name));
  if (!found.is_valid()) {
    PyErr_Clear();
    refuse(group, fmt::format("an object with the attribute {}", name), type_of(owner));
  }
  return found;
}

TensorView Arguments::array(const char* name, Access access) { return view({.field = name}, get(name), access); }

TensorView Arguments::array(const char* group, const char* name, Access access) {
  return view({group, name}, get(group, name), access);
}

TensorView Arguments::view(const Name& name, const nb::object& given, Access access) {
  if (given.is_none()) return {};
  nb::object value = given;
  std::optional<nb::ndarray<nb::ro>> array = imported(value, access);
  bool is_bf16 = false;
  if (!array) {
    // NumPy cannot export bfloat16: ringfold._arrays finds the same memory as uint16.
    const nb::object bits = nb::module_::import_("ringfold._arrays").attr("bf16_bits")(value);
    if (!bits.is_none()) {
      is_bf16 = true;
      value = bits;
      array = imported(value, access);
    }
  }
  if (!array) {
    if (access == Access::write && imported(value, Access::read)) {
      refuse(name.text(), "an array that may be written", "a read-only one");
    }
    refuse(name.text(), "an array (DLPack or the buffer protocol)", type_of(given));
  }
  const std::optional<DType> dtype = is_bf16 ? DType::bf16 : dtype_of(array->dtype());
  if (!dtype) refuse(name.text(), "dtype float32, bfloat16, float16 or int32", name_of(array->dtype()));
  TensorView view;
  if (array->ndim() < 1 || array->ndim() > TensorView::kMaxRank) {
    refuse(name.text(), fmt::format("1 to {} dimensions", TensorView::kMaxRank), fmt::format("{}", array->ndim()));
  }
  const int device = array->device_type();
  if (device == kDLCuda || device == kDLCudaManaged) {
    view.device = Device::cuda;
  } else if (device != kDLCpu && device != kDLCudaHost) {
    refuse(name.text(), "memory of the CPU or of CUDA", fmt::format("DLPack device type {}", device));
  }
  view.data = static_cast<std::byte*>(array->data_handle()) + array->byte_offset();
  view.dtype = *dtype;
  view.rank = static_cast<int>(array->ndim());
  for (int i = 0; i < view.rank; ++i) {
    view.shape[i] = static_cast<int64_t>(array->shape(i));
    view.stride[i] = array->stride(i);
  }
  arrays_.push_back(std::move(*array));
  return view;
}

namespace {

template <class T>
void number_of(const Name& name, const nb::object& value, const char* expected, T* out) {
  if (value.is_none()) return;
  if (!nb::try_cast(value, *out)) refuse(name.text(), expected, nb::cast<std::string>(nb::repr(value)));
}

constexpr const char* kInteger = "an integer";
constexpr const char* kNumber = "a number within the range of float";
constexpr const char* kFlag = "True or False";

}  // namespace

void Arguments::integer(const char* name, int64_t* value) const {
  number_of({.field = name}, get(name), kInteger, value);
}

void Arguments::integer(const char* group, const char* name, int64_t* value) const {
  number_of({group, name}, get(group, name), kInteger, value);
}

void Arguments::number(const char* name, float* value) const { number_of({.field = name}, get(name), kNumber, value); }

void Arguments::number(const char* name, double* value) const {
  number_of({.field = name}, get(name), "a number", value);
}

void Arguments::number(const char* group, const char* name, float* value) const {
  number_of({group, name}, get(group, name), kNumber, value);
}

void Arguments::flag(const char* name, bool* value) const { number_of({.field = name}, get(name), kFlag, value); }

void Arguments::flag(const char* group, const char* name, bool* value) const {
  number_of({group, name}, get(group, name), kFlag, value);
}

std::vector<int32_t> Arguments::integers(const char* name) const {
  std::vector<int32_t> result;
  const nb::object value = get(name);
  if (value.is_none()) return result;
  if (!PySequence_Check(value.ptr())) refuse(name, "a sequence of integers", type_of(value));
  for (nb::handle item : value) {
    int32_t number = 0;
    if (!nb::try_cast(item, number)) refuse(name, "a sequence of integers", nb::cast<std::string>(nb::repr(item)));
    result.push_back(number);
  }
  return result;
}

std::string Arguments::text_of(const Name& name, const nb::object& value) {
  if (!nb::isinstance<nb::str>(value)) refuse(name.text(), "a name", type_of(value));
  return nb::cast<std::string>(value);
}

std::string_view Arguments::text(const char* name) {
  const nb::object value = get(name);
  if (value.is_none()) return {};
  return texts_.emplace_back(text_of({.field = name}, value));
}

}  // namespace ringfold::python
