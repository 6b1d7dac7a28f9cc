/* The loop that every worker runs (Algorithm 1 of ASPEN; protocol and proofs in docs/protocol).
 *
 *     Take a tile (take.h).
 *     Execute it, mark it executed, count its children down (execute.h, finish.h).
 *     Keep the ready child of lowest rank, and push the others together (push.h).
 *
 * aspen_dse_run() comes back for the work of Python: enum aspen_reason (state.h). This header brings in all of the engine.
 */
#ifndef ASPEN_LOOP_H
#define ASPEN_LOOP_H
#include "claim.h"
#include "engine/advice.h"
#include "engine/epoch.h"
#include "engine/execute.h"
#include "engine/idle.h"
#include "engine/membership.h"
#include "engine/opaque.h"
#include "engine/push.h"
#include "engine/setup.h"
#include "engine/take.h"

/* Returns the request to the DSE from outside, a reason to leave the loop. 0: nothing. */
static inline int aspen_dse_asked(struct aspen_dse *d) {
  const struct aspen_signals *g = &d->s.control->signals;
  uint32_t command = aspen_load_relaxed(&aspen_me(&d->s)->command);
  if (aspen_load_relaxed(&g->stop) || command == ASPEN_COMMAND_STOP) return ASPEN_REASON_STOP;
  if (aspen_load_acquire(&g->attach_seq) != d->s.user.attached) return ASPEN_REASON_ATTACH;
  if (d->s.drained) {
    d->s.drained = 0;
    return ASPEN_REASON_DRAINED;
  }
  return command == ASPEN_COMMAND_LEAVE ? ASPEN_REASON_LEAVE : 0;
}

/* Starts requests that clients have submitted, and pushes tiles that could not be pushed before. */
static inline int aspen_dse_admit(struct aspen_dse *d) {
  int r = ASPEN_OK;
  if (d->held.n) r = aspen_dse_push(d, &d->held);
  if (r == ASPEN_OK && d->s.seed.instance) r = aspen_seed(&d->s);
  if (r) return r;
  aspen_collect(&d->s);
  return aspen_claim_due(&d->s) ? aspen_claim(&d->s) : ASPEN_OK;
}

/* Prepares every way out of the loop. A wake-up that this DSE consumed is handed on, because it will not look any more. */
static inline enum aspen_reason aspen_dse_exit(struct aspen_dse *d, enum aspen_reason reason) {
  struct aspen_idle *idle = &d->s.control->idle;
  aspen_dse_stand(d, 0, 0);
  aspen_dse_put_back(d); /* On ASPEN_ATTACH it stays in `held` and is pushed when the loop is entered again. */
  aspen_dse_lap(d, d->looking ? &aspen_me(&d->s)->search_ticks : &aspen_me(&d->s)->schedule_ticks);
  if (aspen_tracing(&d->s.trace)) {
    aspen_note_idle_end(&d->s.trace, d->lap);
    if (reason == ASPEN_REASON_OPAQUE) aspen_note_in_hand(&d->s.trace, d->opaque, d->lap);
    else d->s.trace.away = d->lap;
  }
  if (d->looking) {
    d->looking = 0;
    aspen_sub_seq(&idle->spinners, 1);
  }
  aspen_dse_idle(d, 0);
  if (aspen_load_seq(&idle->sleepers) && aspen_dse_work(d)) aspen_dse_ring(d, 1);
  return reason;
}

static inline enum aspen_reason aspen_dse_run(struct aspen_dse *d) {
  struct aspen_worker *me = aspen_me(&d->s);
  d->lap = aspen_ticks();
  if (aspen_tracing(&d->s.trace)) aspen_note_back(&d->s.trace, d->lap);
  for (;;) {
    uint64_t item = 0;
    ASPEN_FOR_RECOVERY
    aspen_stat_add(&me->heartbeat, 1);
    ASPEN_FOR_RECOVERY
    if (aspen_load_acquire(&d->s.control->signals.epoch) != d->s.user.epoch) aspen_dse_epoch(d);
    int asked = aspen_dse_asked(d);
    if (asked == ASPEN_REASON_LEAVE && (aspen_dse_put_back(d) || aspen_dse_admit(d) || aspen_dse_leave(d)))
      continue; /* An epoch or an announcement came: the top of the loop sees to it, and then this DSE leaves. */
    if (asked) return aspen_dse_exit(d, (enum aspen_reason)asked);
    int r = aspen_dse_admit(d);
    if (r == ASPEN_OK) r = aspen_dse_take(d, &item);
    if (r == ASPEN_OK) {
      if (d->looking) aspen_dse_found(d);
      r = aspen_dse_execute(d, item);
      if (r == ASPEN_BUSY) return aspen_dse_exit(d, ASPEN_REASON_OPAQUE);
    } else if (r == ASPEN_EMPTY && !d->s.drained) { /* Drained requests are announced first: nobody wakes this DSE for them. */
      aspen_dse_rest(d);
    }
  }
}

#endif
