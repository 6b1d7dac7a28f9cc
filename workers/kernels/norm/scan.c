/* ARGREDUCE and CUMSUM: an axis walked element after element for up to COLUMNS neighbouring outputs at once. */
#include "vector/nd.h"
#include "vector/vec.h"

#define COLUMNS 64

/* The axes besides `axis`, over the box, with the first argument's order. */
static int open_kept(nd *kept, const aspen_call *c, int axis) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1];
  nd_begin(kept, 2);
  kept->ptr[0] = in->ptr;
  kept->ptr[1] = out->ptr;
  for (int a = 0; a < in->rank; a++) {
    const int64_t strides[2] = {in->strides[a] * (int64_t)nd_size(in->dtype), out->strides[a] * (int64_t)nd_size(out->dtype)};
    if (c->hi[a] <= c->lo[a]) return 0;
    if (a == axis) continue;
    kept->ptr[0] += c->lo[a] * strides[0];
    kept->ptr[1] += c->lo[a] * strides[1];
    nd_add_axis(kept, c->hi[a] - c->lo[a], strides);
  }
  return nd_order(kept);
}

/* The types served: X(suffix, C type, dtype). */
#define NUMBERS(X)                                                                                                 \
  X(f32, float, F32) X(f64, double, F64) X(i8, int8_t, I8) X(u8, uint8_t, U8) X(i16, int16_t, I16)                 \
  X(u16, uint16_t, U16) X(i32, int32_t, I32) X(u32, uint32_t, U32) X(i64, int64_t, I64) X(u64, uint64_t, U64)

/* A NaN wins over every number; among equals the first wins, or with `last` the last. */
#define ARG_TYPE(S, T, D)                                                                                          \
  static void arg_##S(const char *p, int64_t along, int64_t n, int64_t across, int64_t m, int min, int last, int64_t *index) { \
    T best[COLUMNS];                                                                                               \
    for (int64_t j = 0; j < m; j++) best[j] = *(const T *)(p + j * across), index[j] = 0;                          \
    for (int64_t i = 1; i < n; i++) {                                                                              \
      const char *row = p + i * along;                                                                             \
      for (int64_t j = 0; j < m; j++) {                                                                            \
        const T x = *(const T *)(row + j * across), b = best[j];                                                   \
        const int better = min ? x < b : x > b, nan = x != x, was_nan = b != b;                                    \
        const int equal = x == b || (nan && was_nan);                                                              \
        const int take = equal ? last : !was_nan && (better || nan);                                               \
        best[j] = take ? x : b;                                                                                    \
        index[j] = take ? i : index[j];                                                                            \
      }                                                                                                            \
    }                                                                                                              \
  }
NUMBERS(ARG_TYPE)

int FN(argreduce)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1];
  const int min = c->params[0] == 1, axis = (int)c->params[1], last = c->params[2] != 0;
  if (out->dtype != ASPEN_DT_I64 || out->rank != in->rank || axis < 0 || axis >= in->rank) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t n = in->dims[axis], along = in->strides[axis] * (int64_t)nd_size(in->dtype);
  nd kept;
  if (!open_kept(&kept, c, axis)) return ASPEN_KERNEL_OK;
  if (n <= 0) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t row = nd_row(&kept), si = nd_step(&kept, 0), so = nd_step(&kept, 1);
  do {
    for (int64_t i = 0; i < row; i += COLUMNS) {
      const int64_t m = nd_min(COLUMNS, row - i);
      int64_t index[COLUMNS];
      switch (in->dtype) {
#define CASE(S, T, D) case ASPEN_DT_##D: arg_##S(kept.ptr[0] + i * si, along, n, si, m, min, last, index); break;
        NUMBERS(CASE)
#undef CASE
        default: return ASPEN_KERNEL_BAD_ARGUMENT;
      }
      nd_copy_row(kept.ptr[1] + i * so, so, (const char *)index, 8, m, 8);
    }
  } while (nd_next(&kept));
  return ASPEN_KERNEL_OK;
}

/* Sums that run along an axis, of m ≤ LINE columns at a time. Steps of the axis before the box are summed without output, then results are
 * written. along, across: bytes, input and output. Integers wrap (-fwrapv).
 *
 * Where columns lie side by side the loop over them is vector code. Where the axis itself does, each column is a chain of additions that
 * wait for each other: ROWS chains hide that. */
#define ROWS 8
#define LINE 1024
#define CUMSUM_TYPE(S, T, D)                                                                                       \
  INLINE void cumsum_columns_##S(const char *p, char *o, const int64_t along[2], const int64_t across[2],          \
                                 int64_t before, int64_t n, int64_t m, const int exclusive) {                      \
    T sum[LINE];                                                                                                   \
    for (int64_t j = 0; j < m; j++) sum[j] = 0;                                                                    \
    for (int64_t i = 0; i < before; i++, p += along[0])                                                            \
      for (int64_t j = 0; j < m; j++) sum[j] = (T)(sum[j] + *(const T *)(p + j * across[0]));                      \
    for (int64_t i = 0; i < n; i++, p += along[0], o += along[1])                                                  \
      for (int64_t j = 0; j < m; j++) {                                                                            \
        const T old = sum[j], now = (T)(old + *(const T *)(p + j * across[0]));                                    \
        sum[j] = now;                                                                                              \
        *(T *)(o + j * across[1]) = exclusive ? old : now;                                                         \
      }                                                                                                            \
  }                                                                                                                \
  static void cumsum_##S(const char *p, char *o, const int64_t along[2], const int64_t across[2], int64_t before,  \
                         int64_t n, int64_t m, int exclusive) {                                                    \
    static const int64_t unit[2] = {sizeof(T), sizeof(T)};                                                         \
    if (across[0] == unit[0] && across[1] == unit[0]) {                                                            \
      if (exclusive) cumsum_columns_##S(p, o, along, unit, before, n, m, 1);                                       \
      else cumsum_columns_##S(p, o, along, unit, before, n, m, 0);                                                 \
    } else if (m == ROWS) {                                                                                        \
      if (exclusive) cumsum_columns_##S(p, o, along, across, before, n, ROWS, 1);                                  \
      else cumsum_columns_##S(p, o, along, across, before, n, ROWS, 0);                                            \
    } else {                                                                                                       \
      cumsum_columns_##S(p, o, along, across, before, n, m, exclusive);                                            \
    }                                                                                                              \
  }
NUMBERS(CUMSUM_TYPE)

int FN(cumsum)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1];
  const int axis = (int)c->params[0], exclusive = c->params[1] != 0, reverse = c->params[2] != 0;
  if (out->dtype != in->dtype || out->rank != in->rank || axis < 0 || axis >= in->rank) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t size = (int64_t)nd_size(in->dtype), n = c->hi[axis] - c->lo[axis];
  int64_t along[2] = {in->strides[axis] * size, out->strides[axis] * size};
  nd kept;
  if (!open_kept(&kept, c, axis)) return ASPEN_KERNEL_OK;
  /* The first element that counts, and the box's first along the way. */
  const int64_t before = reverse ? in->dims[axis] - c->hi[axis] : c->lo[axis];
  const int64_t from = reverse ? in->dims[axis] - 1 : 0, to = reverse ? c->hi[axis] - 1 : c->lo[axis];
  const int64_t skip[2] = {from * along[0], to * along[1]};
  if (reverse) along[0] = -along[0], along[1] = -along[1];
  const int64_t row = nd_row(&kept), across[2] = {nd_step(&kept, 0), nd_step(&kept, 1)};
  const int64_t most = across[0] == size && across[1] == size ? LINE : ROWS;
  do {
    for (int64_t i = 0; i < row; i += most) {
      const int64_t m = nd_min(most, row - i);
      const char *p = kept.ptr[0] + skip[0] + i * across[0];
      char *o = kept.ptr[1] + skip[1] + i * across[1];
      switch (in->dtype) {
#define CASE(S, T, D) case ASPEN_DT_##D: cumsum_##S(p, o, along, across, before, n, m, exclusive); break;
        NUMBERS(CASE)
#undef CASE
        default: return ASPEN_KERNEL_BAD_ARGUMENT;
      }
    }
  } while (nd_next(&kept));
  return ASPEN_KERNEL_OK;
}
