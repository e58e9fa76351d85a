#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/layer.cc"
#include "cpu/targets.h"
#include "hwy/foreach_target.h"

#include "cpu/layer-inl.h"

#if HWY_ONCE
namespace ringfold::cpu {

LayerFn layer_for(int64_t target) { RINGFOLD_CHOOSE_TARGET(target, Layer); }

}  // namespace ringfold::cpu
#endif
