// verify_layer and decode_layer: short conv, recurrence and gated norm in one launch.
#pragma once

#include "core/implementation.h"
#include "cuda/tuning.h"

namespace ringfold::cuda {

/// Every shape, dtype and stride.
detail::Refusal general_layer_refusal(const Desc& desc);
Status general_layer(const detail::LayerParams& p, const Desc& desc);

/// On the pipeline of the exact recurrence; V a power of two, 16 .. 128; no history.
detail::Refusal exact_layer_refusal(const Desc& desc);
Status exact_layer(const detail::LayerParams& p, const Desc& desc);

/// As exact_tiles(), but that a block has all of V, and in decode_layer all value heads of its key heads.
ExactTiles exact_layer_tiles(const Desc& desc, const DeviceProperties& device);
int exact_layer_shared_bytes(const Desc& desc, const ExactTiles& tiles);
/// Bytes of what a block has beside: params, three rows, a range.
inline constexpr int kLayerSharedBytes =
    (3 * 32 + sizeof(detail::ConvParams) + sizeof(detail::NormParams) + 8 + 15) / 16 * 16;

/// The description of the recurrence in a layer's call.
inline Desc recurrence_of(const Desc& layer) {
  Desc d = layer;
  d.op = layer.op == Op::decode_layer ? Op::decode : Op::verify;
  return d;
}

}  // namespace ringfold::cuda
