// Traces with rings keyed by request row: which ring a row gets, and what of the rings is dead.
#include <climits>

#include "trace/tracer.h"

namespace ringfold::test {

using check::fill_poison;
using check::slice;

int32_t Tracer::no_ring() {
  const int32_t none[] = {-1, INT_MIN, rings(), INT_MAX};
  return none[below(4)];
}

void Tracer::give_rings(std::vector<Row>* rows, std::vector<RowStatus>* want) {
  const std::vector<int32_t> order = rng_.permutation(rings());
  size_t next = 0;
  for (size_t r = 0; r < rows->size(); ++r) {
    Row& row = (*rows)[r];
    RowStatus& status = (*want)[r];
    const bool looked_at = status == RowStatus::done || status == RowStatus::window_too_long;
    row.ring = chance(50) ? no_ring() : below(rings());
    if (!looked_at) continue;
    if (next < order.size() && !chance(4)) {
      row.ring = !on_device_ && next > 0 && chance(6) ? order[next - 1] : order[next++];
    } else {
      row.ring = no_ring();
      status = RowStatus::ring_out_of_range;
    }
  }
}

void Tracer::poison_unused_rings() {
  const Ring ring = pool_->ring();
  for (int32_t r = 0; r < rings(); ++r) {
    const Tenant* t = find(owner_[static_cast<size_t>(r)]);
    const bool used = t != nullptr && t->window && t->ring == r;
    const auto window = static_cast<int64_t>(used ? t->window->size() : 0);
    const auto poison = [&](const TensorView& rows_of_ring) {
      fill_poison(slice(rows_of_ring, window, rows_of_ring.shape[0] - window));
    };
    for (int64_t layer = 0; layer < rig_.layers(); ++layer) {
      for (const TensorView& v : {ring.k, ring.v, ring.a.empty() ? ring.g : ring.a, ring.beta}) {
        poison(v.at(layer).at(r));
      }
      if (!pool_->conv_ring().empty()) poison(pool_->conv_ring(layer).at(r));
    }
  }
}

}  // namespace ringfold::test
