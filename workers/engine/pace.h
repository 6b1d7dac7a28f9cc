/* How fast this worker's core is, and the results of that (docs/protocol/cores.md; docs/protocol/pool.md, "Queue shares").
 *
 * A pace is the time of kernels beside the time that plans expect of them. It decides the worker's queue share, and the tiles that it
 * leaves to faster cores. The words of other workers are read as statistics: a stale one costs time and nothing else.
 */
#ifndef ASPEN_PACE_H
#define ASPEN_PACE_H
#include "engine/caches.h"
#include "engine/state.h"

/* The expected kernel time, in ns, between two looks at the pace. */
#define ASPEN_PACE_NS 1e6
/* The weight of the latest look in a pace. With a larger one, the tiles that a slow core leaves would change with every disturbance. */
#define ASPEN_PACE_NEW 0.1

/* Works out which share of a layer's tiles is this worker's. Shares have the order of the rows and are as large as the cores are fast. */
static inline void aspen_dse_share(struct aspen_dse *d, double pace) {
  const struct aspen_control *c = d->s.control;
  double fastest = pace, before = 0, all = 0;
  uint32_t open = 0;
  for (int round = 0; round < 2; round++)
    for (uint32_t r = 0; r < c->signals.n_rows; r++) {
      double other = r == d->s.row ? pace : aspen_stat_load(&c->worker[r].pace), share = 1;
      if (r != d->s.row && !aspen_load_relaxed(&c->row[r].open)) continue;
      if (!(other > 0)) other = fastest; /* It is not known yet. */
      if (!round && other < fastest) fastest = other;
      if (!round) continue;
      if (fastest * ASPEN_SLOWER < other) share = fastest / other;
      before += r < d->s.row ? share : 0;
      all += share;
      open++;
    }
  double share = before / all * ASPEN_SHARES;
  d->s.user.share = (uint32_t)share;
  d->s.user.share += d->s.user.share < share; /* It is rounded up: of three tiles the second of three workers takes the second. */
  d->s.user.walk = ASPEN_WALK / open;
}

/* Compares the time of kernels here with the time that plans expect, and with other workers' paces. No class of core has to be known: a
 * core that is shared with others counts as slow for as long as it is. */
static inline void aspen_dse_pace(struct aspen_dse *d) {
  struct aspen_control *c = d->s.control;
  struct aspen_worker *me = aspen_me(&d->s);
  uint64_t ticks = aspen_stat_load(&me->kernel_ticks), tiles = aspen_stat_load(&me->tiles);
  aspen_dse_apart(d); /* This comes first: the reads below may bring more lines along. */
  uint64_t spent = aspen_dse_ns(d, ticks - d->paced);
  double found = (double)spent * 1024 / d->expected_ns, old = aspen_stat_load(&me->pace);
  double pace = old > 0 ? old + ASPEN_PACE_NEW * (found - old) : found;
  pace = pace < 1 ? 1 : pace > 1e9 ? 1e9 : pace;
  aspen_stat_store(&me->pace, (uint32_t)pace);
  aspen_stat_add(&me->paced_ns, spent);
  aspen_stat_add(&me->expected_ns, (uint64_t)d->expected_ns);
  d->leaves = 0;
  for (uint32_t r = 0; r < c->signals.n_rows; r++) {
    double other = aspen_stat_load(&c->worker[r].pace);
    if (r != d->s.row && other > 0 && other * ASPEN_SLOWER < pace && aspen_load_relaxed(&c->row[r].open)) d->leaves += pace / other - 1;
  }
  aspen_dse_share(d, pace);
  d->patience = ASPEN_PATIENCE * (ticks - d->paced) / (tiles > d->paced_tiles ? tiles - d->paced_tiles : 1);
  d->paced = ticks;
  d->paced_tiles = tiles;
  d->expected_ns = 0;
}

/* A tile of which the plan expects nothing says nothing about the core. Python executed it, or it is shorter than planned. */
static inline void aspen_dse_unpaced(struct aspen_dse *d, uint64_t ticks) {
  d->paced += ticks;
  d->paced_tiles++;
}

/* Whether a slow core leaves ready tiles to faster ones. Near the end of a layer it would be done with a tile later than a faster core for
 * which the tile had waited. So it takes a tile only when the faster cores have enough to do. They share `waiting` ready tiles. They come
 * to the last one after the tiles that they have underway and waiting - 1 others. A tile is left for no longer than ASPEN_PATIENCE tiles
 * take here, because the core that should take it may be held up. Without stealing nobody else would take it. */
static inline int aspen_dse_leaves(struct aspen_dse *d) {
  struct aspen_control *c = d->s.control;
  double waiting = 0;
  if (!(d->leaves > 0) || !aspen_stat_load(&c->signals.steal)) return 0;
  for (uint32_t r = 0; r < c->signals.n_rows; r++) waiting += aspen_stat_load(&c->row[r].waiting);
  if (waiting < 1 || waiting >= 1 - ASPEN_UNDERWAY + d->leaves) return 0;
  uint64_t now = aspen_ticks();
  if (!d->left_since) {
    d->left_since = now | 1;
    d->called = 0;
  } else if (now - d->left_since > d->patience) {
    return 0;
  }
  return 1;
}

#endif
