// The border of the ABI: statuses go out as numbers with a message for the thread, and no exception passes.
#pragma once

#include <exception>
#include <new>

#include "ringfold/c_api.h"
#include "ringfold/status.h"

namespace ringfold::capi {

/// Makes this the last error of the thread ("" after ok). Never allocates: a long message is cut.
ringfold_status remember(Code code, const char* message) noexcept;

/// Runs a call of the ABI that returns a Status.
template <class Call>
ringfold_status guarded(const Call& call) noexcept {
  try {
    const Status status = call();
    return remember(status.code(), status.message().c_str());
  } catch (const std::bad_alloc&) {
    return remember(Code::out_of_memory, "memory: expected more, found less");
  } catch (const std::exception& e) {
    return remember(Code::internal, e.what());
  } catch (...) {
    return remember(Code::internal, "an unknown exception");
  }
}

}  // namespace ringfold::capi
