#include "check/judge.h"

#include <algorithm>
#include <cmath>

namespace ringfold::check {
namespace {

/// "NAME: needs K == 128" of "nothing serves DESCRIPTION (NAME: needs K == 128, got K = 96)".
std::string reason_of(const Status& status) {
  const std::string& text = status.message();
  const size_t begin = text.find('(') + 1;  // 0 where there is none
  return text.substr(begin, std::min(text.find(", got", begin), text.rfind(')')) - begin);
}

}  // namespace

void Judge::that(bool holds, const std::string& what) {
  ++checks_;
  if (!holds) throw Failure{what};
}

void Judge::ok(const Status& status, const std::string& what) {
  if (on_device() && status.code() == Code::unsupported) throw Skip{reason_of(status)};
  that(status.ok(), what + ": " + to_string(status.code()) + ": " + status.message());
}

void Judge::refused(const Status& status, Code code, const std::string& what) {
  that(status.code() == code,
       what + ": expected " + to_string(code) + ", found " + to_string(status.code()) + " " + status.message());
  that(!status.message().empty(), what + ": refused without a message");
}

void Judge::same(const TensorView& got, const TensorView& want, const std::string& what) {
  const std::string text = difference(got, want);
  that(text.empty(), what + " " + text);
}

void Judge::same_bytes(const Bytes& got, const Bytes& want, const std::string& what) {
  that(got == want, what + ": bytes differ");
}

void Judge::untouched(const TensorView& view, const Bytes& before, const std::string& what) {
  const std::string text = changed(view, before);
  that(text.empty(), what + " was changed " + text);
}

void Judge::zeros(const TensorView& view, const std::string& what) {
  for (std::byte b : pack(view)) {
    if (b != std::byte{0}) that(false, what + ": expected zeros");
  }
  that(true, what);
}

void Judge::finite(const TensorView& view, const std::string& what) {
  for (float f : floats(view)) {
    if (!std::isfinite(f)) that(false, what + ": found " + std::to_string(f));
  }
  that(true, what);
}

void Judge::intact(const Buffer& buffer, const std::string& what) {
  const std::string text = buffer.damage();
  that(text.empty(), what + ": " + text);
}

void Judge::rows(const TensorView& row_status, const std::vector<RowStatus>& want, const std::string& what) {
  const std::vector<int32_t> got = ints(row_status);
  for (size_t r = 0; r < want.size(); ++r) {
    that(got.at(r) == static_cast<int32_t>(want[r]),
         what + ": row " + std::to_string(r) + " has status " + std::to_string(got[r]) + " (" +
             to_string(static_cast<RowStatus>(got[r])) + "), expected " + to_string(want[r]));
  }
}

}  // namespace ringfold::check
