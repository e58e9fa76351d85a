// What a request costs, whoever runs it.
#pragma once

#include "ringfold/registry.h"

namespace ringfold::detail {

/// A plan with the traffic and the arithmetic of the request filled in, and the threads that pay for it (at most those
/// of the description); tasks = 1.
Plan traffic(const Desc& desc);

}  // namespace ringfold::detail
