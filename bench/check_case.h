// Judging a case before it is timed.
#pragma once

#include <string>

#include "bench/rig.h"

namespace ringfold::bench {

/// Runs every operation of the case once, on its whole batch, and the plain reference on the first and the last row.
/// Rings, states and `exact` outputs must agree byte for byte; `fast` outputs, before rounding, to a relative error of
/// 2e-5 over a row (docs/numerics.md). `difference` says what does not; it stays empty otherwise.
/// Errors are those of the calls.
Status check_case(Rig& rig, std::string* difference);

}  // namespace ringfold::bench
