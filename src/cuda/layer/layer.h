// verify_layer and decode_layer: short conv, recurrence and gated norm in one launch.
#pragma once

#include "core/implementation.h"

namespace ringfold::cuda {

/// Every shape, dtype and stride.
detail::Refusal general_layer_refusal(const Desc& desc);
Status general_layer(const detail::LayerParams& p, const Desc& desc);

}  // namespace ringfold::cuda
