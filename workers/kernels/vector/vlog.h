/* Logarithm, its relatives and activations built on them, on vectors of f32; as vmath.h. About 1 ulp for log, 2 to 3 for the others. */
#ifndef ASPEN_VLOG_H
#define ASPEN_VLOG_H
#include "vector/vmath.h"

INLINE vf vlog(vf x) {
  const vf zero = vzero(), infinity = vset1(__builtin_inff());
  const vm tiny = vlt(x, vset1(1.17549435e-38f)); /* subnormals are scaled up; zero and negative arguments are dealt with at the end */
  const vi bits = vbits(vabs(vsel(tiny, x * vset1(16777216.0f), x))); /* abs: the difference below must not overflow */
  /* x = 2^e m, m in [√½, √2) */
  const vi shifted = bits - viset1(0x3f3504f3);
  const vf e = vfromi(shifted >> 23) - vsel(tiny, vset1(24), zero);
  const vf f = vfrombits((shifted & 0x007fffff) + 0x3f3504f3) - vset1(1), z = f * f;
  vf y = VPOLY(f, 0.333333135f, -0.250000089f, 0.200021192f, -0.166679963f, 0.142195523f, -0.124055892f, 0.118881628f, -0.116756514f,
               0.0674663857f); /* 8e-10 */
  y = vfma(e, vset1(-2.12194440e-4f), y * f * z); /* ln 2 in two parts, as in vexp */
  y = vfnma(vset1(0.5f), z, y) + f;
  y = vfma(e, vset1(0.693359375f), y);
  y = vsel(vlt(x, infinity), y, x);             /* infinity and NaN */
  y = vsel(vlt(x, zero), infinity - infinity, y);
  return vsel(veq(x, zero), vneg(infinity), y);
}

/* ln(1 + x) for 0 ≤ x ≤ 1, as 2 artanh(x / (2 + x)) */
INLINE vf vlog1p_small(vf x) {
  const vf s = x / (vset1(2) + x), z = s * s;
  const vf y = s * z * VPOLY(z, 0.333333373f, 0.199994385f, 0.143084437f, 0.107138172f, 0.121505171f); /* 1e-10 */
  return (s + y) + (s + y);
}

INLINE vf vexpm1(vf x) {
  const vf clamped = vmin(vset1(89.0f), vmax(vset1(-30.0f), x));
  const vf n = vround(clamped * vset1(1.44269504f));
  vf r = vfnma(n, vset1(0.693359375f), clamped);
  r = vfnma(n, vset1(-2.12194440e-4f), r);
  const vf p = vfma(r * r, VPOLY(r, 0.5f, 0.166666672f, 0.041666355f, 0.00833327323f, 0.00139409979f, 0.000199141563f), r); /* 3e-10 */
  const vf half = vfrombits((vtoi(n) + 126) << 23); /* 2^(n-1): 2^128 would overflow */
  vf y = vfma(half, p, half - vset1(0.5f));
  y = y + y;
  return vsel(vlt(vabs(x), vset1(1e-4f)), vfma(x * vset1(0.5f), x, x), y);
}

/* max(x, 0) + ln(1 + e^-|x|) */
INLINE vf vsoftplus(vf x) { return vlog1p_small(vexp(vneg(vabs(x)))) + vmax(vzero(), x); }

/* x tanh(softplus x) as a quotient of polynomials of e = e^-|x|: nothing cancels. */
INLINE vf vmish(vf x) {
  const vf e = vexp(vneg(vabs(x))), one = vset1(1), two = vset1(2);
  const vm negative = vlt(x, vzero());
  const vf top = vsel(negative, e * (e + two), vfma(two, e, one));
  const vf bottom = top + vsel(negative, two, two * e * e);
  return x * (top / bottom);
}

#endif
