#include "cuda/cuda.h"

#include <array>

#include "core/plan.h"
#include "cuda/common/device.h"
#include "cuda/elementwise/elementwise.h"
#include "cuda/recurrence/general.h"

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
    case Op::gated_norm: plan.tasks = desc.rows * desc.HV; break;
    default: plan.tasks = desc.layers * desc.rows * desc.channels; break;
  }
  return plan;
}

}  // namespace

std::span<const Implementation> implementations() {
  static const std::array list = {Implementation{
      .name = "cuda.general",
      .device = Device::cuda,
      .unavailable = unavailable,
      .refusal = [](const Desc&) { return Refusal(); },
      .plan = plan,
      .recurrence = general_recurrence,
      .conv = conv,
      .conv_commit = conv_commit,
      .gated_norm = gated_norm,
      .consume = consume,
  }};
  return list;
}

}  // namespace ringfold::cuda
