#include "cuda/cuda.h"

#include <array>

#include "core/plan.h"
#include "cuda/common/device.h"
#include "cuda/elementwise/elementwise.h"
#include "cuda/layer/layer.h"
#include "cuda/recurrence/direct.h"
#include "cuda/recurrence/exact.h"
#include "cuda/recurrence/general.h"
#include "cuda/tuning.h"
#include "cuda/verify/fast.h"

namespace ringfold::cuda {
namespace {

using namespace detail;

Plan plan(const Desc& desc) {
  Plan plan = traffic(desc);
  plan.threads = 1;
  const int64_t heads = desc.layers * desc.rows * desc.HV;
  switch (desc.op) {
    case Op::verify:
    case Op::decode:
    case Op::fold:
      plan.v_parts = general_v_parts(heads, desc.V, current_device().sms);
      plan.tasks = heads * plan.v_parts;
      break;
    case Op::verify_layer: plan.tasks = heads; break;
    case Op::decode_layer: plan.tasks = desc.rows * desc.H; break;
    case Op::gated_norm: plan.tasks = desc.rows * desc.HV; break;
    default: plan.tasks = desc.layers * desc.rows * desc.channels; break;
  }
  return plan;
}

Refusal refusal_of_general(const Desc& desc) {
  return is_layer(desc.op) ? general_layer_refusal(desc) : general_refusal(desc);
}

/// Where cuda.exact is ahead of cuda.fast, and serves.
Refusal fast_yields(const Desc& d) {
  if (!exact_beats_fast(d, current_device()) || exact_refusal(d).needs) return {};
  return {"leaves so many short windows of KDA to cuda.exact", "B*HV", d.rows * d.HV};
}

}  // namespace

std::span<const Implementation> implementations() {
  static const Implementation general = {
      .name = "cuda.general",
      .device = Device::cuda,
      .unavailable = unavailable,
      .refusal = refusal_of_general,
      .plan = plan,
      .recurrence = general_recurrence,
      .conv = conv,
      .conv_commit = conv_commit,
      .gated_norm = gated_norm,
      .layer = general_layer,
      .list_due = list_due,
      .move_cursors = move_cursors,
  };
  static const Implementation exact = [] {
    Implementation i = general;
    i.name = "cuda.exact";
    i.refusal = exact_refusal;
    i.plan = exact_plan;
    i.recurrence = exact_recurrence;
    i.layer = nullptr;
    return i;
  }();
  static const Implementation direct = [] {
    Implementation i = exact;
    i.name = "cuda.direct";
    i.refusal = direct_refusal;
    i.yields = direct_yields;
    i.plan = direct_plan;
    i.recurrence = direct_recurrence;
    i.layer = direct_layer;
    return i;
  }();
  static const Implementation fast = {
      .name = "cuda.fast",
      .device = Device::cuda,
      .numerics = Numerics::fast,
      .unavailable = unavailable,
      .refusal = fast_refusal,
      .yields = fast_yields,
      .plan = fast_plan,
      .recurrence = fast_verify,
      .move_cursors = move_cursors,
  };
  static const std::array list = {direct, fast, exact, general};
  return list;
}

}  // namespace ringfold::cuda
