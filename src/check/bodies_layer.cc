// C20: a layer in one call is the chain of its three calls.
#include <algorithm>

#include "check/bodies.h"
#include "check/layer_world.h"

namespace ringfold::check {
namespace {

using Memory = LayerWorld::Memory;
using Call = LayerWorld::Call;

void same_memory(Judge& judge, const Memory& got, const Memory& want, const std::string& what) {
  const auto mine = got.all(), theirs = want.all();
  for (size_t i = 0; i < mine.size(); ++i) {
    judge.same_bytes(pack(mine[i].second), pack(theirs[i].second), what + mine[i].first);
  }
}

/// Outputs of the first `rows` rows against those of the chain.
void same_outputs(Judge& judge, const Call& call, const Buffer& want, size_t rows, const std::string& what) {
  for (size_t r = 0; r < rows; ++r) {
    const int64_t count = call.batch.rows()[r].count;
    judge.same(call.batch.out_row(r), slice(want.view(), call.batch.first_token(r), count),
               what + ": outputs of row " + std::to_string(r));
  }
}

std::vector<RowStatus> all_done(const Call& call) {
  return std::vector<RowStatus>(call.batch.rows().size(), RowStatus::done);
}

/// One step of both worlds, which must agree before it.
void step(Judge& judge, const LayerWorld& world, bool decodes, const Memory& fused, const Memory& chained,
          const std::string& what) {
  Call call = world.call(), other = world.call();
  const Bytes conv_before = pack(fused.conv_state);
  if (decodes) {
    world.decode(judge, fused, call);
  } else {
    world.verify(judge, fused, call);
    judge.untouched(fused.conv_state, conv_before, what + ": conv windows");
  }
  const Buffer want = world.chain(judge, decodes, chained, other);
  judge.rows(call.batch.row_status, all_done(call), what);
  same_outputs(judge, call, want, call.batch.rows().size(), what);
  same_memory(judge, fused, chained, what + ":");
}

/// Verifies and commits in turns, then tokens that are certain, then drafts on what they left.
void steps(Judge& judge, const LayerWorld& world) {
  const Memory fused = world.make_memory(), chained = world.make_memory();
  for (int i = 0; i < 3; ++i) {
    const std::string name = "step " + std::to_string(i);
    step(judge, world, false, fused, chained, name);
    if (i == 1) step(judge, world, false, fused, chained, name + ", its window replaced");
    std::vector<int32_t> counts;
    for (size_t r = 0; r < world.world.lengths.size(); ++r) {
      counts.push_back(static_cast<int32_t>((i + static_cast<int64_t>(r)) % (world.world.lengths[r] + 1)));
    }
    for (const Memory* memory : {&fused, &chained}) world.commit(judge, *memory, counts, i != 1);
    same_memory(judge, fused, chained, name + ", committed:");
  }
  step(judge, world, true, fused, chained, "decode");
  step(judge, world, false, fused, chained, "verify after a decode");
}

/// The same bits from the packed tensor and from three views, with and without a ring, whatever the threads.
void ways_to_ask(Judge& judge, const LayerWorld& world) {
  const Memory first = world.make_memory();
  Call base = world.call();
  world.verify(judge, first, base);
  const int saved = num_threads();
  for (int threads : {1, 2, 5}) {
    const Memory memory = world.make_memory();
    Call call = world.call();
    call.packed = threads % 2 == 0 ? base.packed : !base.packed;
    set_num_threads(threads);
    const Status status = mirrored::verify_layer(world.args(memory, call));
    set_num_threads(saved);
    const std::string name = "verify_layer with " + std::to_string(threads) + " threads";
    judge.ok(status, name);
    judge.same(call.batch.out, base.batch.out, name + ": outputs");
    same_memory(judge, memory, first, name + ":");
  }
  if (world.world.has_history()) return;
  const Memory memory = world.make_memory();
  const std::vector<std::pair<const char*, TensorView>> views = memory.all();
  std::vector<Bytes> before;
  for (const auto& view : views) before.push_back(pack(view.second));
  Call call = world.call();
  LayerArgs args = world.args(memory, call);
  args.ring = {};
  args.conv_ring = {};
  judge.ok(mirrored::verify_layer(args), "verify_layer without rings");
  judge.same(call.batch.out, base.batch.out, "verify_layer without rings: outputs");
  for (size_t i = 0; i < views.size(); ++i)
    judge.untouched(views[i].second, before[i], std::string("verify_layer without rings:") + views[i].first);
}

/// Rows that are null, out of range, or free in one of the two cursors alone: zeros, nothing written, one verdict.
void rows_apart(Judge& judge, const LayerWorld& world, bool decodes) {
  const World& w = world.world;
  std::vector<int32_t> unused;
  for (int32_t slot = 0; slot < w.num_slots; ++slot) {
    if (std::find(w.slots.begin(), w.slots.end(), slot) == w.slots.end()) unused.push_back(slot);
  }
  const Memory plain = world.make_memory(), memory = world.make_memory();
  for (const Memory* m : {&plain, &memory}) {
    std::vector<int32_t> pending = ints(m->store.pending(0)), conv_pending = ints(m->conv_pending);
    conv_pending[static_cast<size_t>(unused[0])] = kNotAcquired;
    pending[static_cast<size_t>(unused[1])] = kNotAcquired;
    set_ints(m->store.pending(0), pending);
    set_ints(m->conv_pending, conv_pending);
  }
  std::vector<Row> rows = w.rows(0);
  const int64_t count = rows[0].count;
  std::vector<RowStatus> want(rows.size(), RowStatus::done);
  const auto add = [&](int32_t slot, RowStatus status, const Sequence* inputs) {
    rows.push_back({inputs, 0, count, slot});
    want.push_back(status);
  };
  add(-1, RowStatus::null_row, nullptr);
  add(static_cast<int32_t>(w.num_slots), RowStatus::slot_out_of_range, nullptr);
  add(unused[0], RowStatus::slot_not_acquired, rows[0].sequence);
  add(unused[1], RowStatus::slot_not_acquired, rows[0].sequence);
  Call alone = world.call(), call = world.call(rows);
  const std::string name = decodes ? "decode_layer" : "verify_layer";
  if (decodes) {
    world.decode(judge, plain, alone);
    world.decode(judge, memory, call);
  } else {
    world.verify(judge, plain, alone);
    world.verify(judge, memory, call);
  }
  judge.rows(call.batch.row_status, want, name);
  for (size_t r = 0; r < rows.size(); ++r) {
    if (want[r] != RowStatus::done) {
      judge.zeros(call.batch.out_row(r), name + ": outputs of a row that is not done");
    } else {
      judge.same(call.batch.out_row(r), alone.batch.out_row(r), name + ": outputs beside rows that are not done");
    }
  }
  same_memory(judge, memory, plain, name + " beside rows that are not done:");
}

}  // namespace

void layer_is_chain(Judge& judge, const Config& config, std::string_view impl) {
  const LayerWorld world(config, impl);
  steps(judge, world);
  ways_to_ask(judge, world);
  for (const bool decodes : {false, true}) rows_apart(judge, world, decodes);
}

}  // namespace ringfold::check
