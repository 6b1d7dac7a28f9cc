/* The limits of this machine, for calibration and benchmarks: fused multiply-adds in registers, and reading memory. */
#include "vector/vec.h"

/* Independent sums: enough to hide the latency of two units, few enough for 16 registers. Named one by one, so that none is in memory. */
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define CHAINS 10

/* Returns how many floating-point operations it has done. */
double FN(probe_flops)(int64_t turns, float *sink) {
  vf a = vset1(0.999f), b = vset1(1e-3f), all = vzero();
#define X(k) vf sum##k = vset1((float)k);
  EACH(X)
#undef X
  for (int64_t i = 0; i < turns; i++) {
#define X(k) sum##k = vfma(sum##k, a, b); VKEEP(sum##k);
    EACH(X)
#undef X
  }
#define X(k) all = all + sum##k;
  EACH(X)
#undef X
  vstore_part(sink, all, 1);
  return 2.0 * VL * CHAINS * (double)turns;
}

/* Reads n floats, `rounds` times. */
void FN(probe_read)(const float *p, int64_t n, int64_t rounds, float *sink) {
  vf all = vzero();
#define X(k) vf sum##k = vzero();
  EACH(X)
#undef X
  for (int64_t r = 0; r < rounds; r++)
    for (int64_t i = 0; i + CHAINS * VL <= n; i += CHAINS * VL) {
#define X(k) sum##k = sum##k + vload(p + i + k * VL); VKEEP(sum##k);
      EACH(X)
#undef X
    }
#define X(k) all = all + sum##k;
  EACH(X)
#undef X
  vstore_part(sink, all, 1);
}
