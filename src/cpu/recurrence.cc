#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/recurrence.cc"
#include "cpu/targets.h"
#include "hwy/foreach_target.h"

#include "cpu/recurrence-inl.h"

#if HWY_ONCE
namespace ringfold::cpu {

RecurrenceFn recurrence_for(int64_t target) { RINGFOLD_CHOOSE_TARGET(target, Recurrence); }

}  // namespace ringfold::cpu
#endif
