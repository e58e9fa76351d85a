// Checks of views, each with an error that names the argument, what was expected and what was found.
#pragma once

#include <initializer_list>
#include <string_view>

#include "ringfold/status.h"
#include "ringfold/tensor_view.h"

namespace ringfold::detail {

/// One dimension of an expected shape: a symbol for the message, and its size.
struct Dim {
  const char* symbol;
  int64_t size;
};

enum class Inner { packed, free };  ///< must the innermost stride be 1?

Status invalid(std::string_view argument, std::string_view expected, std::string_view found);

/// Shape, and that memory is there, aligned to its element.
Status check_view(const char* name, const TensorView& view, std::initializer_list<Dim> shape,
                  Inner inner = Inner::packed);
Status check_dtype(const char* name, const TensorView& view, DType expected);
Status check_float(const char* name, const TensorView& view);
/// int32 [n] with a free stride.
Status check_ints(const char* name, const TensorView& view, const char* symbol, int64_t n);

struct Named {
  const char* name;
  const TensorView& view;
};
/// All views that are there are on the device of the first one.
Status check_device(std::initializer_list<Named> views);

#define RINGFOLD_RETURN_IF_ERROR(expr)                       \
  do {                                                       \
    if (::ringfold::Status s_ = (expr); !s_.ok()) return s_; \
  } while (0)

}  // namespace ringfold::detail
