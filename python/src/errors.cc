#include "python/src/errors.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>

namespace ringfold::python {

namespace nb = nanobind;

void raise(Code code, const std::string& message) {
  const nb::object type = nb::module_::import_("ringfold._errors").attr("exception_of")(static_cast<int>(code));
  PyErr_SetString(type.ptr(), message.c_str());
  throw nb::python_error();
}

void require(const Status& status) {
  if (!status.ok()) raise(status.code(), status.message());
}

void refuse(std::string_view name, std::string_view expected, std::string_view found) {
  raise(Code::invalid_argument, fmt::format("{}: expected {}, found {}", name, expected, found));
}

}  // namespace ringfold::python
