#include "ref/reference.h"

#include <algorithm>
#include <cstring>

#include "core/arith.h"
#include "core/conv_window.h"
#include "core/history.h"
#include "core/layer.h"
#include "core/parallel.h"
#include "core/plan.h"
#include "core/scalar_io.h"

namespace ringfold::ref {
namespace {

using namespace detail;
using S = arith::Scalar;

/// One token of one value head, ready for the recurrence: normalised k and q, per-k decay, raw v.
struct Token {
  float k[kMaxHeadDim], q[kMaxHeadDim], v[kMaxHeadDim], decay[kMaxHeadDim];
  float kd[kMaxHeadDim], qd[kMaxHeadDim];
  float beta = 0, kq = 0;
};

/// Where a token lies: token t of the row's window, and the ring row that holds it or takes it.
struct Place {
  int64_t layer, row, ring, t, ring_row;
  int h, hv;
  bool in_ring;  ///< it is read from there
};

int gates_of(const RecurrenceParams& p) { return p.kind == MixerKind::kda ? p.K : 1; }

/// g of a value head's raw projections `a`, from the window or from the ring.
void gates(const RecurrenceParams& p, const Place& at, DType dtype, const std::byte* a, float* g) {
  const float* dt_bias = p.dt_bias_of(at.layer);
  const float expA = arith::exp_A<S>(p.A_log_of(at.layer)[at.hv]);
  for (int k = 0; k < gates_of(p); ++k) {
    const float x = load(dtype, a, k), dt = dt_bias ? dt_bias[at.hv * p.dt_bias_head_stride + k] : 0.0f;
    g[k] = p.safe_gate ? arith::safe_gate<S>(x, dt, expA, p.lower_bound)
                       : arith::softplus_gate<S>(x, dt, expA, p.softplus_beta, p.softplus_threshold);
  }
}

void load_row(const std::byte* from, DType dtype, int n, float* to) {
  for (int i = 0; i < n; ++i) to[i] = load(dtype, from, i);
}

/// Reads a token from the window, and records it in the ring where there is one.
void take_from_window(const RecurrenceParams& p, const Place& at, Token* token, float* g) {
  const int64_t row = p.window_row(at.row), t = p.window_token(at.row) + at.t;
  load_row(p.k.at(0, row, t, at.h), p.k.dtype, p.K, token->k);
  load_row(p.q.at(0, row, t, at.h), p.q.dtype, p.K, token->q);
  load_row(p.v.at(0, row, t, at.hv), p.v.dtype, p.V, token->v);
  const std::byte* a = p.a.at(0, row, t, at.hv);
  gates(p, at, p.a.dtype, a, g);
  token->beta = arith::sigmoid<S>(load(p.b.dtype, p.b.at(0, row, t, at.hv), 0));
  if (!p.records()) return;
  if (at.hv % (p.HV / p.H) == 0) {
    std::memcpy(p.ring_k.at(0, at.ring, at.ring_row, at.h), p.k.at(0, row, t, at.h), p.K * size_of(p.k.dtype));
  }
  std::memcpy(p.ring_v.at(0, at.ring, at.ring_row, at.hv), p.v.at(0, row, t, at.hv), p.V * size_of(p.v.dtype));
  std::memcpy(p.ring_gate.at(0, at.ring, at.ring_row, at.hv), p.raw_gate ? a : reinterpret_cast<const std::byte*>(g),
              gates_of(p) * size_of(p.ring_gate.dtype));
  std::memcpy(p.ring_beta.at(0, at.ring, at.ring_row, at.hv), &token->beta, sizeof(float));
}

void take_from_ring(const RecurrenceParams& p, const Place& at, Token* token, float* g) {
  load_row(p.ring_k.at(at.layer, at.ring, at.ring_row, at.h), p.ring_k.dtype, p.K, token->k);
  load_row(p.ring_v.at(at.layer, at.ring, at.ring_row, at.hv), p.ring_v.dtype, p.V, token->v);
  const std::byte* gate = p.ring_gate.at(at.layer, at.ring, at.ring_row, at.hv);
  if (p.raw_gate) {
    gates(p, at, p.ring_gate.dtype, gate, g);
  } else {
    load_row(gate, DType::f32, gates_of(p), g);
  }
  token->beta = load(DType::f32, p.ring_beta.at(at.layer, at.ring, at.ring_row, at.hv), 0);
}

Token take(const RecurrenceParams& p, const Place& at) {
  Token token;
  float g[kMaxHeadDim];
  if (at.in_ring) {
    take_from_ring(p, at, &token, g);
  } else {
    take_from_window(p, at, &token, g);
  }
  if (p.qk_l2norm) {
    const float dk = arith::l2_divisor<S>(arith::dot(token.k, token.k, p.K));
    for (int k = 0; k < p.K; ++k) token.k[k] = S::div(token.k[k], dk);
  }
  for (int k = 0; k < p.K; ++k) {
    token.decay[k] = arith::exp<S>(g[p.kind == MixerKind::kda ? k : 0]);
    token.kd[k] = S::mul(token.k[k], token.decay[k]);
  }
  if (at.in_ring) return token;
  if (p.qk_l2norm) {
    const float dq = arith::l2_divisor<S>(arith::dot(token.q, token.q, p.K));
    for (int k = 0; k < p.K; ++k) token.q[k] = S::div(token.q[k], dq);
  }
  for (int k = 0; k < p.K; ++k) {
    token.q[k] = S::mul(token.q[k], p.scale);
    token.qd[k] = S::mul(token.q[k], token.decay[k]);
  }
  token.kq = arith::dot(token.k, token.q, p.K);
  return token;
}

void store_state(const RecurrenceParams& p, const float* state, std::byte* to, int64_t v_stride) {
  const auto size = static_cast<int64_t>(size_of(p.state.dtype));
  for (int v = 0; v < p.V; ++v) {
    for (int k = 0; k < p.K; ++k) store(p.state.dtype, to + v * v_stride * size, k, state[v * p.K + k]);
  }
}

void head(const RecurrenceParams& p, int64_t layer, int64_t row, int hv, float* state) {
  const int64_t tokens = p.tokens(row);
  const int64_t out_row = p.window_row(row), out_token = p.window_token(row);
  if (!p.live(row)) {
    for (int64_t t = 0; p.out && t < tokens; ++t) {
      std::memset(p.out.at(0, out_row, out_token + t, hv), 0, p.V * size_of(p.out.dtype));
    }
    return;
  }
  const int64_t slot = p.slot_ids[row], ring = p.ring_of(row);
  const int64_t dst = p.destination(row);
  const int64_t track = p.track_slot(row);
  const Replay replay = replay_of(p, layer, row);
  if (is_idle(p, replay, layer, row)) return;
  const auto size = static_cast<int64_t>(size_of(p.state.dtype));
  const std::byte* from = p.state.at(layer, slot, 0, hv);
  for (int v = 0; v < p.V; ++v) load_row(from + v * p.state_v_stride * size, p.state.dtype, p.K, state + v * p.K);
  // The history, at negative t, then the row's own tokens.
  for (int64_t t = -replay.rows; t < tokens; ++t) {
    const int64_t step = t + replay.rows;
    const int64_t ring_row = replay.ring_row(step);
    const Token token = take(p, {layer, row, ring, t, ring_row, hv / (p.HV / p.H), hv, p.from_ring || t < 0});
    const bool rounds = p.rounding == StateRounding::per_token || (t < 0 && replay.ends_commit(step));
    for (int v = 0; v < p.V; ++v) {
      float* s = state + v * p.K;
      const float u = arith::correction<S>(token.beta, token.v[v], arith::dot(s, token.kd, p.K));
      if (p.out && t >= 0) {
        const float o = arith::output<S>(u, token.kq, arith::dot(s, token.qd, p.K));
        store(p.out.dtype, p.out.at(0, out_row, out_token + t, hv), v, o);
      }
      for (int k = 0; k < p.K; ++k) {
        s[k] = arith::updated<S>(s[k], token.decay[k], u, token.k[k]);
        if (rounds) s[k] = rounded(p.state.dtype, s[k]);
      }
    }
    if (t == -1 && replay.to_checkpoint) store_state(p, state, p.state.at(layer, slot, 0, hv), p.state_v_stride);
    if (t < 0) continue;
    if (p.snapshots) store_state(p, state, p.snapshots.at(0, out_row, out_token + t, hv), p.snapshot_v_stride);
    if (track >= 0 && p.track_steps[row] == t) {
      store_state(p, state, p.state.at(layer, track, 0, hv), p.state_v_stride);
    }
  }
  if (p.write_state) store_state(p, state, p.state.at(layer, dst, 0, hv), p.state_v_stride);
}

Status recurrence(const RecurrenceParams& p, const Desc&) {
  parallel_for(p.layers * p.rows * p.HV, p.threads, [&](int64_t task) {
    // The working state of one head, 256 KiB at most.
    alignas(64) float state[kMaxHeadDim * kMaxHeadDim];
    const int hv = static_cast<int>(task % p.HV);
    head(p, p.layer(task / p.HV / p.rows), task / p.HV % p.rows, hv, state);
  });
  return {};
}

/// Input `i` of a channel, counted from the first token of the window; negative ones lie in the old conv window.
template <class State, class Input>
float tap(int64_t i, int width, State state, Input input) {
  return i < 0 ? state(width - 1 + i) : input(i);
}

/// `records`: the inputs go to the ring, where there is one.
void conv_channels(const ConvParams& p, const ConvPiece& piece, bool records) {
  const auto size = static_cast<int64_t>(size_of(p.x.dtype));
  const std::byte* state = p.state.at(0, piece.slot, 0, 0);
  const auto x = [&](int64_t t) { return piece.x + t * piece.x_step; };
  for (int64_t t = 0; p.ring && records && t < piece.tokens; ++t) {
    std::memcpy(p.ring.at(0, piece.ring, t, 0) + piece.first * size, x(t), piece.n * size);
  }
  for (int64_t i = 0; i < piece.n; ++i) {
    const int64_t c = piece.first + i;
    const auto old = [&](int64_t j) {
      return load(p.state.dtype, state, c * p.state_channel_stride + j * p.state_tap_stride);
    };
    const auto input = [&](int64_t t) { return load(p.x.dtype, x(t), i); };
    for (int64_t t = 0; t < piece.tokens; ++t) {
      float acc = p.bias ? load(p.bias_dtype, p.bias, c) : 0.0f;
      for (int j = 0; j < p.width; ++j) {
        const float w = load(p.weight_dtype, p.weight, c * p.weight_stride + j);
        acc = S::fma(w, tap(t - (p.width - 1) + j, p.width, old, input), acc);
      }
      store(p.out.dtype, piece.out + t * piece.out_step, i, p.silu ? arith::silu<S>(acc) : acc);
    }
  }
}

Status conv(const ConvParams& p) {
  parallel_for(p.rows, p.threads, [&](int64_t row) {
    const int64_t T = p.tokens(row), xr = p.window_row(row), xt = p.window_token(row);
    if (!p.live(row)) {
      for (int64_t t = 0; t < T; ++t) std::memset(p.out.at(0, xr, xt + t, 0), 0, p.channels * size_of(p.out.dtype));
      return;
    }
    const ConvPiece all = conv_piece(p, row, 0, static_cast<int>(p.channels));
    conv_channels(p, all, true);
    if (p.write_state) advance_conv_window(p, all);
  });
  return {};
}

/// One head of one token; p's dtypes alone count.
void norm_head(const NormParams& p, const std::byte* from, const std::byte* gate, std::byte* to) {
  float x[kMaxHeadDim];
  load_row(from, p.x.dtype, p.V, x);
  const float r = arith::rms_divisor<S>(arith::dot(x, x, p.V), static_cast<float>(p.V), p.eps);
  for (int v = 0; v < p.V; ++v) {
    const float z = load(p.z.dtype, gate, v);
    store(p.out.dtype, to, v, arith::gated<S>(x[v], r, load(p.weight_dtype, p.weight, v), z, p.silu_gate));
  }
}

Status gated_norm(const NormParams& p) {
  parallel_for(p.tokens * p.heads, p.threads, [&](int64_t task) {
    const int64_t token = task / p.heads, h = task % p.heads;
    norm_head(p, p.x.at(0, 0, token, h), p.z.at(0, 0, token, h), p.out.at(0, 0, token, h));
  });
  return {};
}

/// A key head of a row of a layer, with its value heads: the three steps, one after the other.
void layer_head(const LayerParams& p, int64_t row, int h, float* state) {
  // Outputs of the conv, [token, dim] in the activation dtype, and those of the mixer.
  alignas(64) std::byte q[kMaxWindow * kMaxHeadDim * 4], k[sizeof q], v[sizeof q], mixed[sizeof q];
  const auto size = static_cast<int64_t>(size_of(p.v.dtype));
  const RecurrenceParams raw = key_head_of(p, row, h);
  RecurrenceParams one = raw;
  const ConvPiece pieces[] = {piece_of(raw, raw.q, q_channel(p, h), p.K, q, p.K * size),
                              piece_of(raw, raw.k, k_channel(p, h), p.K, k, p.K * size)};
  for (const ConvPiece& piece : pieces) conv_channels(p.conv, piece, true);
  one.q = {.data = q, .dtype = raw.q.dtype, .token_stride = p.K};
  one.k = {.data = k, .dtype = raw.k.dtype, .token_stride = p.K};
  one.v = {.data = v, .dtype = raw.v.dtype, .token_stride = p.V};
  one.out = {.data = mixed, .dtype = p.norm.x.dtype, .token_stride = p.V};
  for (int i = 0; i < raw.HV; ++i) {
    const int hv = h * raw.HV + i;
    Array values = raw.v;
    values.data = values.at(0, 0, 0, i);
    const ConvPiece piece = piece_of(raw, values, v_channel(p, hv), p.V, v, p.V * size);
    conv_channels(p.conv, piece, true);
    if (p.conv.write_state) advance_conv_window(p.conv, piece);
    head(one, 0, 0, i, state);
    for (int64_t t = 0; t < raw.window; ++t) {
      norm_head(p.norm, one.out.at(0, 0, t, 0), p.norm.z.at(0, p.window_row(row), p.window_token(row) + t, hv),
                p.out.at(0, p.window_row(row), p.window_token(row) + t, hv));
    }
  }
  for (const ConvPiece& piece : pieces) {
    if (p.conv.write_state) advance_conv_window(p.conv, piece);
  }
}

Status layer(const LayerParams& p, const Desc&) {
  parallel_for(p.rows * p.H, p.threads, [&](int64_t task) {
    alignas(64) float state[kMaxHeadDim * kMaxHeadDim];
    const int64_t row = task / p.H;
    const int h = static_cast<int>(task % p.H), group = p.HV / p.H;
    if (p.live(row)) return layer_head(p, row, h, state);
    for (int hv = h * group; hv < (h + 1) * group; ++hv) head(p, 0, row, hv, state);  // zeros
  });
  return {};
}

Plan plan(const Desc& desc) {
  Plan plan = traffic(desc);
  plan.tasks = desc.op == Op::conv_verify || desc.op == Op::conv_decode || desc.op == Op::conv_commit
                   ? desc.rows * desc.layers
               : is_layer(desc.op) ? desc.rows * desc.H
                                   : desc.rows * desc.layers * desc.HV;
  return plan;
}

}  // namespace

const Implementation& reference_implementation() {
  static const Implementation reference = {
      .name = "reference",
      .device = Device::cpu,
      .unavailable = []() -> const char* { return nullptr; },
      .refusal = [](const Desc&) { return Refusal(); },
      .plan = plan,
      .recurrence = recurrence,
      .conv = conv,
      .conv_commit = commit_conv_windows,
      .gated_norm = gated_norm,
      .layer = layer,
  };
  return reference;
}

}  // namespace ringfold::ref
