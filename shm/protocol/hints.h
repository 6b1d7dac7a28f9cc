/* Hints: which tiles a worker should rather leave to others while several requests run (docs/protocol/hints.md).
 *
 * A hint is a preference among tiles that are ready. Whoever finds nothing else takes what a hint advises against, in the same turn. So no
 * hint delays a tile that somebody could begin, and every word here may be stale or nonsense.
 */
#ifndef ASPEN_HINTS_H
#define ASPEN_HINTS_H
#include "atomics.h"
#include "layout.h"

/* What one DSE knows when it looks for a tile. */
struct aspen_advice {
  const struct aspen_control *control;
  uint32_t table;    /* the one in force */
  uint32_t lacks;    /* no token is left for this DSE, and it holds none */
  uint32_t instance; /* among whose workers it counts, 0: none */
  uint32_t domain;   /* its bit; 0: none that plans know of */
};

static inline uint32_t aspen_hint(const struct aspen_advice *a, uint32_t instance, unsigned depth) {
  return aspen_stat_load(&a->control->hints.table[a->table][a->control->instance[instance].plan].word[depth]);
}

/* Is nothing to be said against taking an item of this depth? */
static inline int aspen_advised(const struct aspen_advice *a, uint64_t item, unsigned depth) {
  const uint32_t instance = ASPEN_ITEM_INSTANCE(item), hint = aspen_hint(a, instance, depth);
  const uint32_t most = hint >> ASPEN_HINT_MOST_SHIFT & ASPEN_HINT_MOST, domains = hint & ASPEN_HINT_DOMAINS;
  if (!hint) return 1;
  if (hint & ASPEN_HINT_YIELDS || (hint & ASPEN_HINT_MEMORY && a->lacks)) return 0;
  if (domains && a->domain && !(domains & a->domain)) return 0;
  return !most || a->instance == instance || aspen_load_relaxed(&a->control->instance[instance].at_work) < most;
}

/* ------------------------------------------------------------------------------------------------ planner process */

/* Before a plan is announced: what is known of it without a schedule. `memory`: depths whose tiles wait for memory, a bit each. */
static inline void aspen_hints_of_plan(struct aspen_control *c, uint32_t plan, uint32_t memory) {
  for (unsigned t = 0; t < 2; t++)
    for (unsigned d = 0; d < ASPEN_DEPTHS; d++) aspen_stat_store(&c->hints.table[t][plan].word[d], memory >> d & 1 ? ASPEN_HINT_MEMORY : 0);
}

/* The table that is not in force: the next version, until it is published. */
static inline struct aspen_hint_row *aspen_hints_next(struct aspen_control *c) { return c->hints.table[(c->hints.version + 1) & 1]; }

/* The next version is in force. `counted`: one of its words limits how many workers a request has. */
static inline void aspen_hints_publish(struct aspen_control *c, uint32_t counted) {
  aspen_stat_store(&c->hints.counted, counted);
  aspen_store_release(&c->hints.version, c->hints.version + 1);
}

/* While the world stands still: every DSE has let go of what it held. */
static inline void aspen_recover_hints(struct aspen_control *c) {
  for (uint32_t k = 0; k < ASPEN_MEMORIES; k++)
    if (aspen_load_relaxed(&c->hints.holders[k])) aspen_store_relaxed(&c->hints.holders[k], 0);
  for (uint32_t id = 1; id < ASPEN_MAX_INSTANCES; id++)
    if (aspen_load_relaxed(&c->instance[id].at_work)) aspen_store_relaxed(&c->instance[id].at_work, 0);
}

#endif
