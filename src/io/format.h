// What reader and writer share.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "ringfold/status.h"

namespace ringfold::io {

inline constexpr const char* kMetadataKey = "__metadata__";

inline Status invalid(std::string message) { return Status(Code::invalid_argument, std::move(message)); }

/// Runs `body`, and turns what it throws into a status: no exception leaves this library.
template <class Body>
Status guarded(const std::string& path, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status(Code::out_of_memory, path + ": not enough memory for the header or the data");
  } catch (const std::exception& error) {
    return Status(Code::internal, path + ": " + error.what());
  }
}

}  // namespace ringfold::io
