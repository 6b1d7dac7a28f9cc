/* The doorbell: how idle DSEs sleep and how they are woken (docs/protocol/doorbell.md, "Park", "Wake").
 *
 * `event` is an event count. A DSE that wants to sleep announces itself, notes the count, looks everywhere once more, and sleeps only while
 * the count is what it noted. Whoever makes work visible looks for sleepers afterwards and bumps the count before waking. All these
 * operations are sequentially consistent, so one of the two always sees the other.
 */
#ifndef ASPEN_DOORBELL_H
#define ASPEN_DOORBELL_H
#include "futex.h"
#include "layout.h"

#define ASPEN_WAKE_MOST 4 /* sleepers that one push wakes: each futex wake costs the waker microseconds; the woken wake the rest */

/* Step 1 of parking, for a DSE that counts as a spinner: from here on pushers see a sleeper. Returns the count to sleep on. */
static inline uint32_t aspen_park_prepare(struct aspen_idle *idle, struct aspen_doorbell *bell) {
  aspen_add_seq(&idle->sleepers, 1);
  aspen_sub_seq(&idle->spinners, 1); /* a pusher that still trusted this spinner did so before our second look */
  return aspen_load_seq(&bell->event);
}

/* Step 3: sleep, unless something happened since step 1. (Step 2 is the caller's look at everything.) */
static inline void aspen_park_commit(struct aspen_doorbell *bell, uint32_t event) { aspen_futex_wait(&bell->event, event, ASPEN_FOREVER); }

/* Step 4, after waking or when step 2 found something: a spinner again. */
static inline void aspen_park_end(struct aspen_idle *idle) {
  aspen_add_seq(&idle->spinners, 1);
  aspen_sub_seq(&idle->sleepers, 1);
}

static inline int aspen_ring(struct aspen_doorbell *bell, uint32_t n) {
  aspen_add_seq(&bell->event, 1);
  return aspen_futex_wake(&bell->event, n);
}

/* After `n` tiles were made visible: wakes sleepers for those that no spinner will find. Returns how many woke up. */
static inline int aspen_wake_for(struct aspen_idle *idle, struct aspen_doorbell *bell, uint32_t n) {
  uint32_t spinners = aspen_load_seq(&idle->spinners);
  if (n <= spinners) return 0;
  uint32_t sleepers = aspen_load_seq(&idle->sleepers);
  if (!sleepers) return 0;
  n -= spinners;
  if (n > sleepers) n = sleepers;
  return aspen_ring(bell, n < ASPEN_WAKE_MOST ? n : ASPEN_WAKE_MOST);
}

/* After tiles were put into others' rows while nobody steals: only a row's owner can take them, so a spinner of another row is no help and
 * one futex wake may reach the wrong sleeper. Wakes every sleeper. */
static inline int aspen_wake_owners(struct aspen_idle *idle, struct aspen_doorbell *bell) {
  return aspen_load_seq(&idle->sleepers) ? aspen_ring(bell, INT_MAX) : 0;
}

static inline int aspen_bell_pending(const struct aspen_doorbell *bell) {
  uint64_t any = 0;
  for (unsigned i = 0; i < ASPEN_MAX_CLIENTS / 64; i++) any |= aspen_load_seq(&bell->pending[i]);
  return any != 0;
}

#endif
