/* The ready pool: a row for each worker, a lane in it for each request that has tiles there, a queue in that for each depth
 * (docs/protocol/pool.md).
 *
 * A queue is a FIFO of items linked through next[tile] of each item's own instance, so it never overflows and a push allocates nothing.
 * One lock a row; one bit a lane and one bit a queue say which are not empty. A row's `first` is its oldest request's order, for all to read.
 * Whoever takes a lock watches the epoch and gives up when it changes (I8). Rows are caches of flags and graph (I3): recovery empties
 * them without a look.
 */
#ifndef ASPEN_POOL_H
#define ASPEN_POOL_H
#include "atomics.h"
#include "hints.h"
#include "layout.h"
#include "numbers.h"

enum aspen_outcome {
  ASPEN_OK = 0,
  ASPEN_EMPTY,  /* nothing there */
  ASPEN_BUSY,   /* another holds the lock, and this caller does not wait */
  ASPEN_EPOCH,  /* the epoch changed: drop all local state and park */
  ASPEN_ATTACH, /* a segment was announced that this process has not mapped: nothing was touched */
  ASPEN_CLOSED  /* the row has no worker */
};

/* A process's private view: what the pool's functions need to know about their caller. */
struct aspen_user {
  const struct aspen_signals *signals;
  uint64_t *const *next;  /* next[instance]: the queue links in that instance's arena, as mapped here */
  uint32_t owner;         /* row + 1: what a held lock contains */
  uint32_t epoch;         /* the even epoch this caller works in */
  uint32_t attached;      /* attach_seq up to which it has mapped everything */
  uint32_t random;        /* state of ASPEN_POLICY_RANDOM */
  uint32_t share;         /* where this worker's queue share begins, of ASPEN_SHARES (docs/protocol/pool.md, "Queue shares") */
  uint32_t walk;          /* items of a queue that it looks through */
};

/* Which tiles a search takes: those of the classes from `from` on and before `before` (docs/protocol/pool.md, "Classes"), and of these the
 * tiles that hints leave to the caller (docs/protocol/hints.md). With all fields 0 it takes every tile. It fits into two registers. */
struct aspen_filter {
  uint32_t from, before;             /* `before` 0: without end. */
  const struct aspen_advice *advice; /* NULL: hints are not looked at. */
};

static inline uint32_t aspen_random(uint32_t *state) {
  uint32_t x = *state ? *state : 0x9e3779b9u;
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return *state = x;
}

/* The place of a request among all: by class, then those with a deadline before those without, then by `key` (docs/protocol/pool.md, "Order"). Lower orders run
 * first. Keys are larger than 0, so no order is 0. Two requests may have the same one: then they share a lane. Within a request, shallow tiles go first. */
static inline uint64_t aspen_order(uint32_t class_, int timed, uint64_t key) {
  return (uint64_t)class_ << ASPEN_CLASS_SHIFT | (timed ? 0 : ASPEN_ORDER_UNTIMED) | (key & ASPEN_ORDER_KEY);
}
static inline uint32_t aspen_order_class(uint64_t order) { return (uint32_t)(order >> ASPEN_CLASS_SHIFT); }
static inline int aspen_order_timed(uint64_t order) { return !(order & ASPEN_ORDER_UNTIMED); }

/* Of claim.running: how many requests run, of all classes. */
static inline uint32_t aspen_running_all(uint64_t running) {
  uint32_t n = 0;
  for (uint32_t class_ = 0; class_ < ASPEN_CLASSES; class_++) n += (uint32_t)(running / ASPEN_RUNNING(class_)) % ASPEN_RUNNING(1);
  return n;
}

/* Of claim.running: the highest class of which a request runs. Only where one does. */
static inline uint32_t aspen_running_first(uint64_t running) { return (uint32_t)__builtin_ctzll(running) / ASPEN_RUNNING_BITS; }

/* Of claim.running: do requests of a class below `class_` run? */
static inline int aspen_running_below(uint64_t running, uint32_t class_) { return running >= ASPEN_RUNNING(class_ + 1); }

/* ------------------------------------------------------------------------------------------------ lock */

static inline int aspen_row_trylock(struct aspen_row *row, const struct aspen_user *u) {
  return aspen_load_relaxed(&row->lock) == 0 && aspen_cas_acquire(&row->lock, 0, u->owner);
}

static inline int aspen_row_lock(struct aspen_row *row, const struct aspen_user *u) {
  uint32_t turns = 0;
  while (!aspen_row_trylock(row, u)) {
    if (aspen_load_relaxed(&u->signals->epoch) != u->epoch) return ASPEN_EPOCH;
    aspen_spin(&turns);
  }
  return ASPEN_OK;
}

static inline void aspen_row_unlock(struct aspen_row *row) { aspen_store_release(&row->lock, 0); }

/* Under a row's lock: may the caller follow the links of every item in it? An item comes into a row after its segments were announced, and
 * the lock orders that announcement before this look; so equality means that everything queued here is mapped (docs/protocol/segments.md,
 * "Attach"). */
static inline int aspen_row_mapped(const struct aspen_user *u) { return aspen_load_relaxed(&u->signals->attach_seq) == u->attached; }

/* ------------------------------------------------------------------------------------------------ queues, under the row's lock */

static inline uint64_t *aspen_link(const struct aspen_user *u, uint64_t item) {
  return &u->next[ASPEN_ITEM_INSTANCE(item)][ASPEN_ITEM_TILE(item)];
}

/* The lane of a request in a row. One that has none yet gets an empty one; if there is none, it shares that of the next older request in the row, or, being the
 * oldest itself, that of the next younger, which then counts as as old: nobody waits for longer than it would alone, and the two go by depth. */
static inline struct aspen_lane *aspen_row_lane(struct aspen_row *row, uint64_t order) {
  uint32_t busy = aspen_load_guarded(&row->busy), empty = ~busy & ((1u << ASPEN_LANES) - 1);
  struct aspen_lane *older = NULL, *younger = NULL;
  for (uint32_t bits = busy; bits; bits &= bits - 1) {
    struct aspen_lane *lane = &row->lane[__builtin_ctz(bits)];
    uint64_t other = aspen_load_guarded(&lane->order);
    if (other == order) return lane;
    struct aspen_lane **best = other < order ? &older : &younger;
    if (!*best || (other < order) == (other > aspen_load_guarded(&(*best)->order))) *best = lane;
  }
  struct aspen_lane *lane = empty ? &row->lane[__builtin_ctz(empty)] : older ? older : younger;
  if (empty) {
    aspen_store_guarded(&row->busy, busy | (empty & -empty));
    aspen_store_guarded(&lane->mask, 0);
  }
  if (empty || lane == younger) aspen_store_guarded(&lane->order, order);
  return lane;
}

/* Whether a filter lets through tiles of a request of this order. */
static inline int aspen_takes(struct aspen_filter filter, uint64_t order) {
  const uint32_t class_ = aspen_order_class(order);
  return class_ >= filter.from && class_ <= filter.before - 1;
}

/* Whether hints leave a lane's tiles to the caller. A lane counts as its first item. Requests with a deadline are never left to others. */
static inline int aspen_lane_advised(struct aspen_lane *lane, const struct aspen_advice *advice) {
  if (!advice || aspen_order_timed(aspen_load_guarded(&lane->order))) return 1;
  const unsigned depth = (unsigned)__builtin_ctz(aspen_load_guarded(&lane->mask));
  return aspen_advised(advice, aspen_load_guarded(&lane->queue[depth].head), depth);
}

/* Returns the lanes of a row, a bit each, from which a filter lets something through. */
static inline uint32_t aspen_row_lanes(struct aspen_row *row, struct aspen_filter filter) {
  uint32_t busy = aspen_load_guarded(&row->busy), lanes = busy;
  if (!filter.from && !filter.before && !filter.advice) return busy;
  for (; busy; busy &= busy - 1) {
    struct aspen_lane *lane = &row->lane[__builtin_ctz(busy)];
    if (!aspen_takes(filter, aspen_load_guarded(&lane->order)) || !aspen_lane_advised(lane, filter.advice)) lanes &= ~(busy & -busy);
  }
  return lanes;
}

/* The lane that goes first among some. */
static inline struct aspen_lane *aspen_row_first(struct aspen_row *row, struct aspen_user *u, uint32_t busy) {
  uint32_t pick = 0;
  if (!(busy & (busy - 1))) return &row->lane[__builtin_ctz(busy)];
  if (aspen_stat_load(&u->signals->policy) == ASPEN_POLICY_RANDOM) {
    for (pick = aspen_random(&u->random) % (unsigned)__builtin_popcount(busy); pick; pick--) busy &= busy - 1;
    return &row->lane[__builtin_ctz(busy)];
  }
  struct aspen_lane *first = &row->lane[__builtin_ctz(busy)];
  for (busy &= busy - 1; busy; busy &= busy - 1) {
    struct aspen_lane *lane = &row->lane[__builtin_ctz(busy)];
    if (aspen_load_guarded(&lane->order) < aspen_load_guarded(&first->order)) first = lane;
  }
  return first;
}

/* What `first` has to be. */
static inline uint64_t aspen_row_oldest(struct aspen_row *row) {
  uint64_t oldest = 0;
  for (uint32_t busy = aspen_load_guarded(&row->busy); busy; busy &= busy - 1) {
    uint64_t order = aspen_load_guarded(&row->lane[__builtin_ctz(busy)].order);
    if (!oldest || order < oldest) oldest = order;
  }
  return oldest;
}

/* Adds an item to a request's lane. The caller stores the row's `first` once for a whole batch. */
static inline void aspen_row_put(struct aspen_row *row, struct aspen_lane *lane, struct aspen_user *u, uint64_t item, uint8_t depth) {
  const unsigned bin = depth < ASPEN_DEPTHS ? depth : ASPEN_DEPTHS - 1;
  struct aspen_queue *q = &lane->queue[bin];
  uint32_t mask = aspen_load_guarded(&lane->mask), bit = 1u << bin;
  uint32_t policy = aspen_stat_load(&u->signals->policy);
  int at_head = policy == ASPEN_POLICY_LIFO || (policy == ASPEN_POLICY_RANDOM && (aspen_random(&u->random) & 1));
  if (!(mask & bit)) {
    aspen_store_guarded(aspen_link(u, item), 0);
    aspen_store_guarded(&q->head, item);
    aspen_store_guarded(&q->tail, item);
    aspen_store_guarded(&lane->mask, mask | bit);
  } else if (at_head) {
    aspen_store_guarded(aspen_link(u, item), aspen_load_guarded(&q->head));
    aspen_store_guarded(&q->head, item);
  } else {
    aspen_store_guarded(aspen_link(u, item), 0);
    aspen_store_guarded(aspen_link(u, aspen_load_guarded(&q->tail)), item);
    aspen_store_guarded(&q->tail, item);
  }
  aspen_stat_add(&row->waiting, 1);
}

static inline unsigned aspen_mask_pick(uint32_t mask, struct aspen_user *u) {
  if (aspen_stat_load(&u->signals->policy) == ASPEN_POLICY_RANDOM)
    for (unsigned skip = aspen_random(&u->random) % (unsigned)__builtin_popcount(mask); skip; skip--) mask &= mask - 1;
  return (unsigned)__builtin_ctz(mask);
}

/* Of `n` tiles in the order of a layer, the number of the one that a worker takes. */
static inline uint32_t aspen_first_of_share(const struct aspen_user *u, uint32_t n) { return (uint32_t)((uint64_t)n * u->share / ASPEN_SHARES); }

/* The last item of a queue was taken. `first` is stored relaxed: late, it makes someone look in vain, and the lock orders it for the next holder. */
static inline void aspen_row_emptied(struct aspen_row *row, struct aspen_lane *lane, uint32_t bit) {
  uint32_t mask = aspen_load_guarded(&lane->mask) & ~bit;
  aspen_store_guarded(&lane->mask, mask);
  if (mask) return;
  aspen_store_guarded(&row->busy, aspen_load_guarded(&row->busy) & ~(1u << (lane - row->lane)));
  aspen_store_relaxed(&row->first, aspen_row_oldest(row));
}

/* Takes an item of a row, of the shallowest queue of its oldest request among those in `lanes`: the first, or the first of the caller's share, as far as it looks. */
static inline uint64_t aspen_row_take(struct aspen_row *row, struct aspen_user *u, uint32_t lanes) {
  struct aspen_lane *lane = aspen_row_first(row, u, lanes);
  unsigned depth = aspen_mask_pick(aspen_load_guarded(&lane->mask), u);
  struct aspen_queue *q = &lane->queue[depth];
  uint64_t item = aspen_load_guarded(&q->head), after = aspen_load_guarded(aspen_link(u, item)), before = 0;
  if (u->share && after && aspen_stat_load(&u->signals->policy) == ASPEN_POLICY_FIFO) {
    uint64_t seen = after; /* the item at aspen_first_of_share of all items up to here is `item` */
    for (uint32_t n = 2, at = 0; seen && n <= u->walk; n++, seen = aspen_load_guarded(aspen_link(u, seen)))
      if (aspen_first_of_share(u, n) > at) at++, before = item, item = aspen_load_guarded(aspen_link(u, item));
    after = aspen_load_guarded(aspen_link(u, item));
  }
  if (before) {
    aspen_store_guarded(aspen_link(u, before), after);
    if (!after) aspen_store_guarded(&q->tail, before);
  } else if (after)
    aspen_store_guarded(&q->head, after);
  else
    aspen_row_emptied(row, lane, 1u << depth);
  aspen_stat_add(&row->waiting, -1);
  return item;
}

/* ------------------------------------------------------------------------------------------------ push, pop */

/* Tiles of one request that became ready together. */
struct aspen_batch {
  uint64_t order; /* of the request */
  uint32_t n;
  uint64_t item[ASPEN_FANOUT + 1];
  uint8_t depth[ASPEN_FANOUT + 1];
};

/* Puts items of a request into a row under one lock. `to_other`: refuse (CLOSED) a row without a worker. On any outcome but OK nothing was pushed. */
static inline int aspen_pool_push(struct aspen_row *row, struct aspen_user *u, uint64_t order, const uint64_t *item, const uint8_t *depth, uint32_t n,
                                  int to_other) {
  int r = aspen_row_lock(row, u);
  if (r) return r;
  if (!aspen_row_mapped(u)) r = ASPEN_ATTACH;
  else if (to_other && !aspen_load_guarded(&row->open)) r = ASPEN_CLOSED;
  else {
    struct aspen_lane *lane = aspen_row_lane(row, order);
    for (uint32_t i = 0; i < n; i++) aspen_row_put(row, lane, u, item[i], depth[i]);
    uint64_t first = aspen_load_relaxed(&row->first);
    /* seq, changed or not: before the pusher's look at `sleepers` in the total order (docs/protocol/doorbell.md, "Park") */
    aspen_store_seq(&row->first, !first || order < first ? order : first);
  }
  aspen_row_unlock(row);
  return r;
}

/* Whether a row may have something that a filter lets through, by a look from outside. */
static inline int aspen_row_offers(const struct aspen_row *row, struct aspen_filter filter) {
  uint64_t first = aspen_load_relaxed(&row->first);
  return first && aspen_order_class(first) <= filter.before - 1;
}

/* Takes the best item of a row that the filter lets through. The row's owner waits for the lock, a thief does not. */
static inline int aspen_pool_pop(struct aspen_row *row, struct aspen_user *u, struct aspen_filter filter, int thief, uint64_t *item) {
  uint32_t lanes;
  if (!aspen_row_offers(row, filter)) return ASPEN_EMPTY;
  int r = thief ? (aspen_row_trylock(row, u) ? ASPEN_OK : ASPEN_BUSY) : aspen_row_lock(row, u);
  if (r) return r;
  if (!(lanes = aspen_row_lanes(row, filter))) r = ASPEN_EMPTY;
  else if (!aspen_row_mapped(u)) r = ASPEN_ATTACH;
  else *item = aspen_row_take(row, u, lanes);
  aspen_row_unlock(row);
  return r;
}

#endif
