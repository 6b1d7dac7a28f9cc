/* Functions of one f32 (two for pow) computed in f64: the seldom used ones, for which simple formulas in a wide type will do.
 * Relative error before the final rounding below 2^-32, so results are within 0.51 ulp of f32.
 *
 * Plain C without branches, which the compiler turns into vector code; no fused operations, so the bits are the same on every ISA.
 * Arguments are values of f32: subnormals of f64 do not occur. Polynomials are Taylor series, cut where the next term is below that error.
 */
#ifndef ASPEN_WIDE_H
#define ASPEN_WIDE_H
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t wide_bits(double x) {
  uint64_t u;
  memcpy(&u, &x, 8);
  return u;
}
static inline double wide_from(uint64_t u) {
  double x;
  memcpy(&x, &u, 8);
  return x;
}

#define WIDE_MAGIC 0x1.8p52 /* adding it rounds to an integer, which then stands in the low bits */

/* e^x; beyond ±700 as at ±700, which no f32 can tell apart. */
static inline double wide_exp(double x) {
  x = x > 700 ? 700 : x;
  x = x < -700 ? -700 : x;
  const double t = x * 1.4426950408889634074 + WIDE_MAGIC, n = t - WIDE_MAGIC;
  const double r = x - n * 0x1.62e42fefap-1 - n * 0x1.cf79abc9e3b3ap-40; /* ln 2 in two parts, the first of 33 bits */
  double p = 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1;
  p = p * r + 1;
  return p * wide_from((wide_bits(t) + 1023) << 52);
}

/* e^x for results that stay f64: within an ulp, any x. The power of two comes in two parts, so that results may be subnormal. */
static inline double wide_exp_f64(double x) {
  x = x > 710 ? 710 : x;
  x = x < -746 ? -746 : x;
  const double n = (x * 1.4426950408889634074 + WIDE_MAGIC) - WIDE_MAGIC;
  const double r = (x - n * 0x1.62e42fefap-1) - n * 0x1.cf79abc9e3b3ap-40;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * (r * r) + r + 1;
  const double half = n * 0.5 + WIDE_MAGIC, rest = (n - (half - WIDE_MAGIC)) + WIDE_MAGIC;
  return p * wide_from((wide_bits(half) + 1023) << 52) * wide_from((wide_bits(rest) + 1023) << 52);
}

/* ln x, relative error about 1e-15, also near 1. */
static inline double wide_log(double x) {
  const uint64_t bits = wide_bits(x);
  const double e = wide_from(bits >> 52 | 0x4330000000000000) - 0x1p52; /* the biased exponent as a number (x ≥ 0) */
  const double m = wide_from((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
  const int big = m > 1.41421356237309504880;
  const double f = (big ? 0.5 * m : m) - 1, n = e - (big ? 1022 : 1023);
  const double s = f / (2 + f), z = s * s;
  double p = 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  const double y = n * 0.69314718055994530942 + 2 * (s + s * z * p);
  const double special = x == 0 ? -INFINITY : x == INFINITY ? INFINITY : NAN; /* otherwise negative or NaN */
  return (x > 0) & (x < INFINITY) ? y : special;
}

/* sin r and cos r for |r| ≤ π/4, and the quadrant, of x = quadrant π/2 + r; for |x| < 2^28. */
static inline uint64_t wide_reduce(double x, double *s, double *c) {
  const double t = x * 0.63661977236758134308 + WIDE_MAGIC, n = t - WIDE_MAGIC;
  const double r = x - n * 0x1.921fb5p0 - n * 0x1.110b4611a6263p-26; /* π/2, the first part of 25 bits: exact times n */
  const double z = r * r;
  double p = -1.0 / 39916800;
  p = p * z + 1.0 / 362880;
  p = p * z - 1.0 / 5040;
  p = p * z + 1.0 / 120;
  p = p * z - 1.0 / 6;
  *s = r + r * z * p;
  double q = 1.0 / 479001600;
  q = q * z - 1.0 / 3628800;
  q = q * z + 1.0 / 40320;
  q = q * z - 1.0 / 720;
  q = q * z + 1.0 / 24;
  q = q * z - 0.5;
  *c = 1 + z * q;
  return wide_bits(t);
}
static inline double wide_sin(double x) {
  double s, c;
  const uint64_t q = wide_reduce(x, &s, &c);
  return wide_from(wide_bits(q & 1 ? c : s) ^ (q & 2) << 62);
}
static inline double wide_cos(double x) {
  double s, c;
  const uint64_t q = wide_reduce(x, &s, &c) + 1;
  return wide_from(wide_bits(q & 1 ? c : s) ^ (q & 2) << 62);
}
static inline double wide_tan(double x) {
  double s, c;
  const uint64_t q = wide_reduce(x, &s, &c);
  return (q & 1 ? -c : s) / (q & 1 ? s : c);
}

/* Any x: |x| > 1 through 1/x, then above tan(π/8) through π/4 + atan((t - 1) / (t + 1)). */
static inline double wide_atan(double x) {
  const double a = fabs(x), inverse = 1 / a;
  const double t = a > 1 ? inverse : a;
  const double turned = (t - 1) / (t + 1);
  const int high = t > 0.41421356237309504880;
  const double u = high ? turned : t, z = u * u;
  double p = 1.0 / 25;
  p = 1.0 / 23 - p * z;
  p = 1.0 / 21 - p * z;
  p = 1.0 / 19 - p * z;
  p = 1.0 / 17 - p * z;
  p = 1.0 / 15 - p * z;
  p = 1.0 / 13 - p * z;
  p = 1.0 / 11 - p * z;
  p = 1.0 / 9 - p * z;
  p = 1.0 / 7 - p * z;
  p = 1.0 / 5 - p * z;
  p = 1.0 / 3 - p * z;
  double y = u - u * z * p;
  y = high ? y + 0.78539816339744830962 : y;
  y = a > 1 ? 1.57079632679489661923 - y : y;
  return copysign(y, x);
}
static inline double wide_asin(double x) { return wide_atan(x / sqrt((1 - x) * (1 + x))); }
static inline double wide_acos(double x) { return 2 * wide_atan(sqrt((1 - x) / (1 + x))); }

static inline double wide_sinh(double x) {
  const double z = x * x, e = wide_exp(x);
  const double series = x + x * z * (1.0 / 6 + z * (1.0 / 120 + z * (1.0 / 5040)));
  const double y = 0.5 * (e - 1 / e);
  return fabs(x) < 0.25 ? series : y;
}
static inline double wide_cosh(double x) {
  const double e = wide_exp(x);
  return 0.5 * (e + 1 / e);
}
static inline double wide_asinh(double x) {
  const double z = x * x, a = fabs(x);
  const double series = a - a * z * (1.0 / 6 - z * (3.0 / 40)), y = wide_log(a + sqrt(z + 1));
  return copysign(a < 0.01 ? series : y, x);
}
static inline double wide_acosh(double x) {
  const double y = wide_log(x + sqrt((x - 1) * (x + 1)));
  return x < 1 ? NAN : y;
}
static inline double wide_atanh(double x) {
  const double z = x * x;
  const double series = x + x * z * (1.0 / 3 + z * (1.0 / 5));
  const double y = 0.5 * wide_log((1 + x) / (1 - x));
  return fabs(x) < 0.01 ? series : y;
}

/* x^y for 0 < x < ∞ and finite y. */
static inline double wide_pow(double x, double y) { return wide_exp(y * wide_log(x)); }

#endif
