/* TREES: ensembles of decision trees over rows (ensemble.h). */
#include <math.h>

#include "vector/nd.h"
#include "vector/vec.h"

#define WALKS 8 /* side by side */
#define BLOCK 64 /* rows that a tree's nodes are read for, at most */
#define BLOCK_BYTES (256 << 10)

enum { SUM, AVERAGE, LEAST, GREATEST };
/* The flags of a node that count. PLAIN: there are none. MASKED: only MISSING is there, and no number of these rows is missing. EXACT:
 * all. */
enum { PLAIN, MASKED, EXACT };
enum { EQUAL_BIT = ASPEN_EQUAL_BIT, MISSING_BIT = ASPEN_MISSING_BIT, FEATURE = (1 << EQUAL_BIT) - 1 };

typedef struct {
  uint32_t root, steps, first, targets;
} tree;

/* A tree whose targets and root lie inside the ensemble. */
INLINE tree tree_of(const tree *at, uint32_t last, uint32_t targets) {
  tree t = *at;
  t.root = t.root < last ? t.root : last;
  t.first = t.first < targets ? t.first : 0;
  t.targets = t.targets < targets - t.first ? t.targets : targets - t.first;
  return t;
}

/* Rows at a time: their sums and, where they are copied, features fit a cache. */
INLINE int64_t rows_of_block(int64_t features, size_t size) {
  const int64_t fit = BLOCK_BYTES / ((features > 0 ? features : 1) * (int64_t)size);
  return fit >= BLOCK ? BLOCK : fit >= WALKS ? fit / WALKS * WALKS : 1;
}

#define T float
#define OF(name) name##_f32
#include "classical/ensemble.h"
#undef T
#undef OF
#define T double
#define OF(name) name##_f64
#include "classical/ensemble.h"
#undef T
#undef OF

INLINE size_t size_of_weights(const aspen_call *c) { return c->args[2].rank == 2 && c->args[2].dims[1] * 4 == sizeof(node_f64) ? 8 : 4; }

INLINE size_t bytes_of_block(const aspen_call *c) {
  const size_t size = size_of_weights(c);
  return (size_t)(rows_of_block(c->args[1].dims[1], size) * (c->args[1].dims[1] + c->args[0].dims[1])) * size;
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_trees(const aspen_call *c) { return bytes_of_block(c); }
#endif

int FN(trees)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1], *nodes = &c->args[2], *trees = &c->args[3];
  if (out->rank != 2 || x->rank != 2 || nodes->rank != 2 || trees->rank != 2 || nodes->dims[0] < 1 || trees->dims[0] < 1 || x->dims[1] < 1)
    return ASPEN_KERNEL_BAD_ARGUMENT;
  if (c->scratch_bytes < bytes_of_block(c)) return ASPEN_KERNEL_SCRATCH;
  return size_of_weights(c) == 8 ? start_f64(c) : start_f32(c);
}
