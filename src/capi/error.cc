#include "capi/error.h"

#include <algorithm>
#include <cstring>

namespace ringfold::capi {
namespace {

thread_local char last_error[2048] = "";

template <class A, class B>
constexpr bool same(A a, B b) {
  return static_cast<int32_t>(a) == static_cast<int32_t>(b);
}

static_assert(same(RINGFOLD_OK, Code::ok) && same(RINGFOLD_INVALID_ARGUMENT, Code::invalid_argument) &&
              same(RINGFOLD_UNSUPPORTED, Code::unsupported) && same(RINGFOLD_OUT_OF_MEMORY, Code::out_of_memory) &&
              same(RINGFOLD_NOT_FOUND, Code::not_found) && same(RINGFOLD_INTERNAL, Code::internal));

static_assert(same(RINGFOLD_ROW_DONE, RowStatus::done) && same(RINGFOLD_ROW_NULL, RowStatus::null_row) &&
              same(RINGFOLD_ROW_SLOT_OUT_OF_RANGE, RowStatus::slot_out_of_range) &&
              same(RINGFOLD_ROW_DUPLICATE_SLOT, RowStatus::duplicate_slot) &&
              same(RINGFOLD_ROW_ACCEPT_OUT_OF_RANGE, RowStatus::accept_out_of_range) &&
              same(RINGFOLD_ROW_NO_PENDING_WINDOW, RowStatus::no_pending_window) &&
              same(RINGFOLD_ROW_STALE_GENERATION, RowStatus::stale_generation) &&
              same(RINGFOLD_ROW_WINDOW_TOO_LONG, RowStatus::window_too_long) &&
              same(RINGFOLD_ROW_TRACK_OUT_OF_RANGE, RowStatus::track_out_of_range) &&
              same(RINGFOLD_ROW_SLOT_NOT_ACQUIRED, RowStatus::slot_not_acquired) &&
              same(RINGFOLD_ROW_BAD_WINDOW_BOUNDS, RowStatus::bad_window_bounds) &&
              same(RINGFOLD_ROW_RING_OUT_OF_RANGE, RowStatus::ring_out_of_range) &&
              same(RINGFOLD_ROW_DUPLICATE_RING, RowStatus::duplicate_ring) &&
              same(RINGFOLD_ROW_WINDOW_NOT_IN_RING, RowStatus::window_not_in_ring));

}  // namespace

ringfold_status remember(Code code, const char* message) noexcept {
  const size_t length = std::min(std::strlen(message), sizeof last_error - 1);
  std::memcpy(last_error, message, length);
  last_error[length] = '\0';
  return static_cast<ringfold_status>(code);
}

}  // namespace ringfold::capi

extern "C" {

const char* ringfold_last_error(void) { return ringfold::capi::last_error; }

const char* ringfold_status_name(int32_t status) {
  const bool known = status >= RINGFOLD_OK && status <= RINGFOLD_INTERNAL;
  return known ? ringfold::to_string(static_cast<ringfold::Code>(status)) : "unknown";
}

const char* ringfold_row_status_name(int32_t row_status) {
  const bool known = row_status >= RINGFOLD_ROW_DONE && row_status <= RINGFOLD_ROW_WINDOW_NOT_IN_RING;
  return known ? ringfold::to_string(static_cast<ringfold::RowStatus>(row_status)) : "unknown";
}

}  // extern "C"
