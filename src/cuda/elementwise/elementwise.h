// Short conv, gated norm, and what goes by the cursors alone: one thread or warp for each independent result.
#pragma once

#include "core/implementation.h"

namespace ringfold::cuda {

Status conv(const detail::ConvParams& p);         ///< conv_verify, conv_decode
Status conv_commit(const detail::ConvParams& p);  ///< all layers
Status gated_norm(const detail::NormParams& p);
/// Moves the cursors of the rows that are done as `move` says, in all layers of the call.
Status move_cursors(const detail::Rows& p);
/// Fills `due` of a deferring commit.
Status list_due(const detail::Rows& p);

}  // namespace ringfold::cuda
