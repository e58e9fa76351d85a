// Validation of the public arguments, in one place for all backends, and their translation into plain params.
#pragma once

#include <initializer_list>

#include "core/check_view.h"
#include "core/rows.h"
#include "ringfold/conv.h"
#include "ringfold/decode.h"
#include "ringfold/fold.h"
#include "ringfold/gated_norm.h"
#include "ringfold/layer.h"
#include "ringfold/registry.h"
#include "ringfold/verify.h"

namespace ringfold::detail {

/// Each checks everything that does not depend on values in index arrays, and fills the params and the description.
Status lower(const VerifyArgs& args, RecurrenceParams* params, Desc* desc);
Status lower(const DecodeArgs& args, RecurrenceParams* params, Desc* desc);
Status lower(const FoldArgs& args, RecurrenceParams* params, Desc* desc);
Status lower_conv(Op op, const ConvArgs& args, ConvParams* params, Desc* desc);
Status lower(const ConvCommitArgs& args, ConvParams* params, Desc* desc);
Status lower(const GatedNormArgs& args, NormParams* params, Desc* desc);
Status lower_layer(Op op, const LayerArgs& args, LayerParams* params, Desc* desc);

/// lower(VerifyArgs) and lower(DecodeArgs), also for the recurrence of a layer: then `out` may have any float dtype.
Status lower_verify(Op op, const VerifyArgs& args, RecurrenceParams* params, Desc* desc);
Status lower_decode(Op op, const DecodeArgs& args, RecurrenceParams* params, Desc* desc);

/// What all conv calls check and set: the width of a conv, and where its windows and recorded inputs lie.
Status check_conv_width(const char* name, int64_t width);
void set_conv_state(const TensorView& conv_state, ConvParams* params);
void set_conv_ring(const TensorView& conv_ring, ConvParams* params);

/// The largest power of two up to 16 that divides the address of every row of these arrays.
int64_t alignment(std::initializer_list<Array> arrays, int64_t v_stride = 0);

/// The arguments that fold, conv_commit and commit share: slot_ids, num_accepted, track_slots, track_steps, row_status.
/// `like`: the tensor, called `name`, whose device they must be on.
template <class Args>
Status lower_accepted(const Args& args, const char* name, const TensorView& like, Rows* p) {
  if (args.slot_ids.rank != 1) return invalid("slot_ids", "[B]", to_string(args.slot_ids));
  const int64_t B = args.slot_ids.shape[0];
  RINGFOLD_RETURN_IF_ERROR(check_ints("slot_ids", args.slot_ids, "B", B));
  RINGFOLD_RETURN_IF_ERROR(check_ints("num_accepted", args.num_accepted, "B", B));
  if (args.track_slots.empty() != args.track_steps.empty()) {
    return invalid(args.track_slots.empty() ? "track_slots" : "track_steps",
                   "both of track_slots and track_steps, or none", "nothing");
  }
  if (!args.track_slots.empty()) {
    RINGFOLD_RETURN_IF_ERROR(check_ints("track_slots", args.track_slots, "B", B));
    RINGFOLD_RETURN_IF_ERROR(check_ints("track_steps", args.track_steps, "B", B));
  }
  if (!args.row_status.empty()) RINGFOLD_RETURN_IF_ERROR(check_ints("row_status", args.row_status, "B", B));
  RINGFOLD_RETURN_IF_ERROR(check_device({{name, like},
                                         {"slot_ids", args.slot_ids},
                                         {"num_accepted", args.num_accepted},
                                         {"track_slots", args.track_slots},
                                         {"track_steps", args.track_steps},
                                         {"row_status", args.row_status}}));
  p->rows = B;
  p->slot_ids = ints(args.slot_ids);
  p->num_accepted = ints(args.num_accepted);
  p->track_slots = ints(args.track_slots);
  p->track_steps = ints(args.track_steps);
  p->row_status = ints(args.row_status);
  p->move = CursorMove::consume;
  p->stream = args.stream;
  return {};
}

/// What a call says of rings keyed by request row.
struct RingIds {
  const char* name;  ///< of `ids`
  const TensorView& ids;
  const RingOwners& owners;
  const TensorView& pending;
  const TensorView& ring;           ///< any of the ring's arrays, whose rank was checked
  int64_t slots;                    ///< of the states
  const int64_t* layers = nullptr;  ///< null: views of one layer
};

/// The size of a ring's arrays that is the slots', unless rings are keyed by request row.
inline Dim rings_of(bool by_row, int64_t rings, int64_t slots) {
  return by_row ? Dim{"rings", rings} : Dim{"slots", slots};
}
/// Without ids nothing is set, and there may be no owners.
Status lower_ring_ids(const RingIds& in, int64_t rows, Rows* p);
/// The owners alone, whose argument is called `name`.
Status lower_owners(const char* name, const RingIds& in, OwnerParams* to);

/// Sizes that every operation shares: head dims 1..256, HV a multiple of H.
Status check_heads(int64_t H, int64_t HV, int64_t K, int64_t V);

}  // namespace ringfold::detail
