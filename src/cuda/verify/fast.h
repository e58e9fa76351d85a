// verify with `fast` numerics for K = 64 and 128.
#pragma once

#include "core/implementation.h"

namespace ringfold::cuda {

detail::Refusal fast_refusal(const Desc& desc);
Plan fast_plan(const Desc& desc);
Status fast_verify(const detail::RecurrenceParams& p);

}  // namespace ringfold::cuda
