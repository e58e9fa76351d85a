#include "ringfold/tensor_view.h"

#include <fmt/format.h>

#include <algorithm>

namespace ringfold {

TensorView::TensorView(void* d, DType t, std::initializer_list<int64_t> s) : data(d), dtype(t) {
  rank = static_cast<int>(std::min<size_t>(s.size(), kMaxRank));
  std::copy_n(s.begin(), rank, shape.begin());
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    stride[i] = step;
    step *= shape[i];
  }
}

TensorView::TensorView(void* d, DType t, std::initializer_list<int64_t> s, std::initializer_list<int64_t> st)
    : TensorView(d, t, s) {
  std::copy_n(st.begin(), std::min<size_t>(st.size(), rank), stride.begin());
}

int64_t TensorView::elements() const {
  int64_t n = rank == 0 ? 0 : 1;
  for (int i = 0; i < rank; ++i) n *= shape[i];
  return n;
}

bool TensorView::packed() const {
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (shape[i] != 1 && stride[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

TensorView TensorView::at(int64_t index) const {
  TensorView r = *this;
  if (rank == 0) return r;
  r.data = static_cast<char*>(data) + index * stride[0] * static_cast<int64_t>(size_of(dtype));
  r.rank = rank - 1;
  for (int i = 0; i < r.rank; ++i) {
    r.shape[i] = shape[i + 1];
    r.stride[i] = stride[i + 1];
  }
  return r;
}

TensorView TensorView::permute(std::initializer_list<int> order) const {
  TensorView r = *this;
  int i = 0;
  for (int o : order) {
    r.shape[i] = shape[o];
    r.stride[i] = stride[o];
    ++i;
  }
  return r;
}

std::string to_string(const TensorView& view) {
  if (view.empty()) return "nothing";
  std::string s =
      fmt::format("{}[{}]", to_string(view.dtype), fmt::join(view.shape.begin(), view.shape.begin() + view.rank, ","));
  if (!view.packed()) {
    s += fmt::format(" strides [{}]", fmt::join(view.stride.begin(), view.stride.begin() + view.rank, ","));
  }
  return s;
}

}  // namespace ringfold
