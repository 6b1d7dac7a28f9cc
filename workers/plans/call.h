/* From a tile to the call of its kernel, and the scratch memory that kernels ask for. */
#ifndef ASPEN_CALL_H
#define ASPEN_CALL_H
#include <stdlib.h>
#include <string.h>

#include "plans/instance.h"
#include "plans/load.h"

/* Scratch memory is asked for at about this many extents of a bucket, or at all of a smaller one. */
#define ASPEN_SCRATCH_EXTENTS 1024

/* Cuts a call's box off at the request's extent. Returns 0 where nothing is left of it. */
static inline int aspen_call_clip(aspen_call *c, uint32_t rank) {
  int left = 1;
  for (uint32_t k = 0; k < rank; k++) {
    int64_t dim = c->args->dims[k];
    if (c->lo[k] < c->hi[k] && c->lo[k] >= dim) left = 0;
    if (c->hi[k] > dim) c->hi[k] = dim;
    if (c->lo[k] > c->hi[k]) c->lo[k] = c->hi[k];
  }
  return left;
}

/* Cuts a call's box off at the part of a tile that runs. Returns 0 where nothing is left of it. `part`: AXES lower bounds, then AXES upper
 * ones. */
static inline int aspen_call_cut(aspen_call *c, const uint32_t *part) {
  int left = 1;
  for (uint32_t k = 0; k < ASPEN_TILE_AXES; k++) {
    if (part[k] > c->lo[k]) c->lo[k] = part[k];
    if (part[ASPEN_TILE_AXES + k] < c->hi[k]) c->hi[k] = part[ASPEN_TILE_AXES + k];
    left &= c->lo[k] < c->hi[k];
  }
  return left;
}

/* Fills the call of an op's tile. Returns 0 where none of it is there at the request's extent. */
static inline int aspen_call_fill(aspen_call *c, const struct aspen_exec_instance *e, const struct aspen_exec_op *op,
                                  const struct aspen_tile *t) {
  c->args = e->args + op->operand;
  c->n_inputs = op->n_inputs;
  c->params = e->params + op->param;
  c->again = 0;
  c->apart = 0;
  c->part = 0;
  for (uint32_t k = 0; k < ASPEN_TILE_AXES; k++) {
    c->lo[k] = t->lo[k];
    c->hi[k] = t->hi[k];
  }
  for (uint32_t k = ASPEN_TILE_AXES; k < ASPEN_RANK; k++) {
    c->lo[k] = 0;
    c->hi[k] = op->whole[k - ASPEN_TILE_AXES];
  }
  return e->own ? aspen_call_clip(c, op->rank) : 1;
}

/* Finds the kernel of a tile and fills its call. NULL: JOIN and END have none, nor has a tile that lies beyond the request's extent. */
static inline aspen_kernel_fn aspen_exec_prepare(const struct aspen_exec_instance *e, uint32_t tile, void *scratch, size_t scratch_bytes,
                                                 aspen_call *c) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  const struct aspen_tile *t = &p->view.tiles[tile];
  const struct aspen_exec_op *op = &p->op[t->op];
  if (!op->fn || !aspen_call_fill(c, e, op, t)) return NULL;
  c->scratch = scratch;
  c->scratch_bytes = scratch_bytes;
  return op->fn;
}

/* Runs a tile's kernel. `again` is as in aspen_call. Returns enum aspen_error. */
static inline int aspen_exec_tile(const struct aspen_exec_instance *e, uint32_t tile, int again, void *scratch, size_t scratch_bytes) {
  aspen_call c;
  aspen_kernel_fn run = aspen_exec_prepare(e, tile, scratch, scratch_bytes, &c);
  c.again = again;
  return run ? run(&c) : ASPEN_E_OK;
}

/* ------------------------------------------------------------------------------------------------ scratch */

/* Returns the most scratch memory that ops ask for, each with the box that stands for its tiles. */
static inline size_t aspen_ops_scratch(const struct aspen_exec_instance *e, const struct aspen_tile *box) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  size_t most = 0;
  for (uint32_t i = 0; i < p->view.header->n_ops; i++)
    if (p->op[i].fn) {
      aspen_call c;
      memset(&c, 0, sizeof c);
      size_t n = aspen_call_fill(&c, e, &p->op[i], &box[i]) ? aspen_kernel_scratch(p->op[i].kernel, &c) : 0;
      if (n > most) most = n;
    }
  return most;
}

/* Returns how many steps there are between the points of an extent's range where scratch memory is asked for. */
static inline uint32_t aspen_scratch_side(const struct aspen_plan_header *h, uint32_t k) {
  uint32_t range = h->most[k] - h->least[k], side = h->n_extents == 1 ? ASPEN_SCRATCH_EXTENTS : h->n_extents == 2 ? 31 : 9;
  return range < side ? range : side;
}

/* Returns at how many points of a bucket scratch memory is asked for. */
static inline uint32_t aspen_scratch_points(const struct aspen_plan_header *h) {
  uint32_t n = h->n_extents != 0;
  for (uint32_t k = 0; k < h->n_extents; k++) n *= aspen_scratch_side(h, k) + 1;
  return n;
}

/* Returns the word of one of these points. */
static inline uint32_t aspen_scratch_point(const struct aspen_plan_header *h, uint32_t number) {
  uint32_t extents[ASPEN_MAX_EXTENTS];
  for (uint32_t k = 0; k < h->n_extents; k++) {
    uint32_t side = aspen_scratch_side(h, k), at = number % (side + 1);
    extents[k] = h->least[k] + (side ? (uint32_t)((uint64_t)(h->most[k] - h->least[k]) * at / side) : 0);
    number /= side + 1;
  }
  return aspen_extents_word(extents, h->n_extents);
}

/* Returns the most scratch memory that a tile of the plan may need. Each op is asked with the largest extent of its tiles along each axis.
 * What kernels ask for need not rise with the request's extent, so they are asked at others too. A kernel that finds too little says so
 * (SCRATCH). */
static inline size_t aspen_plan_scratch(struct aspen_exec_instance *e) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  const struct aspen_plan_header *h = p->view.header;
  struct aspen_tile *box = (struct aspen_tile *)calloc(h->n_ops ? h->n_ops : 1, sizeof *box);
  if (!box) return SIZE_MAX;
  for (uint32_t i = 0; i < h->n_tiles; i++)
    for (uint32_t k = 0; k < ASPEN_TILE_AXES; k++) {
      const struct aspen_tile *t = &p->view.tiles[i];
      if (t->hi[k] - t->lo[k] > box[t->op].hi[k]) box[t->op].hi[k] = t->hi[k] - t->lo[k];
    }
  size_t most = aspen_ops_scratch(e, box);
  for (uint32_t k = 0, n = aspen_scratch_points(h); k < n; k++) {
    aspen_exec_set_extent(e, aspen_scratch_point(h, k));
    size_t bytes = aspen_ops_scratch(e, box);
    if (bytes > most) most = bytes;
  }
  if (h->n_extents) aspen_exec_set_extent(e, p->view.largest);
  free(box);
  return most > h->scratch_bytes ? most : h->scratch_bytes;
}

/* Returns the scratch memory that a tile's kernel asks for. */
static inline size_t aspen_tile_scratch(const struct aspen_exec_instance *e, uint32_t tile) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  const struct aspen_tile *t = &p->view.tiles[tile];
  const struct aspen_exec_op *op = &p->op[t->op];
  if (!op->fn) return 0;
  aspen_call c;
  memset(&c, 0, sizeof c);
  return aspen_call_fill(&c, e, op, t) ? aspen_kernel_scratch(op->kernel, &c) : 0;
}

#endif
