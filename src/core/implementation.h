// What an implementation is: a name, what it serves, and its entry points.
#pragma once

#include <string_view>

#include "core/params.h"
#include "ringfold/registry.h"

namespace ringfold::detail {

/// Why an implementation cannot serve a description; words are made only when somebody wants to read them.
struct Refusal {
  const char* needs = nullptr;  ///< "needs K == 128"; null: it serves
  const char* what = "";        ///< "K"
  int64_t got = 0;
};

/// One entry of the dispatch list. All entry points get validated params. Those of `exact` numerics must give the same
/// bits, those of `fast` numerics (verify alone) the same ring, and outputs within a bound. They do not allocate or
/// throw. On the CPU the rows were judged (`judged`) and the entry points cannot fail; on a device they judge the rows
/// themselves (core/judge.h), write row_status, move the cursors as `move` says (but fold, conv_commit and calls with a
/// history leave that to `move_cursors`), and return an error if a launch is refused.
struct Implementation {
  std::string_view name;
  Device device = Device::cpu;
  Numerics numerics = Numerics::exact;        ///< the only ones that it serves
  const char* (*unavailable)() = nullptr;     ///< why this machine cannot run it; null: it can
  Refusal (*refusal)(const Desc&) = nullptr;  ///< why it cannot serve
  /// Why it leaves what it serves to the next in the list, unless it is asked for by name; null: it never does.
  Refusal (*yields)(const Desc&) = nullptr;
  Plan (*plan)(const Desc&) = nullptr;  ///< pure
  /// verify, decode, fold; the description is that of the params
  Status (*recurrence)(const RecurrenceParams&, const Desc&) = nullptr;
  Status (*conv)(const ConvParams&) = nullptr;  ///< conv_verify, conv_decode
  Status (*conv_commit)(const ConvParams&) = nullptr;
  Status (*gated_norm)(const NormParams&) = nullptr;
  Status (*layer)(const LayerParams&, const Desc&) = nullptr;  ///< verify_layer, decode_layer; null: it has none
  // Devices only: Rows::due; and the cursors of the rows that are done.
  Status (*list_due)(const Rows&) = nullptr;
  Status (*move_cursors)(const Rows&) = nullptr;
};

}  // namespace ringfold::detail
