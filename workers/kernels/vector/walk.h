/* Element-wise kernels walk a nest (nd.h) in blocks of up to ND_BLOCK elements, of a row or of several rows. Elements that are not
 * contiguous are staged (nd_stage, nd_commit) through buffers of as many. So each operation needs only one loop, over contiguous data, and
 * every path computes an element with the same instructions. */
#ifndef ASPEN_WALK_H
#define ASPEN_WALK_H
#include "vector/nd.h"
#include "movement/transpose.h"

#define ND_BLOCK 512 /* elements staged at a time: three buffers of 8-byte elements fill a third of an L1 cache */
#define ND_LINE 64   /* bytes */
#define ND_ACROSS 16 /* rows of a block where an argument lies across: a line of float32 */

typedef struct nd_walk {
  nd *it;
  int64_t n, rows;     /* the innermost axis; another one, whose rows go together (else 1) */
  int64_t wide, most;  /* elements of a row, and rows, of a block */
  int64_t step[ND_ARGS], row_step[ND_ARGS];
  int64_t i, r;        /* where the block starts */
  int64_t bn, br;      /* its extent: br rows of bn elements */
  int64_t count;       /* bn br */
  int first;           /* no block before it with the same outer indices, or a smaller one */
  char *ptr[ND_ARGS];  /* its first element */
} nd_walk;

static inline void nd_walk_here(nd_walk *w) {
  const int64_t before = w->count;
  w->bn = nd_min(w->wide, w->n - w->i);
  w->br = nd_min(w->most, w->rows - w->r);
  w->count = w->bn * w->br;
  w->first = (w->i == 0 && w->r == 0) || w->count > before;
  for (int k = 0; k < w->it->args; k++) w->ptr[k] = w->it->ptr[k] + w->r * w->row_step[k] + w->i * w->step[k];
}

/* The axis along which an argument lies closer together than along the innermost one, where its elements are in as many cache lines. Rows
 * of that axis go together, so that lines are used whole while they are in L1. -1: there is none. */
static inline int nd_walk_across(const nd *it) {
  for (int k = 0; k < it->args; k++) {
    const int64_t step = nd_abs(nd_step(it, k));
    if (step < ND_LINE) continue;
    for (int a = 0; a < it->rank - 1; a++)
      if (it->dims[a] > 1 && it->strides[k][a] && nd_abs(it->strides[k][a]) < ND_LINE) return a;
  }
  return -1;
}

/* Starts at the first block of an opened nest, which is changed: the axis of the rows is taken out of it. */
static inline void nd_walk_open(nd_walk *w, nd *it) {
  memset(w, 0, sizeof *w);
  w->it = it;
  w->n = nd_row(it);
  w->wide = ND_BLOCK;
  w->rows = w->most = 1;
  for (int k = 0; k < it->args; k++) w->step[k] = nd_step(it, k);
  /* Short rows go together; longer ones only where that costs the output no copy, or saves others more. */
  const int across = nd_walk_across(it);
  int outer = it->rank - 2;
  if (across >= 0 && (across != outer || w->n > ND_BLOCK / 8)) {
    outer = across;
    w->most = nd_min(ND_ACROSS, it->dims[across]);
    w->wide = ND_BLOCK / w->most;
  } else if (outer >= 0 && (w->n <= ND_BLOCK / 8 || (w->n <= ND_BLOCK / 2 && it->strides[0][outer] == w->n * w->step[0]))) {
    w->most = ND_BLOCK / w->n;
  } else {
    outer = -1;
  }
  if (outer >= 0) {
    w->rows = it->dims[outer];
    it->dims[outer] = 1;
    for (int k = 0; k < it->args; k++) w->row_step[k] = it->strides[k][outer];
  }
  nd_walk_here(w);
}

/* The next block. Returns 0 after the last. */
static inline int nd_walk_next(nd_walk *w) {
  w->i += w->bn;
  if (w->i >= w->n) {
    w->i = 0;
    w->r += w->br;
    if (w->r >= w->rows) {
      w->r = 0;
      if (!nd_next(w->it)) return 0;
    }
  }
  nd_walk_here(w);
  return 1;
}

/* Is argument k contiguous in the block? */
static inline int nd_walk_contiguous(const nd_walk *w, int k, size_t size) {
  return w->step[k] == (int64_t)size && (w->br == 1 || w->row_step[k] == w->bn * (int64_t)size);
}

/* Has argument k the same elements in this block as in the one before, which was at least as large? */
static inline int nd_walk_repeats(const nd_walk *w, int k) {
  if (w->first || (w->rows > 1 && w->row_step[k] != 0)) return 0;
  return w->step[k] == 0 || (w->most > 1 && w->bn == w->n); /* one element for all, or whole rows that are all the same */
}

/* rows × n elements between a contiguous buffer and memory; rows and elements there are the given bytes apart. */
static inline void nd_copy_rows(char *dst, int64_t drow, int64_t dstep, const char *src, int64_t srow, int64_t sstep, int64_t rows, int64_t n,
                                size_t size) {
  const int64_t unit = (int64_t)size;
  if (srow == 0 && dstep == unit && drow == n * unit && rows > 1) { /* rows that are all the same: twice as many each time */
    nd_copy_row(dst, unit, src, sstep, n, size);
    for (int64_t done = drow; done < rows * drow; done *= 2) memcpy(dst + done, dst, (size_t)nd_min(done, rows * drow - done));
  } else if (dstep == unit && srow == unit && sstep != unit) {
    transpose(dst, drow, src, sstep, rows, n, size);
  } else if (sstep == unit && drow == unit && dstep != unit) {
    transpose(dst, dstep, src, srow, n, rows, size);
  } else if (rows > n) { /* the longer loop inside */
    for (int64_t i = 0; i < n; i++) nd_copy_row(dst + i * dstep, drow, src + i * sstep, srow, rows, size);
  } else {
    for (int64_t r = 0; r < rows; r++) nd_copy_row(dst + r * drow, dstep, src + r * srow, sstep, n, size);
  }
}

/* Argument k of the block as a contiguous array: itself, or a copy in buf (ND_BLOCK elements), which is the caller's for this argument. */
static inline const void *nd_stage(const nd_walk *w, int k, size_t size, void *buf) {
  const int64_t unit = (int64_t)size;
  if (nd_walk_contiguous(w, k, size)) return w->ptr[k];
  if (!nd_walk_repeats(w, k)) nd_copy_rows(buf, w->bn * unit, unit, w->ptr[k], w->row_step[k], w->step[k], w->br, w->bn, size);
  return buf;
}

/* Where to compute the block of argument 0: in place, or in buf; nd_commit then takes it home. */
static inline void *nd_target(const nd_walk *w, size_t size, void *buf) { return nd_walk_contiguous(w, 0, size) ? (void *)w->ptr[0] : buf; }

static inline void nd_commit(const nd_walk *w, size_t size, const void *buf) {
  const int64_t unit = (int64_t)size;
  if (!nd_walk_contiguous(w, 0, size)) nd_copy_rows(w->ptr[0], w->row_step[0], w->step[0], buf, w->bn * unit, unit, w->br, w->bn, size);
}

#endif
