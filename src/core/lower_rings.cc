// Validation of rings keyed by request row: ring_ids, and whose window lies where.
#include <fmt/format.h>

#include "core/check_view.h"
#include "core/lower.h"
#include "core/rows.h"

namespace ringfold::detail {
namespace {

/// `layers`: null where the views are those of one layer.
Status check_owners(const std::string& name, const RingOwners& owners, const int64_t* layers, int64_t slots,
                    int64_t rings) {
  const auto check = [&](const std::string& view_name, const TensorView& view, Dim dim) {
    RINGFOLD_RETURN_IF_ERROR(layers ? check_view(view_name.c_str(), view, {{"layers", *layers}, dim}, Inner::free)
                                    : check_view(view_name.c_str(), view, {dim}, Inner::free));
    return check_dtype(view_name.c_str(), view, DType::i32);
  };
  RINGFOLD_RETURN_IF_ERROR(check(name + ".slot_of_ring", owners.slot_of_ring, {"rings", rings}));
  return check(name + ".ring_of_slot", owners.ring_of_slot, {"slots", slots});
}

}  // namespace

Status lower_ring_ids(const RingIds& in, int64_t rows, Rows* p) {
  if (in.ids.empty()) {
    return in.owners.empty() ? Status{} : invalid(in.name, "i32 [B], as there are owners", "nothing");
  }
  RINGFOLD_RETURN_IF_ERROR(check_ints(in.name, in.ids, "B", rows));
  RINGFOLD_RETURN_IF_ERROR(check_device({{"the ring", in.ring}, {in.name, in.ids}}));
  p->ring_ids = ints(in.ids);
  p->rings = in.ring.shape[in.layers ? 1 : 0];
  return lower_owners("owners", in, &p->owners);
}

Status lower_owners(const char* name, const RingIds& in, OwnerParams* to) {
  if (in.pending.empty() || in.ids.empty()) {
    if (in.owners.empty()) return {};
    return invalid(name, fmt::format("nothing without pending and {}", in.name), "some");
  }
  const int64_t rings = in.ring.shape[in.layers ? 1 : 0];
  RINGFOLD_RETURN_IF_ERROR(check_owners(name, in.owners, in.layers, in.slots, rings));
  RINGFOLD_RETURN_IF_ERROR(check_device({{"the ring", in.ring},
                                         {"owners.slot_of_ring", in.owners.slot_of_ring},
                                         {"owners.ring_of_slot", in.owners.ring_of_slot}}));
  *to = {cursors(in.owners.slot_of_ring), cursors(in.owners.ring_of_slot)};
  return {};
}

}  // namespace ringfold::detail
