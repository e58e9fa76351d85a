#include "check/conv_world.h"

#include <algorithm>

namespace ringfold::check {

ConvWorld::ConvWorld(const Config& c, std::string_view name) : config(c), impl(name) {
  const World shape(
      [&] {  // the same rows, lengths and slots as the mixer's world
        Config small = c;
        small.H = small.HV = small.K = small.V = small.layers = 1;
        return small;
      }(),
      name);
  slots = shape.slots;
  lengths = shape.lengths;
  num_slots = shape.num_slots;
  // Sometimes more channels than any implementation takes in one piece.
  C = c.seed % 6 == 0 ? 4103 : std::min<int64_t>(2 * c.H * c.K + c.HV * c.V, 131);
  W = kMinConvWidth + static_cast<int64_t>(c.seed % 3);
  silu = c.seed % 4 != 3;
  weight = Buffer(c.gates, {C, W}, c.layout == Layout::strided ? Buffer::Pitch::padded : Buffer::Pitch::packed);
  bias = Buffer(c.gates, {C});
  fill_normal(weight.view(), mix({static_cast<int64_t>(c.seed), 10}), 0.5f);
  fill_normal(bias.view(), mix({static_cast<int64_t>(c.seed), 11}), 0.5f);
  for (int64_t r = 0; r < c.rows; ++r) {
    sequences.emplace_back(c.act, std::vector<int64_t>{c.window, C});
    fill_normal(sequences.back().view(), mix({static_cast<int64_t>(c.seed), 12, r}));
  }
}

ConvWorld::Memory ConvWorld::make_memory() const {
  Memory m;
  m.owners = OwnerBuffers(config, num_slots);
  const bool strided = config.layout == Layout::strided;
  const auto pitch = strided ? Buffer::Pitch::padded : Buffer::Pitch::packed;
  if (strided) {  // time outside channels in memory
    m.state_buffer = Buffer(config.act, {num_slots, W - 1, C}, pitch);
    m.state = m.state_buffer.view().permute({0, 2, 1});
  } else {
    m.state_buffer = Buffer(config.act, {num_slots, C, W - 1}, pitch);
    m.state = m.state_buffer.view();
  }
  m.ring_buffer = Buffer(config.act, {num_slots, std::min<int64_t>(config.window + 1, kMaxWindow), C}, pitch);
  m.ring_argument = m.ring_buffer.view();
  m.ring = rings_by_slot(config, m.ring_argument, 0);
  m.pending_buffer = Buffer(DType::i32, {num_slots});
  m.pending = m.pending_buffer.view();
  set_ints(m.pending, std::vector<int32_t>(static_cast<size_t>(num_slots), kNoWindow));
  for (int32_t slot : slots) fill_normal(m.state.at(slot), mix({static_cast<int64_t>(config.seed), 13, slot}));
  return m;
}

std::vector<ConvWorld::ConvRow> ConvWorld::rows() const {
  std::vector<ConvRow> all;
  for (size_t r = 0; r < slots.size(); ++r)
    all.push_back({slice(sequences[r].view(), 0, lengths[r]), lengths[r], slots[r]});
  return all;
}

TensorView ConvWorld::Call::out_row(int64_t row, int64_t count) const {
  return args.out.rank == 2 ? slice(args.out, first[static_cast<size_t>(row)], count) : args.out.at(row);
}

ConvWorld::Call ConvWorld::call(const Memory& memory, const std::vector<ConvRow>& some,
                                std::optional<DType> out_dtype) const {
  Call result;
  const bool ragged = config.layout == Layout::ragged;
  const auto pitch = config.layout == Layout::strided ? Buffer::Pitch::padded : Buffer::Pitch::packed;
  std::vector<int32_t> ids, bounds{0};
  for (const ConvRow& row : some) {
    result.first.push_back(bounds.back());
    bounds.push_back(bounds.back() + static_cast<int32_t>(row.count));
    ids.push_back(row.slot);
  }
  const auto B = static_cast<int64_t>(some.size());
  std::vector<int64_t> shape{B, B == 0 ? 0 : some[0].count, C};
  if (ragged) shape = {bounds.back(), C};
  result.buffers.emplace_back(config.act, shape, pitch);
  result.args.x = result.buffers.back().view();
  result.buffers.emplace_back(out_dtype.value_or(config.act), shape, pitch);
  result.args.out = result.buffers.back().view();
  for (size_t r = 0; r < some.size(); ++r) {
    if (some[r].x.rank == 0) continue;
    copy(some[r].x,
         ragged ? slice(result.args.x, result.first[r], some[r].count) : result.args.x.at(static_cast<int64_t>(r)));
  }
  const auto add = [&](const std::vector<int32_t>& values) {
    RowBuffers rows(values, config.layout == Layout::strided);
    result.buffers.push_back(std::move(rows.buffer));
    return rows.view;
  };
  result.args.slot_ids = add(ids);
  if (config.by_row) result.args.ring_ids = add(rings_of(config, ids));
  result.args.row_status = add(std::vector<int32_t>(ids.size(), 77));
  if (ragged) result.args.cu_seqlens = add(bounds);
  result.args.weight = weight.view();
  if (config.seed % 3 != 1) result.args.bias = bias.view();
  result.args.silu = silu;
  result.args.conv_state = memory.state;
  result.args.conv_ring = memory.ring_argument;
  result.args.owners = memory.owners.views();
  result.args.pending = memory.pending;
  result.args.impl = impl;
  return result;
}

void ConvWorld::guards(Judge& judge, const Memory& memory, const Call* call) const {
  judge.intact(memory.state_buffer, "conv state buffer");
  judge.intact(memory.ring_buffer, "conv ring buffer");
  judge.intact(memory.pending_buffer, "conv pending buffer");
  memory.owners.intact(judge);
  if (call == nullptr) return;
  for (const Buffer& buffer : call->buffers) judge.intact(buffer, "conv call buffer");
}

void ConvWorld::verify(Judge& judge, const Memory& memory, Call& call) const {
  judge.ok(mirrored::conv_verify(call.args), "conv_verify");
  guards(judge, memory, &call);
}

void ConvWorld::decode(Judge& judge, const Memory& memory, Call& call) const {
  judge.ok(mirrored::conv_decode(call.args), "conv_decode");
  guards(judge, memory, &call);
}

void ConvWorld::commit(Judge& judge, const Memory& memory, const std::vector<int32_t>& slot_ids,
                       const std::vector<int32_t>& counts, int32_t track_slot, int32_t track_step) const {
  std::vector<int32_t> targets(slot_ids.size(), -1), steps_of(slot_ids.size(), -1);
  targets[0] = track_slot;
  steps_of[0] = track_step;
  const RowBuffers ids(slot_ids), accepted(counts), track_slots(targets), track_steps(steps_of),
      rings(rings_of(config, slot_ids));
  ConvCommitArgs args;
  args.conv_state = memory.state;
  args.conv_ring = memory.ring_argument;
  args.slot_ids = ids.view;
  if (config.by_row) args.ring_ids = rings.view;
  args.num_accepted = accepted.view;
  if (track_slot >= 0) args.track_slots = track_slots.view, args.track_steps = track_steps.view;
  args.impl = impl;
  judge.ok(mirrored::conv_commit(args), "conv_commit");
  guards(judge, memory, nullptr);
}

int32_t ConvWorld::free_slot() const {
  int32_t slot = 0;
  while (std::find(slots.begin(), slots.end(), slot) != slots.end()) ++slot;
  return slot;
}

}  // namespace ringfold::check
