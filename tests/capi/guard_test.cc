// No exception passes the border, and none of a message's length hurts.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "capi/error.h"

namespace ringfold::capi {
namespace {

template <class Thrown>
ringfold_status thrown(const Thrown& what) {
  return guarded([&]() -> Status { throw what; });
}

TEST(Guard, TurnsExceptionsIntoStatuses) {
  EXPECT_EQ(thrown(std::bad_alloc()), RINGFOLD_OUT_OF_MEMORY);
  EXPECT_STREQ(ringfold_last_error(), "memory: expected more, found less");
  EXPECT_EQ(thrown(std::bad_array_new_length()), RINGFOLD_OUT_OF_MEMORY);
  EXPECT_EQ(thrown(std::runtime_error("why")), RINGFOLD_INTERNAL);
  EXPECT_STREQ(ringfold_last_error(), "why");
  EXPECT_EQ(thrown(5), RINGFOLD_INTERNAL);
  EXPECT_STREQ(ringfold_last_error(), "an unknown exception");
  EXPECT_EQ(guarded([] { return Status(); }), RINGFOLD_OK);
  EXPECT_STREQ(ringfold_last_error(), "");
}

TEST(Guard, CutsLongMessages) {
  EXPECT_EQ(guarded([] { return Status(Code::unsupported, std::string(10000, 'x')); }), RINGFOLD_UNSUPPORTED);
  EXPECT_EQ(ringfold_last_error(), std::string(2047, 'x'));
}

}  // namespace
}  // namespace ringfold::capi
