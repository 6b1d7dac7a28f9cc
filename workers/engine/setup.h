/* How a DSE comes to be, and how it learns what is mapped and who else works.
 *
 * These functions run between two runs of the loop. Only aspen_dse_sort_victims() runs in the loop as well (idle.h).
 */
#ifndef ASPEN_SETUP_H
#define ASPEN_SETUP_H
#include "engine/state.h"

/* How far another worker's core is: the same class and cache first, then the same node, then the rest. Ties go by the distance of the rows,
 * so that thieves begin at different victims. */
static inline uint32_t aspen_distance(const struct aspen_control *c, uint32_t a, uint32_t b) {
  const struct aspen_worker *x = &c->worker[a], *y = &c->worker[b];
  uint32_t n = c->signals.n_rows, far = 2;
  if (aspen_stat_load(&x->node) == aspen_stat_load(&y->node))
    far = aspen_stat_load(&x->cache) != aspen_stat_load(&y->cache) || aspen_stat_load(&x->core_class) != aspen_stat_load(&y->core_class);
  return far * ASPEN_MAX_WORKERS + (b + n - a) % n;
}

/* Sorts the other rows by distance. The planner process may give a row to another worker meanwhile. Then `roster` asks for another look. */
static inline void aspen_dse_sort_victims(struct aspen_dse *d) {
  struct aspen_control *c = d->s.control;
  uint32_t n = 0;
  d->roster = aspen_load_acquire(&c->signals.roster);
  for (uint32_t r = 0; r < c->signals.n_rows; r++) {
    if (r == d->s.row) continue;
    uint32_t k = n++, far = aspen_distance(c, d->s.row, r);
    for (; k > 0 && aspen_distance(c, d->s.row, d->victim[k - 1]) > far; k--) d->victim[k] = d->victim[k - 1];
    d->victim[k] = (uint16_t)r;
  }
  d->n_victims = n;
}

/* `segment`, `plan`, `instance` and `next` are the caller's tables, indexed by id. It changes them only while the loop is not running. */
static inline void aspen_dse_init(struct aspen_dse *d, struct aspen_control *control, struct aspen_doorbell *bell, uint32_t row,
                                  const struct aspen_mapping *segment, struct aspen_plan_view *const *plan,
                                  struct aspen_instance_view *const *instance, uint64_t *const *next) {
  memset(d, 0, sizeof *d);
  d->told = -1;
  d->scratch_of = d->heard_of = ASPEN_NONE;
  d->s = (struct aspen_station){.control = control, .bell = bell, .row = row, .segment = segment, .plan = plan, .instance = instance};
  d->s.user = (struct aspen_user){.signals = &control->signals,
                                  .next = next,
                                  .owner = row + 1,
                                  .epoch = aspen_load_acquire(&control->signals.epoch) & ~1u,
                                  .random = control->signals.seed * 2654435761u + row + 1};
  aspen_dse_sort_victims(d);
}

/* Everything announced up to `seq` is mapped and prepared. */
static inline void aspen_dse_attached(struct aspen_dse *d, uint32_t seq) {
  d->s.user.attached = seq;
  d->scratch_of = ASPEN_NONE; /* Scratch memory may be another, or a plan of the same number. */
  aspen_store_release(&aspen_me(&d->s)->attached, seq);
}

#endif
