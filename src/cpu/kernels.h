// Entry points of the CPU kernels, for each Highway target.
#pragma once

#include "core/params.h"
#include "ringfold/registry.h"

namespace ringfold::cpu {

using RecurrenceFn = Status (*)(const detail::RecurrenceParams&, const Desc&);
using ConvFn = Status (*)(const detail::ConvParams&);
using NormFn = Status (*)(const detail::NormParams&);
using LayerFn = Status (*)(const detail::LayerParams&, const Desc&);

/// The kernel compiled for `target` (one bit of Highway's target mask); null where this build has none.
RecurrenceFn recurrence_for(int64_t target);
ConvFn conv_for(int64_t target);
NormFn gated_norm_for(int64_t target);
LayerFn layer_for(int64_t target);

}  // namespace ringfold::cpu
