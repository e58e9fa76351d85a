// verify with `fast` numerics for K = 64 and 128, V a multiple of 64, windows of up to 16 tokens.
//
// Outputs before rounding are within 2e-5 of fp64 by norm (measured: below 1e-5). The state is only read, and taken
// as it lies in the pool: within a window nothing is rounded to its dtype, so per_token is refused for 16-bit states.
// Outputs of a token do not depend on later tokens, unless those have a NaN or an infinity; their bits may depend on
// whether the call's longest window has up to 4, 8 or 16 tokens. Ring, cursors and statuses are those of `exact`.
#pragma once

#include "core/implementation.h"

namespace ringfold::cuda {

detail::Refusal fast_refusal(const Desc& desc);
Plan fast_plan(const Desc& desc);
Status fast_verify(const detail::RecurrenceParams& p, const Desc& desc);

}  // namespace ringfold::cuda
