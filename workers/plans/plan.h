/* A mapped plan as a worker knows it: its tables, and each op with its kernel looked up.
 *
 * Everything is made once, when the plan is mapped (load.h), so that a tile costs a copy of its box. Later the loop only reads it.
 */
#ifndef ASPEN_PLAN_H
#define ASPEN_PLAN_H
#include "kernel.h"
#include "layout.h"
#include "station.h"

/* An op with its kernel. */
struct aspen_exec_op {
  aspen_kernel_fn fn; /* NULL: JOIN, END, OPAQUE. */
  uint32_t kernel, operand, n_inputs, param, rank;
  float expected_ns; /* What the plan expects of a tile. */
  int64_t whole[ASPEN_RANK - ASPEN_TILE_AXES]; /* The length of the output's axes that tiles do not cut. */
};

struct aspen_exec_plan {
  struct aspen_plan_view view; /* This field is the first: the station's table points here. */
  const struct aspen_operand *operands;
  const struct aspen_op *ops;
  const int64_t *params;
  const struct aspen_slope *slopes;
  const char *blobs;
  struct aspen_exec_op *op;
  uint32_t *request_operand; /* The operands that live in the request's region: they move with every request. */
  uint32_t n_request, n_operands, n_weights;
  size_t scratch_bytes;
};

/* ------------------------------------------------------------------------------------------------ slopes */

/* Returns where a slope's number is in a plan's operands and params. NULL: nowhere. */
static inline const int64_t *aspen_slope_of(const struct aspen_slope *s, const struct aspen_plan_header *h, const struct aspen_operand *o,
                                            const int64_t *params) {
  uint32_t i = s->index, k = i / ASPEN_RANK, axis = i % ASPEN_RANK;
  switch (s->table) {
    case ASPEN_SLOPE_DIM: return k < h->n_operands ? &o[k].dims[axis] : NULL;
    case ASPEN_SLOPE_STRIDE: return k < h->n_operands ? &o[k].strides[axis] : NULL;
    case ASPEN_SLOPE_OFFSET: return i < h->n_operands ? &o[i].offset : NULL;
    case ASPEN_SLOPE_PARAM: return i < h->n_params ? &params[i] : NULL;
  }
  return NULL;
}

/* How much less a slope's number is at an extent that is `less` short of the longest. */
static inline int64_t aspen_slope_less(const struct aspen_slope *s, uint32_t less) {
  return s->per * (((int64_t)less + s->rest) / s->every);
}

#endif
