// Guarded, poisoned buffers, fixed-seed values and bitwise comparison: those of the conformance kit, under a shorter
// name.
#pragma once

#include <gtest/gtest.h>

#include "check/support.h"

namespace ringfold::test {

using namespace ringfold::check;  // NOLINT(google-build-using-namespace): this header exists to hand the names on

/// EXPECT_TRUE(same(got, want)): the same bits (any NaN equals any NaN), or the first difference as the message.
inline ::testing::AssertionResult same(const TensorView& got, const TensorView& want) {
  const std::string text = difference(got, want);
  if (text.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << text;
}

/// EXPECT_TRUE(unchanged(view, before)): byte for byte what pack(view) gave earlier, NaN payloads too.
inline ::testing::AssertionResult unchanged(const TensorView& view, const Bytes& before) {
  const std::string text = changed(view, before);
  if (text.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << text;
}

/// EXPECT_TRUE(intact(buffer)): guard words and gaps were not written.
inline ::testing::AssertionResult intact(const Buffer& buffer) {
  const std::string text = buffer.damage();
  if (text.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << text;
}

/// EXPECT_TRUE(succeeded(verify(args)))
inline ::testing::AssertionResult succeeded(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << to_string(status.code()) << ": " << status.message();
}

}  // namespace ringfold::test
