// The arithmetic of ringfold, once, for scalars (host and device) and for vectors of every instruction set.
//
// Include this inside the namespace that is to hold it, after defining RF_FN (function qualifiers); it has no include
// guard, since each Highway target includes it anew. Everything is a template over Ops, which supplies F (float or
// vector of floats), I (int32 likewise), M (a mask) and single IEEE operations on them. Formulas and their order are
// docs/math.md; every operation here is one correctly rounded IEEE operation or an exact bit manipulation, so the bits
// do not depend on Ops. Changing anything here changes results: golden hashes in tests/unit notice, and docs/notes/
// must say why.

// exp(x): error <= 1.1 ulp over the whole range, subnormal results included (measured: docs/numerics.md).
// x = n ln2 + r, |r| <= ln2/2; polynomial of degree 7 in r; 2^n in two exact steps, so only the last product may round.
template <class O>
RF_FN typename O::F exp(typename O::F x) {
  using F = typename O::F;
  using I = typename O::I;
  const F magic = O::set(12582912.0f);                                // 1.5 * 2^23: adding it rounds to an integer
  const F hi = O::set(0x1.62e400p-1f), lo = O::set(0x1.7f7d1cp-20f);  // ln2 = hi + lo, n * hi exact
  F c = O::select(O::lt(O::set(90.0f), x), O::set(90.0f), x);         // overflows to inf by itself from 88.7228 on
  c = O::select(O::lt(c, O::set(-105.0f)), O::set(-105.0f), c);       // below -103.98 the result is 0
  const F t = O::fma(c, O::set(0x1.715476p+0f), magic);               // log2(e)
  const F n = O::sub(t, magic);
  F r = O::fma(n, O::neg(hi), c);
  r = O::fma(n, O::neg(lo), r);
  F p = O::set(0x1.a01a02p-13f);  // 1/7!, then 1/6! .. 1/2!
  p = O::fma(p, r, O::set(0x1.6c16c2p-10f));
  p = O::fma(p, r, O::set(0x1.111112p-7f));
  p = O::fma(p, r, O::set(0x1.555556p-5f));
  p = O::fma(p, r, O::set(0x1.555556p-3f));
  p = O::fma(p, r, O::set(0.5f));
  p = O::add(O::set(1.0f), O::fma(O::mul(r, r), p, r));
  const I ni = O::isub(O::bits(t), O::bits(magic));
  const I n1 = O::template shr<1>(ni);
  const I n2 = O::isub(ni, n1);
  const I bias = O::iset(127);
  p = O::mul(p, O::from_bits(O::template shl<23>(O::iadd(n1, bias))));
  p = O::mul(p, O::from_bits(O::template shl<23>(O::iadd(n2, bias))));
  return O::select(O::ne(x, x), x, p);
}

// log1p(y): error <= 2 ulp for y > -1 (measured: docs/numerics.md). log1p(-1) = -inf, NaN below.
// 1 + y = 2^k m, m in [sqrt(1/2), sqrt(2)); f = m - 1 plus what 1 + y lost; log(1+f) = f - f^2/2 + f^3 P(f), P minimax.
template <class O>
RF_FN typename O::F log1p(typename O::F y) {
  using F = typename O::F;
  using I = typename O::I;
  const F one = O::set(1.0f);
  const F u = O::add(one, y);
  const I k = O::template shr<23>(O::isub(O::bits(u), O::iset(0x3f3504f3)));
  const F m = O::from_bits(O::isub(O::bits(u), O::template shl<23>(k)));
  // What the sum lost, exactly (fast two-sum in the order of magnitudes), scaled like m. From 2^60 on it is beyond
  // notice.
  const F lost = O::select(O::lt(O::abs(y), one), O::sub(y, O::sub(u, one)), O::sub(one, O::sub(u, y)));
  const I k60 = O::imin(k, O::iset(60));
  const F down = O::from_bits(O::template shl<23>(O::isub(O::iset(127), k60)));
  F f = O::fma(lost, down, O::sub(m, one));
  const F z = O::mul(f, f);
  F p = O::set(0x1.14573ep-4f);
  p = O::fma(p, f, O::set(-0x1.de3bfap-4f));
  p = O::fma(p, f, O::set(0x1.e6f08cp-4f));
  p = O::fma(p, f, O::set(-0x1.fc220ep-4f));
  p = O::fma(p, f, O::set(0x1.233766p-3f));
  p = O::fma(p, f, O::set(-0x1.555c4ep-3f));
  p = O::fma(p, f, O::set(0x1.99a4b6p-3f));
  p = O::fma(p, f, O::set(-0x1.000006p-2f));
  p = O::fma(p, f, O::set(0x1.555548p-2f));
  const F kf = O::to_float(k);
  F t = O::mul(O::mul(f, z), p);
  t = O::fma(kf, O::set(0x1.7f7d1cp-20f), t);  // low part of ln2
  t = O::fma(O::set(-0.5f), z, t);
  F r = O::add(f, t);
  r = O::fma(kf, O::set(0x1.62e400p-1f), r);
  const F inf = O::from_bits(O::iset(0x7f800000));
  r = O::select(O::lt(O::abs(y), O::set(0x1p-25f)), y, r);
  r = O::select(O::eq(y, inf), inf, r);
  r = O::select(O::eq(y, O::set(-1.0f)), O::neg(inf), r);
  r = O::select(O::lt(y, O::set(-1.0f)), O::from_bits(O::iset(0x7fc00000)), r);
  return O::select(O::ne(y, y), y, r);
}

// sigmoid(x) = 1/(1+exp(-x)), error <= 2 ulp (measured: docs/numerics.md). Both signs go through z = exp(-|x|), so that
// nothing overflows and very negative x keep their subnormal results. The quotient is corrected once for the rounding
// of 1+z and of itself; without that the error reaches 2.4 ulp.
template <class O>
RF_FN typename O::F sigmoid(typename O::F x) {
  using F = typename O::F;
  const F z = exp<O>(O::neg(O::abs(x)));
  const F one = O::set(1.0f);
  const auto negative = O::lt(x, O::set(0.0f));
  const F top = O::select(negative, z, one);
  const F den = O::add(one, z);
  const F lost = O::sub(z, O::sub(den, one));
  const F q = O::div(top, den);
  const F inverse = O::select(negative, O::sub(one, q), q);  // 1 / den
  const F rest = O::fma(O::neg(q), lost, O::fma(O::neg(q), den, top));
  return O::select(O::ne(x, x), x, O::fma(rest, inverse, q));
}

template <class O>
RF_FN typename O::F silu(typename O::F x) {
  return O::mul(x, sigmoid<O>(x));
}

// v held between -FLT_MAX and FLT_MAX; NaN stays NaN.
template <class O>
RF_FN typename O::F saturate(typename O::F v) {
  const typename O::F max = O::set(0x1.fffffep+127f), min = O::set(-0x1.fffffep+127f);
  v = O::select(O::lt(max, v), max, v);
  return O::select(O::lt(v, min), min, v);
}

// exp(A_log), at most FLT_MAX, so that its product with a zero is a zero.
template <class O>
RF_FN typename O::F exp_A(typename O::F A_log) {
  return saturate<O>(exp<O>(A_log));
}

// Log decay g of one token. `expA` is exp_A(A_log). a + dt_bias saturates for the same reason as expA.
template <class O>
RF_FN typename O::F softplus_gate(typename O::F a, typename O::F dt_bias, typename O::F expA, float softplus_beta,
                                  float threshold) {
  using F = typename O::F;
  const F x = saturate<O>(O::add(a, dt_bias));
  const F y = O::mul(O::set(softplus_beta), x);
  const F soft = O::div(log1p<O>(exp<O>(y)), O::set(softplus_beta));
  const F sp = O::select(O::lt(O::set(threshold), y), x, soft);
  return O::mul(O::neg(expA), sp);
}

template <class O>
RF_FN typename O::F safe_gate(typename O::F a, typename O::F dt_bias, typename O::F expA, float lower_bound) {
  const typename O::F x = saturate<O>(O::add(a, dt_bias));
  return O::mul(O::set(lower_bound), sigmoid<O>(O::mul(expA, x)));
}

// sqrt(sum of squares + 1e-6), the divisor of l2norm.
template <class O>
RF_FN typename O::F l2_divisor(typename O::F sum_of_squares) {
  return O::sqrt(O::add(sum_of_squares, O::set(1e-6f)));
}

// One token of the recurrence, once p = S.kd and w = S.qd are known (docs/math.md, steps 9 to 11).
template <class O>
RF_FN typename O::F correction(typename O::F beta, typename O::F v, typename O::F p) {
  return O::mul(beta, O::sub(v, p));
}
template <class O>
RF_FN typename O::F output(typename O::F u, typename O::F kq, typename O::F w) {
  return O::fma(u, kq, w);
}
template <class O>
RF_FN typename O::F updated(typename O::F s, typename O::F decay, typename O::F u, typename O::F k) {
  return O::fma(u, k, O::mul(s, decay));
}

// Gated RMSNorm, once r = sqrt(sum/V + eps) is known.
template <class O>
RF_FN typename O::F rms_divisor(typename O::F sum_of_squares, float V, float eps) {
  return O::sqrt(O::add(O::div(sum_of_squares, O::set(V)), O::set(eps)));
}
template <class O>
RF_FN typename O::F gated(typename O::F x, typename O::F r, typename O::F weight, typename O::F z, bool silu_gate) {
  const typename O::F gate = silu_gate ? silu<O>(z) : sigmoid<O>(z);
  return O::mul(O::mul(O::div(x, r), weight), gate);
}

// The canonical sum over K: groups of kGroup consecutive elements, in each a product and then an fma chain in ascending
// order (group_step), then the halving tree over the groups (tree_sum). Groups and elements that do not exist take no
// part. `x` holds the groups' partial sums with `stride` between them and is overwritten; the result is x[0].
template <class O>
RF_FN typename O::F group_step(bool first, typename O::F a, typename O::F b, typename O::F chain) {
  return first ? O::mul(a, b) : O::fma(a, b, chain);
}
// The same tree for a number of groups known to the compiler, in registers: the part of it that ends in x[r] before
// level s = m/2.
template <class O, int kGroups, int r, int m>
RF_FN typename O::F subtree(const typename O::F* x, int stride) {
  if constexpr (m >= kGroups) {
    return x[r * stride];
  } else if constexpr (r + m < kGroups) {
    return O::add(subtree<O, kGroups, r, 2 * m>(x, stride), subtree<O, kGroups, r + m, 2 * m>(x, stride));
  } else {
    return subtree<O, kGroups, r, 2 * m>(x, stride);
  }
}
template <class O>
RF_FN typename O::F tree_sum(typename O::F* x, int groups, int stride) {
  if (groups == 16) return subtree<O, 16, 0, 1>(x, stride);  // K = 128
  if (groups == 8) return subtree<O, 8, 0, 1>(x, stride);    // K = 64
  int s = 1;
  while (s < groups) s *= 2;
  for (s /= 2; s >= 1; s /= 2) {
    for (int g = 0; g < s && g + s < groups; ++g) x[g * stride] = O::add(x[g * stride], x[(g + s) * stride]);
  }
  return x[0];
}

// 16-bit formats as the low half of an int32. Rounding is to nearest even; NaN becomes 0x7fff, as on NVIDIA GPUs.
template <class O>
RF_FN typename O::I to_bf16(typename O::F x) {
  using I = typename O::I;
  const I i = O::bits(x);
  const I odd = O::iand(O::template shru<16>(i), O::iset(1));
  const I r = O::template shru<16>(O::iadd(i, O::iadd(O::iset(0x7fff), odd)));
  return O::iselect(O::eq(x, x), r, O::iset(0x7fff));
}
template <class O>
RF_FN typename O::F from_bf16(typename O::I h) {
  return O::from_bits(O::template shl<16>(h));
}
template <class O>
RF_FN typename O::I to_f16(typename O::F x) {
  using F = typename O::F;
  using I = typename O::I;
  const I sign = O::iand(O::template shru<16>(O::bits(x)), O::iset(0x8000));
  const F ax = O::abs(x);
  const I i = O::bits(ax);
  // Subnormal results: one ulp of 0.5 is 2^-24, the smallest half, so adding 0.5 rounds to the grid.
  const I small = O::isub(O::bits(O::add(ax, O::set(0.5f))), O::iset(0x3f000000));
  const I odd = O::iand(O::template shru<13>(i), O::iset(1));
  const I large = O::isub(O::template shru<13>(O::iadd(i, O::iadd(O::iset(0xfff), odd))), O::iset((127 - 15) << 10));
  I h = O::iselect(O::lt(ax, O::set(0x1p-14f)), small, large);
  h = O::iselect(O::le(O::set(65520.0f), ax), O::iset(0x7c00), h);
  return O::iselect(O::eq(x, x), O::ior(h, sign), O::iset(0x7fff));
}
template <class O>
RF_FN typename O::F from_f16(typename O::I h) {
  using F = typename O::F;
  using I = typename O::I;
  const I em = O::template shl<13>(O::iand(h, O::iset(0x7fff)));
  const F finite = O::mul(O::from_bits(em), O::set(0x1p+112f));  // rebias; exact, subnormals included
  const F special = O::from_bits(O::ior(em, O::iset(0x7f800000)));
  const F v = O::select(O::le(O::set(65536.0f), finite), special, finite);
  return O::from_bits(O::ior(O::bits(v), O::template shl<16>(O::iand(h, O::iset(0x8000)))));
}

// x rounded to a 16-bit format and back.
template <class O>
RF_FN typename O::F round_bf16(typename O::F x) {
  return from_bf16<O>(to_bf16<O>(x));
}
template <class O>
RF_FN typename O::F round_f16(typename O::F x) {
  return from_f16<O>(to_f16<O>(x));
}
