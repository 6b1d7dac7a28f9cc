/* COPY: any strides to any strides. Runs of a few elements that are contiguous on both sides (pairs of columns, say, in SpaceToDepth) count
 * as one element. Where the input's and the output's unit-stride axes differ (NCHW ↔ NHWC, Transpose) the box is walked in square blocks of
 * those two axes. So each cache line of either side is used whole while it is in L1. */
#include "vector/vec.h"
#include "vector/nd.h"
#include "movement/transpose.h"

/* Joins the innermost axis into its elements if that gives a larger element of a size that can be moved at once. Returns the size. */
static size_t join_elements(nd *it, size_t size) {
  const size_t joined = size * (size_t)nd_row(it);
  if (it->rank < 2 || nd_step(it, 0) != (int64_t)size || nd_step(it, 1) != (int64_t)size || joined > 16 || (joined & (joined - 1))) return size;
  it->rank--;
  return joined;
}

int FN(copy)(const aspen_call *c) {
  size_t size = nd_size(c->args[0].dtype);
  if (c->args[1].dtype != c->args[0].dtype || size == 0 || c->args[0].dtype == ASPEN_DT_OBJECT) return ASPEN_KERNEL_BAD_ARGUMENT;
  nd it;
  if (!nd_open(&it, c, 1)) return ASPEN_KERNEL_OK;
  size = join_elements(&it, size);
  const int64_t unit = (int64_t)size;
  int across = -1; /* the axis along which the input is contiguous, when that is not the innermost */
  if (nd_step(&it, 1) != unit && nd_step(&it, 0) == unit)
    for (int a = 0; a < it.rank - 1; a++)
      if (nd_abs(it.strides[1][a]) == unit && it.dims[a] > 1) across = a;
  if (across < 0) {
    const int64_t n = nd_row(&it), so = nd_step(&it, 0), si = nd_step(&it, 1);
    do nd_copy_row(it.ptr[0], so, it.ptr[1], si, n, size);
    while (nd_next(&it));
    return ASPEN_KERNEL_OK;
  }
  if (it.strides[1][across] < 0) /* run along the input forwards */
    for (int k = 0; k < 2; k++) {
      it.ptr[k] += it.strides[k][across] * (it.dims[across] - 1);
      it.strides[k][across] = -it.strides[k][across];
    }
  const int64_t columns = nd_row(&it), rows = it.dims[across], so = it.strides[0][across], si = nd_step(&it, 1);
  it.dims[across] = 1; /* the nest walks the other axes */
  do transpose(it.ptr[0], so, it.ptr[1], si, rows, columns, size);
  while (nd_next(&it));
  return ASPEN_KERNEL_OK;
}
