// Counts of what the program asked operator new for.
#pragma once

#include <cstdint>

namespace ringfold::test {

extern int64_t g_aligned_bytes;  ///< asked of the aligned form
extern int64_t g_calls;          ///< of any form

}  // namespace ringfold::test
