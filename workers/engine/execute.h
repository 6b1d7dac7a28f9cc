/* How a tile is executed, from the item to the call of its kernel (docs/protocol/complete.md).
 *
 * Operands come from plans/call.h, which relies on the segments that were mapped before the loop ran. The steps after the kernel are in
 * finish.h. A tile that Python executes leaves the loop and comes back in opaque.h.
 */
#ifndef ASPEN_EXECUTE_H
#define ASPEN_EXECUTE_H
#include "complete.h"
#include "engine/finish.h"
#include "engine/pace.h"
#include "engine/state.h"
#include "plans/call.h"

/* Records a tile before its flag is stored and its children are counted down. So whoever has seen a request's answer finds all of its tiles
 * recorded. A tile whose worker dies in between is executed again, and recorded again. `begin` is 0 where nothing was called. */
static inline void aspen_dse_note(struct aspen_dse *d, uint64_t item, uint64_t begin, uint32_t flags) {
  struct aspen_recorder *t = &d->s.trace;
  uint64_t end = begin ? d->lap : aspen_ticks();
  aspen_note(t, ASPEN_TRACE_TILE | t->came << 8 | flags, t->from, item, begin ? begin : end, end);
  if (begin) aspen_note_in_hand(t, 0, 0);
}

/* ------------------------------------------------------------------------------------------------ scratch */

/* With 0 kernels look at nothing that a tile before left in scratch memory, and no DSE remembers which tile that was. */
#ifndef ASPEN_KEEPS_SCRATCH
#define ASPEN_KEEPS_SCRATCH 1
#endif

/* Whether scratch memory is as a tile of this op and request left it (`aspen_call.again`). */
static inline int aspen_dse_again(const struct aspen_dse *d, uint32_t instance, uint32_t generation, uint32_t op) {
  return ASPEN_KEEPS_SCRATCH && d->scratch_of == instance && d->scratch_generation == generation && d->scratch_op == op;
}

static inline void aspen_dse_used_scratch(struct aspen_dse *d, uint32_t instance, uint32_t generation, uint32_t op) {
  if (!ASPEN_KEEPS_SCRATCH) return;
  d->scratch_of = instance;
  d->scratch_generation = generation;
  d->scratch_op = op;
}

/* ------------------------------------------------------------------------------------------------ kernel */

/* Fetches what counting down the tile's children will touch, while its kernel runs. After 20 µs of somebody else's data all of it would be
 * a cache miss, one behind the other. */
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

/* Calls the kernel of a tile, or of a part of it, if it has one. Returns enum aspen_error. `began` becomes the time of the call. */
static inline int aspen_dse_call(struct aspen_dse *d, uint64_t item, const struct aspen_exec_instance *e, uint32_t op, const uint32_t *part,
                                 uint64_t *began) {
  uint32_t id = ASPEN_ITEM_INSTANCE(item), tile = ASPEN_ITEM_TILE(item), generation = e->view.generation;
  struct aspen_worker *me = aspen_me(&d->s);
  aspen_call call;
  aspen_kernel_fn kernel = aspen_exec_prepare(e, tile, d->scratch, d->scratch_bytes, &call);
  if (!kernel || (part && !aspen_call_cut(&call, part))) return ASPEN_E_OK;
  call.again = aspen_dse_again(d, id, generation, op);
  call.apart = d->apart;
  call.part = part != NULL;
  aspen_exec_ahead(e, tile);
  aspen_dse_lap(d, &me->schedule_ticks);
  *began = d->lap;
  if (aspen_tracing(&d->s.trace)) aspen_note_in_hand(&d->s.trace, item, *began);
  int error = kernel(&call);
  aspen_dse_used_scratch(d, error ? ASPEN_NONE : id, generation, op);
  aspen_dse_lap(d, &me->kernel_ticks);
  if (aspen_exec_expected(e) && !part) d->expected_ns += aspen_exec_plan_of(e)->op[op].expected_ns;
  else aspen_dse_unpaced(d, d->lap - *began);
  if (d->expected_ns >= ASPEN_PACE_NS) aspen_dse_pace(d);
  return error;
}

/* Executes a tile and counts its children down. ASPEN_BUSY: the tile is for Python. ASPEN_EMPTY: its request has ended. */
static inline int aspen_dse_execute(struct aspen_dse *d, uint64_t item) {
  uint32_t id = ASPEN_ITEM_INSTANCE(item);
  struct aspen_instance *i = &d->s.control->instance[id];
  struct aspen_exec_instance *e = (struct aspen_exec_instance *)d->s.instance[id];
  uint64_t word = aspen_load_acquire(&i->word);
  uint32_t generation = (uint32_t)(word >> 32);
  if ((uint32_t)word != ASPEN_INSTANCE_RUNNING || (generation & 0xffff) != ASPEN_ITEM_GENERATION(item)) return ASPEN_EMPTY;
  if (e->view.generation != generation) aspen_exec_move(e, d->s.segment[i->data].base + i->offset, generation, i->extent);
  struct aspen_worker *me = aspen_me(&d->s);
  ASPEN_FOR_RECOVERY
  aspen_stat_store(&me->current, item);
  uint64_t began = 0;
  uint32_t skipped = ASPEN_TRACE_SKIPPED;
  if (aspen_overdue(i)) aspen_fail(&d->s, id, ASPEN_E_EXPIRED, ASPEN_NONE, 0, NULL, 0);
  if (!aspen_load_relaxed(&i->fault)) {
    const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
    uint32_t op = p->view.tiles[ASPEN_ITEM_TILE(item)].op;
    const uint32_t *part = aspen_exec_part(e, i, ASPEN_ITEM_TILE(item), p->op[op].kernel);
    if (!part || !aspen_part_empty(part)) {
      skipped = 0;
      if (p->op[op].kernel == ASPEN_K_OPAQUE) {
        d->opaque = item;
        return ASPEN_BUSY;
      }
      int error = aspen_dse_call(d, item, e, op, part, &began);
      if (error) {
        aspen_stat_add(&me->faults, 1);
        aspen_fail(&d->s, id, (uint32_t)error, op, 0, NULL, 0);
      }
    }
  }
  if (aspen_tracing(&d->s.trace)) aspen_dse_note(d, item, began, skipped);
  return aspen_dse_finish(d, item);
}

#endif
