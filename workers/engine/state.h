/* The state of one distributed scheduling engine (DSE), and what all parts of the engine read from it.
 *
 * One worker owns a DSE, and nobody else reads or writes its state. Recovery needs none of it: tiles that a DSE holds die with the worker
 * or its epoch. The flags of tiles say which work is left (docs/protocol/recover.md). The same functions run in worker processes
 * (workers/_dse.pyx), as threads under ThreadSanitizer, and under the model checker.
 */
#ifndef ASPEN_STATE_H
#define ASPEN_STATE_H
#include "station.h"

/* The statement that follows serves recovery alone. A build may leave such statements out, to measure their cost (docs/protocol/recover.md,
 * "Die, Recover"). */
#if defined(ASPEN_WITHOUT_RECOVERY)
#define ASPEN_FOR_RECOVERY if (0)
#else
#define ASPEN_FOR_RECOVERY
#endif

/* Why the loop comes back to its caller. */
enum aspen_reason {
  ASPEN_REASON_OPAQUE = 1, /* Python has to execute `opaque` and to call aspen_dse_complete_opaque(). */
  ASPEN_REASON_ATTACH,     /* Something was announced: the caller maps it and calls aspen_dse_attached(). */
  ASPEN_REASON_DRAINED,    /* The last request of a dropped plan, client or data segment may have ended: the planner process has to look. */
  ASPEN_REASON_LEAVE,      /* The row is closed. Tiles left in it are anybody's. */
  ASPEN_REASON_STOP
};

/* The gap of a DSE that finds no tile of the highest class that runs (classes.h). */
enum aspen_gap {
  ASPEN_GAP_NONE = 0, /* It found one, or nothing of a higher class runs. */
  ASPEN_GAP_HOLDS,    /* It leaves tiles of lower classes alone. */
  ASPEN_GAP_OVER      /* It takes them until it gets a tile of the highest class again. */
};

struct aspen_dse {
  struct aspen_station s; /* This field is the first: the protocol's steps take it. */

  /* Tiles in hand. A tile waits in one row's queue, or here, or in `s.seed`, and nowhere else (I12). */
  uint64_t follow;         /* The tile to run next, which is not in the pool. 0: none. */
  struct aspen_batch held; /* Ready tiles that cannot be pushed before something new is mapped. */
  uint64_t opaque;         /* The tile that Python executes. 0: none. */

  /* Hints (advice.h). */
  uint32_t holds;      /* Whether this DSE holds a token. */
  uint32_t works_for;  /* The instance that counts this DSE in `at_work`. 0: none. */
  uint32_t vain_tiles; /* Tiles for which the request of order `vain` does not count as older. */
  uint64_t vain;       /* 0: none. */

  uint32_t looking; /* Whether this DSE is counted in idle.spinners. */

  /* Classes (classes.h). */
  uint32_t gap;         /* enum aspen_gap. */
  uint64_t gap_since;   /* Ticks: when the gap became ASPEN_GAP_HOLDS. */
  uint64_t shared_at;   /* Ticks: time up to here is divided between classes. 0: requests of one class run. */
  int64_t owed_ns;      /* Debt to classes below the highest: ASPEN_LENT times the time that their tiles may take. */
  int32_t owed_per_ns;  /* Added to it each nanosecond: 1; -ASPEN_LENT in a lent tile; 0 in another tile of a lower class. */
  uint32_t lent_lowest; /* Whether the lowest of two lower classes had the last turn. */

  uint32_t n_victims, roster; /* Entries of `victim`, and signals.roster when they were sorted. */
  int told;                   /* An eventfd that is written to when this DSE has parked for a recovery. -1: none. */

  /* From here on: clocks, and what is learned of cores. The model checker takes no part of it for state where nobody dies. */
  uint64_t looked_since; /* Ticks: when this DSE began to look for work. */
  uint64_t lap;          /* Ticks: all time up to here is accounted for. */

  /* Pace (pace.h). */
  double expected_ns;   /* Nanoseconds that plans expected of the kernels since `paced`. */
  uint64_t paced;       /* The worker's kernel_ticks at the last look at its pace, plus those of tiles of which plans expect nothing. */
  uint64_t paced_tiles; /* The same, counted in tiles. */
  double leaves;        /* Ready tiles that faster cores will be done with before this core has done one. 0: this core is not slow. */
  uint64_t patience;    /* Ticks for which a tile is left to faster cores. */
  uint64_t left_since;  /* Ticks: since when tiles are left to others. 0: they are not. */
  uint32_t called;      /* Whether another DSE has been woken for the tiles that are left. */

  /* Scratch memory of kernels (execute.h). */
  void *scratch;
  size_t scratch_bytes;
  uint32_t scratch_of, scratch_generation, scratch_op; /* The last user of scratch: instance, generation, op. ASPEN_NONE: nobody's. */

  /* Caches apart (caches.h). */
  double far;        /* The share of looks at others' lines that took as long as from another cache. Late looks count most. */
  int apart;         /* Whether `far` is large: as in aspen_call. */
  uint32_t turn;     /* Victims that were looked at. */
  uint32_t heard_of; /* The row that was looked at last. */
  uint64_t heard;    /* The number of tiles that it had executed then. */

  uint16_t victim[ASPEN_MAX_WORKERS]; /* Other rows, nearest first. */
};

/* ------------------------------------------------------------------------------------------------ items */

static inline uint64_t aspen_dse_order(const struct aspen_dse *d, uint64_t item) {
  return d->s.control->instance[ASPEN_ITEM_INSTANCE(item)].order;
}

static inline uint8_t aspen_dse_depth(const struct aspen_dse *d, uint64_t item) {
  return d->s.instance[ASPEN_ITEM_INSTANCE(item)]->plan->tiles[ASPEN_ITEM_TILE(item)].depth;
}

/* ------------------------------------------------------------------------------------------------ time */

static inline uint64_t aspen_dse_ns(const struct aspen_dse *d, uint64_t ticks) {
  return (uint64_t)(((unsigned __int128)ticks * d->s.control->signals.tick_ns_q32) >> 32);
}

/* Adds the time since the last call to `what`, one of the worker's four durations. A tile with a kernel costs two calls: before it and
 * after it. */
static inline void aspen_dse_lap(struct aspen_dse *d, uint64_t *what) {
  uint64_t now = aspen_ticks();
  aspen_stat_add(what, now - d->lap);
  d->lap = now;
}

#endif
