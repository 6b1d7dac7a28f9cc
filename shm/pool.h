/* The ready pool: a row of queues for each worker (README, "Push", "Pop", "Steal").
 *
 * A column is a FIFO of items linked through next[tile] of each item's own instance, so a queue never overflows and a push allocates nothing.
 * One lock a row; one bit a column says which are not empty, so the best column is found in one instruction.
 * Whoever takes a lock watches the epoch and gives up when it changes (I8). Queues are caches of flags and graph (I3): recovery empties
 * them without a look.
 */
#ifndef ASPEN_POOL_H
#define ASPEN_POOL_H
#include "atomics.h"
#include "layout.h"

#define ASPEN_PARTS 65536 /* `part` of aspen_user: of so many */
#define ASPEN_WALK 1024   /* items of a queue that all workers together look through, who wait for each other meanwhile */

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
  uint32_t part;          /* where this worker's part of a layer begins, of ASPEN_PARTS (README, "Parts") */
  uint32_t walk;          /* items of a queue that it looks through */
};

static inline uint32_t aspen_random(uint32_t *state) {
  uint32_t x = *state ? *state : 0x9e3779b9u;
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return *state = x;
}

/* H(class, depth): which queue a tile waits in; lower columns run first. Shallow tiles first within a priority class. */
static inline unsigned aspen_column(uint32_t class_, uint8_t depth) {
  unsigned bin = depth < ASPEN_DEPTHS ? depth : ASPEN_DEPTHS - 1;
  return (class_ < ASPEN_CLASSES ? class_ : ASPEN_CLASSES - 1) * ASPEN_DEPTHS + bin;
}
static inline unsigned aspen_column_class(unsigned column) { return column / ASPEN_DEPTHS; }

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
 * the lock orders that announcement before this look; so equality means that everything queued here is mapped (README, "Attach"). */
static inline int aspen_row_mapped(const struct aspen_user *u) { return aspen_load_relaxed(&u->signals->attach_seq) == u->attached; }

/* ------------------------------------------------------------------------------------------------ queues, under the row's lock */

static inline uint64_t *aspen_link(const struct aspen_user *u, uint64_t item) {
  return &u->next[ASPEN_ITEM_INSTANCE(item)][ASPEN_ITEM_TILE(item)];
}

/* Adds an item; returns the mask with its bit set. The caller stores the mask once for a whole batch. */
static inline uint64_t aspen_row_put(struct aspen_row *row, uint64_t mask, struct aspen_user *u, uint64_t item, unsigned column) {
  struct aspen_queue *q = &row->column[column];
  uint64_t bit = (uint64_t)1 << column;
  uint32_t policy = aspen_stat_load(&u->signals->policy);
  int at_head = policy == ASPEN_POLICY_LIFO || (policy == ASPEN_POLICY_RANDOM && (aspen_random(&u->random) & 1));
  if (!(mask & bit)) {
    aspen_store_guarded(aspen_link(u, item), 0);
    aspen_store_guarded(&q->head, item);
    aspen_store_guarded(&q->tail, item);
  } else if (at_head) {
    aspen_store_guarded(aspen_link(u, item), aspen_load_guarded(&q->head));
    aspen_store_guarded(&q->head, item);
  } else {
    aspen_store_guarded(aspen_link(u, item), 0);
    aspen_store_guarded(aspen_link(u, aspen_load_guarded(&q->tail)), item);
    aspen_store_guarded(&q->tail, item);
  }
  aspen_stat_add(&row->waiting, 1);
  return mask | bit;
}

static inline unsigned aspen_mask_pick(uint64_t mask, struct aspen_user *u) {
  if (aspen_stat_load(&u->signals->policy) == ASPEN_POLICY_RANDOM)
    for (unsigned skip = aspen_random(&u->random) % (unsigned)__builtin_popcountll(mask); skip; skip--) mask &= mask - 1;
  return (unsigned)__builtin_ctzll(mask);
}

/* Of `n` tiles in the order of a layer, the number of the one that a worker takes. */
static inline uint32_t aspen_first_of_part(const struct aspen_user *u, uint32_t n) { return (uint32_t)((uint64_t)n * u->part / ASPEN_PARTS); }

/* Takes an item of the best column of a row whose mask is not 0: the first, or the first of the caller's part, as far as it looks. */
static inline uint64_t aspen_row_take(struct aspen_row *row, uint64_t mask, struct aspen_user *u) {
  unsigned column = aspen_mask_pick(mask, u);
  struct aspen_queue *q = &row->column[column];
  uint64_t item = aspen_load_guarded(&q->head), after = aspen_load_guarded(aspen_link(u, item)), before = 0;
  if (u->part && after && aspen_stat_load(&u->signals->policy) == ASPEN_POLICY_FIFO) {
    uint64_t seen = after; /* the item at aspen_first_of_part of all items up to here is `item` */
    for (uint32_t n = 2, at = 0; seen && n <= u->walk; n++, seen = aspen_load_guarded(aspen_link(u, seen)))
      if (aspen_first_of_part(u, n) > at) at++, before = item, item = aspen_load_guarded(aspen_link(u, item));
    after = aspen_load_guarded(aspen_link(u, item));
  }
  if (before) {
    aspen_store_guarded(aspen_link(u, before), after);
    if (!after) aspen_store_guarded(&q->tail, before);
  } else if (after)
    aspen_store_guarded(&q->head, after);
  else /* relaxed: clearing late makes someone look in vain, and the lock orders it for the next holder */
    aspen_store_relaxed(&row->mask, mask & ~((uint64_t)1 << column));
  aspen_stat_add(&row->waiting, -1);
  return item;
}

/* ------------------------------------------------------------------------------------------------ push, pop */

/* Tiles that became ready together. */
struct aspen_batch {
  uint32_t n;
  uint64_t item[ASPEN_FANOUT + 1];
  uint8_t column[ASPEN_FANOUT + 1];
};

/* Puts items into a row under one lock. `to_other`: refuse (CLOSED) a row without a worker. On any outcome but OK nothing was pushed. */
static inline int aspen_pool_push(struct aspen_row *row, struct aspen_user *u, const uint64_t *item, const uint8_t *column, uint32_t n,
                                  int to_other) {
  int r = aspen_row_lock(row, u);
  if (r) return r;
  if (!aspen_row_mapped(u)) r = ASPEN_ATTACH;
  else if (to_other && !aspen_load_guarded(&row->open)) r = ASPEN_CLOSED;
  else {
    uint64_t mask = aspen_load_relaxed(&row->mask);
    for (uint32_t i = 0; i < n; i++) mask = aspen_row_put(row, mask, u, item[i], column[i]);
    aspen_store_seq(&row->mask, mask); /* seq: before the pusher's look at `sleepers` in the total order (README, "Park") */
  }
  aspen_row_unlock(row);
  return r;
}

/* Takes the best item of a row: its owner waits for the lock, a thief does not. */
static inline int aspen_pool_pop(struct aspen_row *row, struct aspen_user *u, int thief, uint64_t *item) {
  if (!aspen_load_relaxed(&row->mask)) return ASPEN_EMPTY;
  int r = thief ? (aspen_row_trylock(row, u) ? ASPEN_OK : ASPEN_BUSY) : aspen_row_lock(row, u);
  if (r) return r;
  uint64_t mask = aspen_load_relaxed(&row->mask);
  if (!mask) r = ASPEN_EMPTY;
  else if (!aspen_row_mapped(u)) r = ASPEN_ATTACH;
  else *item = aspen_row_take(row, mask, u);
  aspen_row_unlock(row);
  return r;
}

#endif
