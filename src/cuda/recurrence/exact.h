// The recurrence for K = 64 and 128, tuned.
#pragma once

#include "core/implementation.h"

namespace ringfold::cuda {

detail::Refusal exact_refusal(const Desc& desc);
Plan exact_plan(const Desc& desc);
Status exact_recurrence(const detail::RecurrenceParams& p, const Desc& desc);

}  // namespace ringfold::cuda
