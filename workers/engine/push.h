/* How tiles come from a DSE's hand into the ready pool (docs/protocol/pool.md).
 *
 * A tile is in one place only (I12): tiles that cannot be pushed yet stay in `held`.
 */
#ifndef ASPEN_PUSH_H
#define ASPEN_PUSH_H
#include "doorbell.h"
#include "engine/state.h"

/* Pushes to the own row and wakes sleepers for the pushed tiles. On ASPEN_ATTACH the tiles are kept in `held`. */
static inline int aspen_dse_push(struct aspen_dse *d, const struct aspen_batch *b) {
  if (!b->n) return ASPEN_OK;
  int r = aspen_pool_push(aspen_own_row(&d->s), &d->s.user, b->order, b->item, b->depth, b->n, 0);
  if (r == ASPEN_ATTACH && b != &d->held) {
    d->held = *b;
    return r;
  }
  if (r) return r;
  aspen_stat_add(&aspen_me(&d->s)->pushes, b->n);
  if (aspen_stat_load(&d->s.control->signals.steal) && aspen_wake_for(&d->s.control->idle, d->s.bell, b->n))
    aspen_stat_add(&aspen_me(&d->s)->wakes, 1);
  if (b == &d->held) d->held.n = 0;
  return ASPEN_OK;
}

static inline void aspen_batch_add(struct aspen_batch *b, uint64_t item, uint8_t depth) {
  b->item[b->n] = item;
  b->depth[b->n++] = depth;
}

/* Puts the tile to follow back into the pool, because something else goes first. */
static inline int aspen_dse_put_back(struct aspen_dse *d) {
  if (!d->follow) return ASPEN_OK;
  struct aspen_batch one = {.order = aspen_dse_order(d, d->follow)};
  aspen_batch_add(&one, d->follow, aspen_dse_depth(d, d->follow));
  d->follow = 0;
  if (d->held.n) { /* It could not be pushed now anyway. All became ready with the same tile, so they are of one request. */
    aspen_batch_add(&d->held, one.item[0], one.depth[0]);
    return ASPEN_ATTACH;
  }
  return aspen_dse_push(d, &one);
}

#endif
