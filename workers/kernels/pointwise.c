/* CONV where it is a product of few terms: 1 x 1, no groups, channels last. conv.c asks here first.
 *
 * Loops: image, rows, chunks of pixels that stay in L1, panels, micro-kernels. Where rows follow one another without a gap, and the tile takes all of
 * their width, they are one row.
 */
#include "kernel.h"
#include "mm.h"
#include "pointwise.h"
#include "window.h"

#define MOST_TERMS 128
#define CHUNK_BYTES (12 << 10) /* of input */

typedef struct row {
  const epilogue *epilogue;
  int64_t depth, x_step, to_step;
} row;

typedef void chunk_fn(const row *, const float *, int64_t, const float *, const float *, float *, int64_t);

/* n >= R pixels times up to V vectors of a panel's columns. Lines of output are fetched one micro-kernel ahead. */
INLINE void chunk(const int R, const int V, const row *w, const float *x, int64_t n, const float *panel, const float *bias, float *to,
                  int64_t columns) {
  const epilogue e = *w->epilogue;
  for (int64_t i = 0; i < n; i += R) {
    if (i > n - R) i = n - R; /* at the end, computing some pixels twice is cheaper than another micro-kernel */
    float *out = to + i * w->to_step;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int v = 0; v < V * VL; v += 16) __builtin_prefetch(out + (R + r) * w->to_step + v, 1);
    if (columns >= V * VL)
      pointwise_block(R, V, 1, &e, w->depth, x + i * w->x_step, w->x_step, panel, bias, out, w->to_step, columns, (const char *)panel, 0);
    else
      pointwise_block(R, V, 0, &e, w->depth, x + i * w->x_step, w->x_step, panel, bias, out, w->to_step, columns, (const char *)panel, 0);
  }
}

#define CHUNK(R)                                                                                                                   \
  static void chunk_##R##x1(const row *w, const float *x, int64_t n, const float *panel, const float *bias, float *to, int64_t columns) { \
    chunk(R, 1, w, x, n, panel, bias, to, columns);                                                                                \
  }                                                                                                                                \
  static void chunk_##R##x2(const row *w, const float *x, int64_t n, const float *panel, const float *bias, float *to, int64_t columns) { \
    chunk(R, 2, w, x, n, panel, bias, to, columns);                                                                                \
  }
CHUNK(4) CHUNK(5) CHUNK(6)
#if VL == 16
CHUNK(7) CHUNK(8)
static chunk_fn *const chunks[][2] = {{chunk_4x1, chunk_4x2}, {chunk_5x1, chunk_5x2}, {chunk_6x1, chunk_6x2}, {chunk_7x1, chunk_7x2}, {chunk_8x1, chunk_8x2}};
#else
static chunk_fn *const chunks[][2] = {{chunk_4x1, chunk_4x2}, {chunk_5x1, chunk_5x2}, {chunk_6x1, chunk_6x2}};
#endif
#if POINTWISE_WIDER
static void chunk_wider(const row *w, const float *x, int64_t n, const float *panel, const float *bias, float *to, int64_t columns) {
  chunk(POINTWISE_WIDER, ASPEN_NR / VL, w, x, n, panel, bias, to, columns);
}
#endif

/* Columns [lo, hi) of n neighbouring pixels. w: panel 0; bias and to: column 0. */
static void pixels(const row *w, const float *x, int64_t n, const float *panels, int64_t panel_step, const float *bias, float *to, int64_t lo,
                   int64_t hi) {
  const int64_t most = max64(CHUNK_BYTES / (w->depth * (int64_t)sizeof(float)) / POINTWISE_MOST, 1) * POINTWISE_MOST;
  for (int64_t i = 0, take; i < n; i += take) {
    take = n - i < 2 * most ? n - i : most;
#if POINTWISE_WIDER
    const int wider = pointwise_wider(take);
#endif
    chunk_fn *const *by = chunks[pointwise_pixels(take) - POINTWISE_FEWEST];
    for (int64_t c = lo; c < hi;) {
      int64_t columns = min64(hi - c, 2 * VL);
      chunk_fn *f = by[columns > VL];
#if POINTWISE_WIDER
      if (wider && hi - c >= ASPEN_NR) f = chunk_wider, columns = ASPEN_NR;
#endif
      f(w, x + i * w->x_step, take, panels + c / ASPEN_NR * panel_step + c % ASPEN_NR, bias ? bias + c : NULL, to + i * w->to_step + c, columns);
      c += columns;
    }
  }
}

int FN(pointwise)(const aspen_call *c, const epilogue *e) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *w = &c->args[2];
  const int64_t *p = c->params, depth = x->dims[1], width = c->hi[3] - c->lo[3];
  for (uint32_t i = 3; i < c->n_inputs; i++)
    if (c->args[1 + i].dtype) return -1; /* residual, scale, prologue */
  const aspen_arg *bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : NULL;
  const int one = p[0] == 1 && p[1] == 1 && p[2] == 1 && p[3] == 1 && p[4] == 1 && p[7] == 0 && p[8] == 0;
  if (!one || depth > MOST_TERMS || x->dims[2] < c->hi[2] || x->dims[3] < c->hi[3] || c->lo[1] % ASPEN_NR) return -1;
  if (x->strides[1] != 1 || out->strides[1] != 1 || (bias && bias->strides[0] != 1)) return -1;
  const row r = {e, depth, x->strides[3], out->strides[3]};
  int64_t rows = c->hi[2] - c->lo[2], columns = width;
  if (x->strides[2] == width * r.x_step && out->strides[2] == width * r.to_step) columns *= rows, rows = 1;
  if (columns < POINTWISE_FEWEST) return -1;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++)
    for (int64_t i = 0; i < rows; i++) {
      const float *from = (const float *)x->ptr + n * x->strides[0] + (c->lo[2] + i) * x->strides[2] + c->lo[3] * x->strides[3];
      float *to = (float *)out->ptr + n * out->strides[0] + (c->lo[2] + i) * out->strides[2] + c->lo[3] * out->strides[3];
      pixels(&r, from, columns, (const float *)w->ptr, w->strides[1], bias ? (const float *)bias->ptr : NULL, to, c->lo[1], c->hi[1]);
    }
  return 0;
}
