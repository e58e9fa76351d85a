// The bodies of the contract lines. Each judges one implementation on one config, and throws Failure or Skip.
#pragma once

#include "check/world.h"

namespace ringfold::check {

using Body = void (*)(Judge& judge, const Config& config, std::string_view impl);

// bodies_verify.cc
void verify_only_reads(Judge&, const Config&, std::string_view);       // C1
void recording_is_silent(Judge&, const Config&, std::string_view);     // C2
void ring_holds_inputs(Judge&, const Config&, std::string_view);       // C3
void second_window_replaces(Judge&, const Config&, std::string_view);  // C16
void fast_is_bounded(Judge&, const Config&, std::string_view);         // C10
// bodies_fold.cc
void fold_is_decode(Judge&, const Config&, std::string_view);    // C4
void layers_are_free(Judge&, const Config&, std::string_view);   // C5
void others_untouched(Judge&, const Config&, std::string_view);  // C6
// bodies_invariance.cc
void batch_invariance(Judge&, const Config&, std::string_view);        // C7
void speculation_invariance(Judge&, const Config&, std::string_view);  // C8
// bodies_compare.cc
void equals_reference(Judge&, const Config&, std::string_view);  // C9
void accuracy(Judge&, const Config&, std::string_view);          // ACC
uint64_t fingerprint_of(Judge&, const Config&, std::string_view);
// bodies_rows.cc
void null_rows(Judge&, const Config&, std::string_view);     // C11
void refused_rows(Judge&, const Config&, std::string_view);  // C12, rows
// bodies_ring.cc, where rings are keyed by request row
void refused_rings(Judge&, const World&);            // C12
void second_window_elsewhere(Judge&, const World&);  // C16
// bodies_arguments.cc
void refused_arguments(Judge&, const Config&, std::string_view);  // C12, whole calls
// bodies_values.cc
void nan_stays_out(Judge&, const Config&, std::string_view);  // C14
void extreme_gates(Judge&, const Config&, std::string_view);  // C15
// bodies_pool.cc
void generations(Judge&, const Config&, std::string_view);       // C13
void commit_is_atomic(Judge&, const Config&, std::string_view);  // C18
// bodies_graph.cc
void graph_replay(Judge&, const Config&, std::string_view);  // C17
// bodies_large.cc
void large_offsets(Judge&, const Config&, std::string_view);  // C19
// bodies_layer.cc
void layer_is_chain(Judge&, const Config&, std::string_view);  // C20

}  // namespace ringfold::check
