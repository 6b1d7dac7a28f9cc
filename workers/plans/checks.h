/* What a worker checks of a plan before it executes tiles of it. Each check returns NULL, or what is wrong.
 *
 * The planner process has validated every plan before anyone maps it (planner/plan/validate.py). What is checked here is what would make
 * this process read or write outside its mappings. It is cheap, and a worker must not die of another part's mistake.
 */
#ifndef ASPEN_CHECKS_H
#define ASPEN_CHECKS_H
#include <stdlib.h>
#include <string.h>

#include "plans/plan.h"

static inline int aspen_array_fits(uint64_t bytes, uint64_t offset, uint64_t n, uint64_t size) {
  return offset % 8 == 0 && offset <= bytes && n <= (bytes - offset) / size;
}

/* ------------------------------------------------------------------------------------------------ operands */

/* Writes the first byte that an operand touches, and the byte after the last one, relative to its space. Returns 0 where they overflow. An
 * operand without elements touches nothing. */
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

/* Each operand lies within its space. */
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

/* ------------------------------------------------------------------------------------------------ ops and tiles */

/* Each op names a kernel of this build, and has as many operands and parameters as the kernel takes. */
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

/* Each tile lies within its op's output and names tiles of the plan. */
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

/* ------------------------------------------------------------------------------------------------ header */

/* The header is one of this build, and its arrays lie within the plan and the arena. */
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
      !aspen_array_fits(h->bytes, h->values, h->n_values, sizeof(struct aspen_value)) ||
      !aspen_array_fits(h->bytes, h->numbers, h->n_numbers, sizeof(struct aspen_number)))
    return "an array reaches beyond the plan";
  if (h->tiles % ASPEN_LINE || h->ops % ASPEN_LINE) return "an array is misaligned";
  if (h->n_extents > ASPEN_MAX_EXTENTS || (!h->n_extents && (h->n_values || h->n_numbers))) return "no range of extents";
  for (uint32_t k = 0; k < ASPEN_MAX_EXTENTS; k++) {
    uint32_t least = h->least[k], most = h->most[k];
    if (k >= h->n_extents ? least || most : !least || least > most || most > INT32_MAX) return "no range of extents";
    if (k < h->n_extents && aspen_extent(aspen_extents_word(h->most, h->n_extents), h->n_extents, k) != most) return "no range of extents";
  }
  if (!aspen_array_fits(h->arena_bytes, h->arena_counters, h->n_tiles, 4) ||
      !aspen_array_fits(h->arena_bytes, h->arena_executed, h->n_tiles, 4) ||
      !aspen_array_fits(h->arena_bytes, h->arena_next, h->n_tiles, 8) || h->arena_data > h->arena_bytes)
    return "an array reaches beyond the arena";
  if (h->n_parts > h->n_tiles || !aspen_array_fits(h->arena_bytes, h->arena_parts, h->n_parts, 8 * ASPEN_TILE_AXES) ||
      (h->n_parts && h->arena_parts < h->arena_data))
    return "parts of tiles lie outside the arena's data";
  if (h->request_kept % 4 || (h->request_kept && !aspen_array_fits(h->request_bytes, h->request_kept & ~(uint64_t)7, 1, 8)))
    return "a word of the request lies outside its region";
  return NULL;
}

#endif
