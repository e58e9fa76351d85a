#include "dispatch/select.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>

#include "cpu/cpu.h"
#include "ref/reference.h"

namespace ringfold {
namespace detail {
namespace {

constexpr size_t kMaxImplementations = 16;

struct List {
  std::array<const Implementation*, kMaxImplementations> entries{};
  size_t size = 0;
  List() {
    for (const Implementation& i : cpu::implementations()) entries[size++] = &i;
    entries[size++] = &ref::reference_implementation();
  }
};

// What no implementation of this build does.
std::string general_refusal(const Desc& d) {
  if (d.device != Device::cpu) return "this build has no CUDA backend; use device cpu";
  if (d.numerics != Numerics::exact) return "fast numerics are not built yet; use exact";
  if (d.fold_policy != FoldPolicy::on_commit) {
    return fmt::format("fold policy {} is not built yet; use on_commit", to_string(d.fold_policy));
  }
  if (d.window > kMaxWindow) return fmt::format("needs a window of at most {} tokens, got {}", kMaxWindow, d.window);
  return {};
}

std::string refusal(const Implementation& i, const Desc& d) {
  if (std::string why = general_refusal(d); !why.empty()) return why;
  if (!i.available()) return "needs an instruction set that this machine lacks";
  return i.refusal(d);
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

Status select(const Desc& desc, std::string_view impl, const Implementation** chosen) {
  const std::string_view name = forced_name(impl);
  const auto listed = [&](const Implementation* i) { return name.empty() || i->name == name; };
  for (const Implementation* i : implementation_list()) {
    if (listed(i) && i->available() && refusal(*i, desc).empty()) {
      *chosen = i;
      return {};
    }
  }
  // Only now, on the way to an error, are words made.
  std::string reasons;
  for (const Implementation* i : implementation_list()) {
    if (listed(i)) reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", i->name, refusal(*i, desc));
  }
  if (reasons.empty()) return {Code::not_found, fmt::format("impl: expected one of {}, found {}", all_names(), name)};
  return {Code::unsupported, fmt::format("nothing serves {} ({})", to_string(desc), reasons)};
}

}  // namespace detail

std::vector<std::string_view> implementations(Device device) {
  std::vector<std::string_view> names;
  for (const detail::Implementation* i : detail::implementation_list()) {
    if (i->device == device && i->available()) names.push_back(i->name);
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
    Candidate c{i->name, false, detail::refusal(*i, desc)};
    c.serves = c.reason.empty();
    if (c.serves) c.reason = i != chosen ? "serves" : detail::forced_name(impl).empty() ? "chosen" : "forced";
    explanation->candidates.push_back(std::move(c));
  }
  if (!status.ok()) return status;
  explanation->plan = chosen->plan(desc);
  explanation->plan.impl = chosen->name;
  return {};
}

}  // namespace ringfold
