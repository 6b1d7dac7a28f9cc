/* From a mapped plan segment to a plan that tiles can be executed of: checks it, finds its tables, looks up its kernels. */
#ifndef ASPEN_LOAD_H
#define ASPEN_LOAD_H
#include <stdlib.h>

#include "plans/bucket_checks.h"
#include "plans/checks.h"
#include "plans/plan.h"

static inline void aspen_exec_plan_free(struct aspen_exec_plan *p) {
  if (!p) return;
  free(p->op);
  free(p->at_most);
  free(p->request_operand);
  free(p);
}

/* Finds the tables of a plan whose header has been checked. */
static inline void aspen_exec_plan_view(struct aspen_exec_plan *p, const char *base, uint32_t generation) {
  const struct aspen_plan_header *h = (const struct aspen_plan_header *)base;
  p->view = (struct aspen_plan_view){
      .generation = generation,
      .n_tiles = h->n_tiles,
      .n_initial = h->n_initial,
      .end_tile = h->end_tile,
      .n_extents = h->n_extents,
      .largest = aspen_extents_word(h->most, h->n_extents),
      .least = {h->least[0], h->least[1], h->least[2]},
      .most = {h->most[0], h->most[1], h->most[2]},
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
  p->values = (const struct aspen_value *)(base + h->values);
  p->numbers = (const struct aspen_number *)(base + h->numbers);
  p->blobs = base + h->blobs;
  p->n_operands = h->n_operands;
  p->n_weights = h->n_weights;
}

/* Looks up the kernel of an op that has been checked. Returns NULL, or what is wrong. */
static inline const char *aspen_exec_op_load(struct aspen_exec_op *e, const struct aspen_op *op, const struct aspen_operand *operands,
                                             const aspen_kernel_fn *kernels) {
  e->kernel = op->kernel;
  e->operand = op->operand;
  e->param = op->param;
  e->n_inputs = op->n_inputs;
  e->expected_ns = op->cost_ns > 0 && op->cost_ns < 1e12f ? op->cost_ns : 0; /* A plan may say anything. */
  if (op->kernel == ASPEN_K_JOIN || op->kernel == ASPEN_K_END || op->kernel == ASPEN_K_OPAQUE) return NULL;
  const struct aspen_operand *out = &operands[op->operand];
  e->fn = kernels[op->kernel];
  e->rank = out->rank;
  for (uint32_t k = ASPEN_TILE_AXES; k < out->rank; k++) e->whole[k - ASPEN_TILE_AXES] = out->dims[k];
  return e->fn ? NULL : "this build has no such kernel";
}

/* Checks and prepares a mapped plan. NULL: *why says what is wrong. */
static inline struct aspen_exec_plan *aspen_exec_plan_new(const char *base, uint64_t bytes, uint32_t generation,
                                                          const aspen_kernel_fn *kernels, const char **why) {
  const struct aspen_plan_header *h = (const struct aspen_plan_header *)base;
  if ((*why = aspen_header_check(h, bytes))) return NULL;
  *why = "out of memory";
  struct aspen_exec_plan *p = (struct aspen_exec_plan *)calloc(1, sizeof *p);
  if (!p) return NULL;
  aspen_exec_plan_view(p, base, generation);
  if ((*why = aspen_operands_check(h, p->operands)) || (*why = aspen_ops_check(h, p->ops)) || (*why = aspen_tiles_check(h, p))) goto bad;
  if (h->n_extents && (*why = aspen_bucket_load(p))) goto bad;
  *why = "out of memory";
  p->op = (struct aspen_exec_op *)calloc(h->n_ops ? h->n_ops : 1, sizeof *p->op);
  p->request_operand = (uint32_t *)calloc(h->n_operands ? h->n_operands : 1, sizeof(uint32_t));
  if (!p->op || !p->request_operand) goto bad;
  for (uint32_t i = 0; i < h->n_ops; i++)
    if ((*why = aspen_exec_op_load(&p->op[i], &p->ops[i], p->operands, kernels))) goto bad;
  for (uint32_t i = 0; i < h->n_operands; i++)
    if (p->operands[i].dtype != ASPEN_DT_NONE && p->operands[i].space == ASPEN_SPACE_REQUEST) p->request_operand[p->n_request++] = i;
  *why = NULL;
  return p;
bad:
  aspen_exec_plan_free(p);
  return NULL;
}

#endif
