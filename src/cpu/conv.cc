#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/conv.cc"
#include "cpu/targets.h"
#include "hwy/foreach_target.h"

#include "cpu/conv-inl.h"

#if HWY_ONCE
namespace ringfold::cpu {

ConvFn conv_for(int64_t target) { RINGFOLD_CHOOSE_TARGET(target, Conv); }
NormFn gated_norm_for(int64_t target) { RINGFOLD_CHOOSE_TARGET(target, GatedNorm); }

}  // namespace ringfold::cpu
#endif
