// Judging a case before it is timed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/rig.h"

namespace ringfold::bench {

/// Of `fast` outputs, in fp32, by norm: the bound of docs/numerics.md against fp64. It is held against the exact
/// reference, so it includes that one's own error and is the stricter for it.
inline constexpr double kFastBound = 2e-5;
double relative_error(const std::vector<std::byte>& found, const std::vector<std::byte>& expected);

/// Runs every operation of the case once, on its whole batch, and the plain reference on the first and the last row.
/// Rings, states and `exact` outputs must agree byte for byte; `fast` outputs, before rounding, to a relative error of
/// 2e-5 over a row (docs/numerics.md). `difference` says what does not; it stays empty otherwise.
/// Errors are those of the calls.
Status check_case(Rig& rig, std::string* difference);

}  // namespace ringfold::bench
