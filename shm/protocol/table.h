/* The planner process's hand on the control segment (docs/protocol/segments.md, "Attach", "Detach"). One thread of one process writes here;
 * DSEs read. */
#ifndef ASPEN_TABLE_H
#define ASPEN_TABLE_H
#include <string.h>

#include "doorbell.h"
#include "hints.h"

/* What is behind a stamped segment? 0: what it should be; else a number for the message: 1 no magic, 2 other layout, 3 other role, 4 other size. */
static inline int aspen_magic_check(const struct aspen_magic *m, uint64_t bytes, uint32_t role) {
  if (bytes < sizeof *m || memcmp(m->magic, "ASPENMP", 8)) return 1;
  if (m->layout != ASPEN_LAYOUT_HASH) return 2;
  if (m->role != role) return 3;
  return m->bytes > bytes ? 4 : 0;
}

static inline void aspen_magic_write(struct aspen_magic *m, uint64_t bytes, uint32_t role) {
  *m = (struct aspen_magic){.magic = "ASPENMP", .layout = ASPEN_LAYOUT_HASH, .bytes = bytes, .role = role, .version = 1};
}

/* Nanoseconds per tick, 32.32. */
static inline uint64_t aspen_tick_scale(void) {
  if (ASPEN_SIMULATED) return (uint64_t)1 << 32; /* Both clocks are the same, and neither goes on while this looks. */
  uint64_t n0 = aspen_now_ns(), t0 = aspen_ticks(), n1, t1;
  do {
    n1 = aspen_now_ns();
    t1 = aspen_ticks();
  } while (n1 - n0 < 2000000);
  return (uint64_t)((((unsigned __int128)(n1 - n0)) << 32) / (t1 > t0 ? t1 - t0 : 1));
}

static inline void aspen_table_create(struct aspen_control *c, uint32_t max_workers, uint32_t spin_ns, uint32_t preempt_ns) {
  c->signals.n_rows = max_workers;
  c->signals.spin_ns = spin_ns;
  c->signals.preempt_ns = preempt_ns;
  c->signals.steal = 1;
  c->signals.tick_ns_q32 = aspen_tick_scale();
}

static inline void aspen_wake_all(struct aspen_doorbell *bell) { aspen_ring(bell, INT_MAX); }

/* Has every worker mapped and unmapped what was announced up to `seq`? One that joins counts: it may still be reading about segments that
 * have been dropped since, whose ids must not mean anything else yet. */
static inline int aspen_all_attached(const struct aspen_control *c, uint32_t seq) {
  for (uint32_t r = 0; r < c->signals.n_rows; r++) {
    uint32_t state = aspen_load_acquire(&c->worker[r].state);
    int maps = state == ASPEN_WORKER_JOINING || state == ASPEN_WORKER_RUNNING || state == ASPEN_WORKER_LEAVING;
    if (maps && (int32_t)(aspen_load_acquire(&c->worker[r].attached) - seq) < 0) return 0;
  }
  return 1;
}

static inline uint32_t aspen_next_seq(const struct aspen_control *c) { return c->signals.attach_seq + 1; }

/* Everything sent so far is announced. */
static inline uint32_t aspen_publish(struct aspen_control *c, struct aspen_doorbell *bell) {
  uint32_t seq = aspen_next_seq(c);
  aspen_store_seq(&c->signals.attach_seq, seq);
  aspen_wake_all(bell);
  return seq;
}

/* ------------------------------------------------------------------------------------------------ segments */

static inline uint32_t aspen_add_segment(struct aspen_control *c, uint32_t role, uint64_t bytes) {
  for (uint32_t i = 1; i < ASPEN_MAX_SEGMENTS; i++) {
    struct aspen_segment *g = &c->segment[i];
    if (g->state == ASPEN_SEGMENT_LIVE || (g->state == ASPEN_SEGMENT_DROPPED && !aspen_all_attached(c, g->seq))) continue;
    g->role = role;
    g->bytes = bytes;
    g->seq = aspen_next_seq(c);
    aspen_store_release(&g->state, ASPEN_SEGMENT_LIVE);
    return i;
  }
  return 0;
}

static inline void aspen_drop_segment(struct aspen_control *c, uint32_t i) {
  c->segment[i].seq = aspen_next_seq(c);
  aspen_store_release(&c->segment[i].state, ASPEN_SEGMENT_DROPPED);
}

/* ------------------------------------------------------------------------------------------------ plans */

/* 0: the tables are full. */
static inline uint32_t aspen_add_plan(struct aspen_control *c, uint32_t segment, const uint32_t *weights, uint32_t n_weights,
                                      const uint32_t *arenas, uint32_t n_arenas) {
  uint32_t id = 0, found = 0, instance[ASPEN_PLAN_INSTANCES];
  for (uint32_t i = 1; i < ASPEN_MAX_PLANS && !id; i++)
    if (c->plan[i].state == ASPEN_PLAN_FREE && aspen_all_attached(c, c->plan[i].seq)) id = i;
  for (uint32_t i = 1; i < ASPEN_MAX_INSTANCES && found < n_arenas; i++)
    if ((uint32_t)aspen_load_acquire(&c->instance[i].word) == ASPEN_INSTANCE_NONE && aspen_all_attached(c, c->instance[i].seq)) instance[found++] = i;
  if (!id || found < n_arenas) return 0;
  struct aspen_plan *p = &c->plan[id];
  p->segment = segment;
  p->n_weights = n_weights;
  for (uint32_t k = 0; k < n_weights; k++) p->weights[k] = weights[k];
  p->n_instances = n_arenas;
  for (uint32_t k = 0; k < n_arenas; k++) {
    struct aspen_instance *i = &c->instance[instance[k]];
    p->instance[k] = instance[k];
    i->plan = id;
    i->arena = arenas[k];
    i->served = i->beside = i->queued_ns = i->ran_ns = i->missed = 0;
    aspen_store_release(&i->word, ASPEN_STATE(i->word >> 32, ASPEN_INSTANCE_FREE));
  }
  p->model = p->share = 0;
  p->core_ns = p->alone_ns = p->alone_rows = p->refused = p->expired = 0;
  p->generation++;
  aspen_store_seq(&p->state, ASPEN_PLAN_LIVE);
  return id;
}

/* Before clients hear of a plan: whose it is, its share of core time times 1024, what it expects of its tiles on one core, and at which
 * depths they wait for memory, a bit each. */
static inline void aspen_plan_terms(struct aspen_control *c, uint32_t id, uint32_t model, uint32_t share, uint64_t core_ns, uint32_t memory) {
  c->plan[id].memory = memory;
  aspen_hints_of_plan(c, id, memory);
  c->plan[id].model = model;
  c->plan[id].share = share;
  c->plan[id].core_ns = core_ns;
}

/* Makes the DSEs look at every waiting request again. */
static inline void aspen_look_again(struct aspen_control *c, struct aspen_doorbell *bell) {
  for (unsigned w = 0; w < ASPEN_MAX_CLIENTS / 64; w++) aspen_or_seq(&c->claim.waiting[w], ~(uint64_t)0);
  aspen_add_seq(&c->claim.wanted, 1);
  aspen_ring(bell, 1);
}

static inline void aspen_drop_plan(struct aspen_control *c, struct aspen_doorbell *bell, uint32_t id) {
  aspen_store_seq(&c->plan[id].state, ASPEN_PLAN_DRAINING);
  aspen_look_again(c, bell);
}

static inline int aspen_plan_idle(const struct aspen_control *c, uint32_t id) {
  const struct aspen_plan *p = &c->plan[id];
  for (uint32_t k = 0; k < p->n_instances; k++)
    if ((uint32_t)aspen_load_seq(&c->instance[p->instance[k]].word) != ASPEN_INSTANCE_FREE) return 0;
  return 1;
}

/* Frees a draining plan whose requests have all ended. Its plan and arena segments go to `out` (at least 1 + ASPEN_PLAN_INSTANCES); returns how many. */
static inline uint32_t aspen_collect_plan(struct aspen_control *c, uint32_t id, uint32_t *out) {
  struct aspen_plan *p = &c->plan[id];
  if (p->state != ASPEN_PLAN_DRAINING || !aspen_plan_idle(c, id)) return 0;
  uint32_t n = 0;
  out[n++] = p->segment;
  for (uint32_t k = 0; k < p->n_instances; k++) {
    struct aspen_instance *i = &c->instance[p->instance[k]];
    out[n++] = i->arena;
    i->seq = aspen_next_seq(c);
    aspen_store_release(&i->word, ASPEN_STATE(i->word >> 32, ASPEN_INSTANCE_NONE));
  }
  p->seq = aspen_next_seq(c);
  aspen_store_seq(&p->state, ASPEN_PLAN_FREE);
  for (uint32_t k = 0; k < n; k++) aspen_drop_segment(c, out[k]);
  return n;
}

/* While the world stands still: an instance goes on in another arena, as large and all zero, so none of its request's tiles counts as executed (I2).
 * Returns the old one, which is dropped; aspen_publish() has to come before the world goes on. */
static inline uint32_t aspen_replace_arena(struct aspen_control *c, uint32_t id, uint32_t segment) {
  uint32_t old = c->instance[id].arena;
  c->instance[id].arena = segment;
  aspen_drop_segment(c, old);
  return old;
}

/* ------------------------------------------------------------------------------------------------ clients */

static inline uint32_t aspen_add_client(struct aspen_control *c, uint32_t segment, struct aspen_client_segment *mapped) {
  for (uint32_t i = 1; i < ASPEN_MAX_CLIENTS; i++) {
    struct aspen_client *k = &c->client[i];
    if (k->state != ASPEN_CLIENT_FREE || !aspen_all_attached(c, k->seq)) continue;
    memset(k->data, 0, sizeof k->data);
    aspen_store_relaxed(&k->segment, segment); /* a stale doorbell bit makes a DSE look here at any time */
    mapped->client = i;
    aspen_store_seq(&k->state, ASPEN_CLIENT_LIVE);
    return i;
  }
  return 0;
}

/* Data index + 1, 0: full. */
static inline uint32_t aspen_add_data(struct aspen_control *c, uint32_t client, uint32_t segment) {
  for (uint32_t k = 0; k < ASPEN_CLIENT_DATA; k++)
    if (!c->client[client].data[k]) {
      aspen_store_seq(&c->client[client].data[k], segment);
      return k + 1;
    }
  return 0;
}

/* The client's submissions name it no longer; what runs with it is waited for (aspen_in_use). Returns the segment. */
static inline uint32_t aspen_drop_data(struct aspen_control *c, uint32_t client, uint32_t index) {
  uint32_t segment = c->client[client].data[index];
  aspen_store_seq(&c->client[client].data[index], 0);
  return segment;
}

static inline void aspen_drop_client(struct aspen_control *c, struct aspen_doorbell *bell, uint32_t client) {
  aspen_store_seq(&c->client[client].state, ASPEN_CLIENT_DYING);
  aspen_look_again(c, bell);
}

/* Does a request that has not ended use this client, or this data segment (whichever is not 0)? */
static inline int aspen_in_use(const struct aspen_control *c, uint32_t client, uint32_t data) {
  for (uint32_t id = 1; id < ASPEN_MAX_INSTANCES; id++) {
    const struct aspen_instance *i = &c->instance[id];
    uint32_t state = (uint32_t)aspen_load_seq(&i->word);
    if (state != ASPEN_INSTANCE_CLAIMED && state != ASPEN_INSTANCE_RUNNING && state != ASPEN_INSTANCE_DONE) continue;
    if ((client && aspen_load_relaxed(&i->client) == client) || (data && aspen_load_relaxed(&i->data) == data)) return 1;
  }
  return 0;
}

/* Frees a dying client whose requests have all ended; `out`: at least 1 + ASPEN_CLIENT_DATA. */
static inline uint32_t aspen_collect_client(struct aspen_control *c, uint32_t client, uint32_t *out) {
  struct aspen_client *k = &c->client[client];
  if (k->state != ASPEN_CLIENT_DYING || aspen_in_use(c, client, 0)) return 0;
  uint32_t n = 0;
  out[n++] = k->segment;
  for (uint32_t d = 0; d < ASPEN_CLIENT_DATA; d++)
    if (k->data[d]) out[n++] = k->data[d];
  k->seq = aspen_next_seq(c);
  /* A stale doorbell bit makes a DSE look here at any time; the segment's number may be another client's by then, whose requests it would
   * refuse in the name of this one. */
  aspen_store_relaxed(&k->segment, 0);
  aspen_store_seq(&k->state, ASPEN_CLIENT_FREE);
  for (uint32_t d = 0; d < n; d++) aspen_drop_segment(c, out[d]);
  return n;
}

/* ------------------------------------------------------------------------------------------------ workers */

static inline void aspen_worker_reset(struct aspen_control *c, uint32_t row, uint32_t cpu, uint32_t core_class, uint32_t cache, uint32_t node) {
  struct aspen_worker *w = &c->worker[row];
  w->pid = 0;
  aspen_stat_store(&w->cpu, cpu); /* other DSEs may be reading where the row's worker is (aspen_distance) */
  aspen_stat_store(&w->core_class, core_class);
  aspen_stat_store(&w->cache, cache);
  aspen_stat_store(&w->node, node);
  memset(&w->state, 0, sizeof *w - offsetof(struct aspen_worker, state));
  aspen_store_release(&w->state, ASPEN_WORKER_JOINING);
  aspen_add_seq(&c->signals.roster, 1); /* after the place: who sees the new number sees it too */
}

/* Its process has been reaped: the row is closed, so what it holds is anybody's. */
static inline void aspen_worker_gone(struct aspen_control *c, uint32_t row, int died) {
  aspen_store_seq(&c->row[row].open, 0);
  aspen_store_seq(&c->worker[row].state, died ? ASPEN_WORKER_DEAD : ASPEN_WORKER_NONE);
}

/* Is there anything that this row's DSE would see, if it looked? What aspen_dse_work() sees, from outside. */
static inline int aspen_worker_due(const struct aspen_control *c, const struct aspen_doorbell *bell, uint32_t row) {
  const struct aspen_worker *w = &c->worker[row];
  if (aspen_load_seq(&c->signals.epoch) & 1 || aspen_load_seq(&c->signals.stop) || aspen_load_seq(&w->command)) return 1;
  if (aspen_load_seq(&c->signals.attach_seq) != aspen_load_acquire(&w->attached)) return 1;
  for (uint32_t r = 0; r < c->signals.n_rows; r++) {
    int takes = r == row || aspen_stat_load(&c->signals.steal) || !aspen_load_seq(&c->row[r].open);
    if (takes && aspen_load_seq(&c->row[r].first)) return 1;
  }
  return aspen_bell_pending(bell) || (aspen_load_seq(&c->claim.wanted) != aspen_load_seq(&c->claim.done) && aspen_load_seq(&c->claim.lock) == 0);
}

static inline void aspen_worker_command(struct aspen_control *c, struct aspen_doorbell *bell, uint32_t row, uint32_t command) {
  aspen_store_seq(&c->worker[row].command, command);
  aspen_wake_all(bell);
}

#endif
