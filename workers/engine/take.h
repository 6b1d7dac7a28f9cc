/* Chooses the tile that a DSE runs next (docs/protocol/pool.md, "Age", "Classes"; docs/protocol/hints.md, "Heed").
 *
 * An older request's tile goes first, wherever it waits. Then comes the tile to follow, then the own row's best, then another row's. A
 * filter says which tiles a search takes. It is passed by value, so no search changes the filter of the next one.
 */
#ifndef ASPEN_TAKE_H
#define ASPEN_TAKE_H
#include "engine/advice.h"
#include "engine/classes.h"
#include "engine/idle.h"
#include "engine/pace.h"
#include "engine/push.h"
#include "engine/state.h"

static inline void aspen_dse_note_taken(struct aspen_dse *d, uint32_t came, uint32_t from) {
  d->s.trace.came = came;
  d->s.trace.from = from;
}

/* ------------------------------------------------------------------------------------------------ other rows */

/* The row, other than the own one, whose oldest request is older than `order` and than any other row's. ASPEN_NONE: there is none. A single
 * request has no older one, and nobody's line is looked at. */
static inline uint32_t aspen_dse_older(const struct aspen_dse *d, uint64_t order) {
  uint32_t found = ASPEN_NONE;
  if (aspen_running_all(aspen_load_relaxed(&d->s.control->claim.running)) < 2) return found;
  for (uint32_t k = 0; k < d->n_victims; k++) {
    const struct aspen_row *row = &d->s.control->row[d->victim[k]];
    uint64_t first = aspen_load_relaxed(&row->first);
    if (!first || first >= order || first == d->vain || !aspen_dse_may_take(d, row)) continue;
    found = d->victim[k];
    order = first;
  }
  return found;
}

/* Takes a tile of another row. The result is ASPEN_EMPTY also when its lock is held: a thief does not wait. */
static inline int aspen_dse_steal(struct aspen_dse *d, struct aspen_filter filter, uint32_t row, uint64_t *item) {
  int r = aspen_pool_pop(&d->s.control->row[row], &d->s.user, filter, 1, item);
  if (r != ASPEN_OK) return r == ASPEN_BUSY ? ASPEN_EMPTY : r;
  aspen_stat_add(&aspen_me(&d->s)->steals, 1);
  if (aspen_tracing(&d->s.trace)) aspen_dse_note_taken(d, ASPEN_TRACE_STOLEN, row);
  return r;
}

/* Takes a tile of another row's oldest request. */
static inline int aspen_dse_steal_older(struct aspen_dse *d, struct aspen_filter filter, uint32_t row, uint64_t *item) {
  const uint64_t first = aspen_load_relaxed(&d->s.control->row[row].first);
  int r = aspen_dse_steal(d, filter, row, item);
  if (r == ASPEN_EMPTY && filter.advice) aspen_dse_in_vain(d, first);
  return r;
}

/* Takes a tile of the own row, else of another one, nearest first. */
static inline int aspen_dse_pop(struct aspen_dse *d, struct aspen_filter filter, uint64_t *item) {
  int r = aspen_pool_pop(aspen_own_row(&d->s), &d->s.user, filter, 0, item);
  if (aspen_tracing(&d->s.trace)) aspen_dse_note_taken(d, ASPEN_TRACE_OWN, d->s.row);
  for (uint32_t k = 0; k < d->n_victims && r == ASPEN_EMPTY; k++) {
    const struct aspen_row *row = &d->s.control->row[d->victim[k]];
    if (aspen_row_offers(row, filter) && aspen_dse_may_take(d, row)) r = aspen_dse_steal(d, filter, d->victim[k], item);
  }
  return r;
}

/* ------------------------------------------------------------------------------------------------ the best tile */

/* Whether the tile to follow, of a request of this order, goes before all others. `first` is the order of the own row's oldest request. */
static inline int aspen_dse_goes_on(struct aspen_dse *d, struct aspen_filter filter, uint64_t order, uint64_t first) {
  return aspen_takes(filter, order) && aspen_dse_follows(d, filter.advice, order) && (!first || first >= order || first == d->vain) &&
         aspen_dse_older(d, order) == ASPEN_NONE;
}

/* Takes the best of the tiles that the filter lets through. An older request's goes before a younger one's, wherever it waits. */
static inline int aspen_dse_best(struct aspen_dse *d, struct aspen_filter filter, uint64_t *item) {
  struct aspen_row *own = aspen_own_row(&d->s);
  uint64_t first = aspen_load_relaxed(&own->first);
  if (d->follow) {
    uint64_t order = aspen_dse_order(d, d->follow);
    if (aspen_dse_goes_on(d, filter, order, first)) {
      *item = d->follow;
      d->follow = 0;
      if (aspen_tracing(&d->s.trace)) aspen_dse_note_taken(d, ASPEN_TRACE_FOLLOWED, d->s.row);
      return ASPEN_OK;
    }
    int r = aspen_dse_put_back(d);
    if (r) return r;
    first = first && first < order ? first : order;
  }
  if (aspen_dse_leaves(d)) {
    if (!d->called && aspen_load_seq(&d->s.control->idle.sleepers)) {
      d->called = 1; /* Whoever pushed the tiles saw this DSE looking for work and woke nobody. */
      aspen_dse_ring(d, 1);
    }
    return ASPEN_EMPTY;
  }
  d->left_since = 0;
  int r = ASPEN_EMPTY;
  const uint32_t older = aspen_dse_older(d, first ? first : UINT64_MAX);
  if (older != ASPEN_NONE) r = aspen_dse_steal_older(d, filter, older, item);
  return r == ASPEN_EMPTY ? aspen_dse_pop(d, filter, item) : r;
}

/* ------------------------------------------------------------------------------------------------ a turn */

/* Takes a tile of a class below `highest` at the turn of those classes. The tile to follow is put back, so that others may take it
 * meanwhile. The lowest class has every second turn, where there are two. ASPEN_EMPTY: they have no ready tile, and the turn passes. */
static inline int aspen_dse_lend(struct aspen_dse *d, uint32_t highest, uint64_t *item) {
  int r = aspen_dse_put_back(d);
  if (r) return r;
  d->lent_lowest = !d->lent_lowest;
  r = aspen_dse_pop(d, (struct aspen_filter){.from = highest + 1 + d->lent_lowest}, item);
  if (r == ASPEN_OK) {
    d->owed_per_ns = -ASPEN_LENT;
    aspen_stat_add(&aspen_me(&d->s)->lent, 1);
  } else {
    d->owed_ns = -aspen_dse_turn_ns(d);
  }
  return r;
}

/* Takes the best of the tiles that hints leave to this DSE, of the highest class alone: hints decide nothing between classes. If there is
 * none, takes the best of all that the filter lets through without hints. */
static inline int aspen_dse_hinted(struct aspen_dse *d, struct aspen_filter filter, uint32_t highest, uint64_t *item) {
  const struct aspen_filter hinted = {.before = highest + 1, .advice = filter.advice};
  const struct aspen_filter all = {.before = filter.before};
  const uint64_t first = aspen_load_relaxed(&aspen_own_row(&d->s)->first);
  int r = aspen_dse_best(d, hinted, item);
  if (r == ASPEN_OK && first && first < aspen_dse_order(d, *item)) aspen_dse_in_vain(d, first);
  if (r == ASPEN_EMPTY) r = aspen_dse_best(d, all, item);
  if (r == ASPEN_OK || r == ASPEN_EMPTY) aspen_dse_settle(d, filter.advice, r == ASPEN_OK ? *item : 0);
  return r;
}

/* Takes the tile to run next. ASPEN_EMPTY: there is none, or those that are there are held back. */
static inline int aspen_dse_take(struct aspen_dse *d, uint64_t *item) {
  const uint64_t running = aspen_load_relaxed(&d->s.control->claim.running);
  const uint32_t highest = running ? aspen_running_first(running) : 0;
  struct aspen_advice advice;
  struct aspen_filter filter = {.advice = aspen_dse_heed(d, running, &advice)};
  const int turn = aspen_dse_classes(d, running, highest);
  filter.before = aspen_dse_limit(d, highest);
  int r = turn ? aspen_dse_lend(d, highest, item) : ASPEN_EMPTY;
  if (r != ASPEN_EMPTY) return r;
  r = filter.advice ? aspen_dse_hinted(d, filter, highest, item) : aspen_dse_best(d, filter, item);
  if (d->shared_at && (r == ASPEN_OK || r == ASPEN_EMPTY)) aspen_dse_took(d, highest, r == ASPEN_OK ? *item : 0);
  return r;
}

#endif
