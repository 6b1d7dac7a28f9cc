/* How a DSE stands still while recovery rebuilds what a dead worker left (docs/protocol/recover.md).
 *
 * The DSE drops all local state, says so, and touches nothing shared until the epoch is even again (I7, I8).
 */
#ifndef ASPEN_EPOCH_H
#define ASPEN_EPOCH_H
#include "engine/state.h"
#include "futex.h"
#include "system/descriptors.h"

/* Drops the tile and the items that the DSE holds. Recovery queues those tiles again and counts everything anew. */
static inline void aspen_dse_drop(struct aspen_dse *d) {
  d->follow = d->opaque = 0;
  d->held.n = 0;
  d->s.seed.instance = 0;
  d->holds = d->works_for = 0; /* recovery counts anew */
  d->looking = 0; /* aspen_epoch_end resets the counts of spinners and sleepers */
  d->gap = ASPEN_GAP_NONE;
}

static inline void aspen_dse_epoch(struct aspen_dse *d) {
  struct aspen_signals *g = &d->s.control->signals;
  aspen_dse_drop(d);
  uint64_t stopped = aspen_ticks();
  if (aspen_tracing(&d->s.trace)) aspen_note_idle_end(&d->s.trace, stopped);
  for (;;) {
    uint32_t epoch = aspen_load_acquire(&g->epoch);
    if (!(epoch & 1)) {
      d->s.user.epoch = epoch;
      d->lap = aspen_ticks();
      if (aspen_tracing(&d->s.trace)) aspen_note(&d->s.trace, ASPEN_TRACE_STOP, 0, 0, stopped, d->lap);
      return;
    }
    aspen_store_release(&aspen_me(&d->s)->parked, epoch);
    if (d->told >= 0) aspen_event_tell(d->told); /* This comes after the store: who hears of it finds it. */
    aspen_futex_wait(&g->epoch, epoch, ASPEN_FOREVER);
  }
}

#endif
