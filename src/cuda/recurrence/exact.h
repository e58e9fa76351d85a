// The recurrence for K = 64 and 128, tuned.
#pragma once

#include "core/implementation.h"

namespace ringfold::cuda {

/// What the kernels' layout of states and inputs needs, whatever their tiles. Of verify, decode and fold.
detail::Refusal layout_refusal(const Desc& desc);
detail::Refusal exact_refusal(const Desc& desc);
Plan exact_plan(const Desc& desc);
Status exact_recurrence(const detail::RecurrenceParams& p, const Desc& desc);

}  // namespace ringfold::cuda
