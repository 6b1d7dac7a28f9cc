/* Micro-kernels of products of pairs of bf16: see bf16.h. */
#include "gemm/bf16.h"
#include "vector/half.h"
#include "gemm/mm_home.h"

#define VECTORS 2            /* of columns in a micro-kernel */
#define WIDTH (VECTORS * VL) /* columns */
#define FETCHED 4096         /* bytes of a panel that are fetched ahead of the reading */
#define FEW_TURNS 48         /* pairs of an element; with fewer, to list the lines that sums go to takes longer than to wait for them */

/* Most rows of a block, with the instruction and without it: their sums stay in registers. */
#if VL == 16
#define ROWS_WITH MM_EVEN_ROWS
#define ROWS_WITHOUT 10
#elif VL == 8
#define ROWS_WITH 0
#define ROWS_WITHOUT 4
#else
#define ROWS_WITH 0
#define ROWS_WITHOUT 4
#endif

typedef uint32_t vu __attribute__((vector_size(VL * 4), may_alias));
INLINE vf even(vi x) { return (vf)((vu)x << 16); }
INLINE vf odd(vi x) { return (vf)(x & viset1(~0xffff)); }

/* sum[lane] += the two products of bf16 of a[lane] and b[lane]. */
#if VL == 16 && defined(ASPEN_AVX512_BF16)
INLINE vf pair_with(vf sum, vi a, vi b) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
INLINE vi round_with(vf low, vf high) {
  vi words;
  __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(words) : "v"(high), "v"(low));
  return words;
}
#else
INLINE vf pair_with(vf sum, vi a, vi b) { return sum + even(a) * even(b); }   /* never called */
INLINE vi round_with(vf low, vf high) { return vbits(low) & vbits(high); } /* nor this */
#endif

void FN(bf16_open)(bf16_job *job, int64_t amx) {
  job->with = aspen_isa_bf16(OWN_ISA);
  job->amx = amx ? aspen_isa_amx(OWN_ISA, 1) : ASPEN_AMX_OFF;
  job->most = job->amx ? MM_ROWS : job->with ? ROWS_WITH : ROWS_WITHOUT;
}

/* As the instruction rounds: denormal numbers before, which might round up to a normal one, are zeros. */
INLINE uint32_t round_one(const bf16_job *job, float x) {
  const uint32_t bits = half_bits(x);
  return f32_to_bf16(job->amx && !(bits & 0x7f800000) ? half_float(bits & 0x80000000) : x);
}

void FN(bf16_round)(const bf16_job *job, uint32_t *to, const float *from, int64_t n) {
  if (job->with) {
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) vistore((int32_t *)to + i / 2, round_with(vload(from + i), vload(from + i + VL)));
    const int64_t left = n - i, second = left > VL ? left - VL : 0;
    if (left) vistore_part((int32_t *)to + i / 2, round_with(vload_part(from + i, left), vload_part(from + i + VL, second)), bf16_pairs(left));
    return;
  }
  for (int64_t i = 0; i + 1 < n; i += 2) to[i / 2] = round_one(job, from[i]) | round_one(job, from[i + 1]) << 16;
  if (n % 2) to[n / 2] = round_one(job, from[n - 1]);
}

/* Values of bf16, `stride` apart, in pairs. */
static void move_halves(uint32_t *to, const uint16_t *from, int64_t stride, int64_t n) {
  if (n % 2) to[n / 2] = from[(n - 1) * stride];
  if (stride == 1)
    memcpy(to, from, (size_t)(n / 2) * sizeof *to);
  else
    for (int64_t i = 0; i + 1 < n; i += 2) to[i / 2] = from[i * stride] | (uint32_t)from[(i + 1) * stride] << 16;
}

void FN(bf16_row)(const bf16_job *job, uint32_t *to, const void *from, int dtype, int64_t stride, int64_t n) {
  if (dtype == ASPEN_DT_BF16) {
    move_halves(to, from, stride, n);
    return;
  }
  const float *x = from;
  if (stride == 1) {
    FN(bf16_round)(job, to, x, n);
    return;
  }
  for (int64_t k = 0; k < n; k += 2) {
    const float pair[2] = {x[k * stride], k + 1 < n ? x[(k + 1) * stride] : 0.0f};
    FN(bf16_round)(job, to + k / 2, pair, k + 1 < n ? 2 : 1);
  }
}

/* A pair of terms of R rows, three to a pointer (more pointers find no registers), times V vectors of columns. */
INLINE void pair(const int R, const int V, const int with, const uint32_t *const *base, int64_t step, int64_t at, const uint32_t *b, vf *sum) {
  vi w[VECTORS];
#pragma GCC unroll 2
  for (int v = 0; v < V; v++) w[v] = viload((const int32_t *)b + v * VL);
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    const vi x = viset1((int32_t)base[r / 3][(r % 3) * step + at]);
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) {
      vf *s = sum + r * V + v;
      *s = with ? pair_with(*s, x, w[v]) : vfma(even(x), even(w[v]), vfma(odd(x), odd(w[v]), *s));
    }
  }
}

/* All terms. fetch: by the time the sums are done, the lines they go to are here. */
INLINE void all_terms(const int R, const int V, const int with, const int fetch, const bf16_job *job, const mm_rows *rows, const uint32_t *a,
                      const uint32_t *b, int64_t column, vf *sum) {
  const char *out[2 * AHEAD], *beside[2 * AHEAD];
  if (fetch) lines_to_come(1, R, V, 2 * AHEAD, &job->finish, rows, column, (const char *)b, out, beside);
  const int64_t step = job->a_step, pairs = job->pairs, next_step = rows->next ? rows->next_step : BF16_PANEL_BYTES;
  const char *next = rows->next ? rows->next : (const char *)b + FETCHED;
  int64_t turn = 0;
  for (int64_t i = 0; i < job->runs[0]; i++)
    for (int64_t j = 0; j < job->runs[1]; j++) {
      const uint32_t *base[(MM_MAX_ROWS + 2) / 3];
#pragma GCC unroll 8
      for (int r = 0; r < R; r += 3) base[r / 3] = a + i * job->run_step[0] + j * job->run_step[1] + r * step;
      for (int64_t k = 0; k < pairs; k++, b += ASPEN_NR, next += next_step, turn++) {
        if (fetch) {
          __builtin_prefetch(next, 0, 2);
          if (turn % 2)
            __builtin_prefetch(beside[turn / 2 % (2 * AHEAD)]);
          else
            __builtin_prefetch(out[turn / 2 % (2 * AHEAD)], 1);
        }
        pair(R, V, with, base, step, k, b, sum);
      }
    }
}

/* R rows times V vectors of columns, all sums in registers. */
INLINE void multiply(const int R, const int V, const int with, const bf16_job *job, const mm_rows *rows, const uint32_t *a, const uint32_t *b,
                     int64_t column, int64_t first, int64_t last) {
  vf sum[MM_MAX_ROWS * VECTORS];
#pragma GCC unroll 32
  for (int i = 0; i < R * V; i++) sum[i] = vzero();
  if (V == VECTORS && job->runs[0] * job->runs[1] * job->pairs > FEW_TURNS) all_terms(R, V, with, 1, job, rows, a, b, column, sum);
  else all_terms(R, V, with, 0, job, rows, a, b, column, sum);
  home(1, with, R, V, &job->finish, rows, sum, column, first, last);
}

typedef void multiply_fn(const bf16_job *, const mm_rows *, const uint32_t *, const uint32_t *, int64_t, int64_t, int64_t);
#define MULTIPLY(R, V, WITH)                                                                                                       \
  static void multiply_##WITH##_##R##x##V(const bf16_job *job, const mm_rows *rows, const uint32_t *a, const uint32_t *b, int64_t column, \
                                          int64_t first, int64_t last) {                                                           \
    multiply(R, V, WITH, job, rows, a, b, column, first, last);                                                                    \
  }
#define FOUR(EACH, V, WITH) EACH(1, V, WITH) EACH(2, V, WITH) EACH(3, V, WITH) EACH(4, V, WITH)
#define TEN(EACH, V, WITH) \
  FOUR(EACH, V, WITH) EACH(5, V, WITH) EACH(6, V, WITH) EACH(7, V, WITH) EACH(8, V, WITH) EACH(9, V, WITH) EACH(10, V, WITH)
#define FOURTEEN(EACH, V, WITH) TEN(EACH, V, WITH) EACH(11, V, WITH) EACH(12, V, WITH) EACH(13, V, WITH) EACH(14, V, WITH)
#define NAME(R, V, WITH) multiply_##WITH##_##R##x##V,
/* [whole panels or not][rows - 1] */
#if VL == 16
FOURTEEN(MULTIPLY, 1, 1) FOURTEEN(MULTIPLY, 2, 1) TEN(MULTIPLY, 1, 0) TEN(MULTIPLY, 2, 0)
static multiply_fn *const multiply_with[2][14] = {{FOURTEEN(NAME, 1, 1)}, {FOURTEEN(NAME, 2, 1)}};
static multiply_fn *const multiply_without[2][10] = {{TEN(NAME, 1, 0)}, {TEN(NAME, 2, 0)}};
#else
FOUR(MULTIPLY, 1, 0) FOUR(MULTIPLY, 2, 0)
static multiply_fn *const multiply_without[2][4] = {{FOUR(NAME, 1, 0)}, {FOUR(NAME, 2, 0)}};
#define multiply_with multiply_without
#endif

void FN(bf16_strip)(bf16_job *job, int rows, const uint32_t *a, const uint32_t *panel, float *sums) {
  const int64_t word = sizeof *a;
  const amx_terms terms = {job->pairs,
                           {job->runs[0], job->runs[1]},
                           {job->run_step[0] * word, job->run_step[1] * word},
                           job->a_step * word};
  amx_sums_as(job->amx, AMX_BF16, &terms, &job->use, rows, (const char *)a, (const char *)panel, sums);
}

/* Sums of a strip, row by row, where values are stored as bf16. */
static void finish_halves(const bf16_job *job, const mm_rows *rows, const float *sums, int64_t column, int64_t first, int64_t last) {
  for (int r = 0; r < rows->rows; r++, sums += ASPEN_NR) {
    const mm_rows one = {.rows = 1, .out = {rows->out[r]}, .bias = {rows->bias[job->finish.one_bias ? 0 : r]}, .residual = {rows->residual[r]}};
    for (int64_t v = 0; v < ASPEN_NR; v += VL) {
      vf sum[1] = {vload(sums + v)};
      if (column + v + VL > first && column + v < last) home(1, 0, 1, 1, &job->finish, &one, sum, column + v, first, last);
    }
  }
}

void FN(bf16_block)(const bf16_job *job, const mm_rows *rows, const uint32_t *a, const uint32_t *panel, float *sums, int64_t column,
                    int64_t first, int64_t last) {
  if (sums) {
    if (job->finish.half_out || job->finish.half_residual) finish_halves(job, rows, sums, column, first, last);
    else FN(mm_finish)(&job->finish, rows, sums, column, first, last);
    return;
  }
  const int r = rows->rows - 1;
  for (int64_t v = 0; v < ASPEN_NR; v += WIDTH) {
    if (column + v + WIDTH <= first || column + v >= last) continue;
    const int whole = column + v + VL < last;
    /* not (… ? … : …)[r], of which gcc's sanitizer does not know the size */
    multiply_fn *const f = job->with ? multiply_with[whole][r] : multiply_without[whole][r];
    f(job, rows, a, panel + v, column + v, first, last);
  }
}
