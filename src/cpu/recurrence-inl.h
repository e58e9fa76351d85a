// verify, snapshot verify, decode and fold: one recurrence over blocks of V.
//
// The working state of a block is transposed once, so that lanes are rows of V and no sum crosses lanes, and stays in cache for
// all tokens of the window. One pass over it per token: updating with token t and both dots of token t+1 share the pass.
#if defined(RINGFOLD_CPU_RECURRENCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFOLD_CPU_RECURRENCE_INL_H_
#undef RINGFOLD_CPU_RECURRENCE_INL_H_
#else
#define RINGFOLD_CPU_RECURRENCE_INL_H_
#endif

#include "core/parallel.h"
#include "cpu/prepare-inl.h"
#include "cpu/tiling.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::cpu {
namespace HWY_NAMESPACE {

/// What the working state is rounded to after each token.
enum class Rounding { none, bf16, f16 };

template <Rounding kRounding>
HWY_INLINE Vector::F Rounded(Vector::F s) {
  if constexpr (kRounding == Rounding::bf16) return round_bf16<Vector>(s);
  if constexpr (kRounding == Rounding::f16) return round_f16<Vector>(s);
  return s;
}

/// Memory that will be read after the current block; a few lines are requested per group of k, so that the next block
/// arrives while this one computes.
struct Ahead {
  const std::byte* at = nullptr;
  int64_t lines = 0;  ///< left to request
  int64_t per_group = 0;

  HWY_INLINE void Request() {
    const int64_t n = HWY_MIN(lines, per_group);
    for (int64_t i = 0; i < n; ++i) hwy::Prefetch(at + i * 64);
    at += n * 64;
    lines -= n;
  }
};

/// One pass over a block of kVectors vectors of rows. kUpdate: apply the token whose corrections are `u` (k, decay its
/// vectors). kDots: then form p = S.kd, and where kOut w = S.qd, of the next token.
template <int kVectors, bool kUpdate, bool kDots, bool kOut, Rounding kRounding>
HWY_INLINE void Pass(float* HWY_RESTRICT state, int K, const float* k, const float* decay, const Vector::F* u, const float* kd,
                     const float* qd, Vector::F* p, Vector::F* w, Ahead* ahead) {
  constexpr int kWidth = kVectors * kLanes;
  const Vector::D d;
  Vector::F sums_p[kMaxHeadDim / kGroup][kVectors], sums_w[kMaxHeadDim / kGroup][kVectors];
  Vector::F uu[kVectors];
  for (int j = 0; kUpdate && j < kVectors; ++j) uu[j] = u[j];
  int group = 0;
  for (int k0 = 0; k0 < K; k0 += kGroup, ++group) {
    ahead->Request();
    Vector::F chain_p[kVectors], chain_w[kVectors];
    const auto element = [&](int i, bool first) HWY_ATTR {
      float* at = state + i * kWidth;
      for (int j = 0; j < kVectors; ++j) {
        Vector::F s = hn::Load(d, at + j * kLanes);
        if constexpr (kUpdate) {
          s = Rounded<kRounding>(updated<Vector>(s, hn::Set(d, decay[i]), uu[j], hn::Set(d, k[i])));
          hn::Store(s, d, at + j * kLanes);
        }
        if constexpr (kDots) chain_p[j] = group_step<Vector>(first, s, hn::Set(d, kd[i]), chain_p[j]);
        if constexpr (kDots && kOut) chain_w[j] = group_step<Vector>(first, s, hn::Set(d, qd[i]), chain_w[j]);
      }
    };
    element(k0, true);
    if (k0 + kGroup <= K) {
      for (int i = 1; i < kGroup; ++i) element(k0 + i, false);
    } else {
      for (int i = k0 + 1; i < K; ++i) element(i, false);
    }
    for (int j = 0; kDots && j < kVectors; ++j) {
      sums_p[group][j] = chain_p[j];
      if constexpr (kOut) sums_w[group][j] = chain_w[j];
    }
  }
  if constexpr (kDots) {
    for (int j = 0; j < kVectors; ++j) {
      p[j] = tree_sum<Vector>(&sums_p[0][j], group, kVectors);
      if constexpr (kOut) w[j] = tree_sum<Vector>(&sums_w[0][j], group, kVectors);
    }
  }
}

/// A block of rows of one head, from memory through all tokens and back.
struct Block {
  int v0, count;        ///< rows v0 .. v0+count-1 of V
  int64_t tokens;
  int64_t track_step;   ///< token after which the state goes to `track`; -1: none
  StateRows from, to, track;  ///< `to` without data: not written back
  std::byte* snapshots; ///< of token 0, row v0; null: none
  int64_t snapshot_token_stride, snapshot_v_stride;
};

template <int kVectors, bool kOut, Rounding kRounding>
HWY_NOINLINE void RunBlock(const RecurrenceParams& p, const HeadTask& task, const Tokens& tokens, const Block& block, Ahead ahead) {
  constexpr int kWidth = kVectors * kLanes;
  const Vector::D d;
  const auto v_size = static_cast<int64_t>(size_of(p.state.dtype));
  const detail::Array& values = p.from_ring ? p.ring_v : p.v;
  const int64_t source_row = p.from_ring ? task.slot : p.window_row(task.row);
  const int64_t source_token = p.from_ring ? 0 : p.window_token(task.row);
  alignas(64) float state[kMaxHeadDim * kWidth];
  alignas(64) float v[kWidth] = {}, o[kWidth];
  Vector::F u[kVectors], pp[kVectors], ww[kVectors];
  const auto keep = [&](const StateRows& to) HWY_ATTR { StoreState(state, block.count, kWidth, p.K, to); };

  LoadState(block.from, block.count, kWidth, p.K, state);
  if (block.tokens == 0 && block.to.data) keep(block.to);
  for (int64_t t = 0; t < block.tokens; ++t) {
    if (t == 0) {
      Pass<kVectors, false, true, kOut, kRounding>(state, p.K, nullptr, nullptr, nullptr, tokens.kd[0], tokens.qd[0], pp, ww, &ahead);
    } else {
      Pass<kVectors, true, true, kOut, kRounding>(state, p.K, tokens.k[t - 1], tokens.decay[t - 1], u, tokens.kd[t], tokens.qd[t], pp,
                                                  ww, &ahead);
      if (t - 1 == block.track_step) keep(block.track);
      if (block.snapshots) {
        keep({block.snapshots + (t - 1) * block.snapshot_token_stride * v_size, p.state.dtype, block.snapshot_v_stride});
      }
    }
    const std::byte* raw_v = values.at(task.layer, source_row, source_token + t, task.hv) + block.v0 * size_of(values.dtype);
    LoadRow(values.dtype, raw_v, block.count, v);
    if (!p.from_ring && p.ring_v) {
      std::memcpy(p.ring_v.at(0, task.slot, t, task.hv) + block.v0 * size_of(p.v.dtype), raw_v, block.count * size_of(p.v.dtype));
    }
    for (int j = 0; j < kVectors; ++j) {
      u[j] = correction<Vector>(hn::Set(d, tokens.beta[t]), hn::Load(d, v + j * kLanes), pp[j]);
      if constexpr (kOut) hn::Store(output<Vector>(u[j], hn::Set(d, tokens.kq[t]), ww[j]), d, o + j * kLanes);
    }
    if constexpr (kOut) {
      StoreRow(p.out.dtype, o, block.count,
               p.out.at(0, p.window_row(task.row), p.window_token(task.row) + t, task.hv) + block.v0 * size_of(p.out.dtype));
    }
  }
  if (block.tokens == 0 || !(block.to.data || block.snapshots)) return;
  const int64_t last = block.tokens - 1;
  Pass<kVectors, true, false, false, kRounding>(state, p.K, tokens.k[last], tokens.decay[last], u, nullptr, nullptr, nullptr, nullptr,
                                                &ahead);
  if (last == block.track_step) keep(block.track);
  if (block.snapshots) keep({block.snapshots + last * block.snapshot_token_stride * v_size, p.state.dtype, block.snapshot_v_stride});
  if (block.to.data) keep(block.to);
}

using RunBlockFn = void (*)(const RecurrenceParams&, const HeadTask&, const Tokens&, const Block&, Ahead);

template <int kVectors, Rounding kRounding>
HWY_INLINE RunBlockFn ChooseOut(bool out) {
  return out ? &RunBlock<kVectors, true, kRounding> : &RunBlock<kVectors, false, kRounding>;
}

template <int kVectors>
HWY_INLINE RunBlockFn ChooseBlock(const RecurrenceParams& p) {
  const bool out = static_cast<bool>(p.out);
  if (p.rounding == StateRounding::per_token && p.state.dtype == DType::bf16) return ChooseOut<kVectors, Rounding::bf16>(out);
  if (p.rounding == StateRounding::per_token && p.state.dtype == DType::f16) return ChooseOut<kVectors, Rounding::f16>(out);
  return ChooseOut<kVectors, Rounding::none>(out);
}

/// Rows v0 .. v1-1 of one head of one row of the batch.
static HWY_NOINLINE HWY_MAYBE_UNUSED void RunHead(const RecurrenceParams& p, const HeadTask& task, int v0, int v1, Tokens* tokens, const std::byte* next) {
  const int64_t count = p.tokens(task.row);
  const auto size = static_cast<int64_t>(size_of(p.state.dtype));
  for (int64_t t = 0; t < count; ++t) PrepareToken(p, task, t, tokens);
  const auto rows_at = [&](int64_t slot, int v) {
    return StateRows{p.state.at(task.layer, slot, 0, task.hv) + v * p.state_v_stride * size, p.state.dtype, p.state_v_stride};
  };
  const int64_t dst = p.dst_slot_ids ? p.dst_slot_ids[task.row] : task.slot;
  const bool track = p.track_slots && p.track_slots[task.row] >= 0 && p.track_steps[task.row] >= 0;
  const RunBlockFn wide = ChooseBlock<kWideRows / kLanes>(p), narrow = ChooseBlock<1>(p);
  for (int v = v0; v < v1;) {
    const bool is_wide = v1 - v >= kWideRows;
    const int n = HWY_MIN(v1 - v, is_wide ? kWideRows : kLanes);
    Block block = {v, n, count, track ? p.track_steps[task.row] : -1, rows_at(task.slot, v), {}, {}, nullptr, 0, 0};
    if (p.write_state) block.to = rows_at(dst, v);
    if (track) block.track = rows_at(p.track_slots[task.row], v);
    if (p.snapshots) {
      block.snapshots = p.snapshots.at(0, p.window_row(task.row), p.window_token(task.row), task.hv) + v * p.snapshot_v_stride * size;
      block.snapshot_token_stride = p.snapshots.token_stride;
      block.snapshot_v_stride = p.snapshot_v_stride;
    }
    // The next block of this head follows in memory where rows are packed; at the end, the next head's first.
    Ahead ahead;
    ahead.at = v + n < v1 ? rows_at(task.slot, v + n).data : next;
    if (ahead.at) {
      ahead.lines = (n * p.state_v_stride * size + 63) / 64;
      const int64_t passes = count + (p.write_state ? 1 : 0);
      ahead.per_group = ahead.lines / HWY_MAX(1, passes * ((p.K + kGroup - 1) / kGroup)) + 1;
    }
    (is_wide ? wide : narrow)(p, task, *tokens, block, ahead);
    v += n;
  }
}

HWY_INLINE void ZeroOutputs(const RecurrenceParams& p, int64_t row, int hv, int v0, int v1) {
  for (int64_t t = 0; p.out && t < p.tokens(row); ++t) {
    std::memset(p.out.at(0, p.window_row(row), p.window_token(row) + t, hv) + v0 * size_of(p.out.dtype), 0,
                (v1 - v0) * size_of(p.out.dtype));
  }
}

void Recurrence(const RecurrenceParams& p) {
  const int64_t parts = p.v_parts, tasks = p.layers * p.rows * p.HV * parts;
  const auto first_row = [&](int64_t part) { return v_part_begin(p.V, p.v_parts, static_cast<int>(part)); };
  detail::parallel_chunks(tasks, chunk_size(tasks, detail::thread_count(p.threads)), p.threads, [&](int64_t begin, int64_t end) HWY_ATTR {
    Tokens tokens;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t part = i % parts, row = i / parts / p.HV % p.rows, layer = p.layer(i / parts / p.HV / p.rows);
      const int hv = static_cast<int>(i / parts % p.HV);
      const int v0 = first_row(part), v1 = first_row(part + 1);
      if (!p.live(row)) {
        ZeroOutputs(p, row, hv, v0, v1);
        continue;
      }
      const int64_t slot = p.slot_ids[row];
      if (p.tokens(row) == 0 && (!p.dst_slot_ids || p.dst_slot_ids[row] == slot)) continue;
      // Within a row the next task's state is known; across rows the hardware finds its way.
      const bool same_row = i + 1 < end && (i + 1) / parts / p.HV == i / parts / p.HV;
      const std::byte* next =
          same_row ? p.state.at(layer, slot, 0, (i + 1) / parts % p.HV) +
                         first_row((i + 1) % parts) * p.state_v_stride * static_cast<int64_t>(size_of(p.state.dtype))
                   : nullptr;
      RunHead(p, {layer, row, slot, hv / (p.HV / p.H), hv, part == 0}, v0, v1, &tokens, next);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#endif
