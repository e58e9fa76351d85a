// The pool as a Python object.
#pragma once

#include <memory>

#include "python/src/arguments.h"
#include "ringfold/pool.h"

namespace ringfold::python {

/// Python's `_ringfold.Pool`, within a `ringfold.Pool`. Views that Python has of the memory keep this object alive.
struct PoolObject {
  explicit PoolObject(const nb::dict& config);
  std::unique_ptr<Pool> pool;

  /// Raises where there is no such layer.
  void check_layer(int64_t layer) const;
};

void bind_pool(nb::module_& module);
void bind_calls(nb::module_& module);
void bind_registry(nb::module_& module);

}  // namespace ringfold::python
