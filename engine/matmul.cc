#include "engine/matmul.h"

#include <algorithm>

#include "core/parallel.h"
#include "ringfold/registry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "engine/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::engine::HWY_NAMESPACE {

/// R rows of weights times T tokens: each group of weights is expanded once and used T times.
template <int R, int T, class W>
void tile(const W* HWY_RESTRICT w, int64_t cols, const float* HWY_RESTRICT x, int64_t ldx, float* HWY_RESTRICT y,
          int64_t ldy, bool add_to) {
  F8 acc[R * T];
#pragma GCC unroll 16
  for (int i = 0; i < R * T; ++i) acc[i] = set8(0.0f);
  const auto step = [&](const F8(&wv)[R], const F8(&xv)[T]) HWY_ATTR {
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) acc[r * T + t] = fma(wv[r], xv[t], acc[r * T + t]);
    }
  };
  int64_t k = 0;
  for (; k + 8 <= cols; k += 8) {
    F8 wv[R], xv[T];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) wv[r] = load8(w + r * cols + k);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) xv[t] = load8(x + t * ldx + k);
    step(wv, xv);
  }
  if (k < cols) {
    F8 wv[R], xv[T];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) wv[r] = load_some(w + r * cols + k, cols - k);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) xv[t] = load_some(x + t * ldx + k, cols - k);
    step(wv, xv);
  }
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float* out = y + t * ldy + r;
      const float sum = sum8(acc[r * T + t]);
      *out = add_to ? *out + sum : sum;
    }
  }
}

/// All rows begin..end for T tokens, R rows at a time. R * T accumulators leave a few of the 16 registers of AVX2 for
/// weights and inputs, and are enough independent chains to hide the latency of the multiply-adds (8 on current cores).
template <int R, int T, class W>
void column(const W* w, int64_t begin, int64_t end, int64_t cols, const float* x, int64_t ldx, float* y, int64_t ldy,
            bool add_to) {
  int64_t n = begin;
  for (; n + R <= end; n += R) tile<R, T>(w + n * cols, cols, x, ldx, y + n, ldy, add_to);
  if constexpr (R == 3) {
    for (; n + 2 <= end; n += 2) tile<2, T>(w + n * cols, cols, x, ldx, y + n, ldy, add_to);
  }
  for (; n < end; ++n) tile<1, T>(w + n * cols, cols, x, ldx, y + n, ldy, add_to);
}

/// Rows are taken in blocks that stay in the first-level cache while all tokens pass over them, at most 6 at a time.
template <class W>
void rows_of(const W* w, int64_t begin, int64_t end, int64_t cols, const float* x, int64_t ldx, int64_t tokens,
             float* y, int64_t ldy, bool add_to) {
  constexpr int64_t kBlockBytes = 16 * 1024;
  const int64_t fitting = kBlockBytes / static_cast<int64_t>(sizeof(W)) / std::max<int64_t>(1, cols);
  const int64_t block = tokens <= 6 ? end - begin : std::max<int64_t>(8, fitting / 8 * 8);
  for (int64_t n0 = begin; n0 < end; n0 += block) {
    const int64_t n1 = std::min(end, n0 + block);
    for (int64_t t = 0; t < tokens;) {
      const int64_t left = tokens - t;
      const float* xt = x + t * ldx;
      float* yt = y + t * ldy;
      // 7 = 4 + 3 and 8 = 4 + 4 rather than 6 + 1 and 6 + 2: even blocks waste fewer multiply-add slots.
      const int64_t take = left <= 6 ? left : left <= 8 ? 4 : 6;
      switch (take) {
        case 1: column<8, 1>(w, n0, n1, cols, xt, ldx, yt, ldy, add_to); break;
        case 2: column<4, 2>(w, n0, n1, cols, xt, ldx, yt, ldy, add_to); break;
        case 3: column<4, 3>(w, n0, n1, cols, xt, ldx, yt, ldy, add_to); break;
        case 4: column<3, 4>(w, n0, n1, cols, xt, ldx, yt, ldy, add_to); break;
        case 5: column<2, 5>(w, n0, n1, cols, xt, ldx, yt, ldy, add_to); break;
        default: column<2, 6>(w, n0, n1, cols, xt, ldx, yt, ldy, add_to); break;
      }
      t += take;
    }
  }
}

void MatmulRows(const Matrix& w, int64_t begin, int64_t end, const float* x, int64_t ldx, int64_t tokens, float* y,
                int64_t ldy, bool add_to) {
  const int64_t cols = w.cols;
  if (w.dtype == DType::bf16) {
    rows_of(static_cast<const hwy::bfloat16_t*>(w.data), begin, end, cols, x, ldx, tokens, y, ldy, add_to);
  } else if (w.dtype == DType::f16) {
    rows_of(static_cast<const hwy::float16_t*>(w.data), begin, end, cols, x, ldx, tokens, y, ldy, add_to);
  } else {
    rows_of(static_cast<const float*>(w.data), begin, end, cols, x, ldx, tokens, y, ldy, add_to);
  }
}

}  // namespace ringfold::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringfold::engine {

HWY_EXPORT(MatmulRows);

void matmul_rows(const Matrix& w, int64_t begin, int64_t end, const float* x, int64_t ldx, int64_t tokens, float* y,
                 int64_t ldy, bool add) {
  HWY_DYNAMIC_DISPATCH(MatmulRows)(w, begin, end, x, ldx, tokens, y, ldy, add);
}

int64_t rows_per_task(int64_t rows) {
  constexpr int64_t kTasksPerThread = 4;  // enough to even out a thread that was held up, few enough to be cheap
  const int64_t tasks = kTasksPerThread * std::max(1, num_threads());
  return std::max<int64_t>(16, (rows + tasks - 1) / tasks + 7) / 8 * 8;
}

int threads_for(int64_t work) {
  // About 2 microseconds on one core: what a parallel region costs.
  constexpr int64_t kWorthIt = 32 * 1024;
  return work < kWorthIt ? 1 : 0;
}

void matmul(std::span<const Product> products, const float* x, int64_t ldx, int64_t tokens) {
  int64_t rows = 0, tasks = 0;
  for (const Product& p : products) rows += p.w.rows;
  const int64_t chunk = rows_per_task(rows);
  for (const Product& p : products) tasks += (p.w.rows + chunk - 1) / chunk;
  detail::parallel_for(tasks, threads_for(rows * products[0].w.cols * tokens), [&](int64_t task) {
    for (const Product& p : products) {
      const int64_t count = (p.w.rows + chunk - 1) / chunk;
      if (task >= count) {
        task -= count;
        continue;
      }
      const int64_t begin = task * chunk;
      matmul_rows(p.w, begin, std::min(p.w.rows, begin + chunk), x, ldx, tokens, p.y, p.ldy, p.add);
      return;
    }
  });
}

}  // namespace ringfold::engine
#endif  // HWY_ONCE
