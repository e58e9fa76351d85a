// Verify and decode of small batches for K = 64 and 128, without a pipeline.
#pragma once

#include "core/implementation.h"

namespace ringfold::cuda {

/// A fold is that of cuda.exact.
detail::Refusal direct_refusal(const Desc& desc);
/// Why cuda.exact or cuda.fast is ahead of it.
detail::Refusal direct_yields(const Desc& desc);
Plan direct_plan(const Desc& desc);
Status direct_recurrence(const detail::RecurrenceParams& p, const Desc& desc);

}  // namespace ringfold::cuda
