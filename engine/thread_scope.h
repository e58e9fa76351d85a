// A thread count for the time of one call.
#pragma once

#include "ringfold/registry.h"

namespace ringfold::engine {

/// ringfold's thread count is one setting of the process; a step with a count of its own sets it and puts it back.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : saved_(threads > 0 ? num_threads() : 0) {
    if (threads > 0) set_num_threads(threads);
  }
  ~ThreadScope() {
    if (saved_ > 0) set_num_threads(saved_);
  }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int saved_;
};

}  // namespace ringfold::engine
