/* A DSE's advice: hints for it in one turn, and its own reports (docs/protocol/hints.md, "Heed").
 *
 * It says whether it holds a token, and which request it works for. Hints are a preference. Any of their words may be stale or wrong, and
 * every request ends all the same.
 */
#ifndef ASPEN_ADVICE_H
#define ASPEN_ADVICE_H
#include "engine/state.h"

/* The number of tiles for which a request is not tried again after hints advised against it. */
#define ASPEN_VAIN 8

static inline uint32_t *aspen_dse_holders(const struct aspen_dse *d) {
  return &d->s.control->hints.holders[aspen_stat_load(&aspen_me(&d->s)->node) % ASPEN_MEMORIES];
}

/* Counts this DSE among the workers of `instance` (0: of none), and among those that hold a token if it `holds` one. */
static inline void aspen_dse_stand(struct aspen_dse *d, uint32_t instance, uint32_t holds) {
  struct aspen_control *c = d->s.control;
  const uint32_t before = d->works_for;
  if (d->holds != holds) {
    if (holds) aspen_add_seq(aspen_dse_holders(d), 1);
    else aspen_sub_seq(aspen_dse_holders(d), 1);
    d->holds = holds;
  }
  if (before == instance) return;
  if (before) aspen_sub_seq(&c->instance[before].at_work, 1);
  if (instance) aspen_add_seq(&c->instance[instance].at_work, 1);
  d->works_for = instance;
}

/* Writes the hints of this turn into `advice` and returns it. NULL: hints are not looked at. A request alone has nobody in its way, so its
 * tiles are taken without hints. */
static inline const struct aspen_advice *aspen_dse_heed(struct aspen_dse *d, uint64_t running, struct aspen_advice *advice) {
  const struct aspen_hints *h = &d->s.control->hints;
  if (aspen_running_all(running) < 2) {
    aspen_dse_stand(d, 0, 0);
    return NULL;
  }
  const uint32_t tokens = aspen_stat_load(&h->tokens), version = aspen_load_acquire(&h->version);
  if (!tokens && !version) return NULL;
  advice->control = d->s.control;
  advice->table = version & 1;
  advice->lacks = tokens && !d->holds && aspen_load_relaxed(aspen_dse_holders(d)) >= tokens;
  advice->instance = d->works_for;
  advice->domain = aspen_stat_load(&aspen_me(&d->s)->domain);
  return advice;
}

/* The DSE has taken `item`. 0: it found none. */
static inline void aspen_dse_settle(struct aspen_dse *d, const struct aspen_advice *advice, uint64_t item) {
  const uint32_t id = ASPEN_ITEM_INSTANCE(item);
  if (!item) {
    aspen_dse_stand(d, 0, 0);
    return;
  }
  const uint32_t counted = aspen_stat_load(&d->s.control->hints.counted);
  aspen_dse_stand(d, counted ? id : 0, !!(aspen_hint(advice, id, aspen_dse_depth(d, item)) & ASPEN_HINT_MEMORY));
}

/* Hints advised against a tile of this order. The request is not tried again for some tiles: they would be put back for each try.
 */
static inline void aspen_dse_in_vain(struct aspen_dse *d, uint64_t order) {
  d->vain = order;
  d->vain_tiles = ASPEN_VAIN;
}

/* Whether hints leave the tile that follows to this DSE. */
static inline int aspen_dse_follows(struct aspen_dse *d, const struct aspen_advice *advice, uint64_t order) {
  if (d->vain && !d->vain_tiles--) d->vain = 0;
  return !advice || aspen_order_timed(order) || aspen_advised(advice, d->follow, aspen_dse_depth(d, d->follow));
}

#endif
