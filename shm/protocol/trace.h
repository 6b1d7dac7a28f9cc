/* What a DSE notes of its work while somebody traces the runtime (docs/protocol/trace.md, "Trace").
 *
 * A recorder is private to its process and is opened and closed while the scheduling loop does not run, so without a trace all of this is one
 * predicted branch on a private word. The model checker goes without: records decide nothing.
 */
#ifndef ASPEN_TRACE_H
#define ASPEN_TRACE_H
#include "atomics.h"
#include "layout.h"

struct aspen_recorder {
  struct aspen_trace_ring *ring; /* NULL: nobody traces */
  struct aspen_trace_record *record;
  uint64_t written, mask;        /* as in the segment, which a client may overwrite */
  uint64_t idle;                 /* as in the ring */
  uint64_t away;                 /* since when the loop does not run, 0: it does, or Python executes a tile */
  uint32_t came, from;           /* the tile taken last: enum aspen_trace_came, and the row that it lay in */
};

static inline int aspen_tracing(const struct aspen_recorder *t) {
#if defined(ASPEN_MODEL_CHECK)
  return 0;
#endif
  return __builtin_expect(t->ring != NULL, 0);
}

static inline uint64_t aspen_trace_bytes(uint32_t n_rings, uint32_t capacity) {
  return sizeof(struct aspen_trace_segment) + (uint64_t)n_rings * capacity * sizeof(struct aspen_trace_record);
}

/* `written` comes last: a record that is cut short by the worker's death does not count. */
static inline void aspen_note(struct aspen_recorder *t, uint32_t what, uint32_t more, uint64_t item, uint64_t begin, uint64_t end) {
  struct aspen_trace_record *r = &t->record[t->written & t->mask];
  aspen_stat_store(&r->item, item);
  aspen_stat_store(&r->begin, begin);
  aspen_stat_store(&r->end, end);
  aspen_stat_store(&r->what, what);
  aspen_stat_store(&r->more, more);
  aspen_store_release(&t->ring->written, ++t->written);
}

static inline void aspen_note_now(struct aspen_recorder *t, uint32_t what, uint32_t more, uint64_t item) {
  uint64_t now = aspen_ticks();
  aspen_note(t, what, more, item, now, now);
}

/* A kernel, or Python, is about to start. Item 0: it has come back. */
static inline void aspen_note_in_hand(struct aspen_recorder *t, uint64_t item, uint64_t now) {
  aspen_stat_store(&t->ring->since, now);
  aspen_stat_store(&t->ring->item, item);
}

static inline void aspen_note_idle(struct aspen_recorder *t, uint64_t now) {
  t->idle = now;
  aspen_stat_store(&t->ring->idle, now);
}

/* The DSE is idle no longer, or is about to stop looking. */
static inline void aspen_note_idle_end(struct aspen_recorder *t, uint64_t now) {
  if (!t->idle) return;
  aspen_note(t, ASPEN_TRACE_IDLE, 0, 0, t->idle, now);
  aspen_note_idle(t, 0);
}

/* The loop is entered again. */
static inline void aspen_note_back(struct aspen_recorder *t, uint64_t now) {
  if (t->away) aspen_note(t, ASPEN_TRACE_AWAY, 0, 0, t->away, now);
  t->away = 0;
}

/* The row's ring of a mapped trace segment; 0 and closed where it is none, or is not as it should be. */
static inline int aspen_recorder_open(struct aspen_recorder *t, char *base, uint64_t bytes, uint32_t row) {
  struct aspen_trace_segment *g = (struct aspen_trace_segment *)base;
  *t = (struct aspen_recorder){.ring = NULL};
  if (!base || bytes < sizeof *g) return 0;
  uint32_t n = aspen_stat_load(&g->n_rings), capacity = aspen_stat_load(&g->capacity);
  if (row >= n || n > ASPEN_MAX_WORKERS || !capacity || capacity & (capacity - 1) || bytes < aspen_trace_bytes(n, capacity)) return 0;
  t->record = g->record + (size_t)row * capacity;
  t->mask = capacity - 1;
  t->written = aspen_load_acquire(&g->ring[row].written);
  t->ring = &g->ring[row];
  uint64_t item = aspen_stat_load(&t->ring->item), since = aspen_stat_load(&t->ring->since);
  if (item) aspen_note(t, ASPEN_TRACE_TILE | ASPEN_TRACE_CUT, row, item, since, since); /* of whoever died in this row */
  aspen_note_in_hand(t, 0, 0);
  aspen_note_idle(t, 0);
  aspen_stat_store(&t->ring->opened, aspen_ticks());
  return 1;
}

#endif
