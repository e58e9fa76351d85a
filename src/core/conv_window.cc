#include "core/conv_window.h"

#include <algorithm>

#include "core/parallel.h"

namespace ringfold::detail {
namespace {

constexpr int64_t kChannelsPerTask = 2048;

// Window after `tokens` inputs: the last W-1 of (old window, inputs). `input(t)` is channel c0 of token t.
template <class U, class Input>
void advance(const ConvParams& p, int64_t layer, int64_t slot, int64_t dst, int64_t tokens, int64_t c0, int64_t c1,
             Input input) {
  const int taps = p.width - 1;
  const auto* from = reinterpret_cast<const U*>(p.state.at(layer, slot, 0, 0));
  auto* to = reinterpret_cast<U*>(p.state.at(layer, dst, 0, 0));
  const U* inputs[kMaxConvWidth - 1];  // of tap j, or null where it comes from the old window
  for (int j = 0; j < taps; ++j) {
    const int64_t t = tokens - taps + j;
    inputs[j] = t < 0 ? nullptr : reinterpret_cast<const U*>(input(t));
  }
  for (int64_t c = c0; c < c1; ++c) {
    U next[kMaxConvWidth - 1];
    for (int j = 0; j < taps; ++j) {
      next[j] = inputs[j] ? inputs[j][c - c0] : from[c * p.state_channel_stride + (j + tokens) * p.state_tap_stride];
    }
    for (int j = 0; j < taps; ++j) to[c * p.state_channel_stride + j * p.state_tap_stride] = next[j];
  }
}

template <class Input>
void advance(const ConvParams& p, int64_t layer, int64_t slot, int64_t dst, int64_t tokens, int64_t c0, int64_t c1,
             Input input) {
  if (tokens == 0 && slot == dst) return;
  if (size_of(p.state.dtype) == 4) {
    advance<uint32_t>(p, layer, slot, dst, tokens, c0, c1, input);
  } else {
    advance<uint16_t>(p, layer, slot, dst, tokens, c0, c1, input);
  }
}

}  // namespace

ConvPiece conv_piece(const ConvParams& p, int64_t row, int64_t first, int n) {
  const auto x_size = static_cast<int64_t>(size_of(p.x.dtype)), out_size = static_cast<int64_t>(size_of(p.out.dtype));
  const int64_t window_row = p.window_row(row), token = p.window_token(row);
  return {.slot = p.slot_ids[row],
          .ring = p.ring_of(row),
          .tokens = p.tokens(row),
          .first = first,
          .n = n,
          .x = p.x.at(0, window_row, token, 0) + first * x_size,
          .x_step = p.x.token_stride * x_size,
          .out = p.out.at(0, window_row, token, 0) + first * out_size,
          .out_step = p.out.token_stride * out_size};
}

void advance_conv_window(const ConvParams& p, const ConvPiece& piece) {
  advance(p, 0, piece.slot, piece.slot, piece.tokens, piece.first, piece.first + piece.n,
          [&](int64_t t) { return piece.x + t * piece.x_step; });
}

Status commit_conv_windows(const ConvParams& p) {
  const int64_t parts = (p.channels + kChannelsPerTask - 1) / kChannelsPerTask;
  parallel_for(p.layers * p.rows * parts, p.threads, [&](int64_t task) {
    const int64_t layer = task / parts / p.rows, row = task / parts % p.rows;
    if (!p.live(row)) return;
    const int64_t c0 = task % parts * kChannelsPerTask, c1 = std::min(p.channels, c0 + kChannelsPerTask);
    const int64_t slot = p.slot_ids[row], dst = p.destination(row), ring = p.ring_of(row);
    const auto input = [&](int64_t t) {
      return p.ring.at(layer, ring, t, 0) + c0 * static_cast<int64_t>(size_of(p.ring.dtype));
    };
    // The snapshot first: it reads the old window, which the commit overwrites.
    if (const int64_t target = p.track_slot(row); target >= 0) {
      advance(p, layer, slot, target, p.track_steps[row] + 1, c0, c1, input);
    }
    advance(p, layer, slot, dst, p.num_accepted[row], c0, c1, input);
  });
  return {};
}

}  // namespace ringfold::detail
