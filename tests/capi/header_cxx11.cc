// The header from old C++.
#include <ringfold/c_api.h>

static_assert(RINGFOLD_INTERNAL == 5 && RINGFOLD_ROW_BAD_WINDOW_BOUNDS == 10, "");
