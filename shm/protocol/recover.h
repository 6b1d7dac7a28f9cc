/* After a worker has died: the ready pool and the counters of running requests are made anew from the executed flags
 * (docs/protocol/recover.md).
 *
 *     aspen_epoch_begin()                        every DSE parks at its next look
 *     until no row is aspen_epoch_late()         each is parked at this epoch, or has been reaped (I7)
 *     aspen_recover()                            nobody else touches control memory or an arena meanwhile; clients touch only what is theirs
 *     aspen_epoch_end()                          they go on
 *
 * All by the planner process's one thread. Recovery can itself be interrupted by nothing but the planner process's own death, which ends the
 * workers too.
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

/* Mappings that `aspen_recover` reads through are indexed by segment id, as in a station. With `restart` those of free instances too. */
struct aspen_recovery {
  struct aspen_station station; /* row: any; its `instance` and `plan` are not used */
  uint64_t **next;              /* [ASPEN_MAX_INSTANCES] */
  uint32_t row;                 /* the next one to push into */
  uint32_t continued, restarted, completed, resubmitted;
};

/* An instance's arrays; 0: it is not mapped. */
struct aspen_recovery_view {
  const struct aspen_plan_header *header;
  const struct aspen_tile *tiles;
  const uint32_t *begin, *parents;
  uint32_t *missing, *executed;
};

static inline int aspen_recovery_view(struct aspen_recovery *r, uint32_t id, struct aspen_recovery_view *v) {
  const struct aspen_control *c = r->station.control;
  const struct aspen_instance *i = &c->instance[id];
  const char *plan = aspen_mapped(&r->station, c->plan[i->plan].segment, ASPEN_ROLE_PLAN);
  char *arena = aspen_mapped(&r->station, i->arena, ASPEN_ROLE_ARENA);
  if (!plan || !arena) return 0;
  const struct aspen_plan_header *h = (const struct aspen_plan_header *)plan;
  *v = (struct aspen_recovery_view){.header = h,
                                    .tiles = (const struct aspen_tile *)(plan + h->tiles),
                                    .begin = (const uint32_t *)(plan + h->parent_begin),
                                    .parents = (const uint32_t *)(plan + h->parents),
                                    .missing = (uint32_t *)(arena + h->arena_counters),
                                    .executed = (uint32_t *)(arena + h->arena_executed)};
  r->next[id] = (uint64_t *)(arena + h->arena_next);
  return 1;
}

/* Nothing in rows and locks can be trusted, and nothing of it is needed (I3). Every client is looked at: a bit of `waiting`, or one of the
 * doorbell's on its way there, may have been in the dead worker's hand. */
static inline void aspen_recover_pool(struct aspen_control *c) {
  for (uint32_t r = 0; r < c->signals.n_rows; r++) {
    aspen_store_relaxed(&c->row[r].lock, 0);
    aspen_store_relaxed(&c->row[r].first, 0);
    aspen_store_relaxed(&c->row[r].busy, 0);
    aspen_stat_store(&c->row[r].waiting, 0);
  }
  aspen_store_relaxed(&c->claim.lock, 0);
  for (unsigned w = 0; w < ASPEN_MAX_CLIENTS / 64; w++) aspen_store_relaxed(&c->claim.waiting[w], ~(uint64_t)0);
  aspen_store_relaxed(&c->claim.wanted, aspen_load_relaxed(&c->claim.done) + 1);
}

/* Pushes a tile into the rows of workers that run, in turn; into any row if there is none: a closed row's tiles are anybody's. */
static inline void aspen_recover_push(struct aspen_recovery *r, uint64_t order, uint64_t item, uint8_t depth) {
  struct aspen_control *c = r->station.control;
  for (uint32_t k = 0; k < c->signals.n_rows; k++) {
    r->row = (r->row + 1) % c->signals.n_rows;
    if (aspen_load_relaxed(&c->row[r->row].open)) break;
  }
  struct aspen_row *row = &c->row[r->row];
  aspen_row_put(row, aspen_row_lane(row, order), &r->station.user, item, depth);
  aspen_store_relaxed(&row->first, aspen_row_oldest(row));
}

/* The slot's word while the instance's request runs and has not been answered. */
static inline uint32_t aspen_recovery_running(const struct aspen_instance *i) { return ASPEN_SLOT_WORD(i->sequence, ASPEN_SLOT_RUNNING); }

/* END was executed: what aspen_complete() does, from wherever it was interrupted. A slot that has been answered is left alone (I9). */
static inline void aspen_recover_answer(struct aspen_recovery *r, struct aspen_instance *i, uint32_t generation) {
  uint64_t fault = aspen_load_relaxed(&i->fault);
  uint32_t error = (uint32_t)fault;
  struct aspen_client_segment *c = aspen_client_mapped(&r->station, i->client);
  if (c)
    aspen_answer(c, i->slot, aspen_recovery_running(i), error, error ? (uint32_t)(fault >> 32) : ASPEN_NONE, error ? i->needed : 0, i->started_ns);
  aspen_stat_add(&i->served, 1);
  aspen_store_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_FREE));
  r->completed++;
}

/* The claiming DSE did not get to publish the instance: its request is submitted once more. The generation is used up. */
static inline void aspen_recover_claimed(struct aspen_recovery *r, struct aspen_instance *i, uint32_t generation) {
  struct aspen_client_segment *c = aspen_client_mapped(&r->station, i->client);
  if (c)
    aspen_cas_seq(&c->slot[i->slot % ASPEN_SLOTS].word, aspen_recovery_running(i), ASPEN_SLOT_WORD(i->sequence, ASPEN_SLOT_SUBMITTED));
  aspen_store_seq(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_FREE));
  r->resubmitted++;
}

/* Did a tile set this fault, rather than somebody who wants the request to end? Executing the tile again sets it again. */
static inline int aspen_fault_of_tile(uint32_t error) {
  return (error && error < ASPEN_E_CANCELLED) || error == ASPEN_E_OPAQUE_FAILED || error == ASPEN_E_NEEDS_SPACE;
}

/* Begins anew from the request's inputs: flags of no generation (I2), and no fault that may come from what was overwritten. */
static inline void aspen_recover_restart(struct aspen_recovery *r, struct aspen_instance *i, const struct aspen_recovery_view *v) {
  memset(v->executed, 0, sizeof *v->executed * v->header->n_tiles);
  aspen_store_relaxed(&i->whole, 1);
  if (!aspen_fault_of_tile((uint32_t)aspen_load_relaxed(&i->fault))) return;
  struct aspen_client_segment *c = aspen_client_mapped(&r->station, i->client);
  if (c) aspen_store_relaxed(&c->slot[i->slot % ASPEN_SLOTS].message_bytes, 0);
  i->needed = 0;
  aspen_store_relaxed(&i->fault, 0);
}

/* Counters from flags: a tile misses the parents that have not been executed (I4: all of them); one that misses none is ready. A tile that
 * was being executed is executed again (I5, I6). */
static inline void aspen_recover_tiles(struct aspen_recovery *r, uint32_t id, uint32_t generation, const struct aspen_recovery_view *v) {
  uint64_t order = r->station.control->instance[id].order;
  for (uint32_t n = 0; n < v->header->n_tiles; n++) {
    if (v->executed[n] == generation) continue;
    uint32_t lacking = 0;
    for (uint32_t k = v->begin[n]; k < v->begin[n + 1]; k++) lacking += v->executed[v->parents[k]] != generation;
    v->missing[n] = lacking;
    if (!lacking) aspen_recover_push(r, order, ASPEN_ITEM(generation, id, n), v->tiles[n].depth);
  }
}

static inline void aspen_recover_running(struct aspen_recovery *r, uint32_t id, uint32_t generation, int restart) {
  struct aspen_instance *i = &r->station.control->instance[id];
  struct aspen_recovery_view v;
  if (!aspen_recovery_view(r, id, &v)) return;
  if (!restart && v.executed[v.header->end_tile] == generation) {
    aspen_recover_answer(r, i, generation);
    return;
  }
  /* What a fault needs beside its number comes after it (aspen_fail), so it may be missing: the tile has to say it again. */
  uint32_t error = (uint32_t)aspen_load_relaxed(&i->fault);
  restart |= error == ASPEN_E_OPAQUE_FAILED || error == ASPEN_E_NEEDS_SPACE;
  if (restart) aspen_recover_restart(r, i, &v);
  /* Nobody may have looked for a cancellation: its worker was ended because it was in a tile for too long. That is not to begin once more. */
  error = aspen_unwanted(r->station.control, i, aspen_client_mapped(&r->station, i->client));
  if (error) aspen_cas_seq(&i->fault, 0, (uint64_t)error | (uint64_t)ASPEN_NONE << 32);
  aspen_recover_tiles(r, id, generation, &v);
  if (restart) r->restarted++;
  else r->continued++;
}

/* The end of a request was interrupted. With `restart` its outputs may have been overwritten: if nobody has seen them, it runs once more. */
static inline void aspen_recover_done(struct aspen_recovery *r, uint32_t id, uint32_t generation, int restart) {
  struct aspen_instance *i = &r->station.control->instance[id];
  struct aspen_client_segment *c = aspen_client_mapped(&r->station, i->client);
  if (restart && c && aspen_load_seq(&c->slot[i->slot % ASPEN_SLOTS].word) == aspen_recovery_running(i)) {
    aspen_store_relaxed(&i->word, ASPEN_STATE(generation, ASPEN_INSTANCE_RUNNING));
    aspen_recover_running(r, id, generation, restart);
  } else {
    aspen_recover_answer(r, i, generation);
  }
}

/* Whatever becomes of an instance: what was written over its flags must not pass for this request's, nor for a later one's. */
static inline void aspen_recover_flags(struct aspen_recovery *r, uint32_t id) {
  struct aspen_recovery_view v;
  if (aspen_recovery_view(r, id, &v)) memset(v.executed, 0, sizeof *v.executed * v.header->n_tiles);
}

/* Everything between a client and the DSEs that may have been in a dead worker's hand: marks of submissions and cancellations (a DSE takes
 * them away before it looks), wake-ups for the end of a request (a DSE stores the word before it wakes). Once too often does no harm. */
static inline void aspen_recover_client(struct aspen_client_segment *c) {
  for (uint32_t k = 0; k < ASPEN_SLOTS; k++) {
    uint32_t word = aspen_load_seq(&c->slot[k].word), state = ASPEN_SLOT_STATE(word);
    uint64_t bit = (uint64_t)1 << (k % 64);
    if (state == ASPEN_SLOT_SUBMITTED) aspen_or_seq(&c->pending[k / 64], bit);
    if ((state == ASPEN_SLOT_SUBMITTED || state == ASPEN_SLOT_RUNNING) && aspen_load_relaxed(&c->slot[k].cancel) == ASPEN_SLOT_SEQUENCE(word))
      aspen_or_seq(&c->cancel[k / 64], bit);
    if (state == ASPEN_SLOT_DONE && aspen_load_seq(&c->slot[k].waiters)) aspen_futex_wake(&c->slot[k].word, INT_MAX);
  }
  aspen_add_seq(&c->completions, 1);
  aspen_futex_wake(&c->completions, INT_MAX);
}

/* `restart`: the flags cannot be trusted either (the dead worker may have scribbled), so running requests begin anew from their inputs. */
static inline void aspen_recover(struct aspen_recovery *r, int restart) {
  struct aspen_control *c = r->station.control;
  uint64_t running = 0;
  if (restart) aspen_store_relaxed(&c->signals.faults, aspen_load_relaxed(&c->signals.faults) + 1);
  aspen_recover_pool(c);
  aspen_recover_hints(c);
  for (uint32_t id = 1; id < ASPEN_MAX_INSTANCES; id++) {
    struct aspen_instance *i = &c->instance[id];
    uint64_t word = aspen_load_acquire(&i->word);
    uint32_t generation = (uint32_t)(word >> 32);
    if (restart && (uint32_t)word != ASPEN_INSTANCE_NONE) aspen_recover_flags(r, id);
    switch ((uint32_t)word) {
      case ASPEN_INSTANCE_CLAIMED: aspen_recover_claimed(r, i, generation); break;
      case ASPEN_INSTANCE_RUNNING: aspen_recover_running(r, id, generation, restart); break;
      case ASPEN_INSTANCE_DONE: aspen_recover_done(r, id, generation, restart); break;
    }
    if ((uint32_t)aspen_load_relaxed(&i->word) == ASPEN_INSTANCE_RUNNING) running += ASPEN_RUNNING(i->class_);
  }
  aspen_store_relaxed(&c->claim.running, running);
  aspen_recover_turns(c);
  for (uint32_t k = 1; k < ASPEN_MAX_CLIENTS; k++)
    if (aspen_load_relaxed(&c->client[k].state) != ASPEN_CLIENT_FREE) {
      struct aspen_client_segment *own = aspen_client_mapped(&r->station, k);
      if (own && restart) aspen_store_relaxed(&own->faults, aspen_load_relaxed(&c->signals.faults));
      if (own) aspen_recover_client(own);
    }
}

#endif
