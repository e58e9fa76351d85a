// The module `_ringfold`: the public C++ API and the conformance kit, for the Python sources in python/ringfold.
#include <nanobind/nanobind.h>

#include "python/src/pool.h"
#include "ringfold/status.h"
#include "ringfold/types.h"

NB_MODULE(_ringfold, m) {
  namespace nb = nanobind;
  using ringfold::Code;
  using ringfold::RowStatus;
  nb::set_leak_warnings(false);  // a library does not print
  m.doc() = "The C++ side of ringfold; use the package `ringfold`.";

  nb::enum_<Code>(m, "Code", nb::is_arithmetic(),
                  "What became of a whole call; the attribute `code` of a ringfold.Error.")
      .value("ok", Code::ok)
      .value("invalid_argument", Code::invalid_argument, "an argument contradicts its description; the text names it")
      .value("unsupported", Code::unsupported, "valid, but nothing on this machine or in this build can do it")
      .value("out_of_memory", Code::out_of_memory, "memory or pool slots are exhausted")
      .value("not_found", Code::not_found, "unknown implementation name")
      .value("internal", Code::internal, "a bug in ringfold, or a CUDA error");

  nb::enum_<RowStatus>(m, "RowStatus", nb::is_arithmetic(),
                       "What became of one row of a batch: the values of a `row_status` array.")
      .value("done", RowStatus::done)
      .value("null_row", RowStatus::null_row, "negative slot id: skipped, outputs are zeros")
      .value("slot_out_of_range", RowStatus::slot_out_of_range, "slot id >= number of slots")
      .value("duplicate_slot", RowStatus::duplicate_slot, "the slot is written by more than one row of the call")
      .value("accept_out_of_range", RowStatus::accept_out_of_range,
             "num_accepted < 0, or more than the pending window holds")
      .value("no_pending_window", RowStatus::no_pending_window,
             "commit without a verify before it, or a second commit of one window")
      .value("stale_generation", RowStatus::stale_generation, "the slot was released since the handle was taken")
      .value("window_too_long", RowStatus::window_too_long, "more tokens than the ring has rows")
      .value("track_out_of_range", RowStatus::track_out_of_range,
             "track_slots past the pool, or track_steps not among the accepted rows")
      .value("slot_not_acquired", RowStatus::slot_not_acquired, "the slot is free")
      .value("bad_window_bounds", RowStatus::bad_window_bounds,
             "cu_seqlens not ascending, or past the number of tokens")
      .value("ring_out_of_range", RowStatus::ring_out_of_range, "ring id negative, or >= number of rings")
      .value("duplicate_ring", RowStatus::duplicate_ring, "the ring is written by more than one row of the call")
      .value("window_not_in_ring", RowStatus::window_not_in_ring,
             "the slot's window is in another ring, or was overwritten by another slot's");
  m.def("row_status_name", [](int status) { return ringfold::to_string(static_cast<RowStatus>(status)); });

  m.attr("MAX_HEAD_DIM") = ringfold::kMaxHeadDim;
  m.attr("MAX_WINDOW") = ringfold::kMaxWindow;
  m.attr("CONV_WIDTHS") = nb::make_tuple(ringfold::kMinConvWidth, ringfold::kMaxConvWidth);
  m.attr("NO_WINDOW") = ringfold::kNoWindow;
  m.attr("NOT_ACQUIRED") = ringfold::kNotAcquired;
  m.attr("FOLDED") = ringfold::kFolded;

  ringfold::python::bind_pool(m);
  ringfold::python::bind_calls(m);
  ringfold::python::bind_registry(m);
}
