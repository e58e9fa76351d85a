// A progress bar on stderr, only where stderr is a terminal.
#pragma once

#include <cstdint>
#include <string>

namespace ringfold::cli {

class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done, int64_t total, const std::string& label);

 private:
  bool terminal_;
  int shown_permille_ = -1;
  std::string shown_label_;
};

}  // namespace ringfold::cli
