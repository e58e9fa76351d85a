// What the kernels of whole layers share: where the channels of their convs are, and what they leave of a row.
#pragma once

#include "core/layer.h"
#include "cuda/common/judging.cuh"
#include "cuda/elementwise/conv.cuh"

namespace ringfold::cuda {

/// settle_window() for both halves of a layer. `conv_pending` is moved where `pending` is.
__device__ inline void settle_layer(const Rows& p, int64_t row, RowStatus status) {
  settle_window(p, row, status);
  if (status != RowStatus::done || !p.conv_pending || p.move == CursorMove::keep || p.history) return;
  const int64_t slot = p.slot_ids[row];
  const bool records = p.move == CursorMove::record;
  write_unordered(p.conv_pending.at(0, slot), records ? static_cast<int32_t>(p.asked_tokens(row)) : kNoWindow);
  if (records && p.conv_owners) p.conv_owners.set(0, slot, p.ring_of(row));
}

/// A head of q, k or v of the call, and the conv's channel that its element 0 is.
struct Channels {
  const Array& from;
  int64_t head, first;
};
__device__ inline Channels q_channels(const LayerParams& p, int64_t h) { return {p.q, h, q_channel(p, h)}; }
__device__ inline Channels k_channels(const LayerParams& p, int64_t h) { return {p.k, h, k_channel(p, h)}; }
__device__ inline Channels v_channels(const LayerParams& p, int64_t hv) { return {p.v, hv, v_channel(p, hv)}; }

/// The projections of token t of a row, such that element c is that of channel c of the conv.
__device__ inline const std::byte* conv_input(const LayerParams& p, const Channels& of, int64_t row, int64_t t) {
  return of.from.at(0, p.window_row(row), p.window_token(row) + t, of.head) -
         of.first * static_cast<int64_t>(size_of(of.from.dtype));
}

/// Moves the conv window of element i of a head's channels behind the row's tokens.
__device__ inline void advance_window(const LayerParams& p, int64_t row, const Channels& of, int i) {
  const int64_t slot = p.slot_ids[row], channel = of.first + i;
  Taps old;
  load_window(p.conv, 0, slot, channel, old);
  advance(p.conv, 0, slot, p.asked_tokens(row), channel, old, [&](int64_t t) { return conv_input(p, of, row, t); });
}

}  // namespace ringfold::cuda
