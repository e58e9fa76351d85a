// Rows of any float dtype to and from fp32, and blocks of the state transposed so that lanes are rows of V.
#if defined(RINGFOLD_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RINGFOLD_CPU_CONVERT_INL_H_
#undef RINGFOLD_CPU_CONVERT_INL_H_
#else
#define RINGFOLD_CPU_CONVERT_INL_H_
#endif

#include <cstring>

#include "core/scalar_io.h"
#include "cpu/ops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ringfold::cpu {
namespace HWY_NAMESPACE {

using detail::load;
using detail::store;
constexpr int kLanes = Vector::kLanes;

template <DType kType>
HWY_INLINE Vector::F LoadVector(const std::byte* from) {
  const Vector::D d;
  if constexpr (kType == DType::f32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(from));
  } else {
    const hn::Rebind<uint16_t, Vector::D> du16;
    const auto wide = hn::PromoteTo(Vector::DI(), hn::LoadU(du16, reinterpret_cast<const uint16_t*>(from)));
    return kType == DType::bf16 ? from_bf16<Vector>(wide) : from_f16<Vector>(wide);
  }
}

template <DType kType>
HWY_INLINE void StoreVector(Vector::F v, std::byte* to) {
  const Vector::D d;
  if constexpr (kType == DType::f32) {
    hn::StoreU(v, d, reinterpret_cast<float*>(to));
  } else {
    const hn::Rebind<uint16_t, Vector::D> du16;
    const Vector::I narrow = kType == DType::bf16 ? to_bf16<Vector>(v) : to_f16<Vector>(v);
    hn::StoreU(hn::DemoteTo(du16, narrow), du16, reinterpret_cast<uint16_t*>(to));  // 0 .. 65535: no saturation
  }
}

template <DType kType>
HWY_INLINE void LoadRowAs(const std::byte* from, int n, float* to) {
  constexpr int kSize = static_cast<int>(size_of(kType));
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(LoadVector<kType>(from + i * kSize), Vector::D(), to + i);
  for (; i < n; ++i) to[i] = load(kType, from, i);
}

template <DType kType>
HWY_INLINE void StoreRowAs(const float* from, int n, std::byte* to) {
  constexpr int kSize = static_cast<int>(size_of(kType));
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreVector<kType>(hn::LoadU(Vector::D(), from + i), to + i * kSize);
  for (; i < n; ++i) store(kType, to, i, from[i]);
}

/// n elements to fp32.
static HWY_NOINLINE HWY_MAYBE_UNUSED void LoadRow(DType type, const std::byte* from, int n, float* to) {
  if (type == DType::f32) return LoadRowAs<DType::f32>(from, n, to);
  if (type == DType::bf16) return LoadRowAs<DType::bf16>(from, n, to);
  LoadRowAs<DType::f16>(from, n, to);
}

/// n elements from fp32, rounded to nearest even.
static HWY_NOINLINE HWY_MAYBE_UNUSED void StoreRow(DType type, const float* from, int n, std::byte* to) {
  if (type == DType::f32) return StoreRowAs<DType::f32>(from, n, to);
  if (type == DType::bf16) return StoreRowAs<DType::bf16>(from, n, to);
  StoreRowAs<DType::f16>(from, n, to);
}

// One vector of kLanes/4 blocks: block b is the four elements at rows[4b], from k on, as fp32. Rows are pointers, or
// EvenRows.
template <class D16, class Rows>
HWY_INLINE hn::Vec<D16> LoadHalfBlocks(D16 d, const Rows& rows, int k) {
  if constexpr (hn::MaxLanes(D16()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const uint16_t*>(rows[0]) + k);
  } else {
    const hn::Half<D16> dh;
    return hn::Combine(d, LoadHalfBlocks(dh, rows + hn::MaxLanes(dh), k), LoadHalfBlocks(dh, rows, k));
  }
}
template <class D, class Rows>
HWY_INLINE hn::Vec<D> LoadFloatBlocks(D d, const Rows& rows, int k) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const float*>(rows[0]) + k);
  } else {
    const hn::Half<D> dh;
    return hn::Combine(d, LoadFloatBlocks(dh, rows + hn::MaxLanes(dh), k), LoadFloatBlocks(dh, rows, k));
  }
}
template <DType kType, class Rows>
HWY_INLINE Vector::F LoadBlocks(const Rows& rows, int k) {
  if constexpr (kType == DType::f32) {
    return LoadFloatBlocks(Vector::D(), rows, k);
  } else {
    const Vector::I wide = hn::PromoteTo(Vector::DI(), LoadHalfBlocks(hn::Rebind<uint16_t, Vector::D>(), rows, k));
    return kType == DType::bf16 ? from_bf16<Vector>(wide) : from_f16<Vector>(wide);
  }
}

template <class D16>
HWY_INLINE void StoreHalfBlocks(D16 d, hn::Vec<D16> v, std::byte* const* rows, int k) {
  if constexpr (hn::MaxLanes(D16()) == 4) {
    hn::StoreU(v, d, reinterpret_cast<uint16_t*>(rows[0]) + k);
  } else {
    const hn::Half<D16> dh;
    StoreHalfBlocks(dh, hn::LowerHalf(dh, v), rows, k);
    StoreHalfBlocks(dh, hn::UpperHalf(dh, v), rows + hn::MaxLanes(dh), k);
  }
}
template <class D, class Rows>
HWY_INLINE void StoreFloatBlocks(D d, hn::Vec<D> v, const Rows& rows, int k) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, reinterpret_cast<float*>(rows[0]) + k);
  } else {
    const hn::Half<D> dh;
    StoreFloatBlocks(dh, hn::LowerHalf(dh, v), rows, k);
    StoreFloatBlocks(dh, hn::UpperHalf(dh, v), rows + hn::MaxLanes(dh), k);
  }
}
template <DType kType>
HWY_INLINE void StoreBlocks(Vector::F v, std::byte* const* rows, int k) {
  if constexpr (kType == DType::f32) {
    StoreFloatBlocks(Vector::D(), v, rows, k);
  } else {
    const hn::Rebind<uint16_t, Vector::D> d16;
    const Vector::I narrow = kType == DType::bf16 ? to_bf16<Vector>(v) : to_f16<Vector>(v);
    StoreHalfBlocks(d16, hn::DemoteTo(d16, narrow), rows, k);  // 0 .. 65535: no saturation
  }
}

// Its constructors are written out because those that a compiler supplies lack the instruction set's attributes.
struct Four {
  Vector::F v0, v1, v2, v3;
  HWY_INLINE Four() {}
  HWY_INLINE Four(Vector::F a, Vector::F b, Vector::F c, Vector::F d) : v0(a), v1(b), v2(c), v3(d) {}
};
// 4x4 transposition inside each block of four vectors; its own inverse.
HWY_INLINE Four Transpose4(const Four& r) {
  const Vector::D d;
  const hn::RepartitionToWide<Vector::D> dw;
  const auto wide = [&](Vector::F v) HWY_ATTR { return hn::BitCast(dw, v); };
  const auto t0 = wide(hn::InterleaveLower(d, r.v0, r.v1)), t1 = wide(hn::InterleaveLower(d, r.v2, r.v3));
  const auto t2 = wide(hn::InterleaveUpper(d, r.v0, r.v1)), t3 = wide(hn::InterleaveUpper(d, r.v2, r.v3));
  return {hn::BitCast(d, hn::InterleaveLower(dw, t0, t1)), hn::BitCast(d, hn::InterleaveUpper(dw, t0, t1)),
          hn::BitCast(d, hn::InterleaveLower(dw, t2, t3)), hn::BitCast(d, hn::InterleaveUpper(dw, t2, t3))};
}

/// Elements k .. k+3 of kLanes rows, lanes are rows.
template <DType kType, class Rows>
HWY_INLINE Four LoadFour(const Rows& rows, int k) {
  return Transpose4({LoadBlocks<kType>(rows, k), LoadBlocks<kType>(rows + 1, k), LoadBlocks<kType>(rows + 2, k),
                     LoadBlocks<kType>(rows + 3, k)});
}

/// Elements of kLanes rows, lanes are rows: four vectors as they leave a transposition. 16-bit elements are transposed
/// in pairs, which takes half the shuffles, and widened when they are asked for.
template <DType kType>
struct Tile {
  static constexpr int kElements = kType == DType::f32 ? 4 : 8;
  Four v;
  HWY_INLINE Tile() {}
  HWY_INLINE explicit Tile(const Four& four) : v(four) {}

  /// Elements k .. k+kElements-1 of each row.
  template <class Rows>
  static HWY_INLINE Tile Load(const Rows& rows, int k) {
    const int word = kType == DType::f32 ? k : k / 2;
    const Vector::D d;
    return Tile(Transpose4({LoadFloatBlocks(d, rows, word), LoadFloatBlocks(d, rows + 1, word),
                            LoadFloatBlocks(d, rows + 2, word), LoadFloatBlocks(d, rows + 3, word)}));
  }
  template <int i>
  HWY_INLINE Vector::F element() const {
    constexpr int at = kType == DType::f32 ? i : i / 2;
    const Vector::F x = at == 0 ? v.v0 : at == 1 ? v.v1 : at == 2 ? v.v2 : v.v3;
    if constexpr (kType == DType::f32) return x;
    const Vector::DI di;
    const hn::RebindToUnsigned<Vector::DI> du;
    const Vector::I pair = hn::BitCast(di, x);
    if constexpr (kType == DType::bf16) {  // from_bf16, which shifts the lower one to where the higher one is
      return hn::BitCast(Vector::D(), i % 2 == 0 ? hn::ShiftLeft<16>(pair) : hn::And(pair, hn::Set(di, -65536)));
    }
    return from_f16<Vector>(i % 2 == 0 ? hn::And(pair, hn::Set(di, 0xffff))
                                       : hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(du, x))));
  }
};

/// Ops for arguments that are known not to be NaN.
struct NumbersOnly : Vector {
  static HWY_INLINE I iselect(M, I a, I) { return a; }
};

/// a and b rounded to 16 bits, side by side in one 32-bit lane: half the shuffles of a transposition, and stores of 16
/// bytes.
template <DType kType, class Ops>
HWY_INLINE Vector::F NarrowPair(Vector::F a, Vector::F b) {
  const Vector::I low = kType == DType::bf16 ? to_bf16<Ops>(a) : to_f16<Vector>(a);
  const Vector::I high = kType == DType::bf16 ? to_bf16<Ops>(b) : to_f16<Vector>(b);
  return hn::BitCast(Vector::D(), hn::Or(low, hn::ShiftLeft<16>(high)));
}
template <DType kType, class Ops>
HWY_INLINE Four NarrowEach(const Vector::F (&x)[8]) {
  return {NarrowPair<kType, Ops>(x[0], x[1]), NarrowPair<kType, Ops>(x[2], x[3]), NarrowPair<kType, Ops>(x[4], x[5]),
          NarrowPair<kType, Ops>(x[6], x[7])};
}

/// Four pairs, of elements 2i and 2i+1. Whether there is a NaN among bf16's is asked once: their sum is one then (or
/// where infinities meet, which costs time alone).
template <DType kType>
HWY_INLINE Four NarrowPairs(const Vector::F (&x)[8]) {
  if constexpr (kType == DType::bf16) {
    const auto sum =
        hn::Add(hn::Add(hn::Add(x[0], x[1]), hn::Add(x[2], x[3])), hn::Add(hn::Add(x[4], x[5]), hn::Add(x[6], x[7])));
    if (HWY_LIKELY(hn::AllTrue(Vector::D(), hn::Eq(sum, sum)))) return NarrowEach<kType, NumbersOnly>(x);
  }
  return NarrowEach<kType, Vector>(x);
}

HWY_INLINE void StoreFour(const Four& c, float* to, int stride) {
  const Vector::D d;
  hn::StoreU(c.v0, d, to);
  hn::StoreU(c.v1, d, to + stride);
  hn::StoreU(c.v2, d, to + 2 * stride);
  hn::StoreU(c.v3, d, to + 3 * stride);
}

/// to[k*stride + i] = rows[i][k] for kLanes rows and k0 <= k < n.
template <DType kType, class Rows>
HWY_INLINE void TransposeIn(const Rows& rows, int k0, int n, float* to, int stride) {
  int k = k0;
  for (; k + 4 <= n; k += 4) StoreFour(LoadFour<kType>(rows, k), to + k * stride, stride);
  for (; k < n; ++k) {
    for (int i = 0; i < kLanes; ++i) to[k * stride + i] = load(kType, rows[i], k);
  }
}

/// rows[i][k] = from[k*stride + i], rounded to nearest even, for `count` rows and k < n.
template <DType kType>
HWY_INLINE void TransposeOut(const float* from, int stride, int n, std::byte* const* rows, int count) {
  const Vector::D d;
  int k = 0;
  if constexpr (kType != DType::f32) {
    for (; count == kLanes && k + 8 <= n; k += 8) {
      Vector::F x[8];
      for (int i = 0; i < 8; ++i) x[i] = hn::LoadU(d, from + (k + i) * stride);
      const Four r = Transpose4(NarrowPairs<kType>(x));
      StoreFloatBlocks(d, r.v0, rows, k / 2);
      StoreFloatBlocks(d, r.v1, rows + 1, k / 2);
      StoreFloatBlocks(d, r.v2, rows + 2, k / 2);
      StoreFloatBlocks(d, r.v3, rows + 3, k / 2);
    }
  }
  for (; count == kLanes && k + 4 <= n; k += 4) {
    const float* at = from + k * stride;
    const Four r = Transpose4(
        {hn::LoadU(d, at), hn::LoadU(d, at + stride), hn::LoadU(d, at + 2 * stride), hn::LoadU(d, at + 3 * stride)});
    StoreBlocks<kType>(r.v0, rows, k);
    StoreBlocks<kType>(r.v1, rows + 1, k);
    StoreBlocks<kType>(r.v2, rows + 2, k);
    StoreBlocks<kType>(r.v3, rows + 3, k);
  }
  for (; k < n; ++k) {
    for (int i = 0; i < count; ++i) store(kType, rows[i], k, from[k * stride + i]);
  }
}

/// Where a block of the state lies in memory: row i at data + i * stride elements.
struct StateRows {
  std::byte* data;
  DType type;
  int64_t stride;
  std::byte* row(int i) const { return data + i * stride * static_cast<int64_t>(size_of(type)); }
};

/// Pointers to kLanes rows of the state from i0 on. Rows from `count` on repeat the last one; their lanes are computed
/// and thrown away.
struct RowPointers {
  const std::byte* at[kLanes];
  RowPointers() = default;
  RowPointers(const StateRows& from, int i0, int count) {
    for (int i = 0; i < kLanes; ++i) at[i] = from.row(HWY_MIN(i0 + i, count - 1));
  }
};

/// Rows that lie evenly: their addresses come from one pointer, which leaves the others' registers free.
template <class Byte>
struct EvenRows {
  Byte* data;
  int64_t bytes;  ///< from one row to the next
  HWY_INLINE Byte* operator[](int i) const { return data + i * bytes; }
  HWY_INLINE EvenRows operator+(int i) const { return {data + i * bytes, bytes}; }
};

template <DType kType>
HWY_INLINE void StoreStateAs(const float* from, int count, int width, int K, const StateRows& to) {
  std::byte* rows[kLanes];
  for (int i0 = 0; i0 < count; i0 += kLanes) {
    const int n = HWY_MIN(kLanes, count - i0);
    for (int i = 0; i < n; ++i) rows[i] = to.row(i0 + i);
    TransposeOut<kType>(from + i0, width, K, rows, n);
  }
}

static HWY_NOINLINE HWY_MAYBE_UNUSED void StoreState(const float* from, int count, int width, int K,
                                                     const StateRows& to) {
  if (to.type == DType::f32) return StoreStateAs<DType::f32>(from, count, width, K, to);
  if (to.type == DType::bf16) return StoreStateAs<DType::bf16>(from, count, width, K, to);
  StoreStateAs<DType::f16>(from, count, width, K, to);
}

/// Canonical sum of a[k]*b[k]: lanes are groups.
HWY_INLINE float Dot(const float* a, const float* b, int n) {
  const Vector::D d;
  alignas(64) float sums[kMaxHeadDim / kGroup + kLanes];
  const int full = n / kGroup;
  for (int g0 = 0; g0 < full; g0 += kLanes) {
    const std::byte *ra[kLanes], *rb[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const int g = HWY_MIN(g0 + i, full - 1);
      ra[i] = reinterpret_cast<const std::byte*>(a + g * kGroup);
      rb[i] = reinterpret_cast<const std::byte*>(b + g * kGroup);
    }
    Vector::F chain = hn::Zero(d);
    for (int k = 0; k < kGroup; k += 4) {
      const Four x = LoadFour<DType::f32>(ra, k), y = LoadFour<DType::f32>(rb, k);
      chain = group_step<Vector>(k == 0, x.v0, y.v0, chain);
      chain = group_step<Vector>(false, x.v1, y.v1, chain);
      chain = group_step<Vector>(false, x.v2, y.v2, chain);
      chain = group_step<Vector>(false, x.v3, y.v3, chain);
    }
    hn::StoreU(chain, d, sums + g0);
  }
  int groups = full;
  if (full * kGroup < n) {
    float chain = 0;
    for (int k = full * kGroup; k < n; ++k) {
      chain = arith::group_step<arith::Scalar>(k == full * kGroup, a[k], b[k], chain);
    }
    sums[groups++] = chain;
  }
  return arith::tree_sum<arith::Scalar>(sums, groups, 1);
}

}  // namespace HWY_NAMESPACE
}  // namespace ringfold::cpu
HWY_AFTER_NAMESPACE();

#endif
