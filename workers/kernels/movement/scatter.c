/* INDEX and SCATTER. Indices are read once and checked: a client may change them meanwhile. */
#include "vector/nd.h"
#include "vector/vec.h"

/* The index at p, wrapped; -1 when it lies outside [-n, n). */
static inline int64_t checked_index(const char *p, uint8_t dtype, int64_t n) {
  const int64_t i = dtype == ASPEN_DT_I64 ? *(const volatile int64_t *)p : *(const volatile int32_t *)p;
  if (i < -n || i >= n) return -1;
  return i < 0 ? i + n : i;
}

static int is_index(uint8_t dtype) { return dtype == ASPEN_DT_I64 || dtype == ASPEN_DT_I32; }

/* out[…] = Σ_k indices[…, k] · stride_k: places in a tensor whose first axes are one. params: count, dims[8]. */
int FN(index)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *in = &c->args[1];
  const int count = (int)c->params[0];
  if (out->dtype != ASPEN_DT_I64 || !is_index(in->dtype) || in->rank != out->rank + 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (count < 1 || count > ASPEN_MAX_RANK || in->dims[out->rank] != count) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t size = (int64_t)nd_size(in->dtype), along = in->strides[out->rank] * size;
  nd it;
  nd_begin(&it, 2);
  it.ptr[0] = out->ptr, it.ptr[1] = in->ptr;
  for (int a = 0; a < out->rank; a++) {
    const int64_t strides[2] = {out->strides[a] * 8, in->strides[a] * size};
    for (int j = 0; j < 2; j++) it.ptr[j] += c->lo[a] * strides[j];
    nd_add_axis(&it, c->hi[a] - c->lo[a], strides);
  }
  if (!nd_order(&it)) return ASPEN_KERNEL_OK;
  const int64_t row = nd_row(&it);
  do {
    for (int64_t i = 0; i < row; i++) {
      const char *p = it.ptr[1] + i * nd_step(&it, 1);
      int64_t place = 0;
      for (int k = 0; k < count; k++) {
        const int64_t at = checked_index(p + k * along, in->dtype, c->params[1 + k]);
        if (at < 0) return ASPEN_KERNEL_BAD_INDEX;
        place = place * c->params[1 + k] + at;
      }
      *(int64_t *)(it.ptr[0] + i * nd_step(&it, 0)) = place;
    }
  } while (nd_next(&it));
  return ASPEN_KERNEL_OK;
}

enum { NONE, ADD, MUL, MIN, MAX };

/* The types that are reduced: X(suffix, C type, dtype). */
#define NUMBERS(X)                                                                                                 \
  X(f32, float, F32) X(f64, double, F64) X(i8, int8_t, I8) X(u8, uint8_t, U8) X(i16, int16_t, I16)                 \
  X(u16, uint16_t, U16) X(i32, int32_t, I32) X(u32, uint32_t, U32) X(i64, int64_t, I64) X(u64, uint64_t, U64)

/* Folds n updates into as many elements. A NaN wins. Integers wrap (-fwrapv). */
#define FOLD_TYPE(S, T, D)                                                                                         \
  static void fold_##S(int how, char *o, int64_t so, const char *u, int64_t su, int64_t n) {                       \
    switch (how) {                                                                                                 \
      case ADD: for (int64_t i = 0; i < n; i++) *(T *)(o + i * so) = (T)(*(T *)(o + i * so) + *(const T *)(u + i * su)); break; \
      case MUL: for (int64_t i = 0; i < n; i++) *(T *)(o + i * so) = (T)(*(T *)(o + i * so) * *(const T *)(u + i * su)); break; \
      default:                                                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                                          \
          const T a = *(T *)(o + i * so), b = *(const T *)(u + i * su);                                            \
          const int take = how == MIN ? b < a : b > a;                                                             \
          *(T *)(o + i * so) = take || b != b ? b : a;                                                             \
        }                                                                                                          \
    }                                                                                                              \
  }
NUMBERS(FOLD_TYPE)

static int fold(int how, uint8_t dtype, size_t size, char *o, int64_t so, const char *u, int64_t su, int64_t n) {
  if (how == NONE) {
    nd_copy_row(o, so, u, su, n, size);
    return 1;
  }
  switch (dtype) {
#define CASE(S, T, D) case ASPEN_DT_##D: fold_##S(how, o, so, u, su, n); return 1;
    NUMBERS(CASE)
#undef CASE
  }
  return 0;
}

static void copy_box(const aspen_call *c, size_t size) {
  nd it;
  if (!nd_open(&it, c, 1)) return;
  do nd_copy_row(it.ptr[0], nd_step(&it, 0), it.ptr[1], nd_step(&it, 1), nd_row(&it), size);
  while (nd_next(&it));
}

/* out = X, but out[i, indices[i, j, k], k] ∘= updates[i, j, k] (axis 1), j ascending. A box takes those updates alone that fall into it. */
int FN(scatter)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *indices = &c->args[2], *updates = &c->args[3];
  const int axis = (int)c->params[0], how = (int)c->params[1];
  const size_t size = nd_size(out->dtype);
  if (out->dtype != x->dtype || out->dtype != updates->dtype || !size || out->dtype == ASPEN_DT_OBJECT || !is_index(indices->dtype))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (axis < 0 || axis >= out->rank || x->rank != out->rank || indices->rank != out->rank || updates->rank != out->rank)
    return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int a = 0; a < out->rank; a++)
    if (c->hi[a] <= c->lo[a]) return ASPEN_KERNEL_OK;
  copy_box(c, size);
  const int64_t unit = (int64_t)size, index_size = (int64_t)nd_size(indices->dtype), along = out->strides[axis] * unit;
  const int64_t steps = indices->dims[axis], next_index = indices->strides[axis] * index_size, next_update = updates->strides[axis] * unit;
  enum { OUT, UPDATE, INDEX };
  nd it, alike; /* the other axes: those along which indices differ, and those along which they do not */
  nd_begin(&it, 3);
  nd_begin(&alike, 2);
  it.ptr[OUT] = out->ptr, it.ptr[UPDATE] = updates->ptr, it.ptr[INDEX] = indices->ptr;
  for (int a = 0; a < out->rank; a++) {
    if (a == axis) continue;
    const int64_t strides[3] = {out->strides[a] * unit, updates->strides[a] * unit, indices->strides[a] * index_size};
    const int64_t hi = nd_min(c->hi[a], indices->dims[a]);
    for (int k = 0; k < 3; k++) it.ptr[k] += c->lo[a] * strides[k];
    nd_add_axis(strides[INDEX] == 0 ? &alike : &it, hi - c->lo[a], strides);
  }
  alike.ptr[OUT] = it.ptr[OUT], alike.ptr[UPDATE] = it.ptr[UPDATE];
  char *const first_out = it.ptr[OUT], *const first_update = it.ptr[UPDATE];
  if (!nd_order(&it) || !nd_order(&alike)) return ASPEN_KERNEL_OK;
  const int64_t row = nd_row(&it), run = nd_row(&alike);
  do {
    for (int64_t j = 0; j < steps; j++) {
      for (int64_t i = 0; i < row; i++) {
        const char *p = it.ptr[INDEX] + i * nd_step(&it, INDEX) + j * next_index;
        const int64_t at = checked_index(p, indices->dtype, out->dims[axis]);
        if (at < 0) return ASPEN_KERNEL_BAD_INDEX;
        if (at < c->lo[axis] || at >= c->hi[axis]) continue;
        const int64_t to = it.ptr[OUT] - first_out + i * nd_step(&it, OUT) + at * along;
        const int64_t from = it.ptr[UPDATE] - first_update + i * nd_step(&it, UPDATE) + j * next_update;
        do {
          char *o = alike.ptr[OUT] + to;
          const char *u = alike.ptr[UPDATE] + from;
          if (!fold(how, out->dtype, size, o, nd_step(&alike, OUT), u, nd_step(&alike, UPDATE), run)) return ASPEN_KERNEL_BAD_ARGUMENT;
        } while (nd_next(&alike));
      }
    }
  } while (nd_next(&it));
  return ASPEN_KERNEL_OK;
}
