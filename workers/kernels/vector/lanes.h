/* Reductions of f32 in an order that shapes and strides alone decide. Shared by REDUCE, SOFTMAX and NORM.
 *
 * The reduced axes form a nest of their own (nd.h) over the whole tensor: it never depends on the tile. Two forms:
 *  - rows: the innermost reduced axis is contiguous. Four vectors of partial results take turns. They are folded into a total every
 *   LANES_CHUNK elements, which keeps long sums accurate, and combined in a fixed tree at the end.
 *  - columns: any other stride. Each output has its own lane, which takes the elements one after another; again folded every COLUMNS_CHUNK.
 *    Up to COLUMNS neighbouring outputs are computed together. The content of the other lanes never matters.
 */
#ifndef ASPEN_LANES_H
#define ASPEN_LANES_H
#include "vector/nd.h"
#include "vector/vec.h"

#define LANES_CHUNK 8192
#define COLUMNS_CHUNK 256
#define COLUMNS (4 * VL)

/* A nest over the axes of `arg` in `mask`, whole extents, ordered by stride, walked at a byte offset for each output. 0: it is empty. */
static inline int lanes_nest(nd *it, const aspen_arg *arg, uint64_t mask) {
  nd_begin(it, 1);
  it->ptr[0] = arg->ptr;
  for (int a = 0; a < arg->rank; a++) {
    int64_t stride = arg->strides[a] * (int64_t)nd_size(arg->dtype);
    if (mask >> a & 1) nd_add_axis(it, arg->dims[a], &stride);
  }
  return nd_order(it);
}

static inline int lanes_contiguous(const nd *it) { return nd_step(it, 0) == 4; }

/* static float NAME(nd *nest, int64_t offset, float p): folds STEP(acc, x) over a nest whose rows are contiguous.
 * FILL is an element that leaves an accumulator as it is; p is free for STEP and FILL. */
#define LANES_ROWS(NAME, INIT, FILL, STEP, COMBINE, ACROSS)                                                        \
  static float NAME(nd *nest, int64_t offset, float p) {                                                         \
    const vf init = vset1(INIT), vp = vset1(p), fill = vset1(FILL);                                                \
    vf a0 = init, a1 = init, a2 = init, a3 = init, total = init;                                                   \
    const int64_t n = nd_row(nest);                                                                                \
    int64_t seen = 0;                                                                                              \
    (void)vp;                                                                                                      \
    do {                                                                                                           \
      const float *row = (const float *)(nest->ptr[0] + offset);                                       \
      for (int64_t start = 0; start < n; start += LANES_CHUNK) {                                                   \
        const int64_t stop = nd_min(n, start + LANES_CHUNK);                                                       \
        int64_t i = start;                                                                                         \
        for (; i + 4 * VL <= stop; i += 4 * VL) {                                                                  \
          a0 = STEP(a0, vload(row + i), vp);                                                                       \
          a1 = STEP(a1, vload(row + i + VL), vp);                                                                  \
          a2 = STEP(a2, vload(row + i + 2 * VL), vp);                                                              \
          a3 = STEP(a3, vload(row + i + 3 * VL), vp);                                                              \
        }                                                                                                          \
        for (; i < stop; i += VL) a0 = STEP(a0, vload_part_fill(row + i, stop - i, fill), vp);                     \
        seen += stop - start;                                                                                      \
        if (seen >= LANES_CHUNK) {                                                                                 \
          total = COMBINE(total, COMBINE(COMBINE(a0, a1), COMBINE(a2, a3)));                                       \
          a0 = a1 = a2 = a3 = init;                                                                                \
          seen = 0;                                                                                                \
        }                                                                                                          \
      }                                                                                                            \
    } while (nd_next(nest));                                                                                       \
    return ACROSS(COMBINE(total, COMBINE(COMBINE(a0, a1), COMBINE(a2, a3))));                                      \
  }

/* m ≤ COLUMNS elements that are `step` bytes apart, as four vectors. */
INLINE void columns_load(vf x[4], const char *p, int64_t step, int64_t m) {
  if (step == 4 && m == COLUMNS) {
    for (int k = 0; k < 4; k++) x[k] = vload((const float *)p + k * VL);
  } else if (step == 4) {
    for (int k = 0; k < 4; k++) x[k] = m > k * VL ? vload_part((const float *)p + k * VL, m - k * VL) : vzero();
  } else {
    for (int k = 0; k < 4; k++) x[k] = m > k * VL ? vload_strided((const float *)(p + k * VL * step), step / 4, m - k * VL) : vzero();
  }
}

INLINE void columns_store(char *p, int64_t step, const vf x[4], int64_t m) {
  for (int k = 0; k < 4 && m > k * VL; k++) {
    if (step != 4) vstore_strided((float *)(p + k * VL * step), step / 4, x[k], m - k * VL);
    else if (m >= (k + 1) * VL) vstore((float *)p + k * VL, x[k]);
    else vstore_part((float *)p + k * VL, x[k], m - k * VL);
  }
}

/* static void NAME(vf out[4], nd *nest, int64_t offset, int64_t step, int64_t m, const vf vp[4]): m outputs, `step` bytes apart. */
#define LANES_COLUMNS(NAME, INIT, STEP, COMBINE)                                                                   \
  INLINE void NAME##_any(vf out[4], nd *nest, int64_t offset, int64_t step, int64_t m, const vf vp[4]) {         \
    vf acc[4], total[4], x[4];                                                                                     \
    for (int k = 0; k < 4; k++) acc[k] = total[k] = vset1(INIT);                                                   \
    const int64_t n = nd_row(nest), along = nd_step(nest, 0);                                                      \
    int64_t seen = 0;                                                                                              \
    do {                                                                                                           \
      const char *p = nest->ptr[0] + offset;                                                           \
      for (int64_t i = 0; i < n; i++, p += along) {                                                                \
        columns_load(x, p, step, m);                                                                               \
        for (int k = 0; k < 4; k++) acc[k] = STEP(acc[k], x[k], vp[k]);                                            \
        if (++seen == COLUMNS_CHUNK) {                                                                             \
          for (int k = 0; k < 4; k++) total[k] = COMBINE(total[k], acc[k]), acc[k] = vset1(INIT);                  \
          seen = 0;                                                                                                \
        }                                                                                                          \
      }                                                                                                            \
    } while (nd_next(nest));                                                                                       \
    for (int k = 0; k < 4; k++) out[k] = COMBINE(total[k], acc[k]);                                                \
  }                                                                                                                \
  static void NAME(vf out[4], nd *nest, int64_t offset, int64_t step, int64_t m, const vf vp[4]) {               \
    if (step == 4 && m == COLUMNS) NAME##_any(out, nest, offset, 4, COLUMNS, vp);                                    \
    else NAME##_any(out, nest, offset, step, m, vp);                                                                 \
  }

/* The steps that more than one family takes. */
#define STEP_SUM(acc, x, p) ((acc) + (x))
#define STEP_SQUARE(acc, x, p) vfma(x, x, acc)
#define STEP_CENTRED(acc, x, p) vfma((x) - (p), (x) - (p), acc) /* squared distance from p */
#define STEP_MAX(acc, x, p) vmax(acc, x)                        /* ignores NaN, or not: for those who sum the same elements afterwards */
#define COMBINE_SUM(a, b) ((a) + (b))
#define COMBINE_MAX(a, b) vmax(a, b)

#endif
