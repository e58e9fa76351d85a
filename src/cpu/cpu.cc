#include "cpu/cpu.h"

#include <array>

#include "core/conv_window.h"
#include "core/plan.h"
#include "cpu/kernels.h"
#include "cpu/targets.h"
#include "cpu/tiling.h"
#include "hwy/highway.h"

namespace ringfold::cpu {
namespace {

using namespace detail;

Plan plan(const Desc& desc) {
  Plan plan = traffic(desc);
  switch (desc.op) {
    case Op::verify:
    case Op::decode:
    case Op::fold: {
      const int64_t heads = desc.layers * desc.rows * desc.HV;
      plan.v_parts = v_parts(heads, desc.V, plan.threads);
      plan.tasks = heads * plan.v_parts;
      break;
    }
    case Op::verify_layer:
    case Op::decode_layer: {
      if (desc.H < 1 || desc.HV < desc.H) break;  // a description may be of anything
      const struct {
        int64_t rows, H, HV, K, V, max_window;
      } shape{desc.rows, desc.H, desc.HV, desc.K, desc.V, desc.window};
      const LayerCut cut = layer_cut(shape, size_of(desc.act_dtype), plan.threads);
      plan.v_parts = cut.v_parts;
      plan.tasks = desc.rows * ((desc.H + cut.keys - 1) / cut.keys) * cut.tasks_per_key;
      break;
    }
    case Op::gated_norm: plan.tasks = desc.rows * desc.HV; break;
    default: plan.tasks = desc.layers * desc.rows; break;
  }
  return plan;
}

template <int64_t kTarget>
const char* unavailable() {
  // Asked once: it runs cpuid, which costs tens of microseconds on a virtual machine.
  static const bool supported = (hwy::SupportedTargets() & kTarget) != 0 && recurrence_for(kTarget) != nullptr;
  return supported ? nullptr : "needs an instruction set that this machine lacks";
}

template <int64_t kTarget>
Implementation implementation(std::string_view name) {
  return {
      .name = name,
      .device = Device::cpu,
      .unavailable = unavailable<kTarget>,
      .refusal = [](const Desc&) { return Refusal(); },
      .plan = plan,
      .recurrence = recurrence_for(kTarget),
      .conv = conv_for(kTarget),
      .conv_commit = commit_conv_windows,
      .gated_norm = gated_norm_for(kTarget),
      .layer = layer_for(kTarget),
  };
}

}  // namespace

std::span<const Implementation> implementations() {
#if defined(__x86_64__)
  static const std::array list = {implementation<HWY_AVX3>("cpu.avx512"), implementation<HWY_AVX2>("cpu.avx2"),
                                  implementation<HWY_SSE4>("cpu.sse4"), implementation<HWY_SSSE3>("cpu.ssse3")};
#else
  static const std::array list = {implementation<HWY_NEON>("cpu.neon")};
#endif
  return list;
}

}  // namespace ringfold::cpu
