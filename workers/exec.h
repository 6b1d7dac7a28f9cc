/* From a tile to a kernel call: plans and instances made ready once, when their segments are mapped, so that a tile costs a copy of its box.
 *
 * The planner process has validated every plan before anyone maps it. What is checked here is only what would make this process read or write
 * outside its mappings, because it is cheap and because a worker must not die of another part's mistake.
 */
#ifndef ASPEN_EXEC_H
#define ASPEN_EXEC_H
#include <stdlib.h>
#include <string.h>

#include "kernel.h"
#include "layout.h"
#include "station.h"

/* The statement that follows is what a tile does for recovery's sake alone. A build may leave these out, to measure what they cost
 * (docs/protocol/recover.md, "Die, Recover"). */
#if defined(ASPEN_WITHOUT_RECOVERY)
#define ASPEN_FOR_RECOVERY if (0)
#else
#define ASPEN_FOR_RECOVERY
#endif

/* An op with its kernel looked up. */
struct aspen_exec_op {
  aspen_kernel_fn fn; /* NULL: JOIN, END, OPAQUE */
  uint32_t kernel, operand, n_inputs, param, rank;
  float expected_ns; /* of a tile, by the plan */
  int64_t whole[ASPEN_RANK - ASPEN_TILE_AXES]; /* length of the output's axes that tiles do not cut */
};

struct aspen_exec_plan {
  struct aspen_plan_view view; /* first: the station's table points here */
  const struct aspen_operand *operands;
  const struct aspen_op *ops;
  const int64_t *params;
  const struct aspen_slope *slopes;
  const char *blobs;
  struct aspen_exec_op *op;
  uint32_t *request_operand; /* operands that live in the request's region: they move with every request */
  uint32_t n_request, n_operands, n_weights;
  size_t scratch_bytes;
};

/* Where each space of an instance begins. */
struct aspen_bases { char *at[ASPEN_SPACE_WEIGHTS + ASPEN_MAX_WEIGHTS]; };

struct aspen_exec_instance {
  struct aspen_instance_view view; /* first */
  aspen_arg *args;                 /* one for each operand of the plan */
  const int64_t *params;           /* the plan's, or those in `own` */
  int64_t *own;                    /* of a shape bucket's plan, as they are at `extent`: dims, strides and offsets of all operands, params. Else NULL */
  uint32_t extent;                 /* of the request that `view.generation` names, or of one before it */
  struct aspen_bases bases;
};

/* ------------------------------------------------------------------------------------------------ checks */

static inline int aspen_array_fits(uint64_t bytes, uint64_t offset, uint64_t n, uint64_t size) {
  return offset % 8 == 0 && offset <= bytes && n <= (bytes - offset) / size;
}

/* First and one past the last byte that an operand touches, relative to its space; 0: it overflows. Operands without elements touch nothing. */
static inline int aspen_operand_extent(const struct aspen_operand *o, int64_t item, int64_t *lo, int64_t *hi) {
  int64_t first = o->offset, last = o->offset, step;
  *lo = *hi = 0;
  for (uint32_t k = 0; k < o->rank; k++) {
    if (o->dims[k] < 0) return 0;
    if (o->dims[k] == 0) return 1;
  }
  for (uint32_t k = 0; k < o->rank; k++) {
    if (__builtin_mul_overflow(o->strides[k], o->dims[k] - 1, &step) || __builtin_mul_overflow(step, item, &step)) return 0;
    if (__builtin_add_overflow(step < 0 ? first : last, step, step < 0 ? &first : &last)) return 0;
  }
  *lo = first;
  return !__builtin_add_overflow(last, item, hi);
}

static inline int64_t aspen_dtype_bytes(uint32_t dtype) {
  static const uint8_t bytes[] = {
#define X(n, c, b, s) [c] = b,
      ASPEN_DTYPES(X)
#undef X
  };
  return dtype < sizeof bytes ? bytes[dtype] : 0;
}

/* Space sizes of a plan: ARENA, REQUEST, PLAN, WEIGHTS… */
static inline const char *aspen_operands_check(const struct aspen_plan_header *h, const struct aspen_operand *o) {
  for (uint32_t i = 0; i < h->n_operands; i++, o++) {
    if (o->dtype == ASPEN_DT_NONE) continue;
    uint64_t bytes = o->space == ASPEN_SPACE_ARENA     ? h->arena_bytes
                     : o->space == ASPEN_SPACE_REQUEST ? h->request_bytes
                     : o->space == ASPEN_SPACE_PLAN    ? h->bytes
                     : o->space - ASPEN_SPACE_WEIGHTS < (int)h->n_weights ? h->weights_bytes[o->space - ASPEN_SPACE_WEIGHTS]
                                                                         : 0;
    int64_t item = aspen_dtype_bytes(o->dtype), lo, hi;
    if (!item || o->rank > ASPEN_RANK || !aspen_operand_extent(o, item, &lo, &hi)) return "an operand has no valid type, rank or shape";
    if (lo < 0 || hi < 0 || (uint64_t)hi > bytes) return "an operand reaches beyond its space";
    if (hi > lo && o->space == ASPEN_SPACE_ARENA && (uint64_t)lo < h->arena_data) return "an operand lies in the arena's counters";
  }
  return NULL;
}

static inline const char *aspen_ops_check(const struct aspen_plan_header *h, const struct aspen_op *op) {
  static const uint16_t fewest[] = {
#define X(n, c, lo, hi, p, o) [c] = lo,
      ASPEN_KERNELS(X)
#undef X
  },
                       most[] = {
#define X(n, c, lo, hi, p, o) [c] = hi,
                           ASPEN_KERNELS(X)
#undef X
  },
                       params[] = {
#define X(n, c, lo, hi, p, o) [c] = p,
                           ASPEN_KERNELS(X)
#undef X
  },
                       outputs[] = {
#define X(n, c, lo, hi, p, o) [c] = o,
                           ASPEN_KERNELS(X)
#undef X
  };
  for (uint32_t i = 0; i < h->n_ops; i++, op++) {
    uint32_t k = op->kernel;
    if (k >= ASPEN_N_KERNELS) return "an op names no kernel";
    uint64_t used = (uint64_t)op->n_outputs + op->n_inputs;
    if (op->operand > h->n_operands || used > h->n_operands - op->operand) return "an op's operands lie outside the table";
    if (op->param > h->n_params || op->n_params > h->n_params - op->param) return "an op's parameters lie outside the table";
    if (!aspen_array_fits(h->blobs_bytes + 8, 0, (uint64_t)op->blob + op->blob_bytes, 1) ||
        !aspen_array_fits(h->blobs_bytes + 8, 0, (uint64_t)op->name + op->name_bytes, 1))
      return "an op's name or blob lies outside the blobs";
    if (k == ASPEN_K_JOIN || k == ASPEN_K_END) continue;
    if (op->n_inputs < fewest[k] || op->n_inputs > most[k]) return "an op has a wrong number of inputs";
    if (k == ASPEN_K_OPAQUE) continue;
    if (outputs[k] == ASPEN_ANY_OUTPUTS ? op->n_outputs == 0 : op->n_outputs != outputs[k]) return "an op has a wrong number of outputs";
    if (op->n_params != params[k] && params[k] != ASPEN_ANY_PARAMS) return "an op has a wrong number of parameters";
  }
  return NULL;
}

static inline const char *aspen_tiles_check(const struct aspen_plan_header *h, const struct aspen_exec_plan *p) {
  const uint32_t *children = p->view.children, *initial = p->view.initial;
  for (uint32_t i = 0; i < h->n_tiles; i++) {
    const struct aspen_tile *t = &p->view.tiles[i];
    if (t->op >= h->n_ops) return "a tile names no op";
    if (t->n_children > ASPEN_FANOUT || t->children > h->n_children || t->n_children > h->n_children - t->children)
      return "a tile has too many children, or they lie outside the table";
    if (t->depth >= ASPEN_DEPTHS) return "a tile's depth is out of range";
    const struct aspen_op *op = &p->ops[t->op];
    if (op->n_outputs == 0) continue;
    const struct aspen_operand *out = &p->operands[op->operand];
    for (uint32_t k = 0; k < ASPEN_TILE_AXES && k < out->rank; k++)
      if (t->lo[k] > t->hi[k] || t->hi[k] > out->dims[k]) return "a tile's box lies outside its output";
  }
  for (uint32_t i = 0; i < h->n_children; i++)
    if (children[i] >= h->n_tiles) return "a child is no tile";
  for (uint32_t i = 0; i < h->n_initial; i++)
    if (initial[i] >= h->n_tiles) return "an initial tile is no tile";
  return NULL;
}

static inline const char *aspen_header_check(const struct aspen_plan_header *h, uint64_t bytes) {
  if (bytes < sizeof *h) return "shorter than its header";
  if (h->bytes > bytes) return "shorter than its header says";
  if (h->layout != ASPEN_LAYOUT_HASH || h->role != ASPEN_ROLE_PLAN || memcmp(&h->magic, "ASPENMP", 8)) return "no plan of this build";
  if (h->n_weights > ASPEN_MAX_WEIGHTS || h->end_tile >= h->n_tiles) return "a count is out of range";
  if (!aspen_array_fits(h->bytes, h->ops, h->n_ops, sizeof(struct aspen_op)) ||
      !aspen_array_fits(h->bytes, h->operands, h->n_operands, sizeof(struct aspen_operand)) ||
      !aspen_array_fits(h->bytes, h->params, h->n_params, 8) || !aspen_array_fits(h->bytes, h->tiles, h->n_tiles, ASPEN_LINE) ||
      !aspen_array_fits(h->bytes, h->children, h->n_children, 4) || !aspen_array_fits(h->bytes, h->parent_counts, h->n_tiles, 4) ||
      !aspen_array_fits(h->bytes, h->initial, h->n_initial, 4) || !aspen_array_fits(h->bytes, h->blobs, h->blobs_bytes, 1) ||
      !aspen_array_fits(h->bytes, h->slopes, h->n_slopes, sizeof(struct aspen_slope)))
    return "an array reaches beyond the plan";
  if (h->tiles % ASPEN_LINE || h->ops % ASPEN_LINE) return "an array is misaligned";
  if (h->least > h->most || h->most > INT32_MAX || !h->least != !h->most || (h->n_slopes && !h->most)) return "no range of extents";
  if (!aspen_array_fits(h->arena_bytes, h->arena_counters, h->n_tiles, 4) || !aspen_array_fits(h->arena_bytes, h->arena_executed, h->n_tiles, 4) ||
      !aspen_array_fits(h->arena_bytes, h->arena_next, h->n_tiles, 8) || h->arena_data > h->arena_bytes)
    return "an array reaches beyond the arena";
  return NULL;
}

/* ------------------------------------------------------------------------------------------------ plans */

/* Where a slope's number is in a plan's operands and params; NULL: nowhere. */
static inline const int64_t *aspen_slope_of(const struct aspen_slope *s, const struct aspen_plan_header *h, const struct aspen_operand *o, const int64_t *params) {
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
static inline int64_t aspen_slope_less(const struct aspen_slope *s, uint32_t less) { return s->per * (((int64_t)less + s->rest) / s->every); }

/* Checks slopes, and writes what they make of the operands at the shortest extent into `shortest`, a copy of the operands. An axis that is empty there
 * alone counts as one long: see aspen_bucket_check. */
static inline const char *aspen_slopes_check(const struct aspen_exec_plan *p, struct aspen_operand *shortest) {
  const struct aspen_plan_header *h = p->view.header;
  int64_t less, value;
  for (const struct aspen_slope *s = p->slopes, *end = s + h->n_slopes; s < end; s++) {
    const int64_t *longest = aspen_slope_of(s, h, p->operands, p->params);
    if (!longest) return "a slope belongs to nothing";
    if (s->rest >= s->every) return "a slope has no steps";
    if (__builtin_mul_overflow(s->per, ((int64_t)(h->most - h->least) + s->rest) / s->every, &less) || __builtin_sub_overflow(*longest, less, &value))
      return "a slope is too steep";
    if (s->table == ASPEN_SLOPE_PARAM) continue;
    if (s->per < 0 || shortest[s->table == ASPEN_SLOPE_OFFSET ? s->index : s->index / ASPEN_RANK].dtype == ASPEN_DT_NONE)
      return "an operand's slope falls, or there is no operand";
    if (s->table != ASPEN_SLOPE_OFFSET && value < 0) return "a dimension or stride with a slope is negative at the shortest extent";
    if (s->table == ASPEN_SLOPE_DIM && value == 0 && *longest > 0) value = 1;
    *(int64_t *)aspen_slope_of(s, h, shortest, p->params) = value;
  }
  return NULL;
}

/* What holds of the operands at the longest extent (aspen_operands_check) and at the shortest holds between the two. Nothing with a slope falls as the
 * extent rises, and strides that have one are not negative: so the last byte that is touched never falls, and the first one, where axes with
 * other strides grow downwards, lies behind one of those at the two ends. */
static inline const char *aspen_bucket_check(const struct aspen_exec_plan *p) {
  struct aspen_operand *shortest = (struct aspen_operand *)malloc(p->n_operands * sizeof *shortest + 1);
  if (!shortest) return "out of memory";
  memcpy(shortest, p->operands, p->n_operands * sizeof *shortest);
  const char *why = aspen_slopes_check(p, shortest);
  if (!why) why = aspen_operands_check(p->view.header, shortest);
  free(shortest);
  return why;
}

static inline void aspen_exec_plan_free(struct aspen_exec_plan *p) {
  if (!p) return;
  free(p->op);
  free(p->request_operand);
  free(p);
}

/* Checks and prepares a mapped plan. NULL: *why says what is wrong. */
static inline struct aspen_exec_plan *aspen_exec_plan_new(const char *base, uint64_t bytes, uint32_t generation, const aspen_kernel_fn *kernels,
                                                          const char **why) {
  const struct aspen_plan_header *h = (const struct aspen_plan_header *)base;
  if ((*why = aspen_header_check(h, bytes))) return NULL;
  *why = "out of memory";
  struct aspen_exec_plan *p = (struct aspen_exec_plan *)calloc(1, sizeof *p);
  if (!p) return NULL;
  p->view = (struct aspen_plan_view){
      .generation = generation,
      .n_tiles = h->n_tiles,
      .n_initial = h->n_initial,
      .end_tile = h->end_tile,
      .least = (uint32_t)h->least,
      .most = (uint32_t)h->most,
      .request_bytes = h->request_bytes,
      .header = h,
      .tiles = (const struct aspen_tile *)(base + h->tiles),
      .children = (const uint32_t *)(base + h->children),
      .parent_counts = (const uint32_t *)(base + h->parent_counts),
      .initial = (const uint32_t *)(base + h->initial),
  };
  p->operands = (const struct aspen_operand *)(base + h->operands);
  p->ops = (const struct aspen_op *)(base + h->ops);
  p->params = (const int64_t *)(base + h->params);
  p->slopes = (const struct aspen_slope *)(base + h->slopes);
  p->blobs = base + h->blobs;
  p->n_operands = h->n_operands;
  p->n_weights = h->n_weights;
  if ((*why = aspen_operands_check(h, p->operands)) || (*why = aspen_ops_check(h, p->ops)) || (*why = aspen_tiles_check(h, p))) goto bad;
  if (h->most && (*why = aspen_bucket_check(p))) goto bad;
  *why = "out of memory";
  p->op = (struct aspen_exec_op *)calloc(h->n_ops ? h->n_ops : 1, sizeof *p->op);
  p->request_operand = (uint32_t *)calloc(h->n_operands ? h->n_operands : 1, sizeof(uint32_t));
  if (!p->op || !p->request_operand) goto bad;
  for (uint32_t i = 0; i < h->n_ops; i++) {
    const struct aspen_op *op = &p->ops[i];
    struct aspen_exec_op *e = &p->op[i];
    e->kernel = op->kernel;
    e->fn = kernels[op->kernel];
    e->operand = op->operand;
    e->param = op->param;
    e->n_inputs = op->n_inputs;
    e->expected_ns = op->cost_ns > 0 && op->cost_ns < 1e12f ? op->cost_ns : 0; /* a plan may say anything */
    int calls = op->kernel != ASPEN_K_JOIN && op->kernel != ASPEN_K_END && op->kernel != ASPEN_K_OPAQUE;
    if (!calls) e->fn = NULL;
    else if (!e->fn) {
      *why = "this build has no such kernel";
      goto bad;
    } else {
      const struct aspen_operand *out = &p->operands[op->operand];
      e->rank = out->rank;
      for (uint32_t k = ASPEN_TILE_AXES; k < out->rank; k++) e->whole[k - ASPEN_TILE_AXES] = out->dims[k];
    }
  }
  for (uint32_t i = 0; i < h->n_operands; i++)
    if (p->operands[i].dtype != ASPEN_DT_NONE && p->operands[i].space == ASPEN_SPACE_REQUEST) p->request_operand[p->n_request++] = i;
  *why = NULL;
  return p;
bad:
  aspen_exec_plan_free(p);
  return NULL;
}

/* ------------------------------------------------------------------------------------------------ instances */

static inline const struct aspen_exec_plan *aspen_exec_plan_of(const struct aspen_exec_instance *e) {
  return (const struct aspen_exec_plan *)e->view.plan;
}

static inline void aspen_exec_instance_free(struct aspen_exec_instance *e) {
  if (!e) return;
  free(e->args);
  free(e->own);
  free(e);
}

/* The parts of `own`. */
static inline int64_t *aspen_own_dims(const struct aspen_exec_instance *e) { return e->own; }
static inline int64_t *aspen_own_strides(const struct aspen_exec_instance *e) { return e->own + (size_t)aspen_exec_plan_of(e)->n_operands * ASPEN_RANK; }
static inline int64_t *aspen_own_offsets(const struct aspen_exec_instance *e) { return e->own + (size_t)aspen_exec_plan_of(e)->n_operands * 2 * ASPEN_RANK; }
static inline int64_t *aspen_own_params(const struct aspen_exec_instance *e) { return aspen_own_offsets(e) + aspen_exec_plan_of(e)->n_operands; }

/* Everything that has a slope, as it is at another extent. It is made of the plan's own numbers, whatever the extent before was. Operands in the
 * request's region get their pointers in aspen_exec_move. */
static inline void aspen_exec_set_extent(struct aspen_exec_instance *e, uint32_t extent) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  uint32_t less = p->view.most - extent;
  int64_t *dims = aspen_own_dims(e), *strides = aspen_own_strides(e);
  int64_t *offsets = aspen_own_offsets(e), *params = aspen_own_params(e);
  for (const struct aspen_slope *s = p->slopes, *end = s + p->view.header->n_slopes; s < end; s++) {
    uint32_t i = s->index, axis = i % ASPEN_RANK;
    switch (s->table) {
      case ASPEN_SLOPE_DIM: dims[i] = p->operands[i / ASPEN_RANK].dims[axis] - aspen_slope_less(s, less); break;
      case ASPEN_SLOPE_STRIDE: strides[i] = p->operands[i / ASPEN_RANK].strides[axis] - aspen_slope_less(s, less); break;
      case ASPEN_SLOPE_PARAM: params[i] = p->params[i] - aspen_slope_less(s, less); break;
      case ASPEN_SLOPE_OFFSET:
        offsets[i] = p->operands[i].offset - aspen_slope_less(s, less);
        if (p->operands[i].space != ASPEN_SPACE_REQUEST) e->args[i].ptr = e->bases.at[p->operands[i].space] + offsets[i];
    }
  }
  e->extent = extent;
}

static inline int aspen_exec_own(struct aspen_exec_instance *e) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  size_t n = p->n_operands, n_params = p->view.header->n_params;
  e->own = (int64_t *)malloc((n * (2 * ASPEN_RANK + 1) + n_params + 1) * sizeof *e->own);
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
  e->extent = p->view.most;
  e->bases = *bases;
  e->args = (aspen_arg *)calloc(p->n_operands ? p->n_operands : 1, sizeof *e->args);
  if (!e->args) goto bad;
  for (uint32_t i = 0; i < p->n_operands; i++) {
    const struct aspen_operand *o = &p->operands[i];
    char *ptr = o->dtype == ASPEN_DT_NONE || o->space == ASPEN_SPACE_REQUEST ? NULL : bases->at[o->space] + o->offset;
    e->args[i] = (aspen_arg){.ptr = ptr, .dims = o->dims, .strides = o->strides, .dtype = o->dtype, .rank = o->rank};
  }
  if (p->view.most && !aspen_exec_own(e)) goto bad;
  return e;
bad:
  aspen_exec_instance_free(e);
  return NULL;
}

/* A new request: its operands lie in another region, and it may be of another extent. */
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

/* Of the request's extent, a call's box. 0: nothing is left of it. */
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

/* The call of an op's tile. 0: none of it is there at the request's extent. */
static inline int aspen_call_fill(aspen_call *c, const struct aspen_exec_instance *e, const struct aspen_exec_op *op, const struct aspen_tile *t) {
  c->args = e->args + op->operand;
  c->n_inputs = op->n_inputs;
  c->params = e->params + op->param;
  c->again = 0;
  c->apart = 0;
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

/* Most scratch that ops ask for, each with the box that stands for its tiles. */
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

#define ASPEN_SCRATCH_EXTENTS 1024 /* kernels are asked at so many extents, at all of a range that has no more */

/* Most scratch that a tile of the plan may need: each op is asked with the largest extent of its tiles along each axis. What kernels ask for need not
 * rise with the extent, so they are asked at others too; one that finds too little says so (SCRATCH). */
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
  uint32_t range = p->view.most - p->view.least;
  for (uint32_t k = 0, n = range < ASPEN_SCRATCH_EXTENTS ? range : ASPEN_SCRATCH_EXTENTS; k < n; k++) {
    aspen_exec_set_extent(e, p->view.least + (uint32_t)((uint64_t)range * k / n));
    size_t bytes = aspen_ops_scratch(e, box);
    if (bytes > most) most = bytes;
  }
  if (range) aspen_exec_set_extent(e, p->view.most);
  free(box);
  return most > h->scratch_bytes ? most : h->scratch_bytes;
}

static inline uint64_t *aspen_exec_next(const struct aspen_exec_instance *e) {
  const struct aspen_plan_header *h = e->view.plan->header;
  return (uint64_t *)((char *)e->view.missing - h->arena_counters + h->arena_next);
}

/* Scratch that a tile's kernel asks for. */
static inline size_t aspen_tile_scratch(const struct aspen_exec_instance *e, uint32_t tile) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  const struct aspen_tile *t = &p->view.tiles[tile];
  const struct aspen_exec_op *op = &p->op[t->op];
  if (!op->fn) return 0;
  aspen_call c;
  memset(&c, 0, sizeof c);
  return aspen_call_fill(&c, e, op, t) ? aspen_kernel_scratch(op->kernel, &c) : 0;
}

/* The kernel of a tile and its call; NULL: JOIN and END have none, nor has a tile that lies beyond the request's extent. */
static inline aspen_kernel_fn aspen_exec_prepare(const struct aspen_exec_instance *e, uint32_t tile, void *scratch, size_t scratch_bytes, aspen_call *c) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  const struct aspen_tile *t = &p->view.tiles[tile];
  const struct aspen_exec_op *op = &p->op[t->op];
  if (!op->fn || !aspen_call_fill(c, e, op, t)) return NULL;
  c->scratch = scratch;
  c->scratch_bytes = scratch_bytes;
  return op->fn;
}

/* Before a tile's kernel runs: what counting its children down will touch comes nearer meanwhile. After 20 µs of somebody else's data it
 * would all be a miss, one behind the other. */
static inline void aspen_exec_ahead(const struct aspen_exec_instance *e, uint32_t tile) {
  const struct aspen_instance_view *v = &e->view;
  const struct aspen_tile *t = &v->plan->tiles[tile];
  const uint32_t *child = v->plan->children + t->children;
  ASPEN_FOR_RECOVERY
  __builtin_prefetch(&v->executed[tile], 1);
  for (uint32_t k = 0; k < t->n_children; k++) {
    __builtin_prefetch(&v->missing[child[k]], 1);
    __builtin_prefetch(&v->plan->tiles[child[k]]);
  }
}

/* Does the plan's expectation of a tile's time fit this request? It is of the whole box. */
static inline int aspen_exec_expected(const struct aspen_exec_instance *e) { return !e->own || e->extent == e->view.plan->most; }

/* Runs a tile's kernel. `again`: as in aspen_call. Returns enum aspen_error. */
static inline int aspen_exec_tile(const struct aspen_exec_instance *e, uint32_t tile, int again, void *scratch, size_t scratch_bytes) {
  aspen_call c;
  aspen_kernel_fn run = aspen_exec_prepare(e, tile, scratch, scratch_bytes, &c);
  c.again = again;
  return run ? run(&c) : ASPEN_E_OK;
}

#endif
