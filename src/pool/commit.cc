// commit: every row is judged against the cursors of all layers, then fold, conv windows, snapshots and cursors
// together. Under a fold policy other than on_commit the accepted rows join the history, and most rows are not folded.
#include "ringfold/commit.h"

#include "core/check_view.h"
#include "dispatch/commit_step.h"
#include "pool/pool_impl.h"

namespace ringfold {

Status commit(Pool& pool, const CommitArgs& args) {
  if (!args.generations.empty()) {
    const int64_t rows = args.slot_ids.rank == 1 ? args.slot_ids.shape[0] : 0;
    RINGFOLD_RETURN_IF_ERROR(detail::check_ints("generations", args.generations, "B", rows));
    RINGFOLD_RETURN_IF_ERROR(
        detail::check_device({{"the pool", pool.generations()}, {"generations", args.generations}}));
  }
  if (pool.impl_->by_row() == args.ring_ids.empty()) {
    return args.ring_ids.empty()
               ? detail::invalid("ring_ids", "i32 [B], as the pool's rings are keyed by request row", "nothing")
               : detail::invalid("ring_ids", "nothing for a pool whose rings are keyed by slot", "some");
  }
  RINGFOLD_RETURN_IF_ERROR(pool.impl_->check_mixers());
  detail::CommitStep step;
  const auto set_rows = [&](auto& half) {
    half.slot_ids = args.slot_ids;
    half.ring_ids = args.ring_ids;
    half.num_accepted = args.num_accepted;
    half.track_slots = args.track_slots;
    half.track_steps = args.track_steps;
    half.row_status = args.row_status;
    half.stream = args.stream;
    half.impl = args.impl;
  };
  set_rows(step.fold);
  step.fold.qk_l2norm = pool.config().qk_l2norm;
  if (pool.impl_->mixer) step.fold.mixer = *pool.impl_->mixer;
  step.fold.state = pool.state();
  step.fold.ring = pool.ring();
  step.fold.pending = pool.pending();
  step.fold.owners = pool.owners();
  step.fold.history = pool.history();
  step.deferred = pool.config().fold_policy != FoldPolicy::on_commit;
  step.fold.state_rounding = pool.config().state_rounding;
  if (pool.config().conv_channels > 0) {
    set_rows(step.conv);
    step.conv.conv_state = pool.conv_state();
    step.conv.conv_ring = pool.conv_ring();
    step.conv_pending = pool.conv_pending();
    step.conv_owners = pool.conv_owners();
  }
  if (const PoolStore& store = *pool.impl_; store.due_count() > 0) {
    step.due = TensorView(store.device_due.get(), DType::i32, {store.due_count()});
    step.due.device = store.config.device;
  }
  step.generations = args.generations;
  step.current_generations = pool.generations();
  return detail::commit_step(step);
}

}  // namespace ringfold
