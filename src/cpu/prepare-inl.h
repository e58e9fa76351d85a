// Per-token vectors of one value head: what is the same for every row of V.
#if defined(RINGFOLD_CPU_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFOLD_CPU_PREPARE_INL_H_
#undef RINGFOLD_CPU_PREPARE_INL_H_
#else
#define RINGFOLD_CPU_PREPARE_INL_H_
#endif

#include <algorithm>

#include "core/history.h"
#include "cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::cpu {
namespace HWY_NAMESPACE {

using detail::RecurrenceParams;

/// One head's part of a call.
struct HeadTask {
  int64_t layer, row, slot, ring;
  int h, hv;
  int v0, v1;  ///< rows of V that are this task's part of the head
  detail::Replay replay;

  /// Step i of the row, counted from the first row of the history, is token i - replay.rows of its window.
  bool in_history(int64_t i) const { return i < replay.rows; }
};

/// Most steps of a row: a ring of history, and a window.
constexpr int kMaxSteps = 2 * kMaxWindow;

/// Token vectors of a history and a window. Those that a pass reads lie together, and tokens follow one another without
/// gaps, so that a window of T tokens touches little cache: 16*T*K bytes and 4*T*V.
class Tokens {
 public:
  /// Forgets what was prepared before.
  void Reset(int K, int V) {
    k_stride_ = (K + kLanes - 1) / kLanes * kLanes;
    v_stride_ = (V + kLanes - 1) / kLanes * kLanes;
    key_row_ = -1;
  }
  HWY_INLINE float* k(int64_t t) { return data_ + 4 * t * k_stride_; }  ///< normalised k
  HWY_INLINE float* decay(int64_t t) { return k(t) + k_stride_; }       ///< exp(g), one per k also for GDN
  HWY_INLINE float* kd(int64_t t) { return k(t) + 2 * k_stride_; }      ///< k * decay
  HWY_INLINE float* qd(int64_t t) { return k(t) + 3 * k_stride_; }      ///< q * decay; not set for rows of the ring
  HWY_INLINE float* q(int64_t t) { return q_ + t * k_stride_; }         ///< normalised, scaled q; likewise
  HWY_INLINE float* v(int64_t t) { return v_ + t * v_stride_; }         ///< v; each element gives way to the output
  /// True once for each (layer, row, key head) in a sequence of tasks: k, q and kq are shared by its value heads.
  HWY_INLINE bool TakeKey(int64_t layer, int64_t row, int h) {
    const bool fresh = key_row_ != row || key_layer_ != layer || key_head_ != h;
    key_layer_ = layer, key_row_ = row, key_head_ = h;
    return fresh;
  }

  alignas(64) float beta[kMaxSteps];
  alignas(64) float g[kMaxSteps];           ///< GDN: log decay
  alignas(64) float head_decay[kMaxSteps];  ///< GDN: exp(g)
  float kq[kMaxSteps];

 private:
  int64_t k_stride_ = 0, v_stride_ = 0;
  int64_t key_layer_ = -1, key_row_ = -1;
  int key_head_ = -1;
  alignas(64) float data_[4 * kMaxSteps * kMaxHeadDim];
  alignas(64) float q_[kMaxSteps * kMaxHeadDim];
  alignas(64) float v_[kMaxSteps * kMaxHeadDim];
};

// x / sqrt(sum x^2 + 1e-6), in place.
HWY_INLINE void Normalise(float* x, int n) {
  const Vector::D d;
  const float divisor = arith::l2_divisor<arith::Scalar>(Dot(x, x, n));
  for (int i = 0; i < n; i += kLanes) hn::Store(hn::Div(hn::Load(d, x + i), hn::Set(d, divisor)), d, x + i);
}

// g of n raw projections a that share A_log; dt_bias of each. Whole vectors: what lies behind n is computed too.
HWY_INLINE void Gates(const RecurrenceParams& p, const HeadTask& task, const float* a, const float* dt_bias, int n,
                      float* g) {
  const Vector::D d;
  const Vector::F A = hn::Set(d, arith::exp_A<arith::Scalar>(p.A_log_of(task.layer)[task.hv]));
  for (int i = 0; i < n; i += kLanes) {
    const Vector::F x = hn::Load(d, a + i), bias = hn::Load(d, dt_bias + i);
    hn::Store(p.safe_gate ? safe_gate<Vector>(x, bias, A, p.lower_bound)
                          : softplus_gate<Vector>(x, bias, A, p.softplus_beta, p.softplus_threshold),
              d, g + i);
  }
}

/// KDA: g of all K from a's, of the window or of the ring.
HWY_INLINE void ChannelGates(const RecurrenceParams& p, const HeadTask& task, DType dtype, const std::byte* from,
                             float* g) {
  alignas(64) float a[kMaxHeadDim], bias[kMaxHeadDim];
  for (int i = p.K; i % kLanes != 0; ++i) a[i] = bias[i] = 0.0f;
  LoadRow(dtype, from, p.K, a);
  const float* dt_bias = p.dt_bias_of(task.layer);
  for (int i = 0; i < p.K; ++i) bias[i] = dt_bias ? dt_bias[task.hv * p.dt_bias_head_stride + i] : 0.0f;
  Gates(p, task, a, bias, p.K, g);
}

/// beta and, for GDN, g of the n tokens of a window, from the raw projections. Whole vectors.
HWY_INLINE void WindowScalars(const RecurrenceParams& p, const HeadTask& task, int n, float* beta, float* g) {
  static_assert(kMaxWindow % kLanes == 0);
  const Vector::D d;
  const bool gdn = p.kind == MixerKind::gdn;
  alignas(64) float a[kMaxWindow] = {}, b[kMaxWindow] = {}, bias[kMaxWindow];
  const int64_t row = p.window_row(task.row), first = p.window_token(task.row);
  for (int t = 0; t < n; ++t) {
    b[t] = load(p.b.dtype, p.b.at(0, row, first + t, task.hv), 0);
    if (gdn) a[t] = load(p.a.dtype, p.a.at(0, row, first + t, task.hv), 0);
    bias[t] = gdn && p.dt_bias ? p.dt_bias[task.hv * p.dt_bias_head_stride] : 0.0f;
  }
  for (int t = n; t % kLanes != 0; ++t) bias[t] = 0.0f;
  for (int t = 0; t < n; t += kLanes) hn::Store(sigmoid<Vector>(hn::Load(d, b + t)), d, beta + t);
  if (gdn) Gates(p, task, a, bias, n, g);
}

/// beta of all steps, and for GDN g and exp(g): lanes are tokens. From the raw projections, or from the ring.
HWY_INLINE void PrepareScalars(const RecurrenceParams& p, const HeadTask& task, int64_t count, Tokens* tokens) {
  static_assert(kMaxSteps % kLanes == 0);
  const Vector::D d;
  const auto n = static_cast<int>(count), history = static_cast<int>(task.replay.rows);
  const bool gdn = p.kind == MixerKind::gdn;
  for (int t = 0; t < (p.from_ring ? n : history); ++t) {
    const int64_t ring_row = task.replay.ring_row(t);
    tokens->beta[t] = load(DType::f32, p.ring_beta.at(task.layer, task.ring, ring_row, task.hv), 0);
    if (gdn) tokens->g[t] = load(DType::f32, p.ring_gate.at(task.layer, task.ring, ring_row, task.hv), 0);
  }
  if (!p.from_ring && history == 0) {
    WindowScalars(p, task, n, tokens->beta, tokens->g);
  } else if (!p.from_ring) {  // behind the history, where no vector begins
    alignas(64) float beta[kMaxWindow], g[kMaxWindow];
    WindowScalars(p, task, n - history, beta, g);
    std::copy_n(beta, n - history, tokens->beta + history);
    if (gdn) std::copy_n(g, n - history, tokens->g + history);
  }
  if (!gdn) return;
  for (int t = n; t % kLanes != 0; ++t) tokens->g[t] = 0.0f;
  for (int t = 0; t < n; t += kLanes) hn::Store(exp<Vector>(hn::Load(d, tokens->g + t)), d, tokens->head_decay + t);
}

// k, q and kq of step t: the same for all value heads of a key head.
HWY_INLINE void PrepareKey(const RecurrenceParams& p, const HeadTask& task, int64_t t, Tokens* tokens) {
  const Vector::D d;
  float *k = tokens->k(t), *q = tokens->q(t);
  // Elementwise loops run over whole vectors: what lies behind K must be a number that raises nothing.
  for (int i = p.K; i % kLanes != 0; ++i) k[i] = q[i] = 0.0f;
  if (p.from_ring || task.in_history(t)) {
    LoadRow(p.ring_k.dtype, p.ring_k.at(task.layer, task.ring, task.replay.ring_row(t), task.h), p.K, k);
    if (p.qk_l2norm) Normalise(k, p.K);
    return;
  }
  const int64_t row = p.window_row(task.row), at = p.window_token(task.row) + t - task.replay.rows;
  LoadRow(p.k.dtype, p.k.at(0, row, at, task.h), p.K, k);
  LoadRow(p.q.dtype, p.q.at(0, row, at, task.h), p.K, q);
  if (p.qk_l2norm) {
    Normalise(k, p.K);
    Normalise(q, p.K);
  }
  for (int i = 0; i < p.K; i += kLanes) hn::Store(hn::Mul(hn::Load(d, q + i), hn::Set(d, p.scale)), d, q + i);
  tokens->kq[t] = Dot(k, q, p.K);
}

// The ring row of step t of the task takes what the recurrence is about to use: k and v as they came, g (or a,
// as it came) and beta as computed.
HWY_INLINE void Record(const RecurrenceParams& p, const HeadTask& task, int64_t t, const float* g, int gates,
                       float beta) {
  const int64_t row = p.window_row(task.row), at = p.window_token(task.row) + t - task.replay.rows;
  const int64_t to = task.replay.ring_row(t);
  const auto size = static_cast<int64_t>(size_of(p.v.dtype));
  std::memcpy(p.ring_v.at(0, task.ring, to, task.hv) + task.v0 * size, p.v.at(0, row, at, task.hv) + task.v0 * size,
              (task.v1 - task.v0) * size);
  if (task.v0 != 0) return;  // one part of a head records the rest
  if (task.hv % (p.HV / p.H) == 0) {
    std::memcpy(p.ring_k.at(0, task.ring, to, task.h), p.k.at(0, row, at, task.h), p.K * size);
  }
  std::byte* gate = p.ring_gate.at(0, task.ring, to, task.hv);
  if (p.raw_gate) {
    std::memcpy(gate, p.a.at(0, row, at, task.hv), gates * size_of(p.a.dtype));
  } else {
    std::memcpy(gate, g, gates * sizeof(float));
  }
  std::memcpy(p.ring_beta.at(0, task.ring, to, task.hv), &beta, sizeof beta);
}

/// Fills step t of `tokens` from the window (and records it) or from the ring, after PrepareScalars.
HWY_INLINE void PrepareToken(const RecurrenceParams& p, const HeadTask& task, bool key, int64_t t, Tokens* tokens) {
  const Vector::D d;
  const int K = p.K;
  const bool gdn = p.kind == MixerKind::gdn;
  if (key) PrepareKey(p, task, t, tokens);
  const bool in_ring = p.from_ring || task.in_history(t);
  const detail::Array& values = in_ring ? p.ring_v : p.v;
  const int64_t row = in_ring ? task.ring : p.window_row(task.row),
                at = in_ring ? task.replay.ring_row(t) : p.window_token(task.row) + t - task.replay.rows;
  LoadRow(values.dtype, values.at(task.layer, row, at, task.hv) + task.v0 * static_cast<int64_t>(size_of(values.dtype)),
          task.v1 - task.v0, tokens->v(t) + task.v0);
  alignas(64) float g[kMaxHeadDim];  // KDA
  if (!gdn) {
    for (int i = K; i % kLanes != 0; ++i) g[i] = 0.0f;
    const detail::Array& gates = in_ring ? p.ring_gate : p.a;
    const std::byte* gate = gates.at(task.layer, row, at, task.hv);
    if (in_ring && !p.raw_gate) {
      LoadRow(DType::f32, gate, K, g);
    } else {
      ChannelGates(p, task, gates.dtype, gate, g);
    }
  }
  if (p.records() && !in_ring) Record(p, task, t, gdn ? tokens->g + t : g, gdn ? 1 : K, tokens->beta[t]);
  const float *k = tokens->k(t), *q = tokens->q(t);
  float *decay = tokens->decay(t), *kd = tokens->kd(t), *qd = tokens->qd(t);
  const Vector::F head_decay = hn::Set(d, gdn ? tokens->head_decay[t] : 0.0f);
  for (int i = 0; i < K; i += kLanes) {
    const Vector::F x = gdn ? head_decay : exp<Vector>(hn::Load(d, g + i));
    hn::Store(x, d, decay + i);
    hn::Store(hn::Mul(hn::Load(d, k + i), x), d, kd + i);
    if (!in_ring) hn::Store(hn::Mul(hn::Load(d, q + i), x), d, qd + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#endif
