#include "cli/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

namespace ringfold::cli {

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (shown_permille_ < 0) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

void Progress::update(int64_t done, int64_t total, const std::string& label) {
  if (!terminal_ || total <= 0) return;
  const int permille = static_cast<int>(done * 1000 / total);
  if (permille == shown_permille_ && label == shown_label_) return;
  shown_permille_ = permille;
  shown_label_ = label;
  constexpr int kWidth = 30;
  const std::string bar(static_cast<size_t>(permille * kWidth / 1000), '#');
  fmt::print(stderr, "\r\033[K[{:<{}}] {:>3}% {}/{} {}", bar, kWidth, permille / 10, done, total, label.substr(0, 50));
  std::fflush(stderr);
}

}  // namespace ringfold::cli
