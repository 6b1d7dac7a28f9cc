/* How a DSE joins those that work, and how it leaves them (docs/protocol/workers.md). */
#ifndef ASPEN_MEMBERSHIP_H
#define ASPEN_MEMBERSHIP_H
#include "engine/epoch.h"
#include "engine/state.h"

/* Opens the own row, or closes it. */
static inline int aspen_dse_open(struct aspen_dse *d, uint32_t open) {
  int r = aspen_row_lock(aspen_own_row(&d->s), &d->s.user);
  if (r) return r;
  aspen_store_seq(&aspen_own_row(&d->s)->open, open); /* seq: a leaver closes, then looks for sleepers */
  aspen_row_unlock(aspen_own_row(&d->s));
  return ASPEN_OK;
}

/* Opens the row: others seed tiles here from now on. RUNNING comes first (seq), and then a look at the epoch (seq). Either recovery sees
 * that it has to wait, or this DSE sees the odd epoch and parks before it touches the pool (I7, aspen_epoch_late). */
static inline void aspen_dse_join(struct aspen_dse *d) {
  d->lap = aspen_ticks();
  aspen_store_seq(&aspen_me(&d->s)->state, ASPEN_WORKER_RUNNING);
  do {
    if (aspen_load_seq(&d->s.control->signals.epoch) != d->s.user.epoch) aspen_dse_epoch(d);
  } while (aspen_dse_open(d, 1)); /* The lock's holder died: recovery comes. */
  if (aspen_tracing(&d->s.trace)) aspen_note_now(&d->s.trace, ASPEN_TRACE_JOIN, 0, 0);
}

/* Closes the row. Tiles left in it are anybody's: see aspen_dse_may_take(). */
static inline int aspen_dse_leave(struct aspen_dse *d) {
  aspen_store_release(&aspen_me(&d->s)->state, ASPEN_WORKER_LEAVING);
  int r = aspen_dse_open(d, 0);
  if (r == ASPEN_OK && aspen_tracing(&d->s.trace)) aspen_note_now(&d->s.trace, ASPEN_TRACE_LEAVE, 0, 0);
  return r;
}

#endif
