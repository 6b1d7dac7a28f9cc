/* After a worker has died: the ready pool and the counters of running requests are made anew from the executed flags (I3).
 *
 * Called by the planner process while the epoch is odd, when every worker either has parked at this epoch or has been reaped (I7): nobody
 * else touches control memory or an arena meanwhile, clients touch only what is theirs.
 */
#ifndef ASPEN_RECOVER_H
#define ASPEN_RECOVER_H
#include <stdlib.h>
#include <string.h>

#include "complete.h"
#include "station.h"
#include "table.h"

/* ------------------------------------------------------------------------------------------------ stopping the world */

/* Every DSE parks at its next look at the epoch; those that sleep are woken for it. Planner process; returns the epoch, which is odd. */
static inline uint32_t aspen_epoch_begin(struct aspen_control *c, struct aspen_doorbell *bell) {
  uint32_t epoch = aspen_load_relaxed(&c->signals.epoch) + 1;
  aspen_store_seq(&c->signals.epoch, epoch); /* seq: before the looks at `state` in aspen_epoch_late */
  aspen_wake_all(bell);
  return epoch;
}

/* Does this row's worker still have to park at this epoch, or to be reaped (I7)? One that joins is not waited for: it becomes RUNNING (seq) before
 * it touches the pool, then looks at the epoch (seq). So either it is seen here, or it sees the odd epoch and parks. */
static inline int aspen_epoch_late(const struct aspen_control *c, uint32_t row) {
  uint32_t state = aspen_load_seq(&c->worker[row].state);
  return (state == ASPEN_WORKER_RUNNING || state == ASPEN_WORKER_LEAVING) &&
         aspen_load_acquire(&c->worker[row].parked) != aspen_load_relaxed(&c->signals.epoch);
}

/* The world goes on. Nobody is idle: whoever parked has forgotten how it was counted. */
static inline void aspen_epoch_end(struct aspen_control *c) {
  aspen_store_relaxed(&c->idle.sleepers, 0);
  aspen_store_relaxed(&c->idle.spinners, 0);
  aspen_store_seq(&c->signals.epoch, aspen_load_relaxed(&c->signals.epoch) + 1);
  aspen_futex_wake(&c->signals.epoch, INT_MAX);
}

/* ------------------------------------------------------------------------------------------------ making anew */

/* Mappings that `aspen_recover` reads through are indexed by segment id, as in a station. */
struct aspen_recovery {
  struct aspen_station station; /* row: any; its `instance` and `plan` are not used */
  uint64_t **next;              /* [ASPEN_MAX_INSTANCES] */
  uint32_t row;                 /* the next one to push into */
  uint32_t continued, restarted, completed, resubmitted;
};

static inline const struct aspen_plan_header *aspen_recovery_plan(const struct aspen_recovery *r, uint32_t instance) {
  return (const struct aspen_plan_header *)aspen_mapped(&r->station, r->station.control->plan[r->station.control->instance[instance].plan].segment,
                                                         ASPEN_ROLE_PLAN);
}

/* Nothing in rows and locks can be trusted, and nothing of it is needed. */
static inline void aspen_recover_pool(struct aspen_control *c) {
  for (uint32_t r = 0; r < c->signals.n_rows; r++) {
    aspen_store_relaxed(&c->row[r].lock, 0);
    aspen_store_relaxed(&c->row[r].mask, 0);
  }
  aspen_store_relaxed(&c->claim.lock, 0);
  for (unsigned w = 0; w < ASPEN_MAX_CLIENTS / 64; w++) aspen_store_relaxed(&c->claim.waiting[w], ~(uint64_t)0);
  aspen_add_seq(&c->claim.wanted, 1);
}

/* Pushes a tile into the rows of workers that run, in turn; into any row if there is none: whoever comes next finds it. */
static inline void aspen_recover_push(struct aspen_recovery *r, uint64_t item, unsigned column) {
  struct aspen_control *c = r->station.control;
  for (uint32_t k = 0; k < c->signals.n_rows; k++) {
    r->row = (r->row + 1) % c->signals.n_rows;
    if (aspen_load_relaxed(&c->row[r->row].open)) break;
  }
  struct aspen_row *row = &c->row[r->row];
  aspen_store_relaxed(&row->mask, aspen_row_put(row, aspen_load_relaxed(&row->mask), &r->station.user, item, column));
}

static inline void aspen_recover_answer(struct aspen_recovery *r, struct aspen_instance *i, uint32_t generation) {
  uint64_t fault = aspen_load_relaxed(&i->fault);
  uint32_t error = (uint32_t)fault;
  struct aspen_client_segment *c = aspen_client_mapped(&r->station, i->client);
  if (c)
    aspen_answer(c, i->slot, ASPEN_SLOT_WORD(i->sequence, ASPEN_SLOT_RUNNING), error, error ? (uint32_t)(fault >> 32) : ASPEN_NONE,
                 error ? i->needed : 0, i->started_ns);
  aspen_stat_add(&i->served, 1);
  aspen_store_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_FREE));
  r->completed++;
}

/* The claiming DSE did not get to publish the instance: its request is submitted once more. */
static inline void aspen_recover_claimed(struct aspen_recovery *r, struct aspen_instance *i, uint32_t generation) {
  struct aspen_client_segment *c = aspen_client_mapped(&r->station, i->client);
  if (c)
    aspen_cas_seq(&c->slot[i->slot % ASPEN_SLOTS].word, ASPEN_SLOT_WORD(i->sequence, ASPEN_SLOT_RUNNING),
                  ASPEN_SLOT_WORD(i->sequence, ASPEN_SLOT_SUBMITTED));
  aspen_store_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_FREE));
  r->resubmitted++;
}

/* Counters from flags: a tile misses the parents that have not been executed; one that misses none is ready. */
static inline void aspen_recover_running(struct aspen_recovery *r, uint32_t id, uint32_t generation, int restart) {
  struct aspen_instance *i = &r->station.control->instance[id];
  const char *plan = (const char *)aspen_recovery_plan(r, id);
  char *arena = aspen_mapped(&r->station, i->arena, ASPEN_ROLE_ARENA);
  if (!plan || !arena) return;
  const struct aspen_plan_header *h = (const struct aspen_plan_header *)plan;
  const struct aspen_tile *tiles = (const struct aspen_tile *)(plan + h->tiles);
  const uint32_t *begin = (const uint32_t *)(plan + h->parent_begin), *parents = (const uint32_t *)(plan + h->parents);
  uint32_t *missing = (uint32_t *)(arena + h->arena_counters), *executed = (uint32_t *)(arena + h->arena_executed);
  r->next[id] = (uint64_t *)(arena + h->arena_next);
  if (restart) memset(executed, 0, sizeof *executed * h->n_tiles);
  if (aspen_load_acquire(&executed[h->end_tile]) == generation) {
    aspen_recover_answer(r, i, generation); /* I9: `word` is still RUNNING, so nobody has */
    return;
  }
  for (uint32_t n = 0; n < h->n_tiles; n++) {
    if (executed[n] == generation) continue;
    uint32_t lacking = 0;
    for (uint32_t k = begin[n]; k < begin[n + 1]; k++) lacking += executed[parents[k]] != generation;
    missing[n] = lacking;
    if (!lacking) aspen_recover_push(r, ASPEN_ITEM(generation, id, n), aspen_column(i->class_, tiles[n].depth));
  }
  if (restart) r->restarted++;
  else r->continued++;
}

/* Wakes whoever may have missed the end of a request, and marks submissions whose mark may have been lost. */
static inline void aspen_recover_client(struct aspen_client_segment *c) {
  for (uint32_t k = 0; k < ASPEN_SLOTS; k++) {
    uint32_t state = ASPEN_SLOT_STATE(aspen_load_seq(&c->slot[k].word));
    if (state == ASPEN_SLOT_SUBMITTED) aspen_or_seq(&c->pending[k / 64], (uint64_t)1 << (k % 64));
    if (state == ASPEN_SLOT_DONE && aspen_load_seq(&c->slot[k].waiters)) aspen_futex_wake(&c->slot[k].word, INT_MAX);
  }
  aspen_add_seq(&c->completions, 1);
  aspen_futex_wake(&c->completions, INT_MAX);
}

/* `restart`: the flags cannot be trusted either (the dead worker may have scribbled), so running requests begin anew from their inputs. */
static inline void aspen_recover(struct aspen_recovery *r, int restart) {
  struct aspen_control *c = r->station.control;
  aspen_recover_pool(c);
  for (uint32_t id = 1; id < ASPEN_MAX_INSTANCES; id++) {
    struct aspen_instance *i = &c->instance[id];
    uint64_t word = aspen_load_acquire(&i->word);
    uint32_t generation = (uint32_t)(word >> 32);
    switch ((uint32_t)word) {
      case ASPEN_INSTANCE_CLAIMED: aspen_recover_claimed(r, i, generation); break;
      case ASPEN_INSTANCE_RUNNING: aspen_recover_running(r, id, generation, restart); break;
      case ASPEN_INSTANCE_DONE: aspen_recover_answer(r, i, generation); break;
    }
  }
  for (uint32_t k = 1; k < ASPEN_MAX_CLIENTS; k++)
    if (aspen_load_relaxed(&c->client[k].state) != ASPEN_CLIENT_FREE) {
      struct aspen_client_segment *own = aspen_client_mapped(&r->station, k);
      if (own) aspen_recover_client(own);
    }
}

#endif
