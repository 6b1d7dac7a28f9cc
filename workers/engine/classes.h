/* How a DSE divides its time between classes of requests (docs/protocol/pool.md, "Classes").
 *
 * While a request of a higher class runs, the DSE holds back tiles of lower classes ("Hold back"). It owes those classes a share of its
 * time and lends them turns ("Lend"). Clocks decide when, and never whether. `highest` is the highest class of which a request runs.
 */
#ifndef ASPEN_CLASSES_H
#define ASPEN_CLASSES_H
#include "engine/state.h"

/* The debt at which it is the turn of lower classes: a tile of the greatest length that there should be. */
static inline int64_t aspen_dse_turn_ns(const struct aspen_dse *d) {
  const uint32_t ns = aspen_stat_load(&d->s.control->signals.preempt_ns);
  return ASPEN_LENT * (int64_t)(ns ? ns : 1000000);
}

/* Counts the cost of priorities since the last look: time in which nothing ran for a higher class, and time in which that class waited.
 */
static inline void aspen_dse_count_classes(struct aspen_dse *d, uint64_t now) {
  struct aspen_worker *me = aspen_me(&d->s);
  if (!d->shared_at) return;
  if (d->gap == ASPEN_GAP_HOLDS) aspen_stat_add(&me->held_ticks, now - d->shared_at);
  else if (d->owed_per_ns < 0) aspen_stat_add(&me->lent_ticks, now - d->shared_at);
}

/* Divides the time since the last look between the highest class and those below. Returns whether it is the turn of those below. */
static inline int aspen_dse_owes(struct aspen_dse *d, uint64_t now) {
  const int64_t most = aspen_dse_turn_ns(d);
  aspen_dse_count_classes(d, now);
  if (d->shared_at) d->owed_ns += d->owed_per_ns * (int64_t)aspen_dse_ns(d, now - d->shared_at);
  else d->owed_ns = -most;
  if (d->owed_ns > most) d->owed_ns = most;
  d->owed_per_ns = 1;
  d->shared_at = now | 1;
  return d->owed_ns >= 0;
}

/* Looks which classes run: `running` is claim.running. Returns whether it is the turn of a class below the highest. */
static inline int aspen_dse_classes(struct aspen_dse *d, uint64_t running, uint32_t highest) {
  if (!aspen_running_below(running, highest)) {
    if (d->shared_at) aspen_dse_count_classes(d, aspen_ticks());
    d->gap = ASPEN_GAP_NONE;
    d->shared_at = 0;
    return 0;
  }
  const uint64_t now = aspen_ticks();
  const int turn = aspen_dse_owes(d, now);
  const uint32_t preempt_ns = aspen_stat_load(&d->s.control->signals.preempt_ns);
  if (d->gap == ASPEN_GAP_HOLDS && aspen_dse_ns(d, now - d->gap_since) >= preempt_ns) d->gap = ASPEN_GAP_OVER;
  return turn;
}

/* The class before which this DSE takes tiles. 0: it takes all, because one class runs or the gap is over. */
static inline uint32_t aspen_dse_limit(const struct aspen_dse *d, uint32_t highest) {
  return d->shared_at && d->gap != ASPEN_GAP_OVER ? highest + 1 : 0;
}

/* The DSE has taken `item` while requests of several classes run. 0: it found none. A tile that a lower class gets after a gap is not lent:
 * the highest class does not miss the time. */
static inline void aspen_dse_took(struct aspen_dse *d, uint32_t highest, uint64_t item) {
  if (item) {
    if (aspen_order_class(aspen_dse_order(d, item)) > highest) d->owed_per_ns = 0;
    else d->gap = ASPEN_GAP_NONE;
  } else if (d->gap == ASPEN_GAP_NONE) {
    d->gap = ASPEN_GAP_HOLDS;
    d->gap_since = d->shared_at;
    aspen_stat_add(&aspen_me(&d->s)->held, 1);
  }
}

#endif
