// The recurrence for every shape, dtype and mode.
#pragma once

#include "core/implementation.h"

namespace ringfold::cuda {

/// Pieces that V is cut into.
int general_v_parts(int64_t heads, int64_t V, int sms);
detail::Refusal general_refusal(const Desc& desc);
Status general_recurrence(const detail::RecurrenceParams& p, const Desc&);

}  // namespace ringfold::cuda
