// The plain ring reference: every operation as scalar loops in the order of docs/math.md. Slow, last in the dispatch
// list, and the bits that all other implementations must have.
#pragma once

#include "core/implementation.h"

namespace ringfold::ref {

const detail::Implementation& reference_implementation();

}  // namespace ringfold::ref
