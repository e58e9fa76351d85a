// Status of a call, and status of one row of a call.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace ringfold {

/// What became of a whole call. Anything but `ok` means: no byte of any caller's buffer was changed. Only `internal` of
/// a call on CUDA leaves open how far the call came: CUDA refused one of its launches, or an earlier kernel had failed.
enum class Code : int32_t {
  ok = 0,
  invalid_argument = 1,  ///< an argument contradicts its description; the message names it
  unsupported = 2,       ///< valid, but nothing on this machine or in this build can do it
  out_of_memory = 3,     ///< memory or pool slots are exhausted
  not_found = 4,         ///< unknown implementation name, missing file
  internal = 5,          ///< a bug in ringfold, or a CUDA error
};

/// Result of a call. Success carries no string, so returning it never allocates.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  /// "argument: expected ..., found ..." ; empty on success.
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

/// What became of one row of a batch (spec C11, C12, C13). Written to `row_status` as int32.
/// A row whose status is not `done` had no byte of its state, ring or window changed.
/// The numbers are stable: they appear in case files.
enum class RowStatus : int32_t {
  done = 0,
  null_row = 1,             ///< negative slot id: skipped, outputs are zeros
  slot_out_of_range = 2,    ///< slot id >= number of slots
  duplicate_slot = 3,       ///< the slot is written by more than one row of this call
  accept_out_of_range = 4,  ///< num_accepted < 0, or more than the pending window holds
  no_pending_window = 5,    ///< commit without a verify before it, or a second commit of one window
  stale_generation = 6,     ///< the slot was released (and perhaps acquired again) since the handle was taken
  window_too_long = 7,      ///< more tokens than the ring has rows
  track_out_of_range = 8,   ///< track_slots past the pool, or track_steps not among the accepted rows
  slot_not_acquired = 9,    ///< the slot is free
  bad_window_bounds = 10,   ///< cu_seqlens not ascending, or past the number of tokens
  ring_out_of_range = 11,   ///< ring id negative, or >= number of rings
  duplicate_ring = 12,      ///< the ring is written by more than one row of this call
  window_not_in_ring = 13,  ///< the slot's pending window is in another ring, or another slot's has taken its place
};

/// Stable lower-case name of a row status, for example "no_pending_window".
const char* to_string(RowStatus status);
const char* to_string(Code code);

}  // namespace ringfold
