/* An instance of a plan as a worker knows it: the arguments of its kernels, as pointers into this process's mappings.
 *
 * It is made when its arena is mapped. aspen_exec_move() brings it to a new request, whose region lies elsewhere and whose extent may
 * differ (docs/protocol/extent.md).
 */
#ifndef ASPEN_INSTANCE_H
#define ASPEN_INSTANCE_H
#include <stdlib.h>
#include <string.h>

#include "plans/plan.h"

/* Where each space of an instance begins. */
struct aspen_bases { char *at[ASPEN_SPACE_WEIGHTS + ASPEN_MAX_WEIGHTS]; };

struct aspen_exec_instance {
  struct aspen_instance_view view; /* This field is the first: the station's table points here. */
  aspen_arg *args;                 /* One for each operand of the plan. */
  const int64_t *params;           /* The plan's, or those in `own`. */
  int64_t *own;                    /* Dims, strides, offsets, params and values at `extent`. NULL: the plan has one shape. */
  uint32_t extent;                 /* The word of the request that `view.generation` names, or of a request before it. */
  const uint32_t *parts;           /* Written by REACH, of the first `n_parts` tiles. */
  uint32_t n_parts;
  struct aspen_bases bases;
};

static inline const struct aspen_exec_plan *aspen_exec_plan_of(const struct aspen_exec_instance *e) {
  return (const struct aspen_exec_plan *)e->view.plan;
}

static inline void aspen_exec_instance_free(struct aspen_exec_instance *e) {
  if (!e) return;
  free(e->args);
  free(e->own);
  free(e);
}

/* ------------------------------------------------------------------------------------------------ extent */

/* The parts of `own`. */
static inline int64_t *aspen_own_dims(const struct aspen_exec_instance *e) { return e->own; }
static inline int64_t *aspen_own_strides(const struct aspen_exec_instance *e) {
  return e->own + (size_t)aspen_exec_plan_of(e)->n_operands * ASPEN_RANK;
}
static inline int64_t *aspen_own_offsets(const struct aspen_exec_instance *e) {
  return e->own + (size_t)aspen_exec_plan_of(e)->n_operands * 2 * ASPEN_RANK;
}
static inline int64_t *aspen_own_params(const struct aspen_exec_instance *e) {
  return aspen_own_offsets(e) + aspen_exec_plan_of(e)->n_operands;
}

static inline int64_t *aspen_own_values(const struct aspen_exec_instance *e) {
  return aspen_own_params(e) + aspen_exec_plan_of(e)->view.header->n_params;
}

/* Brings everything that follows from the extents to those of another word. It is made of the plan's own numbers, whatever the extents were
 * before. Operands in the request's region get their pointers in aspen_exec_move. */
static inline void aspen_exec_set_extent(struct aspen_exec_instance *e, uint32_t extent) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  int64_t *dims = aspen_own_dims(e), *strides = aspen_own_strides(e), *value = aspen_own_values(e);
  int64_t *offsets = aspen_own_offsets(e), *params = aspen_own_params(e);
  aspen_values_of(p, extent, value);
  for (const struct aspen_number *n = p->numbers, *end = n + p->view.header->n_numbers; n < end; n++) {
    uint32_t i = n->index, axis = i % ASPEN_RANK;
    switch (n->table) {
      case ASPEN_NUMBER_DIM: dims[i] = p->operands[i / ASPEN_RANK].dims[axis] - aspen_number_less(p, n, value); break;
      case ASPEN_NUMBER_STRIDE: strides[i] = p->operands[i / ASPEN_RANK].strides[axis] - aspen_number_less(p, n, value); break;
      case ASPEN_NUMBER_PARAM: params[i] = p->params[i] - aspen_number_less(p, n, value); break;
      case ASPEN_NUMBER_RATIO: {
        double ratio = (double)value[n->value] / (double)value[n->per];
        memcpy(&params[i], &ratio, sizeof ratio);
        break;
      }
      case ASPEN_NUMBER_OFFSET:
        offsets[i] = p->operands[i].offset - aspen_number_less(p, n, value);
        if (p->operands[i].space != ASPEN_SPACE_REQUEST) e->args[i].ptr = e->bases.at[p->operands[i].space] + offsets[i];
    }
  }
  e->extent = extent;
}

/* Makes `own`, at the largest extents. Returns 0 where there is no memory. */
static inline int aspen_exec_own(struct aspen_exec_instance *e) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  size_t n = p->n_operands, n_params = p->view.header->n_params, n_values = aspen_values_count(p->view.header);
  e->own = (int64_t *)malloc((n * (2 * ASPEN_RANK + 1) + n_params + n_values) * sizeof *e->own);
  if (!e->own) return 0;
  for (size_t i = 0; i < n; i++) {
    int64_t *dims = aspen_own_dims(e) + i * ASPEN_RANK, *strides = aspen_own_strides(e) + i * ASPEN_RANK;
    memcpy(dims, p->operands[i].dims, ASPEN_RANK * sizeof *dims);
    memcpy(strides, p->operands[i].strides, ASPEN_RANK * sizeof *strides);
    aspen_own_offsets(e)[i] = p->operands[i].offset;
    e->args[i].dims = dims;
    e->args[i].strides = strides;
  }
  memcpy(aspen_own_params(e), p->params, n_params * sizeof *e->own);
  e->params = aspen_own_params(e);
  return 1;
}

/* ------------------------------------------------------------------------------------------------ instances */

/* Makes an instance. NULL: there is no memory. */
static inline struct aspen_exec_instance *aspen_exec_instance_new(struct aspen_exec_plan *p, const struct aspen_bases *bases) {
  struct aspen_exec_instance *e = (struct aspen_exec_instance *)calloc(1, sizeof *e);
  if (!e) return NULL;
  const struct aspen_plan_header *h = p->view.header;
  char *arena = bases->at[ASPEN_SPACE_ARENA];
  e->view = (struct aspen_instance_view){
      .plan = &p->view,
      .missing = (uint32_t *)(arena + h->arena_counters),
      .executed = (uint32_t *)(arena + h->arena_executed),
  };
  e->params = p->params;
  e->extent = p->view.largest;
  e->bases = *bases;
  e->parts = (const uint32_t *)(arena + h->arena_parts);
  e->n_parts = h->arena_parts ? h->n_parts : 0;
  e->args = (aspen_arg *)calloc(p->n_operands ? p->n_operands : 1, sizeof *e->args);
  if (!e->args) goto bad;
  for (uint32_t i = 0; i < p->n_operands; i++) {
    const struct aspen_operand *o = &p->operands[i];
    char *ptr = o->dtype == ASPEN_DT_NONE || o->space == ASPEN_SPACE_REQUEST ? NULL : bases->at[o->space] + o->offset;
    e->args[i] = (aspen_arg){.ptr = ptr, .dims = o->dims, .strides = o->strides, .dtype = o->dtype, .rank = o->rank};
  }
  if (p->view.n_extents && !aspen_exec_own(e)) goto bad;
  return e;
bad:
  aspen_exec_instance_free(e);
  return NULL;
}

/* Begins a new request: its operands lie in another region, and its extents may be others. */
static inline void aspen_exec_move(struct aspen_exec_instance *e, char *request, uint32_t generation, uint32_t extent) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  if (e->extent != extent) aspen_exec_set_extent(e, extent);
  for (uint32_t k = 0; k < p->n_request; k++) {
    uint32_t i = p->request_operand[k];
    e->args[i].ptr = request + (e->own ? aspen_own_offsets(e)[i] : p->operands[i].offset);
  }
  e->view.request = request;
  e->view.generation = generation;
}

/* An operand of the plan as it is at the request's extents. */
static inline struct aspen_operand aspen_exec_operand(const struct aspen_exec_instance *e, uint32_t i) {
  struct aspen_operand o = aspen_exec_plan_of(e)->operands[i];
  if (!e->own) return o;
  memcpy(o.dims, aspen_own_dims(e) + (size_t)i * ASPEN_RANK, sizeof o.dims);
  memcpy(o.strides, aspen_own_strides(e) + (size_t)i * ASPEN_RANK, sizeof o.strides);
  o.offset = aspen_own_offsets(e)[i];
  return o;
}

/* Where the links of the instance's queues are. */
static inline uint64_t *aspen_exec_next(const struct aspen_exec_instance *e) {
  const struct aspen_plan_header *h = e->view.plan->header;
  return (uint64_t *)((char *)e->view.missing - h->arena_counters + h->arena_next);
}

/* The part of a tile that changed inputs reach (docs/protocol/reach.md). NULL: the tile runs whole, as those do that find the parts.
 * `kernel`: the tile's. */
static inline const uint32_t *aspen_exec_part(const struct aspen_exec_instance *e, const struct aspen_instance *i, uint32_t tile,
                                              uint32_t kernel) {
  const int cut = tile < e->n_parts && kernel != ASPEN_K_REACH && !aspen_load_relaxed(&i->whole);
  return cut ? e->parts + (size_t)tile * 2 * ASPEN_TILE_AXES : NULL;
}

/* Whether changes reach nothing of a tile. */
static inline int aspen_part_empty(const uint32_t *part) { return part[0] >= part[ASPEN_TILE_AXES]; }

/* Whether the plan's expectation of a tile's time fits this request. It is that of the whole box. */
static inline int aspen_exec_expected(const struct aspen_exec_instance *e) { return !e->own || e->extent == e->view.plan->largest; }

#endif
