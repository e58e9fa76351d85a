#include "engine/vector_ops.h"

#include <algorithm>
#include <cmath>

#include "engine/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/vector_ops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "engine/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::engine::HWY_NAMESPACE {

void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  F8 squares = set8(0.0f);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const F8 v = load8(x + i);
    squares = fma(v, v, squares);
  }
  if (i < n) {
    const F8 v = load_some(x + i, n - i);
    squares = fma(v, v, squares);
  }
  const F8 factor = set8(1.0f / std::sqrt(sum8(squares) / static_cast<float>(n) + eps));
  for (i = 0; i + 8 <= n; i += 8) store8(mul(mul(load8(x + i), factor), load8(weight + i)), y + i);
  if (i < n) store_some(mul(mul(load_some(x + i, n - i), factor), load_some(weight + i, n - i)), y + i, n - i);
}

void SiluMul(const float* gate, const float* up, int64_t n, float* y) {
  const auto f = [](const F8& g, const F8& u) HWY_ATTR { return mul(mul(g, sigmoid8(g)), u); };
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(f(load8(gate + i), load8(up + i)), y + i);
  if (i < n) store_some(f(load_some(gate + i, n - i), load_some(up + i, n - i)), y + i, n - i);
}

void SigmoidGate(const float* gate, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(mul(load8(y + i), sigmoid8(load8(gate + i))), y + i);
  if (i < n) store_some(mul(load_some(y + i, n - i), sigmoid8(load_some(gate + i, n - i))), y + i, n - i);
}

/// Scores to weights exp(scale * (s - max)) in place, zeros up to the next multiple of 8; returns 1 / their sum.
float softmax_weights(float* s, int64_t n, float scale) {
  const int64_t padded = (n + 7) / 8 * 8;
  for (int64_t i = n; i < padded; ++i) s[i] = s[0];
  F8 most = load8(s);
  for (int64_t i = 8; i < padded; i += 8) most = max(most, load8(s + i));
  float lanes[8];
  store8(most, lanes);
  const F8 factor = set8(scale), shift = set8(-*std::max_element(lanes, lanes + 8));
  F8 sum = set8(0.0f);
  for (int64_t i = 0; i < padded; i += 8) {
    store8(exp8(mul(add(load8(s + i), shift), factor)), s + i);
    for (int64_t j = n; j < i + 8; ++j) s[j] = 0.0f;
    sum = add(sum, load8(s + i));
  }
  return 1.0f / sum8(sum);
}

/// One block of T tokens and B groups of eight dimensions: out[t,d] = sum of p[t,j] * values[j,d] on top of out[t,d].
template <int T, int B>
void weighted_block(const float* p, int64_t ldp, const float* values, int64_t begin, int64_t end, int64_t dim,
                    float* out, int64_t ldo) {
  F8 acc[T * B];
#pragma GCC unroll 8
  for (int i = 0; i < T * B; ++i) acc[i] = load8(out + i / B * ldo + i % B * 8);
  for (int64_t j = begin; j < end; ++j) {
    F8 v[B];
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) v[b] = load8(values + j * dim + b * 8);
#pragma GCC unroll 8
    for (int i = 0; i < T * B; ++i) acc[i] = fma(set8(p[i / B * ldp + j]), v[i % B], acc[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < T * B; ++i) store8(acc[i], out + i / B * ldo + i % B * 8);
}

/// out[t,d] += sum of p[t,j] * values[j,d] over begin <= j < end in ascending order, for T tokens. Eight chains at a
/// time.
template <int T>
void weighted_sum(const float* p, int64_t ldp, const float* values, int64_t begin, int64_t end, int64_t dim, float* out,
                  int64_t ldo) {
  constexpr int kBlocks = 8 / T;
  int64_t d = 0;
  for (; d + 8 * kBlocks <= dim; d += 8 * kBlocks) {
    weighted_block<T, kBlocks>(p, ldp, values + d, begin, end, dim, out + d, ldo);
  }
  for (; d + 8 <= dim; d += 8) weighted_block<T, 1>(p, ldp, values + d, begin, end, dim, out + d, ldo);
  for (; d < dim; ++d) {
    for (int t = 0; t < T; ++t) {
      float acc = out[t * ldo + d];
      for (int64_t j = begin; j < end; ++j) acc = std::fma(p[t * ldp + j], values[j * dim + d], acc);
      out[t * ldo + d] = acc;
    }
  }
}

void Attend(const HeadAttention& a) {
  matmul_rows({a.keys, DType::f32, a.length, a.dim}, 0, a.length, a.q, a.ldq, a.tokens, a.scores, a.ld_scores, false);
  const int64_t before = a.length - a.tokens;
  float inverse[kMaxWindow];
  for (int64_t t = 0; t < a.tokens; ++t) {
    inverse[t] = softmax_weights(a.scores + t * a.ld_scores, before + t + 1, a.scale);
    std::fill_n(a.out + t * a.ldo, a.dim, 0.0f);
  }
  const auto pass = [&](auto fn, int64_t t, int64_t begin, int64_t end) {
    fn(a.scores + t * a.ld_scores, a.ld_scores, a.values, begin, end, a.dim, a.out + t * a.ldo, a.ldo);
  };
  // The positions that all tokens see, up to four tokens per pass over the values; then each token's own tail.
  int64_t t = 0;
  for (; t + 4 <= a.tokens; t += 4) pass(weighted_sum<4>, t, 0, before + 1);
  for (; t + 2 <= a.tokens; t += 2) pass(weighted_sum<2>, t, 0, before + 1);
  for (; t < a.tokens; ++t) pass(weighted_sum<1>, t, 0, before + 1);
  for (t = 0; t < a.tokens; ++t) {
    pass(weighted_sum<1>, t, before + 1, before + t + 1);
    for (int64_t d = 0; d < a.dim; ++d) a.out[t * a.ldo + d] *= inverse[t];
  }
}

}  // namespace ringfold::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfold::engine {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(SiluMul);
HWY_EXPORT(SigmoidGate);
HWY_EXPORT(Attend);

void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, n, eps, y);
}
void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(SiluMul)(gate, up, n, y);
}
void sigmoid_gate(const float* gate, int64_t n, float* y) { HWY_DYNAMIC_DISPATCH(SigmoidGate)(gate, n, y); }
void attend(const HeadAttention& args) { HWY_DYNAMIC_DISPATCH(Attend)(args); }

void rope(float* head, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float x = head[i], y = head[i + half];
    head[i] = x * cosine[i] - y * sine[i];
    head[i + half] = y * cosine[i] + x * sine[i];
  }
}

}  // namespace ringfold::engine
#endif  // HWY_ONCE
