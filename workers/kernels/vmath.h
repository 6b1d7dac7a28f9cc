/* Elementary functions on vectors of f32, about 2 ulp. NaN gives NaN; infinities and overflow behave as in libm.
 *
 * Polynomials were fitted by weighted minimax on the reduced interval; the error given with each is that of the polynomial alone.
 */
#ifndef ASPEN_VMATH_H
#define ASPEN_VMATH_H
#include "vec.h"

/* Horner: ((c[n-1] x + c[n-2]) x + …) x + c[0], fused where the ISA fuses. */
#define VPOLY(x, ...) vpoly_(x, (const float[]){__VA_ARGS__}, (int)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))
INLINE vf vpoly_(vf x, const float *c, int n) {
  vf p = vset1(c[n - 1]);
#pragma GCC unroll 16
  for (int i = n - 2; i >= 0; i--) p = vfma(p, x, vset1(c[i]));
  return p;
}

/* p 2^n for integral n in [-150, 128] and p in [0.5, 2]: one rounding, also into subnormals. */
INLINE vf vscale2_(vf p, vf n) {
#if VL == 16
  return _mm512_scalef_ps(p, n);
#else
  const vi e = vtoi(n), half = e >> 1;
  return p * vfrombits((half + 127) << 23) * vfrombits((e - half + 127) << 23);
#endif
}

/* x = n ln 2 + r, |r| ≤ ln 2 / 2; ln 2 in two parts, the first with few enough bits that n times it is exact. */
INLINE vf vexp(vf x) {
  x = vmin(vset1(89.0f), vmax(vset1(-104.0f), x));
  const vf n = vround(x * vset1(1.44269504f));
  vf r = vfnma(n, vset1(0.693359375f), x);
  r = vfnma(n, vset1(-2.12194440e-4f), r);
  const vf q = VPOLY(r, 0.49999994f, 0.16666521f, 0.041668389f, 0.0083687166f, 0.0013814599f); /* 3e-9 */
  return vscale2_(vfma(r * r, q, r) + vset1(1), n);
}

INLINE vf vsigmoid(vf x) { /* through exp(-|x|), so that nothing overflows and small results keep their digits */
  const vf e = vexp(vneg(vabs(x)));
  return vsel(vlt(x, vzero()), e, vset1(1)) / (vset1(1) + e);
}

INLINE vf vtanh(vf x) {
  const vf t = vabs(x), u = x * x;
  const vf near = vfma(x * u, VPOLY(u, -0.33333284f, 0.13331491f, -0.053743497f, 0.020650586f, -0.0057170433f), x); /* 4e-9 */
  const vf far = vset1(1) - vset1(2) / (vset1(1) + vexp(t + t));
  return vsel(vlt(t, vset1(0.625f)), near, vcopysign(far, x));
}

INLINE vf verf(vf x) { /* beyond 0.92 as 1 - exp(-t g(t)) with erfc(t) = exp(-t g(t)) */
  const vf t = vmin(vset1(4.0f), vabs(x)), u = x * x;
  const vf near = x * VPOLY(u, 1.12837923f, -0.37612635f, 0.11283702f, -0.0268597f, 0.0052017132f, -8.1497704e-4f, 8.3976425e-5f); /* 4e-10 */
  const vf g = VPOLY(t, 1.128711f, 0.63490021f, 0.10664118f, -0.024092115f, 0.0037822148f, -3.4865679e-4f, 1.1204028e-5f, 4.3715468e-7f);
  const vf far = vset1(1) - vexp(vneg(t * g)); /* 6e-9 */
  return vsel(vlt(t, vset1(0.92f)), near, vcopysign(far, x));
}

/* x Φ(x) as max(x, 0) - |x| Q(|x|) with Q(t) = Φ(-t) = exp(-ln 2 - t g(t)): nothing cancels, so the negative tail keeps its digits too. */
INLINE vf vgelu_erf(vf x) {
  const vf t = vabs(x);
  const vf g = VPOLY(t, 0.797887444f, 0.318276346f, 0.0364629924f, -0.00500538805f, 1.69698949e-4f, 1.07626183e-4f, -2.74132708e-5f,
                     3.22601932e-6f, -1.95747788e-7f, 4.90344165e-9f); /* 4e-8 of x for positive x, 4e-5 of the result in the negative tail */
  const vf q = vexp(vfnma(t, g, vset1(-0.693147181f)));
  return vfnma(t, q, vmax(vzero(), x));
}

INLINE vf vswish(vf x, vf a) { return x / (vset1(1) + vexp(vneg(a * x))); } /* e^-ax may overflow: x / ∞ is right */

INLINE vf vgelu_tanh(vf x) { /* (1 + tanh u) / 2 = sigmoid(2 u) */
  const vf u = x * vfma(x * x, vset1(2 * 0.7978845608f * 0.044715f), vset1(2 * 0.7978845608f));
  return x / (vset1(1) + vexp(vneg(u)));
}

#endif
