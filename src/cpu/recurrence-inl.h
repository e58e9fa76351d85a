// verify, snapshot verify, decode and fold: one recurrence over blocks of V. A history is replayed before the window.
//
// The working state of a block is transposed once, so that lanes are rows of V and no sum crosses lanes, and stays in
// cache for all tokens of the window. One pass over it per token: updating with token t and both dots of token t+1
// share the pass.
#if defined(RINGFOLD_CPU_RECURRENCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFOLD_CPU_RECURRENCE_INL_H_
#undef RINGFOLD_CPU_RECURRENCE_INL_H_
#else
#define RINGFOLD_CPU_RECURRENCE_INL_H_
#endif

#include "core/parallel.h"
#include "cpu/prepare-inl.h"
#include "cpu/tiling.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::cpu {
namespace HWY_NAMESPACE {

/// Vectors of rows in a wide block. Two give 8 independent chains with AVX2, whose registers hold no more (three and
/// four were slower: docs/notes); narrower targets take 16 rows.
constexpr int kWideVectors = kLanes >= 8 ? 2 : 16 / kLanes;

/// What the working state is rounded to after each token.
enum class Rounding { none, bf16, f16 };

template <Rounding kRounding>
HWY_INLINE Vector::F Rounded(Vector::F s) {
  if constexpr (kRounding == Rounding::bf16) return round_bf16<Vector>(s);
  if constexpr (kRounding == Rounding::f16) return round_f16<Vector>(s);
  return s;
}

/// How far ahead of the block in work its successors are requested.
constexpr int64_t kAheadBytes = 16 << 10;

/// Memory that will be read after the current block. Its lines are requested a few at a time over all passes of this
/// one, so that they arrive in the second-level cache while it computes (the first level is full of this one). Many at
/// a time would stall the core.
struct Ahead {
  const std::byte* at = nullptr;
  int64_t lines = 0;  ///< left to request
  int64_t rate = 0;   ///< lines per element of k and pass, times 256
  int64_t due = 0;

  /// Called once for `elements` of k.
  HWY_INLINE void Request(int elements) {
    due += rate * elements;
    const int64_t n = HWY_MIN(lines, due >> 8);
    due &= 255;
    for (int64_t i = 0; i < n; ++i) __builtin_prefetch(at + i * 64, 0, 2);
    at += n * 64;
    lines -= n;
  }
};

/// One pass over a block of kVectors vectors of rows: applies the token whose corrections are `u` (k, decay its
/// vectors) and, with kDots, forms p = S.kd, and where kOut w = S.qd, of the next token.
template <int kVectors, bool kDots, bool kOut, Rounding kRounding>
HWY_NOINLINE void Pass(float* HWY_RESTRICT state, int K, const float* k, const float* decay, const Vector::F* u,
                       const float* kd, const float* qd, Vector::F* p, Vector::F* w, Ahead* ahead) {
  constexpr int kWidth = kVectors * kLanes;
  const Vector::D d;
  Vector::F sums_p[kMaxHeadDim / kGroup][kVectors], sums_w[kMaxHeadDim / kGroup][kVectors];
  Vector::F uu[kVectors];
  for (int j = 0; j < kVectors; ++j) uu[j] = u[j];
  // Element i of a group whose sums are sum_p, sum_w.
  const auto element = [&](int i, bool first, Vector::F* sum_p, Vector::F* sum_w) HWY_ATTR {
    float* at = state + i * kWidth;
    // Broadcast before the loop: the stores to the state might, for all the compiler knows, change k, decay, kd and qd.
    const Vector::F k_i = hn::Set(d, k[i]), decay_i = hn::Set(d, decay[i]);
    const Vector::F kd_i = hn::Set(d, kDots ? kd[i] : 0.0f), qd_i = hn::Set(d, kDots && kOut ? qd[i] : 0.0f);
    for (int j = 0; j < kVectors; ++j) {
      const Vector::F s = Rounded<kRounding>(updated<Vector>(hn::Load(d, at + j * kLanes), decay_i, uu[j], k_i));
      hn::Store(s, d, at + j * kLanes);
      if constexpr (kDots) sum_p[j] = group_step<Vector>(first, s, kd_i, sum_p[j]);
      if constexpr (kDots && kOut) sum_w[j] = group_step<Vector>(first, s, qd_i, sum_w[j]);
    }
  };
  const auto keep = [&](int group, const Vector::F* sum_p, const Vector::F* sum_w) HWY_ATTR {
    for (int j = 0; kDots && j < kVectors; ++j) {
      sums_p[group][j] = sum_p[j];
      if constexpr (kOut) sums_w[group][j] = sum_w[j];
    }
  };
  // Two groups at a time, in turns: a group alone is a chain of dependent operations that leaves the units idle.
  int k0 = 0, group = 0;
  for (; k0 + 2 * kGroup <= K; k0 += 2 * kGroup, group += 2) {
    ahead->Request(2 * kGroup);
    Vector::F p0[kVectors], w0[kVectors], p1[kVectors], w1[kVectors];
    element(k0, true, p0, w0);
    element(k0 + kGroup, true, p1, w1);
    for (int i = 1; i < kGroup; ++i) {
      element(k0 + i, false, p0, w0);
      element(k0 + kGroup + i, false, p1, w1);
    }
    keep(group, p0, w0);
    keep(group + 1, p1, w1);
  }
  for (; k0 < K; k0 += kGroup, ++group) {
    Vector::F p0[kVectors], w0[kVectors];
    element(k0, true, p0, w0);
    for (int i = k0 + 1; i < HWY_MIN(K, k0 + kGroup); ++i) element(i, false, p0, w0);
    keep(group, p0, w0);
  }
  if constexpr (kDots) {
    for (int j = 0; j < kVectors; ++j) {
      p[j] = tree_sum<Vector>(&sums_p[0][j], group, kVectors);
      if constexpr (kOut) w[j] = tree_sum<Vector>(&sums_w[0][j], group, kVectors);
    }
  }
}

/// Elements i .. of the tiles of a block's vectors, of which the first is element k of the rows, go to the block and
/// into the chains of a group.
template <int kVectors, bool kOut, bool kKeep, int i, DType kType>
HWY_INLINE void TakeTiles(const Tile<kType>* tiles, bool first, float* HWY_RESTRICT to, const float* kd,
                          const float* qd, Vector::F* chain_p, Vector::F* chain_w) {
  if constexpr (i < Tile<kType>::kElements) {
    constexpr int kWidth = kVectors * kLanes;
    const Vector::F kd_i = Vector::set(kd[i]), qd_i = Vector::set(kOut ? qd[i] : 0.0f);
    for (int j = 0; j < kVectors; ++j) {
      const Vector::F s = tiles[j].template element<i>();
      if constexpr (kKeep) hn::Store(s, Vector::D(), to + i * kWidth + j * kLanes);
      chain_p[j] = group_step<Vector>(first && i == 0, s, kd_i, chain_p[j]);
      if constexpr (kOut) chain_w[j] = group_step<Vector>(first && i == 0, s, qd_i, chain_w[j]);
    }
    TakeTiles<kVectors, kOut, kKeep, i + 1, kType>(tiles, first, to, kd, qd, chain_p, chain_w);
  }
}

/// Loads the working state of a block, state[k*kWidth + i] = row i at k, and forms p = S.kd, and where kOut w = S.qd,
/// of the first token on the way. Without tokens (kd null) it only loads. Without kKeep it leaves `state` undefined.
template <int kVectors, bool kOut, bool kKeep, DType kType>
HWY_NOINLINE void LoadPass(const StateRows& from, int count, int K, float* HWY_RESTRICT state, const float* kd,
                           const float* qd, Vector::F* p, Vector::F* w, Ahead* ahead) {
  constexpr int kWidth = kVectors * kLanes, kElements = Tile<kType>::kElements;
  // A wide block is full.
  const RowPointers pointers(from, 0, HWY_MIN(count, kLanes));
  const auto rows = [&](int j) HWY_ATTR {
    if constexpr (kVectors == 1) {
      return &pointers.at[0];
    } else {
      return EvenRows<const std::byte>{from.row(j * kLanes), from.stride * static_cast<int64_t>(size_of(kType))};
    }
  };
  if (kd == nullptr) {
    for (int j = 0; j < kVectors; ++j) TransposeIn<kType>(rows(j), 0, K, state + j * kLanes, kWidth);
    return;
  }
  Vector::F sums_p[kMaxHeadDim / kGroup][kVectors], sums_w[kMaxHeadDim / kGroup][kVectors];
  int k0 = 0, group = 0;
  for (; k0 + kGroup <= K; k0 += kGroup, ++group) {
    Vector::F chain_p[kVectors], chain_w[kVectors];
#pragma GCC unroll 2
    for (int i = 0; i < kGroup; i += kElements) {
      ahead->Request(kElements);
      Tile<kType> tiles[kVectors];
      for (int j = 0; j < kVectors; ++j) tiles[j] = Tile<kType>::Load(rows(j), k0 + i);
      TakeTiles<kVectors, kOut, kKeep, 0, kType>(tiles, i == 0, state + (k0 + i) * kWidth, kd + k0 + i, qd + k0 + i,
                                                 chain_p, chain_w);
    }
    for (int j = 0; j < kVectors; ++j) {
      sums_p[group][j] = chain_p[j];
      if constexpr (kOut) sums_w[group][j] = chain_w[j];
    }
  }
  if (k0 < K) {
    for (int j = 0; j < kVectors; ++j) {
      float* to = state + j * kLanes;
      TransposeIn<kType>(rows(j), k0, K, to, kWidth);
      Vector::F chain_p, chain_w;
      for (int k = k0; k < K; ++k) {
        const Vector::F s = hn::Load(Vector::D(), to + k * kWidth);
        chain_p = group_step<Vector>(k == k0, s, Vector::set(kd[k]), chain_p);
        if constexpr (kOut) chain_w = group_step<Vector>(k == k0, s, Vector::set(qd[k]), chain_w);
      }
      sums_p[group][j] = chain_p;
      if constexpr (kOut) sums_w[group][j] = chain_w;
    }
    ++group;
  }
  for (int j = 0; j < kVectors; ++j) {
    p[j] = tree_sum<Vector>(&sums_p[0][j], group, kVectors);
    if constexpr (kOut) w[j] = tree_sum<Vector>(&sums_w[0][j], group, kVectors);
  }
}

/// The last pass over a block: applies a token as Pass does, and what comes out goes to memory, not to the block.
/// K must be a multiple of the elements of a Tile. Rounding to the type of the rows twice changes nothing.
template <int kVectors, DType kType>
HWY_NOINLINE void StorePass(const float* HWY_RESTRICT state, int K, const float* k, const float* decay,
                            const Vector::F* u, const StateRows& to, Ahead* ahead) {
  constexpr int kWidth = kVectors * kLanes, kElements = Tile<kType>::kElements;
  const Vector::D d;
  const int64_t row_bytes = to.stride * static_cast<int64_t>(size_of(kType));
  Vector::F uu[kVectors];
  for (int j = 0; j < kVectors; ++j) uu[j] = u[j];
  for (int k0 = 0; k0 < K; k0 += kElements) {
    ahead->Request(kElements);
    Vector::F x[kVectors][kElements];
    for (int i = 0; i < kElements; ++i) {
      const Vector::F k_i = hn::Set(d, k[k0 + i]), decay_i = hn::Set(d, decay[k0 + i]);
      for (int j = 0; j < kVectors; ++j) {
        x[j][i] = updated<Vector>(hn::Load(d, state + (k0 + i) * kWidth + j * kLanes), decay_i, uu[j], k_i);
      }
    }
    const int word = kType == DType::f32 ? k0 : k0 / 2;
    for (int j = 0; j < kVectors; ++j) {
      const EvenRows<std::byte> rows = {to.row(j * kLanes), row_bytes};
      Four r;
      if constexpr (kType == DType::f32) {
        r = Transpose4({x[j][0], x[j][1], x[j][2], x[j][3]});
      } else {
        r = Transpose4(NarrowPairs<kType>(x[j]));
      }
      StoreFloatBlocks(d, r.v0, rows, word);
      StoreFloatBlocks(d, r.v1, rows + 1, word);
      StoreFloatBlocks(d, r.v2, rows + 2, word);
      StoreFloatBlocks(d, r.v3, rows + 3, word);
    }
  }
}

using LoadPassFn = void (*)(const StateRows&, int, int, float*, const float*, const float*, Vector::F*, Vector::F*,
                            Ahead*);

template <int kVectors, bool kOut, bool kKeep>
HWY_INLINE LoadPassFn ChooseLoad(DType type) {
  if (type == DType::f32) return &LoadPass<kVectors, kOut, kKeep, DType::f32>;
  if (type == DType::bf16) return &LoadPass<kVectors, kOut, kKeep, DType::bf16>;
  return &LoadPass<kVectors, kOut, kKeep, DType::f16>;
}

using PassFn = void (*)(float*, int, const float*, const float*, const Vector::F*, const float*, const float*,
                        Vector::F*, Vector::F*, Ahead*);

template <int kVectors, bool kDots, bool kOut>
HWY_INLINE PassFn ChoosePass(DType type, bool rounds) {
  if (rounds && type == DType::bf16) return &Pass<kVectors, kDots, kOut, Rounding::bf16>;
  if (rounds && type == DType::f16) return &Pass<kVectors, kDots, kOut, Rounding::f16>;
  return &Pass<kVectors, kDots, kOut, Rounding::none>;
}

using StorePassFn = void (*)(const float*, int, const float*, const float*, const Vector::F*, const StateRows&, Ahead*);

/// Null where Pass and StoreState do it in two steps.
template <int kVectors>
HWY_INLINE StorePassFn ChooseStore(DType type, int count, int K) {
  if (count != kVectors * kLanes || K % kGroup != 0) return nullptr;
  if (type == DType::f32) return &StorePass<kVectors, DType::f32>;
  if (type == DType::bf16) return &StorePass<kVectors, DType::bf16>;
  return &StorePass<kVectors, DType::f16>;
}

/// A block of rows of one head, from memory through all steps (history, then window) and back.
struct Block {
  int v0, count;  ///< rows v0 .. v0+count-1 of V
  int64_t steps, history;
  uint64_t rounds;                        ///< bit i: the working state is rounded after step i
  int64_t track_step;                     ///< step after which the state goes to `track`; -1: none
  StateRows from, to, track, checkpoint;  ///< `to` without data: not written back; `checkpoint`: after the history
  std::byte* snapshots;                   ///< of token 0, row v0; null: none
  int64_t snapshot_token_stride, snapshot_v_stride;
};

template <int kVectors>
HWY_NOINLINE void RunBlock(const RecurrenceParams& p, Tokens& tokens, const Block& block, Ahead ahead) {
  constexpr int kWidth = kVectors * kLanes;
  const Vector::D d;
  const auto v_size = static_cast<int64_t>(size_of(p.state.dtype));
  alignas(64) float state[kMaxHeadDim * kWidth];
  Vector::F u[kVectors], pp[kVectors], ww[kVectors];
  const auto keep = [&](const StateRows& to) HWY_ATTR { StoreState(state, block.count, kWidth, p.K, to); };
  const auto outputs = [&](int64_t i) HWY_ATTR { return p.out && i >= block.history; };
  /// Where the state goes after step i.
  const auto keep_step = [&](int64_t i) HWY_ATTR {
    if (i == block.track_step) keep(block.track);
    if (block.checkpoint.data && i + 1 == block.history) keep(block.checkpoint);
    if (!block.snapshots || i < block.history) return;
    keep({block.snapshots + (i - block.history) * block.snapshot_token_stride * v_size, p.state.dtype,
          block.snapshot_v_stride});
  };

  const bool any = block.steps > 0;
  const bool history_alone = block.checkpoint.data && block.history == block.steps;
  const bool stores = block.to.data || block.snapshots || history_alone;
  const LoadPassFn load = !outputs(0)                 ? ChooseLoad<kVectors, false, true>(block.from.type)
                          : stores || block.steps > 1 ? ChooseLoad<kVectors, true, true>(block.from.type)
                                                      : ChooseLoad<kVectors, true, false>(block.from.type);
  load(block.from, block.count, p.K, state, any ? tokens.kd(0) : nullptr, tokens.qd(0), pp, ww, &ahead);
  if (!any && block.to.data) keep(block.to);
  for (int64_t i = 0; i < block.steps; ++i) {
    if (i > 0) {
      const bool rounds = (block.rounds >> (i - 1) & 1) != 0;
      const PassFn pass = outputs(i) ? ChoosePass<kVectors, true, true>(p.state.dtype, rounds)
                                     : ChoosePass<kVectors, true, false>(p.state.dtype, rounds);
      pass(state, p.K, tokens.k(i - 1), tokens.decay(i - 1), u, tokens.kd(i), tokens.qd(i), pp, ww, &ahead);
      keep_step(i - 1);
    }
    float* v = tokens.v(i) + block.v0;
    for (int j = 0; j < kVectors; ++j) {
      u[j] = correction<Vector>(hn::Set(d, tokens.beta[i]), hn::LoadU(d, v + j * kLanes), pp[j]);
      if (outputs(i)) hn::StoreU(output<Vector>(u[j], hn::Set(d, tokens.kq[i]), ww[j]), d, v + j * kLanes);
    }
  }
  if (!any || !stores) return;
  const int64_t last = block.steps - 1;
  const StorePassFn store = ChooseStore<kVectors>(block.to.type, block.count, p.K);
  const bool once = block.to.data && !block.snapshots && !history_alone && block.track_step != last;
  if (once && store) {
    store(state, p.K, tokens.k(last), tokens.decay(last), u, block.to, &ahead);
    return;
  }
  const PassFn pass = ChoosePass<kVectors, false, false>(p.state.dtype, (block.rounds >> last & 1) != 0);
  pass(state, p.K, tokens.k(last), tokens.decay(last), u, nullptr, nullptr, nullptr, nullptr, &ahead);
  keep_step(last);
  if (block.to.data) keep(block.to);
}

/// Bit i: the working state is rounded after step i. Without it a fold or a store rounds what it writes, and no more.
HWY_INLINE uint64_t RoundedSteps(const RecurrenceParams& p, const detail::Replay& replay) {
  if (p.state.dtype == DType::f32) return 0;
  if (p.rounding == StateRounding::per_token) return ~uint64_t{0};
  uint64_t steps = 0;
  for (int64_t i = 0; i < replay.rows; ++i) steps |= static_cast<uint64_t>(replay.ends_commit(i)) << i;
  return steps;
}

/// One task: rows v0 .. v1-1 of one head of one row of the batch.
static HWY_NOINLINE HWY_MAYBE_UNUSED void RunHead(const RecurrenceParams& p, const HeadTask& task, Tokens* tokens,
                                                  const std::byte* next_slot) {
  const int64_t history = task.replay.rows, count = history + p.tokens(task.row);
  const auto size = static_cast<int64_t>(size_of(p.state.dtype));
  const bool key = tokens->TakeKey(task.layer, task.row, task.h);
  PrepareScalars(p, task, count, tokens);
  for (int64_t t = 0; t < count; ++t) PrepareToken(p, task, key, t, tokens);
  const auto rows_at = [&](int64_t slot, int v) {
    return StateRows{p.state.at(task.layer, slot, 0, task.hv) + v * p.state_v_stride * size, p.state.dtype,
                     p.state_v_stride};
  };
  const int64_t dst = p.destination(task.row);
  const int64_t track = p.track_slot(task.row);
  const uint64_t rounds = RoundedSteps(p, task.replay);
  for (int v = task.v0; v < task.v1;) {
    const bool is_wide = task.v1 - v >= kWideVectors * kLanes;
    const int n = HWY_MIN(task.v1 - v, is_wide ? kWideVectors * kLanes : kLanes);
    Block block = {.v0 = v,
                   .count = n,
                   .steps = count,
                   .history = history,
                   .rounds = rounds,
                   .track_step = track >= 0 ? history + p.track_steps[task.row] : -1,
                   .from = rows_at(task.slot, v),
                   .to = {},
                   .track = {},
                   .checkpoint = {},
                   .snapshots = nullptr,
                   .snapshot_token_stride = 0,
                   .snapshot_v_stride = 0};
    if (p.write_state) block.to = rows_at(dst, v);
    if (track >= 0) block.track = rows_at(track, v);
    if (task.replay.to_checkpoint) block.checkpoint = rows_at(task.slot, v);
    if (p.snapshots) {
      block.snapshots =
          p.snapshots.at(0, p.window_row(task.row), p.window_token(task.row), task.hv) + v * p.snapshot_v_stride * size;
      block.snapshot_token_stride = p.snapshots.token_stride;
      block.snapshot_v_stride = p.snapshot_v_stride;
    }
    // Blocks and heads follow one another in memory where the pool is packed; behind the last head comes the next row's
    // slot.
    Ahead ahead;
    const int64_t slot_bytes = p.HV * p.state.head_stride * size;
    const int64_t at = (task.hv * p.state.head_stride + v * p.state_v_stride) * size + kAheadBytes;
    const std::byte* base = at < slot_bytes ? p.state.at(task.layer, task.slot, 0, 0) : next_slot;
    if (base) {
      ahead.at = base + (at < slot_bytes ? at : at - slot_bytes);
      ahead.lines = (n * p.state_v_stride * size + 63) / 64;
      ahead.rate = (ahead.lines << 8) / HWY_MAX(1, (count + (p.write_state ? 1 : 0)) * p.K) + 1;
    }
    if (is_wide) {
      RunBlock<kWideVectors>(p, *tokens, block, ahead);
    } else {
      RunBlock<1>(p, *tokens, block, ahead);
    }
    v += n;
  }
  const auto out_size = static_cast<int64_t>(size_of(p.out.dtype));
  for (int64_t t = 0; p.out && t < count - history; ++t) {
    StoreRow(p.out.dtype, tokens->v(history + t) + task.v0, task.v1 - task.v0,
             p.out.at(0, p.window_row(task.row), p.window_token(task.row) + t, task.hv) + task.v0 * out_size);
  }
}

HWY_INLINE void ZeroOutputs(const RecurrenceParams& p, int64_t row, int hv, int v0, int v1) {
  for (int64_t t = 0; p.out && t < p.tokens(row); ++t) {
    std::memset(p.out.at(0, p.window_row(row), p.window_token(row) + t, hv) + v0 * size_of(p.out.dtype), 0,
                (v1 - v0) * size_of(p.out.dtype));
  }
}

static HWY_MAYBE_UNUSED Status Recurrence(const RecurrenceParams& p, const Desc&) {
  const int64_t parts = p.v_parts, tasks = p.layers * p.rows * p.HV * parts;
  const auto first_row = [&](int64_t part) { return v_part_begin(p.V, p.v_parts, static_cast<int>(part)); };
  detail::parallel_chunks(
      tasks, chunk_size(tasks, detail::thread_count(p.threads)), p.threads, [&](int64_t begin, int64_t end) HWY_ATTR {
        Tokens tokens;
        tokens.Reset(p.K, p.V);
        for (int64_t i = begin; i < end; ++i) {
          const int64_t part = i % parts, row = i / parts / p.HV % p.rows, layer = p.layer(i / parts / p.HV / p.rows);
          const int hv = static_cast<int>(i / parts % p.HV);
          const int v0 = first_row(part), v1 = first_row(part + 1);
          if (!p.live(row)) {
            ZeroOutputs(p, row, hv, v0, v1);
            continue;
          }
          const int64_t slot = p.slot_ids[row];
          const detail::Replay replay = detail::replay_of(p, layer, row);
          if (detail::is_idle(p, replay, layer, row)) continue;
          const int64_t next_row = row + 1 < p.rows && p.live(row + 1) ? p.slot_ids[row + 1] : -1;
          const std::byte* next_slot = next_row >= 0 ? p.state.at(layer, next_row, 0, 0) : nullptr;
          RunHead(p, {layer, row, slot, p.ring_of(row), hv / (p.HV / p.H), hv, v0, v1, replay}, &tokens, next_slot);
        }
      });
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#endif
