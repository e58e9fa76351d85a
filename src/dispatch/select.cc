#include "dispatch/select.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>

#include "cpu/cpu.h"
#include "ref/reference.h"
#if defined(RINGFOLD_CUDA)
#include "cuda/cuda.h"
#endif

namespace ringfold {
namespace detail {
namespace {

constexpr size_t kMaxImplementations = 16;

constexpr bool cuda_built() {
#if defined(RINGFOLD_CUDA)
  return true;
#else
  return false;
#endif
}

struct List {
  std::array<const Implementation*, kMaxImplementations> entries{};
  size_t size = 0;
  List() {
#if defined(RINGFOLD_CUDA)
    for (const Implementation& i : cuda::implementations()) entries[size++] = &i;
#endif
    for (const Implementation& i : cpu::implementations()) entries[size++] = &i;
    entries[size++] = &ref::reference_implementation();
  }
};

// What no implementation of this build does.
Refusal general_refusal(const Desc& d) {
  if (d.window > kMaxWindow) return {"needs a window of at most 32 tokens", "T", d.window};
  static_assert(kMaxWindow == 32);
  return {};
}

Refusal refusal(const Implementation& i, const Desc& d) {
  if (const Refusal r = general_refusal(d); r.needs) return r;
  if (i.device != d.device)
    return {i.device == Device::cpu ? "is for tensors of device cpu" : "is for tensors of device cuda"};
  if (const char* why = i.unavailable()) return {why};
  // What is exact is within the bound of `fast` as well.
  if (i.numerics == Numerics::fast && d.numerics == Numerics::exact) return {"has only fast numerics"};
  if (is_layer(d.op) && i.layer == nullptr) return {"has no fused step"};
  const bool verifies = d.op == Op::verify || d.op == Op::verify_layer;
  if (i.numerics == Numerics::exact && verifies && d.ring_u) return {"keeps no u in the ring"};
  return i.refusal(d);
}

/// Why it leaves the call to others, of those that nobody has asked for by name.
Refusal yielding(const Implementation& i, const Desc& d, bool forced) {
  return forced || i.yields == nullptr ? Refusal{} : i.yields(d);
}

std::string words(const Refusal& r) {
  if (!r.needs) return {};
  return *r.what ? fmt::format("{}, got {} = {}", r.needs, r.what, r.got) : std::string(r.needs);
}

std::string_view forced_name(std::string_view impl) {
  if (!impl.empty()) return impl;
  static const char* const env = std::getenv("RINGFOLD_IMPL");
  return env ? env : "";
}

std::string all_names() {
  std::string names;
  for (const Implementation* i : implementation_list())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", i->name);
  return names;
}

}  // namespace

std::span<const Implementation* const> implementation_list() {
  static const List list;
  return {list.entries.data(), list.size};
}

const DeviceMemory* device_memory(Device device) {
#if defined(RINGFOLD_CUDA)
  if (device == Device::cuda) return &cuda::memory();
#endif
  (void)device;
  return nullptr;
}

Status select(const Desc& desc, std::string_view impl, const Implementation** chosen) {
  const std::string_view name = forced_name(impl);
  const auto listed = [&](const Implementation* i) { return name.empty() || i->name == name; };
  for (const Implementation* i : implementation_list()) {
    if (listed(i) && !refusal(*i, desc).needs && !yielding(*i, desc, !name.empty()).needs) {
      *chosen = i;
      return {};
    }
  }
  // Only now, on the way to an error, are words made.
  std::string reasons;
  for (const Implementation* i : implementation_list()) {
    if (listed(i)) reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", i->name, words(refusal(*i, desc)));
  }
  if (reasons.empty()) return {Code::not_found, fmt::format("impl: expected one of {}, found {}", all_names(), name)};
  if (desc.device == Device::cuda && !cuda_built()) reasons += "; this build has no CUDA backend, use device cpu";
  return {Code::unsupported, fmt::format("nothing serves {} ({})", to_string(desc), reasons)};
}

}  // namespace detail

std::vector<std::string_view> implementations(Device device) {
  std::vector<std::string_view> names;
  for (const detail::Implementation* i : detail::implementation_list()) {
    if (i->device == device && !i->unavailable()) names.push_back(i->name);
  }
  return names;
}

Status explain(const Desc& desc, std::string_view impl, Explanation* explanation) {
  *explanation = {};
  explanation->desc = desc;
  explanation->footprint = footprint(desc);
  const detail::Implementation* chosen = nullptr;
  const Status status = detail::select(desc, impl, &chosen);
  for (const detail::Implementation* i : detail::implementation_list()) {
    Candidate c{i->name, false, detail::words(detail::refusal(*i, desc))};
    c.serves = c.reason.empty();
    const bool forced = !detail::forced_name(impl).empty();
    if (i == chosen) {
      c.reason = forced ? "forced" : "chosen";
    } else if (c.serves) {
      const detail::Refusal yields = detail::yielding(*i, desc, forced);
      c.reason = yields.needs ? "serves, but " + detail::words(yields) : "serves";
    }
    explanation->candidates.push_back(std::move(c));
  }
  if (!status.ok()) return status;
  explanation->plan = chosen->plan(desc);
  explanation->plan.impl = chosen->name;
  return {};
}

}  // namespace ringfold
