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
  float expected_ns; /* The time that the plan expects of a tile. */
  int64_t whole[ASPEN_RANK - ASPEN_TILE_AXES]; /* The length of the output's axes that tiles do not cut. */
};

struct aspen_exec_plan {
  struct aspen_plan_view view; /* This field is the first: the station's table points here. */
  const struct aspen_operand *operands;
  const struct aspen_op *ops;
  const int64_t *params;
  const struct aspen_value *values;
  const struct aspen_number *numbers;
  int64_t *at_most; /* All values at the largest extents, the extents first. NULL: the plan has one shape. */
  const char *blobs;
  struct aspen_exec_op *op;
  uint32_t *request_operand; /* The operands that live in the request's region: they move with every request. */
  uint32_t n_request, n_operands, n_weights;
  size_t scratch_bytes;
};

/* ------------------------------------------------------------------------------------------------ values and numbers */

/* Returns where a number is in a plan's operands and params. NULL: nowhere. */
static inline const int64_t *aspen_number_at(const struct aspen_number *n, const struct aspen_plan_header *h, const struct aspen_operand *o,
                                             const int64_t *params) {
  uint32_t i = n->index, k = i / ASPEN_RANK, axis = i % ASPEN_RANK;
  switch (n->table) {
    case ASPEN_NUMBER_DIM: return k < h->n_operands ? &o[k].dims[axis] : NULL;
    case ASPEN_NUMBER_STRIDE: return k < h->n_operands ? &o[k].strides[axis] : NULL;
    case ASPEN_NUMBER_OFFSET: return i < h->n_operands ? &o[i].offset : NULL;
    case ASPEN_NUMBER_PARAM:
    case ASPEN_NUMBER_RATIO: return i < h->n_params ? &params[i] : NULL;
  }
  return NULL;
}

/* Returns how many values there are, the extents among them. */
static inline uint32_t aspen_values_count(const struct aspen_plan_header *h) { return h->n_extents + h->n_values; }

/* Writes all values at the extents of a word. */
static inline void aspen_values_of(const struct aspen_exec_plan *p, uint32_t word, int64_t *value) {
  const struct aspen_plan_header *h = p->view.header;
  for (uint32_t k = 0; k < h->n_extents; k++) value[k] = aspen_extent(word, h->n_extents, k);
  int64_t *next = value + h->n_extents;
  for (const struct aspen_value *x = p->values, *end = x + h->n_values; x < end; x++) {
    int64_t u = value[x->u];
    switch (x->kind) {
      case ASPEN_VALUE_FLOOR: *next++ = (x->a * u + x->b) / x->c; break;
      case ASPEN_VALUE_PRODUCT: *next++ = u * value[x->v]; break;
      default: *next++ = x->a * u + x->b * value[x->v];
    }
  }
}

/* Returns how much less a number is than at the largest extents. */
static inline int64_t aspen_number_less(const struct aspen_exec_plan *p, const struct aspen_number *n, const int64_t *value) {
  return n->per * (p->at_most[n->value] - value[n->value]);
}

#endif
