/* Strided iteration shared by the kernels that are not matrix-like.
 *
 * nd_open() turns a call's box into a loop nest over *bytes*. Axes of extent 1 are dropped, and axes with a negative output stride
 * reversed. The rest are sorted so that the innermost has the smallest output stride. Channels-last tensors keep their logical order N, C,
 * H, W, but C is the innermost here. Neighbours are merged when every argument allows it. Nothing about a *value* may depend on what it
 * does: the order in which elements are visited differs from tile to tile. Kernels whose values depend on an order (sums) choose their
 * reduced axes from the whole tensors' shapes and strides, by nd_add_axis on their own nest.
 *
 * Element-wise kernels walk the nest in blocks (walk.h).
 */
#ifndef ASPEN_ND_H
#define ASPEN_ND_H
#include "kernel.h"

#define ND_ARGS 4

/* Elements as they are moved: several may count as one (copy.c), so only bytes are aligned for sure. */
typedef uint8_t __attribute__((may_alias)) nd_u8;
typedef uint16_t __attribute__((may_alias, aligned(1))) nd_u16;
typedef uint32_t __attribute__((may_alias, aligned(1))) nd_u32;
typedef uint64_t __attribute__((may_alias, aligned(1))) nd_u64;
typedef struct { uint64_t a, b; } __attribute__((may_alias, aligned(1), packed)) nd_u128;

typedef struct nd {
  int rank, args;                            /* rank ≥ 1 once opened */
  int64_t dims[ASPEN_MAX_RANK];              /* outermost first */
  int64_t strides[ND_ARGS][ASPEN_MAX_RANK];  /* bytes */
  char *ptr[ND_ARGS];                        /* start of the current row */
  int64_t index[ASPEN_MAX_RANK];
} nd;

static inline size_t nd_size(uint8_t dtype) {
  switch (dtype) {
#define X(n, c, b, s) case c: return b;
    ASPEN_DTYPES(X)
#undef X
  }
  return 0;
}

static inline void nd_begin(nd *it, int args) {
  memset(it, 0, sizeof *it);
  it->args = args;
}

/* Adds an axis inside those added before. strides: bytes, one per argument. */
static inline void nd_add_axis(nd *it, int64_t n, const int64_t *strides) {
  it->dims[it->rank] = n;
  for (int k = 0; k < it->args; k++) it->strides[k][it->rank] = strides[k];
  it->rank++;
}

static inline int64_t nd_abs(int64_t x) { return x < 0 ? -x : x; }

/* Must axis a be outside of axis b? By the first argument's stride, then by the others'. */
static inline int nd_outer(const nd *it, int a, int b) {
  for (int k = 0; k < it->args; k++) {
    int64_t sa = nd_abs(it->strides[k][a]), sb = nd_abs(it->strides[k][b]);
    if (sa != sb) return sa > sb;
  }
  return 0;
}

static inline void nd_move_axis(nd *it, int to, int from) {
  it->dims[to] = it->dims[from];
  for (int k = 0; k < it->args; k++) it->strides[k][to] = it->strides[k][from];
}

static inline void nd_swap_axes(nd *it, int a, int b) {
  int64_t t = it->dims[a];
  it->dims[a] = it->dims[b], it->dims[b] = t;
  for (int k = 0; k < it->args; k++) t = it->strides[k][a], it->strides[k][a] = it->strides[k][b], it->strides[k][b] = t;
}

/* Merges neighbouring axes that all arguments step through evenly. Keeps the order of the elements. */
static inline void nd_merge(nd *it) {
  int w = 0;
  for (int a = 0; a < it->rank; a++) {
    if (it->dims[a] == 1) continue;
    int even = w > 0;
    for (int k = 0; k < it->args && even; k++) even = it->strides[k][w - 1] == it->strides[k][a] * it->dims[a];
    if (even) {
      int64_t n = it->dims[w - 1];
      nd_move_axis(it, w - 1, a);
      it->dims[w - 1] *= n;
    } else {
      nd_move_axis(it, w++, a);
    }
  }
  if (w == 0) {
    it->dims[0] = 1;
    for (int k = 0; k < it->args; k++) it->strides[k][0] = 0;
    w = 1;
  }
  it->rank = w;
}

/* Reverses axes along which the first argument runs backwards, sorts, merges. Returns 0 when there is nothing to visit. */
static inline int nd_order(nd *it) {
  for (int a = 0; a < it->rank; a++) {
    if (it->dims[a] <= 0) return 0;
    if (it->strides[0][a] >= 0) continue;
    for (int k = 0; k < it->args; k++) {
      it->ptr[k] += it->strides[k][a] * (it->dims[a] - 1);
      it->strides[k][a] = -it->strides[k][a];
    }
  }
  int w = 0;
  for (int a = 0; a < it->rank; a++)
    if (it->dims[a] != 1) nd_move_axis(it, w++, a);
  it->rank = w;
  for (int a = 1; a < it->rank; a++)
    for (int b = a; b > 0 && nd_outer(it, b, b - 1); b--) nd_swap_axes(it, b, b - 1);
  nd_merge(it);
  return 1;
}

/* Address of the box's first element, for an argument with the output's rank and axes. */
static inline char *nd_origin(const aspen_call *c, const aspen_arg *arg) {
  char *p = arg->ptr;
  int64_t size = (int64_t)nd_size(arg->dtype);
  for (int a = 0; a < arg->rank; a++) p += c->lo[a] * arg->strides[a] * size;
  return p;
}

/* Opens the box over the output and the first n inputs, all of the output's rank. Returns 0 when the box is empty. */
static inline int nd_open(nd *it, const aspen_call *c, int inputs) {
  nd_begin(it, inputs + 1);
  int64_t size[ND_ARGS], strides[ND_ARGS];
  for (int k = 0; k <= inputs; k++) {
    size[k] = (int64_t)nd_size(c->args[k].dtype);
    it->ptr[k] = nd_origin(c, &c->args[k]);
  }
  for (int a = 0; a < c->args[0].rank; a++) {
    for (int k = 0; k <= inputs; k++) strides[k] = c->args[k].strides[a] * size[k];
    nd_add_axis(it, c->hi[a] - c->lo[a], strides);
  }
  return nd_order(it);
}

/* Moves every pointer to the next row (the innermost axis stays). Returns 0 after the last, with all pointers back at the start. */
static inline int nd_next(nd *it) {
  for (int a = it->rank - 2; a >= 0; a--) {
    if (++it->index[a] < it->dims[a]) {
      for (int k = 0; k < it->args; k++) it->ptr[k] += it->strides[k][a];
      return 1;
    }
    it->index[a] = 0;
    for (int k = 0; k < it->args; k++) it->ptr[k] -= it->strides[k][a] * (it->dims[a] - 1);
  }
  return 0;
}

static inline int64_t nd_row(const nd *it) { return it->dims[it->rank - 1]; }
static inline int64_t nd_step(const nd *it, int k) { return it->strides[k][it->rank - 1]; }

static inline int64_t nd_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t nd_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* n elements of `size` bytes from src (step: bytes) to dst (step: bytes). No overlap. */
static inline void nd_copy_row(char *dst, int64_t dstep, const char *src, int64_t sstep, int64_t n, size_t size) {
  if (dstep == (int64_t)size && sstep == (int64_t)size) {
    memcpy(dst, src, (size_t)n * size);
    return;
  }
#define ND_ROW(T)                                                                                                \
  if (dstep == (int64_t)sizeof(T)) {                                                                             \
    if (sstep == 0) {                                                                                            \
      T v = *(const T *)src;                                                                                     \
      for (int64_t i = 0; i < n; i++) ((T *)dst)[i] = v;                                                         \
    } else {                                                                                                     \
      for (int64_t i = 0; i < n; i++) ((T *)dst)[i] = *(const T *)(src + i * sstep);                             \
    }                                                                                                            \
  } else {                                                                                                       \
    for (int64_t i = 0; i < n; i++) *(T *)(dst + i * dstep) = *(const T *)(src + i * sstep);                     \
  }                                                                                                              \
  break;
  switch (size) {
    case 1: ND_ROW(nd_u8)
    case 2: ND_ROW(nd_u16)
    case 4: ND_ROW(nd_u32)
    case 8: ND_ROW(nd_u64)
    case 16: ND_ROW(nd_u128)
  }
#undef ND_ROW
}

#endif
