// verify_layer and decode_layer: short conv, recurrence and gated norm in one launch.
#pragma once

#include "core/implementation.h"

namespace ringfold::cuda {

/// For K of 64 or 128, V of at most 128, 16-bit activations, windows of at most 8 tokens: cuda.direct.
detail::Refusal direct_layer_refusal(const Desc& desc);
Plan direct_layer_plan(const Desc& desc);
Status direct_layer(const detail::LayerParams& p, const Desc& desc);

/// Every shape, dtype and stride.
detail::Refusal general_layer_refusal(const Desc& desc);
Status general_layer(const detail::LayerParams& p, const Desc& desc);

}  // namespace ringfold::cuda
