/* Micro-kernels of the matrix product and the epilogue behind them: see mm.h. */
#include "gemm/mm_home.h"

#define WIDEST 8 /* vectors of columns in the widest micro-kernel */
#define PREFETCH_PACKED 32 /* terms ahead in a packed panel: 4 KiB */
#define PREFETCH_COPIED 16 /* rows ahead that are copied to a panel */
#define PREFETCH_ROWS 8    /* terms ahead where each is a row of its own */
/* terms ahead in packed panels that come from memory: the hardware follows none beyond a page, which 32 terms fill */
#define STREAM_AHEAD 128
#define ROW_BYTES (ASPEN_NR * (int64_t)sizeof(float))

int FN(mm_prepare)(mm_job *job, const int64_t *params) {
  double ab[2];
  memcpy(ab, params + 1, sizeof ab);
  if (FN(epilogue_open)(&job->epilogue, params[0], ab[0], ab[1], params[3])) return ASPEN_KERNEL_BAD_ARGUMENT;
  job->direct = job->out_stride == 1 && job->bias_stride == 1 && job->residual_stride == 1;
  return 0;
}

/* One term of a tap where A and B are contiguous. */
INLINE void term(const int R, const int V, const float *const *p, const float *b, int64_t b_panel, int64_t k, vf *sum) {
  vf w[WIDEST];
#pragma GCC unroll 8
  for (int v = 0; v < V; v++) w[v] = vload(b + v / PANEL_VECTORS * b_panel + v % PANEL_VECTORS * VL);
  if (V <= PANEL_VECTORS) { /* a narrow micro-kernel reads half of each line pair, which the hardware does not follow well */
    __builtin_prefetch(b + PREFETCH_PACKED * ASPEN_NR);
    if (V > LINE) __builtin_prefetch(b + PREFETCH_PACKED * ASPEN_NR + ASPEN_NR / 2);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const vf x = vset1(p[r][k]);
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sum[r * V + v] = vfma(x, w[v], sum[r * V + v]);
  }
}

/* The terms of a tap where A and B are contiguous: with strides known, all pointers stay in registers. Returns the end of B. Between the
 * terms, `next`, out[AHEAD], to be written, and beside[AHEAD] are fetched; the narrower the vectors, the fewer loads a term has room for.
 * stream: `next` is a row of each panel. */
INLINE const float *contiguous_terms(const int R, const int V, const int stream, const float *const *p, const float *b, int64_t b_panel,
                                     int64_t terms, const char *next, int64_t next_step, const char *const *out, const char *const *beside,
                                     vf *sum) {
  int64_t k = 0;
  for (; k + 2 <= terms; k += 2) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++, b += ASPEN_NR) {
      if (stream)
#pragma GCC unroll 4
        for (int v = 0; v < V; v += PANEL_VECTORS) {
          __builtin_prefetch(next + v / PANEL_VECTORS * b_panel * (int64_t)sizeof(float), 0, 2);
          __builtin_prefetch(next + v / PANEL_VECTORS * b_panel * (int64_t)sizeof(float) + ROW_BYTES / 2, 0, 2);
        }
      if (V <= PANEL_VECTORS) {
        if (!stream) __builtin_prefetch(next, 0, 2);
        if (i == 0 && (LINE == 1 || k % 4 == 0))
          __builtin_prefetch(out[k / (2 * LINE) % AHEAD], 1);
        else if (LINE == 1 || i == 0)
          __builtin_prefetch(beside[k / (2 * LINE) % AHEAD]);
      }
      next += next_step;
      term(R, V, p, b, b_panel, k + i, sum);
    }
  }
  if (k < terms) {
    term(R, V, p, b, b_panel, k, sum);
    b += ASPEN_NR;
  }
  return b;
}

/* The same where B comes from memory: what is fetched lies STREAM_AHEAD terms ahead, and where the panels of `b` end, in those behind
 * them. */
INLINE const float *streamed_terms(const int R, const int V, const float **p, const float *b, int64_t b_panel, int64_t terms,
                                   const char *const *out, const char *const *beside, vf *sum) {
  const int64_t inside = terms > STREAM_AHEAD ? (terms - STREAM_AHEAD) / 2 * 2 : 0;
  const int64_t others = V > PANEL_VECTORS ? (V / PANEL_VECTORS - 1) * b_panel : 0;
  b = contiguous_terms(R, V, 1, p, b, b_panel, inside, (const char *)(b + STREAM_AHEAD * ASPEN_NR), ROW_BYTES, out, beside, sum);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) p[r] += inside;
  return contiguous_terms(R, V, 1, p, b, b_panel, terms - inside, (const char *)(b + STREAM_AHEAD * ASPEN_NR + others), ROW_BYTES, out, beside, sum);
}

/* R rows times V vectors of columns, all sums in registers. `column` is that of the first vector, b its address in B. half: of the last
 * vector, only the lower half is wanted, and half as wide operations will do. */
INLINE void multiply(const int R, const int V, const int half, const mm_job *job, const mm_rows *rows, const float *b, int64_t column, int64_t first,
                     int64_t last) {
  vf sum[MM_ROWS * WIDEST];
  const int64_t part = column % ASPEN_NR; /* of the sums of a panel, where it is multiplied in parts */
  if (rows->from) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sum[r * V + v] = vload(rows->from + r * ASPEN_NR + part + v * VL);
  } else {
#pragma GCC unroll 64
    for (int i = 0; i < R * V; i++) sum[i] = vzero();
  }
  /* By the time the sums are done, the lines they go to are here. They are fetched one by one: all at once would hold up the loads. */
  const char *out[AHEAD], *beside[AHEAD];
  const int spread = V <= PANEL_VECTORS;
  if (spread) {
    lines_to_come(0, R, V, AHEAD, job, rows, column, (const char *)b, out, beside);
  } else if (job->direct) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v += LINE) {
        if (!job->epilogue.past) __builtin_prefetch(rows->out[r] + column + v * VL, 1);
        if (rows->residual[0]) __builtin_prefetch(rows->residual[r] + column + v * VL);
      }
  }
#if VL == 16
  __m256 lower[MM_ROWS];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) lower[r] = half ? _mm512_castps512_ps256(sum[r * V + V - half]) : _mm256_setzero_ps();
#endif
  const int W = V - half; /* whole vectors */
  const int64_t k_end = job->k, a_stride = job->a_stride, b_stride = job->b_stride, b_panel = job->b_panel;
  const int far_rows = b_stride != ASPEN_NR; /* B is read in place */
  const int64_t ahead = far_rows ? PREFETCH_ROWS * b_stride : PREFETCH_PACKED * b_stride;
  const float *const *a = rows->a;
  /* Where a panel takes several passes, each brings its part of what comes next. */
  const int passes = V < PANEL_VECTORS ? PANEL_VECTORS / V : 1, pass = V < PANEL_VECTORS ? (int)(column % ASPEN_NR / (V * VL)) : 0;
  const int64_t next_step = rows->next ? (rows->next_step + passes - 1) / passes : 0;
  const char *next = rows->next ? rows->next + pass * rows->taps * job->k * next_step : (const char *)b;
  for (int tap = rows->taps; tap > 0; tap--) {
    const float *p[MM_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) p[r] = a[r];
    a += R;
    if (a_stride == 1 && !far_rows && !half) {
      if (rows->stream) b = streamed_terms(R, V, p, b, b_panel, k_end, out, beside, sum);
      else b = contiguous_terms(R, V, 0, p, b, b_panel, k_end, next, next_step, out, beside, sum);
      next += k_end * next_step;
      continue;
    }
    int64_t at = 0;
    for (int64_t k = k_end; k > 0; k--) {
      vf w[WIDEST];
#pragma GCC unroll 8
      for (int v = 0; v < W; v++) w[v] = vload(b + v / PANEL_VECTORS * b_panel + v % PANEL_VECTORS * VL);
#if VL == 16
      const __m256 last_w = half ? _mm256_loadu_ps(b + W / PANEL_VECTORS * b_panel + W % PANEL_VECTORS * VL) : _mm256_setzero_ps();
#endif
      /* The stream of B runs ahead of what the hardware follows, above all when a narrow micro-kernel reads half of each line pair. */
      if (V <= PANEL_VECTORS) {
        __builtin_prefetch(b + ahead);
        if (V > 1) __builtin_prefetch(b + ahead + ASPEN_NR / 2);
      } else if (far_rows) {
#pragma GCC unroll 8
        for (int v = 0; v < V; v += LINE) __builtin_prefetch(b + ahead + v / PANEL_VECTORS * b_panel + v % PANEL_VECTORS * VL);
      }
      b += b_stride;
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) {
        const vf x = vset1(p[r][at]);
#pragma GCC unroll 8
        for (int v = 0; v < W; v++) sum[r * V + v] = vfma(x, w[v], sum[r * V + v]);
#if VL == 16
        if (half) lower[r] = _mm256_fmadd_ps(_mm512_castps512_ps256(x), last_w, lower[r]);
#endif
      }
      at += a_stride;
    }
  }
#if VL == 16
  if (half)
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) sum[r * V + W] = _mm512_zextps256_ps512(lower[r]);
#endif
  if (rows->to) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) vstore(rows->to + r * ASPEN_NR + part + v * VL, sum[r * V + v]);
    return;
  }
  home(0, 0, R, V, job, rows, sum, column, first, last);
}

#if MM_EVEN_ROWS > MM_ROWS
/* One term of R rows that lie evenly, three to a pointer, times a panel. */
INLINE void even_term(const int R, const float *const *base, int64_t step, const float *b, int64_t k, vf *sum) {
  vf w[PANEL_VECTORS];
#pragma GCC unroll 2
  for (int v = 0; v < PANEL_VECTORS; v++) {
    w[v] = vload(b + v * VL);
    __builtin_prefetch(b + PREFETCH_PACKED * ASPEN_NR + v * VL);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    const vf x = vset1(base[r / 3][(r % 3) * step + k]);
#pragma GCC unroll 2
    for (int v = 0; v < PANEL_VECTORS; v++) sum[r * PANEL_VECTORS + v] = vfma(x, w[v], sum[r * PANEL_VECTORS + v]);
  }
}

/* The same as above for R > MM_ROWS rows and a whole panel. */
INLINE void multiply_even(const int R, const mm_job *job, const mm_rows *rows, const float *b, int64_t column, int64_t first, int64_t last) {
  vf sum[MM_EVEN_ROWS * PANEL_VECTORS];
#pragma GCC unroll 32
  for (int i = 0; i < R * PANEL_VECTORS; i++) sum[i] = vzero();
  const char *out[2 * AHEAD], *beside[2 * AHEAD];
  lines_to_come(0, R, PANEL_VECTORS, 2 * AHEAD, job, rows, column, (const char *)b, out, beside);
  const float *base[(MM_EVEN_ROWS + 2) / 3];
  const int64_t terms = job->k, a_step = rows->a_step, next_step = rows->stream ? ROW_BYTES : rows->next ? rows->next_step : 0;
#pragma GCC unroll 8
  for (int r = 0; r < R; r += 3) base[r / 3] = rows->a[0] + r * a_step;
  const char *next = rows->stream ? (const char *)(b + STREAM_AHEAD * ASPEN_NR) : rows->next ? rows->next : (const char *)b;
  int64_t k = 0;
  for (; k + 2 <= terms; k += 2)
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++, b += ASPEN_NR, next += next_step) {
      __builtin_prefetch(next, 0, 2);
      if (i == 0)
        __builtin_prefetch(out[k / 2 % (2 * AHEAD)], 1);
      else
        __builtin_prefetch(beside[k / 2 % (2 * AHEAD)]);
      even_term(R, base, a_step, b, k + i, sum);
    }
  if (k < terms) even_term(R, base, a_step, b, k, sum);
  home(0, 0, R, PANEL_VECTORS, job, rows, sum, column, first, last);
}
#endif

/* Sums [R][ASPEN_NR] that were made elsewhere, V vectors of each row at a time. */
INLINE void finish_direct(const int R, const int V, const mm_job *job, const mm_rows *rows, const float *sums, int64_t column, int64_t last) {
  for (int64_t end = column + ASPEN_NR; column < end && column < last; column += V * VL, sums += V * VL) {
    vf sum[MM_ROWS * WIDEST];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sum[r * V + v] = vload(sums + r * ASPEN_NR + v * VL);
    if (column + V * VL <= last) {
      before_act(0, R, V, 1, job, rows, sum, column, last);
      epilogue_act(&job->epilogue, sum, R * V);
      after_act(0, 0, R, V, 1, job, rows, sum, column, last);
    } else {
      before_act(0, R, V, 0, job, rows, sum, column, last);
      epilogue_act(&job->epilogue, sum, R * V);
      after_act(0, 0, R, V, 0, job, rows, sum, column, last);
    }
  }
}

typedef void finish_fn(const mm_job *, const mm_rows *, const float *, int64_t, int64_t);
#define FINISH(R)                                                                                                                  \
  static void finish_##R(const mm_job *job, const mm_rows *rows, const float *sums, int64_t column, int64_t last) {                \
    finish_direct(R, 2, job, rows, sums, column, last);                                                                            \
  }
FINISH(1) FINISH(2) FINISH(3) FINISH(4) FINISH(5) FINISH(6)
#if MM_ROWS == 8
FINISH(7) FINISH(8)
#endif
static finish_fn *const finishes[] = {finish_1, finish_2, finish_3, finish_4, finish_5, finish_6,
#if MM_ROWS == 8
                                      finish_7, finish_8,
#endif
};

void FN(mm_finish)(const mm_job *job, const mm_rows *rows, float *sums, int64_t column, int64_t first, int64_t last) {
  if (job->direct && first <= column) finishes[rows->rows - 1](job, rows, sums, column, last);
  else finish(0, job, rows, sums, ASPEN_NR, column, first, last);
}

typedef void multiply_fn(const mm_job *, const mm_rows *, const float *, int64_t, int64_t, int64_t);
#define MULTIPLY(R, V)                                                                                                             \
  static void multiply_##R##x##V(const mm_job *job, const mm_rows *rows, const float *b, int64_t column, int64_t first, int64_t last) { \
    multiply(R, V, 0, job, rows, b, column, first, last);                                                                          \
  }
MULTIPLY(1, 1) MULTIPLY(2, 1) MULTIPLY(3, 1) MULTIPLY(4, 1) MULTIPLY(5, 1) MULTIPLY(6, 1)
MULTIPLY(1, 2) MULTIPLY(2, 2) MULTIPLY(3, 2) MULTIPLY(4, 2) MULTIPLY(5, 2) MULTIPLY(6, 2)
MULTIPLY(1, 4) MULTIPLY(2, 4) MULTIPLY(3, 4)
MULTIPLY(1, 8)
#if VL == 16
MULTIPLY(7, 1) MULTIPLY(8, 1) MULTIPLY(7, 2) MULTIPLY(8, 2)
MULTIPLY(4, 4) MULTIPLY(5, 4) MULTIPLY(6, 4)
MULTIPLY(2, 8) MULTIPLY(3, 8)
/* A last panel that is not used to its full width: up to 24 columns. */
#define MULTIPLY_24(R)                                                                                                             \
  static void multiply_##R##x24(const mm_job *job, const mm_rows *rows, const float *b, int64_t column, int64_t first, int64_t last) {  \
    multiply(R, 2, 1, job, rows, b, column, first, last);                                                                          \
  }
MULTIPLY_24(1) MULTIPLY_24(2) MULTIPLY_24(3) MULTIPLY_24(4) MULTIPLY_24(5) MULTIPLY_24(6) MULTIPLY_24(7) MULTIPLY_24(8)
static multiply_fn *const by_24[] = {multiply_1x24, multiply_2x24, multiply_3x24, multiply_4x24, multiply_5x24, multiply_6x24,
                                     multiply_7x24, multiply_8x24};
static multiply_fn *const by_1[] = {multiply_1x1, multiply_2x1, multiply_3x1, multiply_4x1, multiply_5x1, multiply_6x1,
                                     multiply_7x1, multiply_8x1};
#define MULTIPLY_EVEN(R)                                                                                                           \
  static void multiply_##R##x2(const mm_job *job, const mm_rows *rows, const float *b, int64_t column, int64_t first, int64_t last) { \
    multiply_even(R, job, rows, b, column, first, last);                                                                           \
  }
MULTIPLY_EVEN(9) MULTIPLY_EVEN(10) MULTIPLY_EVEN(11) MULTIPLY_EVEN(12) MULTIPLY_EVEN(13) MULTIPLY_EVEN(14)
static multiply_fn *const by_2[] = {multiply_1x2, multiply_2x2, multiply_3x2, multiply_4x2, multiply_5x2, multiply_6x2, multiply_7x2,
                                    multiply_8x2, multiply_9x2, multiply_10x2, multiply_11x2, multiply_12x2, multiply_13x2, multiply_14x2};
static multiply_fn *const by_4[] = {multiply_1x4, multiply_2x4, multiply_3x4, multiply_4x4, multiply_5x4, multiply_6x4};
static multiply_fn *const by_8[] = {multiply_1x8, multiply_2x8, multiply_3x8};
#else
static multiply_fn *const by_1[] = {multiply_1x1, multiply_2x1, multiply_3x1, multiply_4x1, multiply_5x1, multiply_6x1};
static multiply_fn *const by_2[] = {multiply_1x2, multiply_2x2, multiply_3x2, multiply_4x2, multiply_5x2, multiply_6x2};
static multiply_fn *const by_4[] = {multiply_1x4, multiply_2x4, multiply_3x4};
static multiply_fn *const by_8[] = {multiply_1x8};
#endif
#define MOST(table) (int)(sizeof(table) / sizeof *(table))

#if MM_EVEN_ROWS > MM_ROWS
/* A last panel that is not used to its full width, of more than MM_ROWS rows. */
static void narrow_panel(const mm_job *job, const mm_rows *rows, const float *b, int64_t column, int64_t first, int64_t last) {
  const float *a[MM_ROWS];
  for (int done = 0, n; done < rows->rows; done += n) {
    n = rows->rows - done < MM_ROWS ? rows->rows - done : MM_ROWS;
    mm_rows part = {.rows = n, .taps = 1, .a = a, .next = done ? NULL : rows->next, .next_step = rows->next_step};
    for (int r = 0; r < n; r++) {
      a[r] = rows->a[0] + (done + r) * rows->a_step;
      part.out[r] = rows->out[done + r];
      part.bias[r] = rows->bias[0] ? rows->bias[job->one_bias ? 0 : done + r] : NULL;
      part.residual[r] = rows->residual[0] ? rows->residual[done + r] : NULL;
    }
    FN(mm_block)(job, &part, b, column, first, last);
  }
}
#endif

void FN(mm_block)(const mm_job *job, const mm_rows *rows, const float *b, int64_t column, int64_t first, int64_t last) {
  const int r = rows->rows;
  /* The last panel is padded to its full width, so a micro-kernel may read to the end of the panel that holds column last - 1. */
  while (column < last) {
    const int64_t readable = (last - column + ASPEN_NR - 1) / ASPEN_NR * ASPEN_NR;
    const float *at = b;
    int width;
    multiply_fn *f;
    if (r <= MOST(by_8) && 8 * VL <= readable) {
      width = 8 * VL;
      f = by_8[r - 1];
    } else if (r <= MOST(by_4) && 4 * VL <= readable) {
      width = 4 * VL;
      f = by_4[r - 1];
    } else {
      width = 2 * VL;
      f = by_2[r - 1];
    }
#if MM_EVEN_ROWS > MM_ROWS
    if (r > MM_ROWS && last - column <= VL + VL / 2) {
      if (column + ASPEN_NR > first) narrow_panel(job, rows, b, column, first, last);
      return;
    }
#endif
    if (last - column <= VL) { /* a narrow last panel */
      if (column + VL > first) by_1[r - 1](job, rows, b, column, first, last);
      return;
    }
#if VL == 16
    if (last - column <= VL + VL / 2) {
      if (column + width > first) by_24[r - 1](job, rows, b, column, first, last);
      return;
    }
#endif
    if (width >= ASPEN_NR) {
      if (column + width > first) f(job, rows, at, column, first, last);
      b += width / ASPEN_NR * job->b_panel;
      column += width;
    } else { /* the micro-kernel is narrower than a panel: several passes over it */
      for (int64_t end = column + ASPEN_NR; column < end; column += width, at += width)
        if (column + width > first && column < last) f(job, rows, at, column, first, last);
      b += job->b_panel;
    }
  }
}

/* 8 x 8 elements: to[k * ASPEN_NR + column] = from[column * stride + k] */
INLINE void transpose_8x8(const float *from, int64_t stride, float *to) {
#if VL >= 8
  __m256 r[8], t[8];
  for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(from + i * stride);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(to + i * ASPEN_NR, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * ASPEN_NR, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
#else
  for (int k = 0; k < 8; k++)
    for (int i = 0; i < 8; i++) to[k * ASPEN_NR + i] = from[i * stride + k];
#endif
}

void FN(mm_pack)(float *panel, const float *b, int64_t k_stride, int64_t n_stride, int64_t k_end, int64_t n) {
  if (n_stride == 1) {
    for (int64_t k = 0; k < k_end; k++, b += k_stride, panel += ASPEN_NR) {
      /* short rows, which nothing else foresees */
      for (int i = 0; i < ASPEN_NR; i += 16) __builtin_prefetch(b + PREFETCH_COPIED * k_stride + i);
      for (int64_t i = 0; i < ASPEN_NR; i += VL) vstore(panel + i, n - i <= 0 ? vzero() : vload_part(b + i, n - i));
    }
    return;
  }
  int64_t done = 0; /* columns copied by blocks, up to term k_blocks */
  const int64_t k_blocks = k_stride == 1 ? k_end / 8 * 8 : 0;
  for (; k_blocks && done + 8 <= n; done += 8)
    for (int64_t k = 0; k < k_blocks; k += 8) {
      const float *from = b + done * n_stride + k;
      if (k % 16 == 0)
        for (int i = 0; i < 8; i++) __builtin_prefetch(from + (i + ASPEN_NR) * n_stride); /* the next panel */
      transpose_8x8(from, n_stride, panel + k * ASPEN_NR + done);
    }
  for (int64_t k = 0; k < k_end; k++) {
    const int64_t first = k < k_blocks ? done : 0;
    float *to = panel + k * ASPEN_NR;
    if (n < ASPEN_NR)
      for (int64_t i = first; i < ASPEN_NR; i += 8) memset(to + i, 0, 8 * sizeof *to); /* of a narrow matrix most are */
    for (int64_t i = first; i < n; i++) to[i] = b[k * k_stride + i * n_stride];
  }
}
