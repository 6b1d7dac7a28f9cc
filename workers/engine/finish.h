/* Steps after a tile was executed: it is marked, its children are counted down, and the tile to follow is chosen
 * (docs/protocol/complete.md).
 *
 * The order is that of I1 and I2. The output is written first. Then the flag is stored with release, and the children are counted down with
 * acquire-release.
 */
#ifndef ASPEN_FINISH_H
#define ASPEN_FINISH_H
#include "complete.h"
#include "engine/push.h"
#include "engine/state.h"

/* Ends a request. The client that is woken may take this core before the call returns. So the time of the thread counts, not that of the
 * clock. */
static inline void aspen_dse_complete(struct aspen_dse *d, uint32_t instance, uint32_t generation) {
  uint64_t *what = &aspen_me(&d->s)->schedule_ticks, before = aspen_thread_ns();
  aspen_dse_lap(d, what);
  aspen_complete(&d->s, instance, generation);
  d->lap = aspen_ticks();
  aspen_stat_add(what, ((aspen_thread_ns() - before) << 32) / (d->s.control->signals.tick_ns_q32 | 1));
}

/* ------------------------------------------------------------------------------------------------ weights */

/* Whether weights of a plan are missing, or were. Then results computed with them say nothing (docs/protocol/borrow.md, "Weights in
 * files"). */
static inline int aspen_dse_torn(const struct aspen_dse *d, const struct aspen_plan *plan) {
  for (uint32_t k = 0; k < plan->n_weights; k++) {
    const struct aspen_mapping *m = &d->s.segment[plan->weights[k]];
    struct aspen_data_head *head = (struct aspen_data_head *)m->base;
    /* Where its page is missing the mark becomes 0, and `torn` is set. */
    if (head && head->marked && (*(volatile uint64_t *)(m->base + m->bytes - 8) != ASPEN_LAYOUT_HASH || aspen_load_seq(&head->torn))) {
      aspen_store_seq(&head->torn, 1);
      return 1;
    }
  }
  return 0;
}

/* Looks at a plan's weights before END is marked, because recovery answers a request whose END is. Missing weights may be the cause of
 * whatever else has gone wrong. So the client asks for another plan, unless nobody wants the result. */
static inline void aspen_dse_look_at_weights(struct aspen_dse *d, uint32_t id) {
  struct aspen_instance *i = &d->s.control->instance[id];
  if (!aspen_dse_torn(d, &d->s.control->plan[i->plan])) return;
  d->s.drained = 1; /* The planner process is to look as well. */
  uint64_t fault = aspen_load_relaxed(&i->fault);
  if ((uint32_t)fault != ASPEN_E_CANCELLED && (uint32_t)fault != ASPEN_E_CLIENT_GONE && (uint32_t)fault != ASPEN_E_EXPIRED)
    (void)aspen_cas_seq(&i->fault, fault, (uint64_t)ASPEN_E_PLAN_GONE | (uint64_t)ASPEN_NONE << 32);
}

/* ------------------------------------------------------------------------------------------------ children */

/* Returns the tile to follow among `best` and those in `ready`, which became ready together: the first of this worker's queue share. `best`
 * then comes before all others in the batch, so that they stay in order. A JOIN (rank 0) goes first in any case: it takes no time, and
 * others wait for it. */
static inline uint64_t aspen_dse_own_share(const struct aspen_dse *d, const struct aspen_tile *tiles, struct aspen_batch *ready,
                                            uint64_t best) {
  const uint8_t depth = tiles[ASPEN_ITEM_TILE(best)].depth;
  uint32_t n = 1, k = 0, at;
  if (!tiles[ASPEN_ITEM_TILE(best)].rank) return best;
  for (uint32_t i = 0; i < ready->n; i++) n += tiles[ASPEN_ITEM_TILE(ready->item[i])].depth == depth;
  at = aspen_first_of_share(&d->s.user, n);
  if (!at) return best;
  while (tiles[ASPEN_ITEM_TILE(ready->item[k])].depth != depth || --at) k++;
  uint64_t own = ready->item[k];
  memmove(ready->item + 1, ready->item, k * sizeof *ready->item);
  memmove(ready->depth + 1, ready->depth, k * sizeof *ready->depth);
  ready->item[0] = best;
  ready->depth[0] = depth;
  return own;
}

/* Marks a tile that has been executed, or was a no-op, with its request's generation (I2). Then counts its children down (I1) and chooses
 * the tile to follow. After the last count-down nothing of the arena is touched unless a child is ready. So END cannot have been executed
 * before.
 */
static inline int aspen_dse_finish(struct aspen_dse *d, uint64_t item) {
  uint32_t id = ASPEN_ITEM_INSTANCE(item), tile = ASPEN_ITEM_TILE(item);
  const struct aspen_instance_view *v = d->s.instance[id];
  const struct aspen_tile *tiles = v->plan->tiles, *t = &tiles[tile];
  struct aspen_worker *me = aspen_me(&d->s);
  uint32_t generation = v->generation;
  uint32_t policy = aspen_stat_load(&d->s.control->signals.policy);
  int follow = policy != ASPEN_POLICY_RANDOM || (aspen_random(&d->s.user.random) & 1);
  if (tile == v->plan->end_tile) aspen_dse_look_at_weights(d, id);
  ASPEN_FOR_RECOVERY
  aspen_store_release(&v->executed[tile], generation);
  struct aspen_batch ready = {.order = aspen_dse_order(d, item)};
  uint64_t best = 0;
  uint32_t best_rank = 0;
  for (uint32_t k = 0; k < t->n_children; k++) {
    uint32_t child = v->plan->children[t->children + k];
    if (aspen_sub_acq_rel(&v->missing[child], 1) != 1) continue;
    const struct aspen_tile *c = &tiles[child];
    uint64_t it = ASPEN_ITEM(generation, id, child);
    if (follow && (!best || c->rank < best_rank)) {
      if (best) aspen_batch_add(&ready, best, tiles[ASPEN_ITEM_TILE(best)].depth);
      best = it;
      best_rank = c->rank;
    } else {
      aspen_batch_add(&ready, it, c->depth);
    }
  }
  if (best && ready.n && d->s.user.share && policy == ASPEN_POLICY_FIFO)
    best = aspen_dse_own_share(d, tiles, &ready, best);
  aspen_stat_add(&me->tiles, 1);
  ASPEN_FOR_RECOVERY
  aspen_stat_store(&me->current, 0);
  d->follow = best;
  if (best) aspen_stat_add(&me->follows, 1);
  if (tile == v->plan->end_tile) aspen_dse_complete(d, id, generation);
  return aspen_dse_push(d, &ready);
}

#endif
