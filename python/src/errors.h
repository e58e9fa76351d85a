// Statuses of the library as Python exceptions.
#pragma once

#include <string>
#include <string_view>

#include "ringfold/status.h"

namespace ringfold::python {

/// Raises the exception of ringfold/_errors.py that belongs to `code`. Needs the GIL.
[[noreturn]] void raise(Code code, const std::string& message);

/// Raises unless the status is ok.
void require(const Status& status);

/// Raises invalid_argument: "name: expected .., found ..", as the library says it.
[[noreturn]] void refuse(std::string_view name, std::string_view expected, std::string_view found);

}  // namespace ringfold::python
