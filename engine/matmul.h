// Matrix product of few rows of activations with a big weight matrix.
#pragma once

#include <cstdint>
#include <span>

#include "ringfold/types.h"

namespace ringfold::engine {

/// A weight matrix [rows, cols], packed row-major, as it lies in the checkpoint. Not owned.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::f32;  ///< f32, bf16 or f16
  int64_t rows = 0;
  int64_t cols = 0;
};

/// y[t,n] = sum_k x[t,k] * w[n,k] for t < tokens and begin <= n < end; with `add`, y[t,n] = y[t,n] + that sum.
/// x [tokens, w.cols] with row stride ldx, y with row stride ldy, both fp32, strides in elements.
///
/// One definition of every bit: eight partial sums, partial p over k = p, p+8, .. in ascending order as a chain of
/// fused multiply-adds from zero, then a halving tree over the eight. So y[t,:] depends on x[t,:] and w alone: not on
/// the number of tokens, on begin and end (threads), or on the instruction set.
void matmul_rows(const Matrix& w, int64_t begin, int64_t end, const float* x, int64_t ldx, int64_t tokens, float* y,
                 int64_t ldy, bool add);

/// One product of a group that shares its input.
struct Product {
  Matrix w;
  float* y = nullptr;  ///< [tokens, w.rows], row stride ldy
  int64_t ldy = 0;
  bool add = false;
};

/// All products of the group in one parallel region.
void matmul(std::span<const Product> products, const float* x, int64_t ldx, int64_t tokens);

/// Rows per task so that `rows` makes a few tasks for every thread: a multiple of 8.
int64_t rows_per_task(int64_t rows);

/// Threads for a region of `work` multiply-adds: one where waking the others would cost more than it saves, else 0
/// (all).
int threads_for(int64_t work);

}  // namespace ringfold::engine
