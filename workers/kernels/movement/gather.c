/* GATHER and GATHER_ELEMENTS: moves of elements of any fixed size. Indices are read once and checked: a client may change them
 * meanwhile. */
#include "vector/nd.h"
#include "vector/vec.h"

/* The index at p, wrapped; -1 when it lies outside [-n, n). */
static inline int64_t checked_index(const char *p, uint8_t dtype, int64_t n) {
  const int64_t i = dtype == ASPEN_DT_I64 ? *(const volatile int64_t *)p : *(const volatile int32_t *)p;
  if (i < -n || i >= n) return -1;
  return i < 0 ? i + n : i;
}

static int is_index(uint8_t dtype) { return dtype == ASPEN_DT_I64 || dtype == ASPEN_DT_I32; }

static inline void move(char *to, const char *from, size_t size) {
  switch (size) {
    case 1: *(nd_u8 *)to = *(const nd_u8 *)from; break;
    case 2: *(nd_u16 *)to = *(const nd_u16 *)from; break;
    case 4: *(nd_u32 *)to = *(const nd_u32 *)from; break;
    case 8: *(nd_u64 *)to = *(const nd_u64 *)from; break;
    case 16: *(nd_u128 *)to = *(const nd_u128 *)from; break;
  }
}

/* out = X[:axis] + indices + X[axis+1:]: for each index (nest `outer`) a copy over the axes that output and X share (nest `slab`). */
int FN(gather)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *indices = &c->args[2];
  const int axis = (int)c->params[0], q = indices->rank;
  const size_t size = nd_size(out->dtype);
  if (out->dtype != x->dtype || !size || out->dtype == ASPEN_DT_OBJECT || !is_index(indices->dtype)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (axis < 0 || axis >= x->rank || out->rank != x->rank - 1 + q) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t unit = (int64_t)size, index_size = (int64_t)nd_size(indices->dtype), n = x->dims[axis], along = x->strides[axis] * unit;
  enum { OUT, X, INDEX };
  nd outer, slab;
  nd_begin(&outer, 3);
  nd_begin(&slab, 2);
  outer.ptr[OUT] = slab.ptr[OUT] = out->ptr;
  outer.ptr[X] = slab.ptr[X] = x->ptr;
  outer.ptr[INDEX] = indices->ptr;
  for (int a = 0; a < out->rank; a++) {
    const int indexed = a >= axis && a < axis + q;
    const int64_t extent = c->hi[a] - c->lo[a];
    const int64_t strides[3] = {out->strides[a] * unit, indexed ? 0 : x->strides[a < axis ? a : a - q + 1] * unit,
                                indexed ? indices->strides[a - axis] * index_size : 0};
    nd *it = indexed ? &outer : &slab;
    for (int k = 0; k < it->args; k++) it->ptr[k] += c->lo[a] * strides[k];
    nd_add_axis(it, extent, strides);
  }
  if (!nd_order(&outer) || !nd_order(&slab)) return ASPEN_KERNEL_OK;
  const int64_t count = nd_row(&outer), row = nd_row(&slab), so = nd_step(&slab, OUT), si = nd_step(&slab, X);
  do {
    for (int64_t i = 0; i < count; i++) {
      const int64_t k = checked_index(outer.ptr[INDEX] + i * nd_step(&outer, INDEX), indices->dtype, n);
      if (k < 0) return ASPEN_KERNEL_BAD_INDEX;
      const int64_t to = outer.ptr[OUT] - out->ptr + i * nd_step(&outer, OUT), from = k * along;
      if (slab.rank == 1 && row == 1) {
        move(slab.ptr[OUT] + to, slab.ptr[X] + from, size);
        continue;
      }
      do nd_copy_row(slab.ptr[OUT] + to, so, slab.ptr[X] + from, si, row, size);
      while (nd_next(&slab));
    }
  } while (nd_next(&outer));
  return ASPEN_KERNEL_OK;
}

/* out[i, j, k] = X[i, indices[i, j, k], k] (axis 1). Other axes of X may be longer than those of the indices. */
int FN(gather_elements)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *indices = &c->args[2];
  const int axis = (int)c->params[0];
  const size_t size = nd_size(out->dtype);
  if (out->dtype != x->dtype || !size || out->dtype == ASPEN_DT_OBJECT || !is_index(indices->dtype)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (axis < 0 || axis >= x->rank || out->rank != x->rank || out->rank != indices->rank) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t unit = (int64_t)size, index_size = (int64_t)nd_size(indices->dtype), n = x->dims[axis], along = x->strides[axis] * unit;
  enum { OUT, X, INDEX };
  nd it;
  nd_begin(&it, 3);
  it.ptr[OUT] = out->ptr, it.ptr[X] = x->ptr, it.ptr[INDEX] = indices->ptr;
  for (int a = 0; a < out->rank; a++) {
    const int64_t strides[3] = {out->strides[a] * unit, a == axis ? 0 : x->strides[a] * unit, indices->strides[a] * index_size};
    for (int k = 0; k < 3; k++) it.ptr[k] += c->lo[a] * strides[k];
    nd_add_axis(&it, c->hi[a] - c->lo[a], strides);
  }
  if (!nd_order(&it)) return ASPEN_KERNEL_OK;
  const int64_t row = nd_row(&it);
  do {
    for (int64_t i = 0; i < row; i++) {
      const int64_t k = checked_index(it.ptr[INDEX] + i * nd_step(&it, INDEX), indices->dtype, n);
      if (k < 0) return ASPEN_KERNEL_BAD_INDEX;
      move(it.ptr[OUT] + i * nd_step(&it, OUT), it.ptr[X] + i * nd_step(&it, X) + k * along, size);
    }
  } while (nd_next(&it));
  return ASPEN_KERNEL_OK;
}
