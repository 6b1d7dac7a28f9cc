/* CONV where it is a product of few terms: 1 x 1, no groups, channels last. conv.c asks here first.
 *
 * Loops: image, rows, chunks of pixels that stay in L1, panels, micro-kernels. Where rows follow one another without a gap, and the tile
 * takes all of their width, they are one row.
 */
#include "kernel.h"
#include "gemm/mm.h"
#include "conv/pointwise.h"
#include "conv/window.h"

#define CHUNK_BYTES (12 << 10) /* of input */

#define CHUNK_ARGUMENTS                                                                                                            \
  const mm_pixels *w, const float *x, int64_t n, const float *panel, const float *bias, const float *residual, float *to, int64_t columns
typedef void chunk_fn(CHUNK_ARGUMENTS);

/* n >= R pixels times up to V vectors of a panel's columns. Lines of output and residual are fetched one micro-kernel ahead. */
INLINE void chunk(const int R, const int V, CHUNK_ARGUMENTS) {
  const epilogue e = *w->epilogue;
  for (int64_t i = 0; i < n; i += R) {
    if (i > n - R) i = n - R; /* at the end, computing some pixels twice is cheaper than another micro-kernel */
    float *out = to + i * w->to_step;
    const float *added = residual ? residual + i * w->residual_step : NULL;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int v = 0; v < V * VL; v += 16) {
        if (!e.past) __builtin_prefetch(out + (R + r) * w->to_step + v, 1);
        if (residual) __builtin_prefetch(added + (R + r) * w->residual_step + v);
      }
    if (columns >= V * VL)
      pointwise_block(R, V, 1, w, &e, x + i * w->x_step, panel, bias, added, out, columns, (const char *)panel, 0);
    else
      pointwise_block(R, V, 0, w, &e, x + i * w->x_step, panel, bias, added, out, columns, (const char *)panel, 0);
  }
}

#define CHUNK_V(R, V)                                                                                                              \
  static void chunk_##R##x##V(CHUNK_ARGUMENTS) { chunk(R, V, w, x, n, panel, bias, residual, to, columns); }
#define CHUNK(R) CHUNK_V(R, 1) CHUNK_V(R, 2)
CHUNK(4) CHUNK(5) CHUNK(6)
#if VL == 16
CHUNK(7) CHUNK(8)
static chunk_fn *const chunks[][2] = {{chunk_4x1, chunk_4x2}, {chunk_5x1, chunk_5x2}, {chunk_6x1, chunk_6x2}, {chunk_7x1, chunk_7x2}, {chunk_8x1, chunk_8x2}};
#else
static chunk_fn *const chunks[][2] = {{chunk_4x1, chunk_4x2}, {chunk_5x1, chunk_5x2}, {chunk_6x1, chunk_6x2}};
#endif
#if POINTWISE_WIDER
static void chunk_wider(CHUNK_ARGUMENTS) { chunk(POINTWISE_WIDER, ASPEN_NR / VL, w, x, n, panel, bias, residual, to, columns); }
#endif

void FN(mm_row_of_pixels)(const mm_pixels *w, const float *x, int64_t n, const float *panels, int64_t panel_step, const float *bias,
                          const float *residual, float *to, int64_t lo, int64_t hi) {
  const int64_t most = max64(CHUNK_BYTES / max64(w->taps * w->depth * (int64_t)sizeof(float), 1) / POINTWISE_MOST, 1) * POINTWISE_MOST;
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
      f(w, x + i * w->x_step, take, panels + c / ASPEN_NR * panel_step + c % ASPEN_NR, bias ? bias + c : NULL,
        residual ? residual + i * w->residual_step + c : NULL, to + i * w->to_step + c, columns);
      c += columns;
    }
  }
}

/* The first pixel of row `i` of the box, channel 0. */
static float *row_of(const aspen_arg *a, const aspen_call *c, int64_t n, int64_t i) {
  return (float *)a->ptr + n * a->strides[0] + (c->lo[2] + i) * a->strides[2] + c->lo[3] * a->strides[3];
}

int FN(pointwise)(const aspen_call *c, const epilogue *e) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *w = &c->args[2];
  const int64_t *p = c->params, depth = x->dims[1], width = c->hi[3] - c->lo[3];
  for (uint32_t i = 4; i < c->n_inputs; i++)
    if (c->args[1 + i].dtype) return -1; /* scale, prologue */
  const aspen_arg *bias = c->n_inputs > 2 && c->args[3].dtype ? &c->args[3] : NULL, *residual = c->n_inputs > 3 && c->args[4].dtype ? &c->args[4] : NULL;
  const int one = p[0] == 1 && p[1] == 1 && p[2] == 1 && p[3] == 1 && p[4] == 1 && p[7] == 0 && p[8] == 0;
  if (!one || depth > MM_FEW_TERMS || x->dims[2] < c->hi[2] || x->dims[3] < c->hi[3] || c->lo[1] % ASPEN_NR) return -1;
  if (x->strides[1] != 1 || out->strides[1] != 1 || (bias && bias->strides[0] != 1) || (residual && residual->strides[1] != 1)) return -1;
  const mm_pixels r = {.epilogue = e, .taps = 1, .depth = depth, .x_step = x->strides[3], .to_step = out->strides[3],
                       .residual_step = residual ? residual->strides[3] : 0};
  int64_t rows = c->hi[2] - c->lo[2], columns = width;
  if (x->strides[2] == width * r.x_step && out->strides[2] == width * r.to_step && (!residual || residual->strides[2] == width * r.residual_step))
    columns *= rows, rows = 1;
  if (columns < MM_FEWEST_PIXELS) return -1;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++)
    for (int64_t i = 0; i < rows; i++)
      FN(mm_row_of_pixels)(&r, row_of(x, c, n, i), columns, (const float *)w->ptr, w->strides[1], bias ? (const float *)bias->ptr : NULL,
                           residual ? row_of(residual, c, n, i) : NULL, row_of(out, c, n, i), c->lo[1], c->hi[1]);
  return 0;
}
