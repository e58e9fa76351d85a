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
  bool records;  ///< writes k, g, beta to the ring (one of the parts of a head does)
};

/// Token vectors of a window. kMaxHeadDim floats apart; at most 128 KiB in all, of which a window of T tokens touches 4*T*K.
struct Tokens {
  alignas(64) float k[kMaxWindow][kMaxHeadDim];      ///< normalised k
  alignas(64) float decay[kMaxWindow][kMaxHeadDim];  ///< exp(g), one per k also for GDN
  alignas(64) float kd[kMaxWindow][kMaxHeadDim];     ///< k * decay
  alignas(64) float qd[kMaxWindow][kMaxHeadDim];     ///< q * decay; not set by fold
  float beta[kMaxWindow];
  float kq[kMaxWindow];
};

// x / sqrt(sum x^2 + 1e-6), in place.
HWY_INLINE void Normalise(float* x, int n) {
  const Vector::D d;
  const float divisor = arith::l2_divisor<arith::Scalar>(Dot(x, x, n));
  for (int i = 0; i < n; i += kLanes) hn::Store(hn::Div(hn::Load(d, x + i), hn::Set(d, divisor)), d, x + i);
}

// g of one token from the raw projection a: n values (1 for GDN, K for KDA).
HWY_INLINE void Gates(const RecurrenceParams& p, int hv, const float* a, int n, float* g) {
  const Vector::D d;
  const float* dt_bias = p.dt_bias ? p.dt_bias + hv * p.dt_bias_head_stride : nullptr;
  const float expA = arith::exp_A<arith::Scalar>(p.A_log[hv]);
  if (n == 1) {
    const float dt = dt_bias ? dt_bias[0] : 0.0f;
    g[0] = p.safe_gate ? arith::safe_gate<arith::Scalar>(a[0], dt, expA, p.lower_bound)
                       : arith::softplus_gate<arith::Scalar>(a[0], dt, expA, p.softplus_beta, p.softplus_threshold);
    return;
  }
  alignas(64) float dt[kMaxHeadDim] = {};
  if (dt_bias) std::memcpy(dt, dt_bias, n * sizeof(float));
  for (int i = 0; i < n; i += kLanes) {
    const Vector::F x = hn::Load(d, a + i), bias = hn::Load(d, dt + i), A = hn::Set(d, expA);
    hn::Store(p.safe_gate ? safe_gate<Vector>(x, bias, A, p.lower_bound)
                          : softplus_gate<Vector>(x, bias, A, p.softplus_beta, p.softplus_threshold),
              d, g + i);
  }
}

// Row `t` of the ring of the task's slot takes what the recurrence is about to use: k as it came, g and beta as computed.
HWY_INLINE void Record(const RecurrenceParams& p, const HeadTask& task, int64_t t, const std::byte* k, const float* g, int gates,
                       float beta) {
  if (!p.ring_k || !task.records) return;
  if (task.hv % (p.HV / p.H) == 0) std::memcpy(p.ring_k.at(0, task.slot, t, task.h), k, p.K * size_of(p.k.dtype));
  std::memcpy(p.ring_g.at(0, task.slot, t, task.hv), g, gates * sizeof(float));
  std::memcpy(p.ring_beta.at(0, task.slot, t, task.hv), &beta, sizeof beta);
}

/// Fills token t of `tokens` from the window (and records it) or from the ring.
HWY_INLINE void PrepareToken(const RecurrenceParams& p, const HeadTask& task, int64_t t, Tokens* tokens) {
  const Vector::D d;
  const int K = p.K, gates = p.kind == MixerKind::kda ? K : 1;
  alignas(64) float q[kMaxHeadDim], a[kMaxHeadDim], g[kMaxHeadDim];
  float* k = tokens->k[t];
  // Elementwise loops run over whole vectors: what lies behind K must be a number that raises nothing.
  const int padded = (K + kLanes - 1) / kLanes * kLanes;
  for (int i = K; i < padded; ++i) k[i] = q[i] = a[i] = g[i] = 0.0f;
  if (p.from_ring) {
    LoadRow(p.ring_k.dtype, p.ring_k.at(task.layer, task.slot, t, task.h), K, k);
    LoadRow(DType::f32, p.ring_g.at(task.layer, task.slot, t, task.hv), gates, g);
    tokens->beta[t] = load(DType::f32, p.ring_beta.at(task.layer, task.slot, t, task.hv), 0);
  } else {
    const int64_t row = p.window_row(task.row), at = p.window_token(task.row) + t;
    const std::byte* raw_k = p.k.at(0, row, at, task.h);
    LoadRow(p.k.dtype, raw_k, K, k);
    LoadRow(p.q.dtype, p.q.at(0, row, at, task.h), K, q);
    LoadRow(p.a.dtype, p.a.at(0, row, at, task.hv), gates, a);
    Gates(p, task.hv, a, gates, g);
    tokens->beta[t] = arith::sigmoid<arith::Scalar>(load(p.b.dtype, p.b.at(0, row, at, task.hv), 0));
    Record(p, task, t, raw_k, g, gates, tokens->beta[t]);
  }
  if (p.qk_l2norm) Normalise(k, K);
  float* decay = tokens->decay[t];
  if (gates == 1) {
    const Vector::F value = hn::Set(d, arith::exp<arith::Scalar>(g[0]));
    for (int i = 0; i < K; i += kLanes) hn::Store(value, d, decay + i);
  } else {
    for (int i = 0; i < K; i += kLanes) hn::Store(exp<Vector>(hn::Load(d, g + i)), d, decay + i);
  }
  for (int i = 0; i < K; i += kLanes) hn::Store(hn::Mul(hn::Load(d, k + i), hn::Load(d, decay + i)), d, tokens->kd[t] + i);
  if (p.from_ring) return;
  if (p.qk_l2norm) Normalise(q, K);
  for (int i = 0; i < K; i += kLanes) {
    const Vector::F scaled = hn::Mul(hn::Load(d, q + i), hn::Set(d, p.scale));
    hn::Store(scaled, d, q + i);
    hn::Store(hn::Mul(scaled, hn::Load(d, decay + i)), d, tokens->qd[t] + i);
  }
  tokens->kq[t] = Dot(k, q, K);
}

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#endif
