/* Elementary functions on vectors of f32, about 2 ulp. NaN gives NaN; infinities and overflow behave as in libm.
 *
 * Polynomials were fitted by weighted minimax on the reduced interval; the error given with each is that of the polynomial alone.
 */
#ifndef ASPEN_VMATH_H
#define ASPEN_VMATH_H
#include "vector/vec.h"

/* Horner: ((c[n-1] x + c[n-2]) x + …) x + c[0], fused where the ISA fuses. */
#define VPOLY(x, ...) vpoly_(x, (const float[]){__VA_ARGS__}, (int)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))
INLINE vf vpoly_(vf x, const float *c, int n) {
  vf p = vset1(c[n - 1]);
#pragma GCC unroll 16
  for (int i = n - 2; i >= 0; i--) p = vfma(p, x, vset1(c[i]));
  return p;
}

/* p 2^n for integral n in [-150, 128] and p in [0.5, 2]: one rounding, also into subnormals. 0 where `none`: powers of masked or missing
 * elements would be subnormals or 0 by rounding. A processor takes fifty times as long for those. */
INLINE vf vscale2_(vf p, vf n, vm none) {
#if VL == 16
  return _mm512_maskz_scalef_ps(vm_not(none), p, n);
#else
  const vi e = vtoi(n), half = e >> 1;
  return vsel(none, vzero(), p) * vfrombits((half + 127) << 23) * vfrombits((e - half + 127) << 23);
#endif
}

/* x = n ln 2 + r, |r| ≤ ln 2 / 2. ln 2 is in two parts, the first with few enough bits that n times it is exact. */
INLINE vf vexp(vf x) {
  const vm none = vle(x, vset1(-104.0f));
  x = vmin(vset1(89.0f), vmax(vset1(-104.0f), x));
  const vf n = vround(x * vset1(1.44269504f));
  vf r = vfnma(n, vset1(0.693359375f), x);
  r = vfnma(n, vset1(-2.12194440e-4f), r);
  const vf q = VPOLY(r, 0.49999994f, 0.16666521f, 0.041668389f, 0.0083687166f, 0.0013814599f); /* 3e-9 */
  return vscale2_(vfma(r * r, q, r) + vset1(1), n, none);
}

INLINE vf vsigmoid(vf x) { /* through exp(-|x|), so that nothing overflows and small results keep their digits */
  const vf e = vexp(vneg(vabs(x)));
  return vsel(vlt(x, vzero()), e, vset1(1)) / (vset1(1) + e);
}

INLINE vf vtanh(vf x) {
  const vf t = vabs(x), u = x * x;
  const vf near = vfma(t * u, VPOLY(u, -0.33333284f, 0.13331491f, -0.053743497f, 0.020650586f, -0.0057170433f), t); /* 4e-9 */
  const vf far = vset1(1) - vset1(2) / (vset1(1) + vexp(t + t));
  return vcopysign(vsel(vlt(t, vset1(0.625f)), near, far), x); /* -0 of -0, too */
}

INLINE vf verf(vf x) { /* beyond 0.92 as 1 - exp(-t g(t)) with erfc(t) = exp(-t g(t)) */
  const vf t = vmin(vset1(4.0f), vabs(x)), u = x * x;
  /* 4e-10 */
  const vf near = x * VPOLY(u, 1.12837923f, -0.37612635f, 0.11283702f, -0.0268597f, 0.0052017132f, -8.1497704e-4f, 8.3976425e-5f);
  const vf g = VPOLY(t, 1.128711f, 0.63490021f, 0.10664118f, -0.024092115f, 0.0037822148f, -3.4865679e-4f, 1.1204028e-5f, 4.3715468e-7f);
  const vf far = vset1(1) - vexp(vneg(t * g)); /* 6e-9 */
  return vsel(vlt(t, vset1(0.92f)), near, vcopysign(far, x));
}

/* 2^t for t in [-189, 62]: one rounding, also into subnormals and zero. */
INLINE vf vexp2_(vf t) {
  const vm none = vle(t, vset1(-150));
#define POWER(f) VPOLY(f, 1.0f, 0.693147004f, 0.240222424f, 0.0555073358f, 0.00967151299f, 0.00132647273f) /* 1e-7 */
#if VL == 16
  const vf n = vround(t);
  return vscale2_(POWER(t - n), n, none);
#else
  /* Added to 1.5 * 2^23, t is rounded to an integer n, the last bits of the sum. 127 is for the exponent. 64 is taken away again at the
   * end, where the result may become subnormal. */
  const vf shift = vset1(12582912.0f + 127 + 64), n = t + shift;
  return vsel(none, vzero(), POWER(t - (n - shift))) * vfrombits(vbits(n) << 23) * vset1(0x1p-64f);
#endif
#undef POWER
}

/* x Φ(x) as max(x, 0) - |x| Q(|x|) with Q(t) = Φ(-t) = 2^(-1 - t g(t)). Nothing cancels, so negative results keep most of their digits
 * where g was fitted. At most 4e-5 of the result is missing down to x = -6, 3e-4 down to -8. Beyond, the polynomial makes Q fall too fast:
 * 3 % are missing at -10, where results are below 1e-22, and nearly all at -13, below 1e-37. At 13.4, t Q(t) is less than half the least
 * subnormal: from there on results are -0, as they should be from 14.4 on. The
 * result of -∞ is NaN, as that of 0.5 x (1 + erf(x / √2)). */
INLINE vf vgelu_erf(vf x) {
  const vf t = vmin(vset1(13.4f), vabs(x));
  const vf g = VPOLY(t, 1.15110826f, 0.459175706f, 0.0526049783f, -0.00722124852f, 0.000244823832f, 0.00015527176f,
                     -3.95489898e-05f, 4.65416207e-06f, -2.82404363e-07f, 7.07417095e-09f); /* 4e-8 of |x| */
  const vf q = vexp2_(vfnma(t, g, vset1(-1)));
  return vfnma(t, q, vsel(vlt(x, vzero()), x * vzero(), x));
}

INLINE vf vswish(vf x, vf a) { return x / (vset1(1) + vexp(vneg(a * x))); } /* e^-ax may overflow: x / ∞ is right */

INLINE vf vgelu_tanh(vf x) { /* (1 + tanh u) / 2 = sigmoid(2 u) */
  const vf u = x * vfma(x * x, vset1(2 * 0.7978845608f * 0.044715f), vset1(2 * 0.7978845608f));
  return x / (vset1(1) + vexp(vneg(u)));
}

#endif
