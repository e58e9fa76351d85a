// A layer's call cut into rows and key heads: one of each is a call of the recurrence of its own.
#pragma once

#include "core/params.h"

namespace ringfold::detail {

/// Row `row` of a layer's call and its key head `h`, as a recurrence of one row, one key head and its value heads,
/// whose tokens begin at 0. q, k and v are the projections; whoever has convolved them puts the results in their place.
RF_HD RecurrenceParams key_head_of(const LayerParams& p, int64_t row, int h) {
  RecurrenceParams one = p;
  const int64_t window_row = p.window_row(row), token = p.window_token(row);
  const int group = p.HV / p.H, hv = h * group;
  const auto begin_at = [](Array* a, int64_t at_row, int64_t at_token, int64_t head) {
    if (!*a) return;
    a->data = a->at(0, at_row, at_token, head);
  };
  for (Array* a : {&one.q, &one.k}) begin_at(a, window_row, token, h);
  for (Array* a : {&one.v, &one.a, &one.b, &one.out}) begin_at(a, window_row, token, hv);
  begin_at(&one.ring_k, 0, 0, h);
  for (Array* a : {&one.ring_v, &one.ring_gate, &one.ring_beta, &one.state}) begin_at(a, 0, 0, hv);
  one.A_log += hv;
  if (one.dt_bias) one.dt_bias += hv * p.dt_bias_head_stride;
  one.H = 1;
  one.HV = group;
  one.rows = 1;
  one.window = static_cast<int>(p.tokens(row));
  one.cu_seqlens = {};
  one.slot_ids = {&p.slot_ids[row], 1};
  if (p.ring_ids) one.ring_ids = {&p.ring_ids[row], 1};
  if (p.judged) one.judged = {&p.judged[row], 1};
  return one;
}

/// First channel of the conv that belongs to head `head` of q, k or v.
RF_HD int64_t q_channel(const LayerParams& p, int64_t head) { return head * p.K; }
RF_HD int64_t k_channel(const LayerParams& p, int64_t head) { return (p.H + head) * p.K; }
RF_HD int64_t v_channel(const LayerParams& p, int64_t head) { return 2 * p.H * p.K + head * p.V; }

/// The channels first .. first+n-1 of a row: tokens of `from`, a head of q, k or v, to `to`, one after the other.
RF_HD ConvPiece piece_of(const RecurrenceParams& one, const Array& from, int64_t first, int n, std::byte* to,
                         int64_t to_step) {
  return {.slot = one.slot_ids[0],
          .ring = one.ring_of(0),
          .tokens = one.window,
          .first = first,
          .n = n,
          .x = from.data,
          .x_step = from.token_stride * static_cast<int64_t>(size_of(from.dtype)),
          .out = to,
          .out_step = to_step};
}

}  // namespace ringfold::detail
