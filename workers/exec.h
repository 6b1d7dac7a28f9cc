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
 * (shm/README.md, "Die, Recover"). */
#if defined(ASPEN_WITHOUT_RECOVERY)
#define ASPEN_FOR_RECOVERY if (0)
#else
#define ASPEN_FOR_RECOVERY
#endif

/* An op with its kernel looked up. */
struct aspen_exec_op {
  aspen_kernel_fn fn; /* NULL: JOIN, END, OPAQUE */
  const int64_t *params;
  uint32_t kernel, operand, n_inputs, rank;
  float expected_ns; /* of a tile, by the plan */
  int64_t whole[ASPEN_RANK - ASPEN_TILE_AXES]; /* length of the output's axes that tiles do not cut */
};

struct aspen_exec_plan {
  struct aspen_plan_view view; /* first: the station's table points here */
  const struct aspen_operand *operands;
  const struct aspen_op *ops;
  const char *blobs;
  struct aspen_exec_op *op;
  uint32_t *request_operand; /* operands that live in the request's region: they move with every request */
  uint32_t n_request, n_operands, n_weights;
  size_t scratch_bytes;
};

struct aspen_exec_instance {
  struct aspen_instance_view view; /* first */
  aspen_arg *args;                 /* one for each operand of the plan */
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
  static const uint8_t fewest[] = {
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
    if (op->n_outputs != outputs[k] || op->n_params != params[k]) return "an op has a wrong number of outputs or parameters";
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
      !aspen_array_fits(h->bytes, h->initial, h->n_initial, 4) || !aspen_array_fits(h->bytes, h->blobs, h->blobs_bytes, 1))
    return "an array reaches beyond the plan";
  if (h->tiles % ASPEN_LINE || h->ops % ASPEN_LINE) return "an array is misaligned";
  if (!aspen_array_fits(h->arena_bytes, h->arena_counters, h->n_tiles, 4) || !aspen_array_fits(h->arena_bytes, h->arena_executed, h->n_tiles, 4) ||
      !aspen_array_fits(h->arena_bytes, h->arena_next, h->n_tiles, 8) || h->arena_data > h->arena_bytes)
    return "an array reaches beyond the arena";
  return NULL;
}

/* ------------------------------------------------------------------------------------------------ plans */

/* The call of an op's tile. Args may belong to any instance of the plan. */
static inline void aspen_call_fill(aspen_call *c, const struct aspen_exec_op *op, const struct aspen_tile *t, const aspen_arg *args) {
  c->args = args + op->operand;
  c->n_inputs = op->n_inputs;
  c->params = op->params;
  c->again = 0;
  for (uint32_t k = 0; k < ASPEN_TILE_AXES; k++) {
    c->lo[k] = t->lo[k];
    c->hi[k] = t->hi[k];
  }
  for (uint32_t k = ASPEN_TILE_AXES; k < ASPEN_RANK; k++) {
    c->lo[k] = 0;
    c->hi[k] = op->whole[k - ASPEN_TILE_AXES];
  }
}

/* The pointer of an operand, given where each space begins. */
static inline void aspen_arg_fill(aspen_arg *a, const struct aspen_operand *o, char *const *base) {
  *a = (aspen_arg){.ptr = o->dtype == ASPEN_DT_NONE ? NULL : base[o->space] + o->offset, .dims = o->dims, .strides = o->strides, .dtype = o->dtype, .rank = o->rank};
}

/* Most scratch that a tile of the plan may need: each op is asked once, with the largest extent of its tiles along each axis. */
static inline size_t aspen_plan_scratch(const struct aspen_exec_plan *p, const aspen_arg *args) {
  const struct aspen_plan_header *h = p->view.header;
  size_t most = h->scratch_bytes;
  struct aspen_tile *box = (struct aspen_tile *)calloc(h->n_ops ? h->n_ops : 1, sizeof *box);
  if (!box) return SIZE_MAX;
  for (uint32_t i = 0; i < h->n_tiles; i++)
    for (uint32_t k = 0; k < ASPEN_TILE_AXES; k++) {
      const struct aspen_tile *t = &p->view.tiles[i];
      if (t->hi[k] - t->lo[k] > box[t->op].hi[k]) box[t->op].hi[k] = t->hi[k] - t->lo[k];
    }
  for (uint32_t i = 0; i < h->n_ops; i++)
    if (p->op[i].fn) {
      aspen_call c;
      memset(&c, 0, sizeof c);
      aspen_call_fill(&c, &p->op[i], &box[i], args);
      size_t n = aspen_kernel_scratch(p->op[i].kernel, &c);
      if (n > most) most = n;
    }
  free(box);
  return most;
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
      .request_bytes = h->request_bytes,
      .header = h,
      .tiles = (const struct aspen_tile *)(base + h->tiles),
      .children = (const uint32_t *)(base + h->children),
      .parent_counts = (const uint32_t *)(base + h->parent_counts),
      .initial = (const uint32_t *)(base + h->initial),
  };
  p->operands = (const struct aspen_operand *)(base + h->operands);
  p->ops = (const struct aspen_op *)(base + h->ops);
  p->blobs = base + h->blobs;
  p->n_operands = h->n_operands;
  p->n_weights = h->n_weights;
  if ((*why = aspen_operands_check(h, p->operands)) || (*why = aspen_ops_check(h, p->ops)) || (*why = aspen_tiles_check(h, p))) goto bad;
  *why = "out of memory";
  p->op = (struct aspen_exec_op *)calloc(h->n_ops ? h->n_ops : 1, sizeof *p->op);
  p->request_operand = (uint32_t *)calloc(h->n_operands ? h->n_operands : 1, sizeof(uint32_t));
  if (!p->op || !p->request_operand) goto bad;
  for (uint32_t i = 0; i < h->n_ops; i++) {
    const struct aspen_op *op = &p->ops[i];
    struct aspen_exec_op *e = &p->op[i];
    e->kernel = op->kernel;
    e->fn = kernels[op->kernel];
    e->params = (const int64_t *)(base + h->params) + op->param;
    e->operand = op->operand;
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

/* Where each space of an instance begins. */
struct aspen_bases { char *at[ASPEN_SPACE_WEIGHTS + ASPEN_MAX_WEIGHTS]; };

static inline void aspen_exec_instance_free(struct aspen_exec_instance *e) {
  if (!e) return;
  free(e->args);
  free(e);
}

static inline struct aspen_exec_instance *aspen_exec_instance_new(struct aspen_exec_plan *p, const struct aspen_bases *bases) {
  struct aspen_exec_instance *e = (struct aspen_exec_instance *)calloc(1, sizeof *e);
  if (!e) return NULL;
  e->args = (aspen_arg *)calloc(p->n_operands ? p->n_operands : 1, sizeof *e->args);
  if (!e->args) {
    free(e);
    return NULL;
  }
  const struct aspen_plan_header *h = p->view.header;
  char *arena = bases->at[ASPEN_SPACE_ARENA];
  e->view = (struct aspen_instance_view){
      .plan = &p->view,
      .missing = (uint32_t *)(arena + h->arena_counters),
      .executed = (uint32_t *)(arena + h->arena_executed),
  };
  for (uint32_t i = 0; i < p->n_operands; i++)
    if (p->operands[i].dtype == ASPEN_DT_NONE || p->operands[i].space != ASPEN_SPACE_REQUEST) aspen_arg_fill(&e->args[i], &p->operands[i], bases->at);
    else e->args[i] = (aspen_arg){.dims = p->operands[i].dims, .strides = p->operands[i].strides, .dtype = p->operands[i].dtype, .rank = p->operands[i].rank};
  return e;
}

static inline const struct aspen_exec_plan *aspen_exec_plan_of(const struct aspen_exec_instance *e) {
  return (const struct aspen_exec_plan *)e->view.plan;
}

/* A new request's region: its operands move there. */
static inline void aspen_exec_move(struct aspen_exec_instance *e, char *request, uint32_t generation) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  for (uint32_t k = 0; k < p->n_request; k++) {
    uint32_t i = p->request_operand[k];
    e->args[i].ptr = request + p->operands[i].offset;
  }
  e->view.request = request;
  e->view.generation = generation;
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
  aspen_call_fill(&c, op, t, e->args);
  return aspen_kernel_scratch(op->kernel, &c);
}

/* The kernel of a tile and its call; NULL: JOIN and END have none. */
static inline aspen_kernel_fn aspen_exec_prepare(const struct aspen_exec_instance *e, uint32_t tile, void *scratch, size_t scratch_bytes, aspen_call *c) {
  const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
  const struct aspen_tile *t = &p->view.tiles[tile];
  const struct aspen_exec_op *op = &p->op[t->op];
  if (!op->fn) return NULL;
  aspen_call_fill(c, op, t, e->args);
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

/* Runs a tile's kernel. `again`: as in aspen_call. Returns enum aspen_error. */
static inline int aspen_exec_tile(const struct aspen_exec_instance *e, uint32_t tile, int again, void *scratch, size_t scratch_bytes) {
  aspen_call c;
  aspen_kernel_fn run = aspen_exec_prepare(e, tile, scratch, scratch_bytes, &c);
  c.again = again;
  return run ? run(&c) : ASPEN_E_OK;
}

#endif
