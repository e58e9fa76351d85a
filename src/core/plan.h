// What a request costs, whoever runs it.
#pragma once

#include "ringfold/registry.h"

namespace ringfold::detail {

/// A plan with the traffic and the arithmetic of the request filled in; tasks = 1, threads as the description asks.
Plan traffic(const Desc& desc);

}  // namespace ringfold::detail
