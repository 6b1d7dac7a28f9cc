/* What one worker's process knows privately: where it has mapped what. The steps of the protocol work on it (claim.h, complete.h,
 * workers/engine).
 *
 * All of it is made between two runs of the scheduling loop, when the worker has mapped what was announced; the loop only reads it, except
 * for the few words that say so.
 */
#ifndef ASPEN_STATION_H
#define ASPEN_STATION_H
#include "atomics.h"
#include "layout.h"
#include "pool.h"
#include "trace.h"

struct aspen_mapping {
  char *base; /* NULL: not mapped */
  uint64_t bytes;
  uint32_t role;
};

struct aspen_plan_view {
  uint32_t generation; /* of the control table's entry that this view was made for */
  uint32_t n_tiles, n_initial, end_tile;
  uint32_t n_extents, largest; /* of requests; `largest` is the word of the largest ones */
  uint32_t least[ASPEN_MAX_EXTENTS], most[ASPEN_MAX_EXTENTS];
  uint64_t request_bytes;
  const struct aspen_plan_header *header;
  const struct aspen_tile *tiles;
  const uint32_t *children, *parent_counts, *initial;
};

struct aspen_instance_view {
  const struct aspen_plan_view *plan;
  uint32_t *missing;  /* parents that have not been executed, by tile */
  uint32_t *executed; /* generation in which the tile was executed last */
  uint32_t generation; /* the request that `request` belongs to; changed by the loop */
  char *request;       /* where that request's region is mapped; changed by the loop */
};

struct aspen_station {
  struct aspen_control *control;
  struct aspen_doorbell *bell;
  struct aspen_user user;
  uint32_t row;
  const struct aspen_mapping *segment;          /* [ASPEN_MAX_SEGMENTS] */
  struct aspen_plan_view *const *plan;          /* [ASPEN_MAX_PLANS], NULL: none */
  struct aspen_instance_view *const *instance;  /* [ASPEN_MAX_INSTANCES], NULL: none */
  /* changed by the loop */
  struct aspen_seed { uint32_t instance, next, n, share; } seed; /* a started request whose first tiles are not all in the pool yet */
  uint32_t drained;                             /* something dropped may be free now: its user is gone, or did not come to be */
  struct aspen_recorder trace;                  /* opened and closed between two runs of the loop */
};

static inline struct aspen_worker *aspen_me(const struct aspen_station *s) { return &s->control->worker[s->row]; }
static inline struct aspen_row *aspen_own_row(const struct aspen_station *s) { return &s->control->row[s->row]; }

/* A segment as mapped here; NULL when it is not, or is something else. */
static inline char *aspen_mapped(const struct aspen_station *s, uint32_t segment, enum aspen_role role) {
  if (segment == 0 || segment >= ASPEN_MAX_SEGMENTS) return NULL;
  const struct aspen_mapping *m = &s->segment[segment];
  return m->base && m->role == (uint32_t)role ? m->base : NULL;
}

static inline struct aspen_client_segment *aspen_client_mapped(const struct aspen_station *s, uint32_t client) {
  /* The planner process may be giving this entry out: whatever is seen is mapped here, and this client's, or it is nothing yet. */
  return (struct aspen_client_segment *)aspen_mapped(s, aspen_load_relaxed(&s->control->client[client].segment), ASPEN_ROLE_CLIENT);
}

#endif
