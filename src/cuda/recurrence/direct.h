// Verify and decode of small batches, and whole layers, for K = 64 and 128, without a pipeline.
#pragma once

#include "core/implementation.h"

namespace ringfold::cuda {

/// Blocks of the kernels along y and z, at most.
inline constexpr int kMostGridRows = 65535;

/// What verify, decode and whole layers need.
detail::Refusal direct_window_refusal(const Desc& desc);
/// That slot ids, ring ids and bounds lie within 32 bits of each other.
Status direct_strides(const detail::Rows& p);

/// A fold is that of cuda.exact; verify_layer and decode_layer are in cuda/layer.
detail::Refusal direct_refusal(const Desc& desc);
/// Why cuda.exact or cuda.fast is ahead of it.
detail::Refusal direct_yields(const Desc& desc);
Plan direct_plan(const Desc& desc);
Status direct_recurrence(const detail::RecurrenceParams& p, const Desc& desc);

}  // namespace ringfold::cuda
