// What an implementation is: a name, what it serves, and its entry points.
#pragma once

#include <string>
#include <string_view>

#include "core/params.h"
#include "ringfold/registry.h"

namespace ringfold::detail {

/// One entry of the dispatch list. All entry points get validated params and must give the same bits (`exact`
/// numerics). They do not fail, allocate or throw.
struct Implementation {
  std::string_view name;
  Device device = Device::cpu;
  bool (*available)() = nullptr;                          ///< can this machine run it?
  std::string (*refusal)(const Desc&) = nullptr;          ///< why it cannot serve; empty: it serves
  Plan (*plan)(const Desc&) = nullptr;                    ///< pure
  void (*recurrence)(const RecurrenceParams&) = nullptr;  ///< verify, decode, fold
  void (*conv)(const ConvParams&) = nullptr;              ///< conv_verify, conv_decode
  void (*conv_commit)(const ConvParams&) = nullptr;
  void (*gated_norm)(const NormParams&) = nullptr;
};

}  // namespace ringfold::detail
