/* A DSE without a tile looks on for a while and then sleeps on the doorbell (docs/protocol/doorbell.md, "Park").
 *
 * Pushers rely on a DSE that looks for work (idle.spinners) and wake those that sleep (idle.sleepers). The second look before the sleep,
 * aspen_dse_work(), is sequentially consistent throughout. So either it sees a push, or the pusher sees the sleeper.
 */
#ifndef ASPEN_IDLE_H
#define ASPEN_IDLE_H
#include "claim.h"
#include "doorbell.h"
#include "engine/setup.h"
#include "engine/state.h"

/* A DSE that has spun for longer, in ns, yields its core: a client may share it. */
#define ASPEN_YIELD_NS 5000
/* Pauses of the processor between two looks for work. A simulation's take as long as it likes. */
#define ASPEN_LOOK_TURNS (ASPEN_SIMULATED ? 1 : 32)

/* Says whether this worker works (0), looks for work (1) or sleeps (2). */
static inline void aspen_dse_idle(struct aspen_dse *d, uint32_t how) { aspen_stat_store(&aspen_me(&d->s)->idle, how); }

/* Whether tiles of another row may be taken. Those of a closed row always may: it has no worker, whether stealing is on or not. */
static inline int aspen_dse_may_take(const struct aspen_dse *d, const struct aspen_row *row) {
  return aspen_stat_load(&d->s.control->signals.steal) || !aspen_load_seq(&row->open);
}

/* Whether there is anything that this DSE could do. This is the second look before it sleeps. */
static inline int aspen_dse_work(const struct aspen_dse *d) {
  const struct aspen_control *c = d->s.control;
  const struct aspen_signals *g = &c->signals;
  if (aspen_load_seq(&g->epoch) != d->s.user.epoch) return 1;
  if (aspen_load_seq(&g->attach_seq) != d->s.user.attached) return 1;
  if (aspen_load_seq(&g->stop)) return 1;
  if (aspen_load_seq(&aspen_me(&d->s)->command)) return 1;
  if (aspen_load_seq(&aspen_own_row(&d->s)->first)) return 1;
  for (uint32_t k = 0; k < d->n_victims; k++) {
    const struct aspen_row *row = &c->row[d->victim[k]];
    if (aspen_load_seq(&row->first) && aspen_dse_may_take(d, row)) return 1;
  }
  return aspen_bell_pending(d->s.bell) || aspen_claim_due(&d->s);
}

/* Wakes `n` sleepers. */
static inline void aspen_dse_ring(struct aspen_dse *d, uint32_t n) {
  if (aspen_ring(d->s.bell, n)) aspen_stat_add(&aspen_me(&d->s)->wakes, 1);
}

/* The DSE begins to look for work: it is a spinner from now on. */
static inline void aspen_dse_look(struct aspen_dse *d) {
  d->looking = 1;
  aspen_dse_lap(d, &aspen_me(&d->s)->schedule_ticks);
  d->looked_since = d->lap;
  if (aspen_tracing(&d->s.trace)) aspen_note_idle(&d->s.trace, d->lap);
  aspen_dse_idle(d, 1);
  aspen_add_seq(&d->s.control->idle.spinners, 1);
  if (aspen_stat_load(&d->s.control->signals.roster) != d->roster) aspen_dse_sort_victims(d);
}

/* The DSE has found a tile and stops spinning. Pushers may have relied on it to find two tiles. So the last spinner that stops looking
 * wakes the next one when there is more. */
static inline void aspen_dse_found(struct aspen_dse *d) {
  struct aspen_idle *idle = &d->s.control->idle;
  d->looking = 0;
  aspen_dse_lap(d, &aspen_me(&d->s)->search_ticks);
  if (aspen_tracing(&d->s.trace)) aspen_note_idle_end(&d->s.trace, d->lap);
  aspen_dse_idle(d, 0);
  if (aspen_sub_seq(&idle->spinners, 1) == 1 && aspen_load_seq(&idle->sleepers) && aspen_dse_work(d)) aspen_dse_ring(d, 2);
}

/* Sleeps on the doorbell unless the second look finds work. */
static inline void aspen_dse_park(struct aspen_dse *d) {
  struct aspen_control *c = d->s.control;
  uint32_t event = aspen_park_prepare(&c->idle, d->s.bell);
  if (!aspen_dse_work(d)) {
    aspen_dse_idle(d, 2);
    aspen_stat_add(&aspen_me(&d->s)->parks, 1);
    aspen_dse_lap(d, &aspen_me(&d->s)->search_ticks);
    uint64_t asleep = d->lap;
    aspen_park_commit(d->s.bell, event);
    aspen_dse_lap(d, &aspen_me(&d->s)->sleep_ticks);
    if (aspen_tracing(&d->s.trace)) aspen_note(&d->s.trace, ASPEN_TRACE_PARK, 0, 0, asleep, d->lap);
    aspen_dse_idle(d, 1);
  } else {
    uint32_t turns = 63; /* Somebody holds the lock of what this DSE saw: let it run. */
    aspen_spin(&turns);
  }
  aspen_park_end(&c->idle);
  d->looked_since = aspen_ticks();
}

/* There is nothing to do: the DSE looks on for `spin_ns` and then sleeps. */
static inline void aspen_dse_rest(struct aspen_dse *d) {
  if (!d->looking) {
    aspen_dse_look(d);
    return;
  }
  uint64_t spun = aspen_dse_ns(d, aspen_ticks() - d->looked_since);
  if (spun >= aspen_stat_load(&d->s.control->signals.spin_ns)) {
    aspen_dse_park(d);
    return;
  }
  for (uint32_t turns = 0; turns < ASPEN_LOOK_TURNS; turns++) aspen_cpu_relax();
  if (spun > ASPEN_YIELD_NS) aspen_yield();
}

#endif
