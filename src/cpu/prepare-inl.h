// Per-token vectors of one value head: what is the same for every row of V.
#if defined(RINGFOLD_CPU_PREPARE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFOLD_CPU_PREPARE_INL_H_
#undef RINGFOLD_CPU_PREPARE_INL_H_
#else
#define RINGFOLD_CPU_PREPARE_INL_H_
#endif

#include "core/params.h"
#include "cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::cpu {
namespace HWY_NAMESPACE {

using detail::RecurrenceParams;

/// One head's part of a call.
struct HeadTask {
  int64_t layer, row, slot;
  int h, hv;
  int v0, v1;  ///< rows of V that are this task's part of the head
};

/// Token vectors of a window. Those that a pass reads lie together, and tokens follow one another without gaps, so that
/// a window of T tokens touches little cache: 16*T*K bytes and 4*T*V.
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
  HWY_INLINE float* qd(int64_t t) { return k(t) + 3 * k_stride_; }      ///< q * decay; not set by fold
  HWY_INLINE float* q(int64_t t) { return q_ + t * k_stride_; }         ///< normalised, scaled q; not set by fold
  HWY_INLINE float* v(int64_t t) { return v_ + t * v_stride_; }         ///< v; each element gives way to the output
  /// True once for each (layer, row, key head) in a sequence of tasks: k, q and kq are shared by its value heads.
  HWY_INLINE bool TakeKey(int64_t layer, int64_t row, int h) {
    const bool fresh = key_row_ != row || key_layer_ != layer || key_head_ != h;
    key_layer_ = layer, key_row_ = row, key_head_ = h;
    return fresh;
  }

  alignas(64) float beta[kMaxWindow];
  alignas(64) float g[kMaxWindow];           ///< GDN: log decay
  alignas(64) float head_decay[kMaxWindow];  ///< GDN: exp(g)
  float kq[kMaxWindow];

 private:
  int64_t k_stride_ = 0, v_stride_ = 0;
  int64_t key_layer_ = -1, key_row_ = -1;
  int key_head_ = -1;
  alignas(64) float data_[4 * kMaxWindow * kMaxHeadDim];
  alignas(64) float q_[kMaxWindow * kMaxHeadDim];
  alignas(64) float v_[kMaxWindow * kMaxHeadDim];
};

// x / sqrt(sum x^2 + 1e-6), in place.
HWY_INLINE void Normalise(float* x, int n) {
  const Vector::D d;
  const float divisor = arith::l2_divisor<arith::Scalar>(Dot(x, x, n));
  for (int i = 0; i < n; i += kLanes) hn::Store(hn::Div(hn::Load(d, x + i), hn::Set(d, divisor)), d, x + i);
}

// g of n raw projections a that share A_log; dt_bias of each. Whole vectors: what lies behind n is computed too.
HWY_INLINE void Gates(const RecurrenceParams& p, int hv, const float* a, const float* dt_bias, int n, float* g) {
  const Vector::D d;
  const Vector::F A = hn::Set(d, arith::exp_A<arith::Scalar>(p.A_log[hv]));
  for (int i = 0; i < n; i += kLanes) {
    const Vector::F x = hn::Load(d, a + i), bias = hn::Load(d, dt_bias + i);
    hn::Store(p.safe_gate ? safe_gate<Vector>(x, bias, A, p.lower_bound)
                          : softplus_gate<Vector>(x, bias, A, p.softplus_beta, p.softplus_threshold),
              d, g + i);
  }
}

/// beta of all tokens, and for GDN g and exp(g): lanes are tokens. From the raw projections, or from the ring.
HWY_INLINE void PrepareScalars(const RecurrenceParams& p, const HeadTask& task, int64_t count, Tokens* tokens) {
  static_assert(kMaxWindow % kLanes == 0);
  const Vector::D d;
  const auto n = static_cast<int>(count);
  const bool gdn = p.kind == MixerKind::gdn;
  if (p.from_ring) {
    for (int t = 0; t < n; ++t) {
      tokens->beta[t] = load(DType::f32, p.ring_beta.at(task.layer, task.slot, t, task.hv), 0);
      if (gdn) tokens->g[t] = load(DType::f32, p.ring_g.at(task.layer, task.slot, t, task.hv), 0);
    }
  } else {
    alignas(64) float a[kMaxWindow] = {}, b[kMaxWindow] = {}, bias[kMaxWindow];
    const int64_t row = p.window_row(task.row), first = p.window_token(task.row);
    for (int t = 0; t < n; ++t) {
      b[t] = load(p.b.dtype, p.b.at(0, row, first + t, task.hv), 0);
      if (gdn) a[t] = load(p.a.dtype, p.a.at(0, row, first + t, task.hv), 0);
      bias[t] = gdn && p.dt_bias ? p.dt_bias[task.hv * p.dt_bias_head_stride] : 0.0f;
    }
    for (int t = n; t % kLanes != 0; ++t) bias[t] = 0.0f;
    for (int t = 0; t < n; t += kLanes) hn::Store(sigmoid<Vector>(hn::Load(d, b + t)), d, tokens->beta + t);
    if (gdn) Gates(p, task.hv, a, bias, n, tokens->g);
  }
  if (!gdn) return;
  for (int t = n; t % kLanes != 0; ++t) tokens->g[t] = 0.0f;
  for (int t = 0; t < n; t += kLanes) hn::Store(exp<Vector>(hn::Load(d, tokens->g + t)), d, tokens->head_decay + t);
}

// k, q and kq of token t: the same for all value heads of a key head.
HWY_INLINE void PrepareKey(const RecurrenceParams& p, const HeadTask& task, int64_t t, Tokens* tokens) {
  const Vector::D d;
  float *k = tokens->k(t), *q = tokens->q(t);
  // Elementwise loops run over whole vectors: what lies behind K must be a number that raises nothing.
  for (int i = p.K; i % kLanes != 0; ++i) k[i] = q[i] = 0.0f;
  if (p.from_ring) {
    LoadRow(p.ring_k.dtype, p.ring_k.at(task.layer, task.slot, t, task.h), p.K, k);
    if (p.qk_l2norm) Normalise(k, p.K);
    return;
  }
  const int64_t row = p.window_row(task.row), at = p.window_token(task.row) + t;
  LoadRow(p.k.dtype, p.k.at(0, row, at, task.h), p.K, k);
  LoadRow(p.q.dtype, p.q.at(0, row, at, task.h), p.K, q);
  if (p.qk_l2norm) {
    Normalise(k, p.K);
    Normalise(q, p.K);
  }
  for (int i = 0; i < p.K; i += kLanes) hn::Store(hn::Mul(hn::Load(d, q + i), hn::Set(d, p.scale)), d, q + i);
  tokens->kq[t] = Dot(k, q, p.K);
}

// Row t of the ring of the task's slot takes what the recurrence is about to use: k and v as they came, g and beta as
// computed.
HWY_INLINE void Record(const RecurrenceParams& p, const HeadTask& task, int64_t t, const float* g, int gates,
                       float beta) {
  const int64_t row = p.window_row(task.row), at = p.window_token(task.row) + t;
  const auto size = static_cast<int64_t>(size_of(p.v.dtype));
  std::memcpy(p.ring_v.at(0, task.slot, t, task.hv) + task.v0 * size, p.v.at(0, row, at, task.hv) + task.v0 * size,
              (task.v1 - task.v0) * size);
  if (task.v0 != 0) return;  // one part of a head records the rest
  if (task.hv % (p.HV / p.H) == 0) {
    std::memcpy(p.ring_k.at(0, task.slot, t, task.h), p.k.at(0, row, at, task.h), p.K * size);
  }
  std::memcpy(p.ring_g.at(0, task.slot, t, task.hv), g, gates * sizeof(float));
  std::memcpy(p.ring_beta.at(0, task.slot, t, task.hv), &beta, sizeof beta);
}

/// Fills token t of `tokens` from the window (and records it) or from the ring, after PrepareScalars.
HWY_INLINE void PrepareToken(const RecurrenceParams& p, const HeadTask& task, bool key, int64_t t, Tokens* tokens) {
  const Vector::D d;
  const int K = p.K;
  const bool gdn = p.kind == MixerKind::gdn;
  if (key) PrepareKey(p, task, t, tokens);
  const detail::Array& values = p.from_ring ? p.ring_v : p.v;
  const int64_t row = p.from_ring ? task.slot : p.window_row(task.row),
                at = p.from_ring ? t : p.window_token(task.row) + t;
  LoadRow(values.dtype, values.at(task.layer, row, at, task.hv) + task.v0 * static_cast<int64_t>(size_of(values.dtype)),
          task.v1 - task.v0, tokens->v(t) + task.v0);
  alignas(64) float g[kMaxHeadDim];  // KDA
  if (!gdn) {
    for (int i = K; i % kLanes != 0; ++i) g[i] = 0.0f;
    if (p.from_ring) {
      LoadRow(DType::f32, p.ring_g.at(task.layer, row, at, task.hv), K, g);
    } else {
      alignas(64) float a[kMaxHeadDim], bias[kMaxHeadDim];
      for (int i = K; i % kLanes != 0; ++i) a[i] = bias[i] = 0.0f;
      LoadRow(p.a.dtype, p.a.at(0, row, at, task.hv), K, a);
      for (int i = 0; i < K; ++i) bias[i] = p.dt_bias ? p.dt_bias[task.hv * p.dt_bias_head_stride + i] : 0.0f;
      Gates(p, task.hv, a, bias, K, g);
    }
  }
  if (p.ring_k && !p.from_ring) Record(p, task, t, gdn ? tokens->g + t : g, gdn ? 1 : K, tokens->beta[t]);
  const float *k = tokens->k(t), *q = tokens->q(t);
  float *decay = tokens->decay(t), *kd = tokens->kd(t), *qd = tokens->qd(t);
  const Vector::F head_decay = hn::Set(d, gdn ? tokens->head_decay[t] : 0.0f);
  for (int i = 0; i < K; i += kLanes) {
    const Vector::F x = gdn ? head_decay : exp<Vector>(hn::Load(d, g + i));
    hn::Store(x, d, decay + i);
    hn::Store(hn::Mul(hn::Load(d, k + i), x), d, kd + i);
    if (!p.from_ring) hn::Store(hn::Mul(hn::Load(d, q + i), x), d, qd + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#endif
