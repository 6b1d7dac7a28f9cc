/* REDUCE, over axes where the output has extent 1. f32 by the vector forms of lanes.h; other types element after element. */
#include <math.h>

#include "vector/lanes.h"
#include "vector/vmath.h"

/* ---- f32 ---- */

#define STEP_ABS(acc, x, p) ((acc) + vabs(x))
#define STEP_PROD(acc, x, p) ((acc) * (x))
#define STEP_EXP(acc, x, p) ((acc) + vexp((x) - (p)))
#define STEP_MAX_NAN(acc, x, p) vmax_nan(acc, x)
#define STEP_MIN_NAN(acc, x, p) vmin_nan(acc, x)
#define COMBINE_PROD(a, b) ((a) * (b))

LANES_ROWS(rows_sum, 0, 0, STEP_SUM, COMBINE_SUM, vhadd)
LANES_ROWS(rows_abs, 0, 0, STEP_ABS, COMBINE_SUM, vhadd)
LANES_ROWS(rows_square, 0, 0, STEP_SQUARE, COMBINE_SUM, vhadd)
LANES_ROWS(rows_exp, 0, -INFINITY, STEP_EXP, COMBINE_SUM, vhadd)
LANES_ROWS(rows_prod, 1, 1, STEP_PROD, COMBINE_PROD, vhmul)
LANES_ROWS(rows_max, -INFINITY, -INFINITY, STEP_MAX_NAN, vmax_nan, vhmax)
LANES_ROWS(rows_min, INFINITY, INFINITY, STEP_MIN_NAN, vmin_nan, vhmin)

LANES_COLUMNS(columns_sum, 0, STEP_SUM, COMBINE_SUM)
LANES_COLUMNS(columns_abs, 0, STEP_ABS, COMBINE_SUM)
LANES_COLUMNS(columns_square, 0, STEP_SQUARE, COMBINE_SUM)
LANES_COLUMNS(columns_exp, 0, STEP_EXP, COMBINE_SUM)
LANES_COLUMNS(columns_prod, 1, STEP_PROD, COMBINE_PROD)
LANES_COLUMNS(columns_max, -INFINITY, STEP_MAX_NAN, vmax_nan)
LANES_COLUMNS(columns_min, INFINITY, STEP_MIN_NAN, vmin_nan)

typedef float (*rows_fn)(nd *, int64_t, float);
typedef void (*columns_fn)(vf *, nd *, int64_t, int64_t, int64_t, const vf *);

/* Finishes an output once its elements are folded. n: elements an output; offset: the number that LOG_SUM_EXP subtracted. */
static inline float finish_f32(int op, float r, float n, float offset) {
  switch (op) {
    case ASPEN_R_MEAN: return r / n;
    case ASPEN_R_L2: return sqrtf(r);
    case ASPEN_R_LOG_SUM: return logf(r);
    case ASPEN_R_LOG_SUM_EXP: return logf(r) + offset;
  }
  return r;
}

/* exp(x - offset) with the maximum as offset cannot overflow; an infinite maximum would give NaN, so it stays out. */
static inline float exp_offset(float max) { return isinf(max) ? 0 : max; }

static int reduce_f32(const aspen_call *c, nd *kept, nd *reduced, int empty, int64_t count) {
  static const rows_fn rows[] = {rows_sum, rows_sum, rows_max, rows_min, rows_prod, rows_abs, rows_square, rows_square, rows_sum, rows_exp};
  static const columns_fn columns[] = {columns_sum,  columns_sum, columns_max,    columns_min,    columns_prod,
                                       columns_abs, columns_square, columns_square, columns_sum, columns_exp};
  static const float identity[] = {0, 0, -INFINITY, INFINITY, 1, 0, 0, 0, 0, 0};
  const int op = (int)c->params[0];
  const int64_t n = nd_row(kept), si = nd_step(kept, 0), so = nd_step(kept, 1);
  const float terms = (float)count;
  do {
    int64_t offset = kept->ptr[0] - c->args[1].ptr;
    char *out = kept->ptr[1];
    if (empty) {
      for (int64_t i = 0; i < n; i++) *(float *)(out + i * so) = finish_f32(op, identity[op], terms, 0);
    } else if (lanes_contiguous(reduced)) {
      for (int64_t i = 0; i < n; i++, offset += si, out += so) {
        const float shift = op == ASPEN_R_LOG_SUM_EXP ? exp_offset(rows_max(reduced, offset, 0)) : 0;
        *(float *)out = finish_f32(op, rows[op](reduced, offset, shift), terms, shift);
      }
    } else {
      for (int64_t i = 0; i < n; i += COLUMNS, offset += COLUMNS * si, out += COLUMNS * so) {
        const int64_t m = nd_min(COLUMNS, n - i);
        vf r[4], shift[4] = {vzero(), vzero(), vzero(), vzero()};
        float t[COLUMNS], s[COLUMNS];
        if (op == ASPEN_R_LOG_SUM_EXP) {
          columns_max(shift, reduced, offset, si, m, shift);
          for (int k = 0; k < 4; k++) shift[k] = vsel(veq(vabs(shift[k]), vset1(INFINITY)), vzero(), shift[k]);
        }
        columns[op](r, reduced, offset, si, m, shift);
        columns_store((char *)t, 4, r, COLUMNS);
        columns_store((char *)s, 4, shift, COLUMNS);
        for (int64_t j = 0; j < m; j++) *(float *)(out + j * so) = finish_f32(op, t[j], terms, s[j]);
      }
    }
  } while (nd_next(kept));
  return ASPEN_KERNEL_OK;
}

/* ---- other types: one element after another, in the nest's order, whatever the loop. Integers wrap (-fwrapv). ---- */

#define SCALAR_COLUMNS 64

/* ACC: the accumulator. FINISH(op, acc, n): the result. NAN_TEST(x): is x to win a maximum or minimum. */
#define REDUCE_TYPE(S, T, ACC, LOWEST, HIGHEST, ABS, EXP, NAN_TEST, FINISH)                                             \
  static void fold_##S(int op, nd *reduced, int64_t offset, int64_t si, int64_t m, ACC *acc, const ACC *shift) {  \
    const int64_t n = nd_row(reduced), along = nd_step(reduced, 0);                                                \
    do {                                                                                                           \
      const char *row = reduced->ptr[0] + offset;                                                                  \
      for (int64_t i = 0; i < n; i++, row += along) {                                                              \
        const char *p = row;                                                                                       \
        switch (op) {                                                                                              \
          case ASPEN_R_MAX: FOLD(T, ACC, (x > acc[j]) | NAN_TEST(x) ? x : acc[j])                                  \
          case ASPEN_R_MIN: FOLD(T, ACC, (x < acc[j]) | NAN_TEST(x) ? x : acc[j])                                  \
          case ASPEN_R_PROD: FOLD(T, ACC, acc[j] * x)                                                              \
          case ASPEN_R_L1: FOLD(T, ACC, acc[j] + ABS(x))                                                           \
          case ASPEN_R_L2: case ASPEN_R_SUM_SQUARE: FOLD(T, ACC, acc[j] + x * x)                                   \
          case ASPEN_R_LOG_SUM_EXP: FOLD(T, ACC, acc[j] + EXP(x - shift[j]))                                       \
          default: FOLD(T, ACC, acc[j] + x)                                                                        \
        }                                                                                                          \
      }                                                                                                            \
    } while (nd_next(reduced));                                                                                    \
  }                                                                                                                \
  static int reduce_##S(const aspen_call *c, nd *kept, nd *reduced, int empty, int64_t count) {                    \
    const int op = (int)c->params[0];                                                                              \
    const int64_t n = nd_row(kept), si = nd_step(kept, 0), so = nd_step(kept, 1);                                  \
    const ACC init = op == ASPEN_R_MAX ? (ACC)(LOWEST) : op == ASPEN_R_MIN ? (ACC)(HIGHEST) : op == ASPEN_R_PROD ? 1 : 0; \
    if (op == ASPEN_R_LOG_SUM_EXP && (ACC)0.5 == 0) return ASPEN_KERNEL_BAD_ARGUMENT; /* integers */                \
    do {                                                                                                           \
      for (int64_t i = 0; i < n; i += SCALAR_COLUMNS) {                                                            \
        const int64_t m = nd_min(SCALAR_COLUMNS, n - i);                                                           \
        const int64_t offset = kept->ptr[0] - c->args[1].ptr + i * si;                                             \
        ACC acc[SCALAR_COLUMNS], shift[SCALAR_COLUMNS];                                                            \
        for (int64_t j = 0; j < m; j++) acc[j] = init, shift[j] = (ACC)(LOWEST);                                   \
        if (op == ASPEN_R_LOG_SUM_EXP) {                                                                           \
          if (!empty) fold_##S(ASPEN_R_MAX, reduced, offset, si, m, shift, NULL);                                  \
          for (int64_t j = 0; j < m; j++) shift[j] = isinf((double)shift[j]) ? 0 : shift[j];                       \
        }                                                                                                          \
        if (!empty) fold_##S(op, reduced, offset, si, m, acc, shift);                                              \
        for (int64_t j = 0; j < m; j++) *(T *)(kept->ptr[1] + (i + j) * so) = (T)FINISH(op, acc[j], count, shift[j]); \
      }                                                                                                            \
    } while (nd_next(kept));                                                                                       \
    return ASPEN_KERNEL_OK;                                                                                        \
  }

#define FOLD(T, ACC, E)                                                                                            \
  if (si == (int64_t)sizeof(T)) {                                                                                  \
    for (int64_t j = 0; j < m; j++) {                                                                              \
      const ACC x = (ACC)((const T *)p)[j];                                                                        \
      acc[j] = (ACC)(E);                                                                                           \
    }                                                                                                              \
  } else {                                                                                                         \
    for (int64_t j = 0; j < m; j++) {                                                                              \
      const ACC x = (ACC)*(const T *)(p + j * si);                                                                 \
      acc[j] = (ACC)(E);                                                                                           \
    }                                                                                                              \
  }                                                                                                                \
  break;

static inline double finish_f64(int op, double r, int64_t n, double shift) {
  switch (op) {
    case ASPEN_R_MEAN: return r / (double)n;
    case ASPEN_R_L2: return sqrt(r);
    case ASPEN_R_LOG_SUM: return log(r);
    case ASPEN_R_LOG_SUM_EXP: return log(r) + shift;
  }
  return r;
}

/* Out-of-range results of roots and logarithms go where numpy's conversion on x86 sends them. */
static inline int64_t float_to_int(double d) { return d > -9.2e18 && d < 9.2e18 ? (int64_t)d : INT64_MIN; }

static inline int64_t finish_signed(int op, int64_t r, int64_t n, int64_t shift) {
  switch (op) {
    case ASPEN_R_MEAN: return n ? r / n : INT64_MIN;
    case ASPEN_R_L2: return float_to_int(sqrt((double)r));
    case ASPEN_R_LOG_SUM: return float_to_int(log((double)r));
  }
  return r;
}

static inline uint64_t finish_unsigned(int op, uint64_t r, int64_t n, int64_t shift) {
  switch (op) {
    case ASPEN_R_MEAN: return n ? r / (uint64_t)n : 0;
    case ASPEN_R_L2: return (uint64_t)sqrt((double)r);
    case ASPEN_R_LOG_SUM: return r ? (uint64_t)log((double)r) : 0;
  }
  return r;
}

#define NO_NAN(x) 0
#define IS_NAN(x) ((x) != (x))
#define SAME(x) (x)
#define NO_EXP(x) ((void)(x), 0) /* never asked for */
#define ABS_INT(x) ((x) < 0 ? -(x) : (x))

REDUCE_TYPE(f64, double, double, -INFINITY, INFINITY, fabs, exp, IS_NAN, finish_f64)
REDUCE_TYPE(i8, int8_t, int64_t, INT8_MIN, INT8_MAX, ABS_INT, NO_EXP, NO_NAN, finish_signed)
REDUCE_TYPE(u8, uint8_t, uint64_t, 0, UINT8_MAX, SAME, NO_EXP, NO_NAN, finish_unsigned)
REDUCE_TYPE(i32, int32_t, int64_t, INT32_MIN, INT32_MAX, ABS_INT, NO_EXP, NO_NAN, finish_signed)
REDUCE_TYPE(u32, uint32_t, uint64_t, 0, UINT32_MAX, SAME, NO_EXP, NO_NAN, finish_unsigned)
REDUCE_TYPE(i64, int64_t, int64_t, INT64_MIN, INT64_MAX, ABS_INT, NO_EXP, NO_NAN, finish_signed)
REDUCE_TYPE(u64, uint64_t, uint64_t, 0, UINT64_MAX, SAME, NO_EXP, NO_NAN, finish_unsigned)

int FN(reduce)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1];
  const uint64_t mask = (uint64_t)c->params[1];
  if (out->dtype != in->dtype || out->rank != in->rank || (uint64_t)c->params[0] > ASPEN_R_LOG_SUM_EXP) return ASPEN_KERNEL_BAD_ARGUMENT;
  nd kept, reduced;
  const int empty = !lanes_nest(&reduced, in, mask);
  int64_t count = 1;
  nd_begin(&kept, 2); /* the input first: its order is the one to walk in */
  kept.ptr[0] = in->ptr;
  kept.ptr[1] = out->ptr;
  const int64_t size = (int64_t)nd_size(in->dtype);
  for (int a = 0; a < in->rank; a++) {
    const int64_t strides[2] = {in->strides[a] * size, out->strides[a] * size};
    if (mask >> a & 1) {
      count *= in->dims[a];
      if (c->hi[a] <= c->lo[a]) return ASPEN_KERNEL_OK;
      continue;
    }
    kept.ptr[0] += c->lo[a] * strides[0];
    kept.ptr[1] += c->lo[a] * strides[1];
    nd_add_axis(&kept, c->hi[a] - c->lo[a], strides);
  }
  if (!nd_order(&kept)) return ASPEN_KERNEL_OK;
  switch (in->dtype) {
    case ASPEN_DT_F32: return reduce_f32(c, &kept, &reduced, empty, count);
    case ASPEN_DT_F64: return reduce_f64(c, &kept, &reduced, empty, count);
    case ASPEN_DT_I8: return reduce_i8(c, &kept, &reduced, empty, count);
    case ASPEN_DT_BOOL: case ASPEN_DT_U8: return reduce_u8(c, &kept, &reduced, empty, count);
    case ASPEN_DT_I32: return reduce_i32(c, &kept, &reduced, empty, count);
    case ASPEN_DT_U32: return reduce_u32(c, &kept, &reduced, empty, count);
    case ASPEN_DT_I64: return reduce_i64(c, &kept, &reduced, empty, count);
    case ASPEN_DT_U64: return reduce_u64(c, &kept, &reduced, empty, count);
  }
  return ASPEN_KERNEL_BAD_ARGUMENT;
}
