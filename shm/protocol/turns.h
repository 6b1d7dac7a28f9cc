/* Whose turn it is (docs/protocol/deadlines.md, "Shares"), and which requests a claim knows of. All under the claim lock. */
#ifndef ASPEN_TURNS_H
#define ASPEN_TURNS_H
#include "atomics.h"
#include "pool.h"
#include "station.h"

#define ASPEN_SHARE_ONE 1024u
#define ASPEN_LAST_TURN ((uint64_t)1 << 60) /* ns of virtual time: decades. Beyond it a class goes by age */

/* A private copy of a slot: clients may change theirs at any time. */
struct aspen_candidate {
  uint32_t client, slot, word, plan, generation, class_, data, segment, extent, runs_on;
  uint64_t offset, submitted_ns, span_ns;
  uint64_t due_ns;      /* its deadline, 0: it has none … */
  uint64_t deadline_ns; /* … and as far as it counts: 0, too, where it cannot be met and the request runs on */
  uint64_t turn;        /* without a deadline: its place in virtual time, ns */
};

/* ------------------------------------------------------------------------------------------------ shares */

static inline uint32_t aspen_open_rows(const struct aspen_station *s) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < s->control->signals.n_rows; r++) n += aspen_load_relaxed(&s->control->row[r].open) != 0;
  return n ? n : 1;
}

/* The flow of a client's requests for a model in a class. `make`: it gets a place if it has none, that of the flow whose turns ended first among those that
 * could be there. NULL: it has none. */
static inline struct aspen_flow *aspen_flow(struct aspen_turns *t, const struct aspen_candidate *r, uint32_t model, int make) {
  uint64_t key = (uint64_t)1 << 63 | (uint64_t)r->class_ << 48 | (uint64_t)r->client << 32 | model;
  uint64_t set = (key * 0x9e3779b97f4a7c15u >> 40) % (ASPEN_FLOWS / ASPEN_FLOW_WAYS);
  struct aspen_flow *way = &t->flow[set * ASPEN_FLOW_WAYS], *least = way;
  for (uint32_t k = 0; k < ASPEN_FLOW_WAYS; k++, way++) {
    if (way->key == key) return way;
    if (!way->key || (least->key && way->finish < least->finish)) least = way;
    if (!way->key) break; /* places are filled in turn */
  }
  if (!make) return NULL;
  *least = (struct aspen_flow){key, 0};
  return least;
}

/* Where a candidate without a deadline stands in virtual time: after the last turn of its flow, and not before now, so that idle flows save nothing up. */
static inline uint64_t aspen_turn(struct aspen_turns *t, const struct aspen_candidate *r, uint32_t model) {
  const struct aspen_flow *flow = aspen_flow(t, r, model, 0);
  uint64_t now = t->now[r->class_];
  uint64_t turn = flow && flow->finish > now ? flow->finish : now;
  return turn < ASPEN_LAST_TURN ? turn : ASPEN_LAST_TURN;
}

/* How far a request of a plan takes its flow: the core time that it is expected to take, by the plan or, where that knows too little, by what was measured. */
static inline uint64_t aspen_turn_cost(const struct aspen_plan *p, uint32_t rows) {
  uint64_t core = p->core_ns, alone = aspen_stat_load(&p->alone_ns), share = p->share ? p->share : ASPEN_SHARE_ONE;
  if (alone / 2 > core) core = alone;
  if (core > (uint64_t)1 << 42) core = (uint64_t)1 << 42; /* an hour; and so the product fits */
  core = core * ASPEN_SHARE_ONE / share / rows;
  return core ? core : 1;
}

/* Where a request comes among all that wait, and, with its ticket, among all that run. */
static inline uint64_t aspen_place(const struct aspen_candidate *r) {
  uint64_t key = (r->deadline_ns ? r->deadline_ns : r->turn) & ASPEN_ORDER_KEY & ~(uint64_t)ASPEN_ORDER_TIES;
  return aspen_order(r->class_, r->deadline_ns != 0, key);
}

/* ------------------------------------------------------------------------------------------------ what runs and what waits */

static inline void aspen_active_add(struct aspen_turns *t, const struct aspen_active *a) {
  if (t->n_active >= ASPEN_ACTIVE) return; /* it runs; no simulation knows of it */
  if (!a->instance) t->admitted[a->client % ASPEN_MAX_CLIENTS][a->slot % ASPEN_SLOTS] = (uint16_t)t->n_active;
  t->active[t->n_active++] = *a;
}

static inline void aspen_active_remove(struct aspen_turns *t, uint32_t at) {
  struct aspen_active *last = &t->active[--t->n_active];
  if (at == t->n_active) return;
  t->active[at] = *last;
  if (!last->instance) t->admitted[last->client % ASPEN_MAX_CLIENTS][last->slot % ASPEN_SLOTS] = (uint16_t)at;
}

/* The entry of a candidate that was looked at before and waits. NULL: it is new. */
static inline struct aspen_active *aspen_admitted(struct aspen_turns *t, const struct aspen_candidate *r) {
  uint32_t at = t->admitted[r->client % ASPEN_MAX_CLIENTS][r->slot % ASPEN_SLOTS];
  struct aspen_active *a = &t->active[at % ASPEN_ACTIVE];
  int its = at < t->n_active && !a->instance && a->client == r->client && a->slot == r->slot && a->sequence == ASPEN_SLOT_SEQUENCE(r->word);
  return its ? a : NULL;
}

static inline void aspen_forget(struct aspen_turns *t, const struct aspen_candidate *r) {
  struct aspen_active *a = aspen_admitted(t, r);
  if (a) aspen_active_remove(t, (uint32_t)(a - t->active));
}

/* Does it still run, or wait? A slot that its client has changed does not. */
static inline int aspen_active_lasts(const struct aspen_station *s, const struct aspen_active *a) {
  if (a->instance) {
    uint64_t word = aspen_load_relaxed(&s->control->instance[a->instance % ASPEN_MAX_INSTANCES].word);
    return word == ASPEN_STATE(a->generation, ASPEN_INSTANCE_RUNNING);
  }
  const struct aspen_client_segment *c = aspen_client_mapped(s, a->client % ASPEN_MAX_CLIENTS);
  return c && aspen_load_relaxed(&c->slot[a->slot % ASPEN_SLOTS].word) == ASPEN_SLOT_WORD(a->sequence, ASPEN_SLOT_SUBMITTED);
}

static inline void aspen_active_prune(struct aspen_station *s) {
  struct aspen_turns *t = &s->control->turns;
  for (uint32_t k = 0; k < t->n_active;)
    if (aspen_active_lasts(s, &t->active[k])) k++;
    else aspen_active_remove(t, k);
}

/* A candidate has been given an instance, whose request is not RUNNING yet: it takes its turn. `rows`: those that are open, 1 at least. */
static inline void aspen_turn_taken(struct aspen_station *s, const struct aspen_candidate *r, uint32_t id, uint32_t generation, uint32_t rows) {
  struct aspen_turns *t = &s->control->turns;
  struct aspen_instance *i = &s->control->instance[id];
  const struct aspen_plan *p = &s->control->plan[r->plan];
  struct aspen_flow *flow = aspen_flow(t, r, p->model, 1);
  uint64_t begins = flow->finish > t->now[r->class_] ? flow->finish : t->now[r->class_], least = r->turn;
  const struct aspen_active *waited = aspen_admitted(t, r);
  struct aspen_active a = waited ? *waited : (struct aspen_active){.client = r->client, .plan = r->plan};
  uint32_t running = 0;
  aspen_stat_store(&t->rows, rows);
  aspen_forget(t, r);
  aspen_active_prune(s);
  flow->finish = (begins < ASPEN_LAST_TURN ? begins : ASPEN_LAST_TURN) + aspen_turn_cost(p, rows);
  for (uint32_t k = 0; k < t->n_active; k++) {
    uint64_t order = t->active[k].order, turn = order & ASPEN_ORDER_KEY & ~(uint64_t)ASPEN_ORDER_TIES;
    if (!t->active[k].instance) continue;
    running++;
    if (!aspen_order_timed(order) && aspen_order_class(order) == r->class_ && turn < least) least = turn;
  }
  if (!r->deadline_ns && least > t->now[r->class_]) t->now[r->class_] = least;
  if (t->alone && running) aspen_stat_store(&s->control->instance[t->alone % ASPEN_MAX_INSTANCES].alone, 0);
  t->alone = running ? 0 : id;
  aspen_stat_store(&i->alone, !running);
  aspen_stat_store(&i->expected_ns, r->deadline_ns ? a.expected_ns : 0);
  i->admitted_ns = a.admitted_ns;
  a.order = i->order;
  a.deadline_ns = r->deadline_ns;
  a.instance = id;
  a.generation = generation;
  aspen_active_add(t, &a);
  if (!running && t->now[r->class_] > ASPEN_LAST_TURN / 2) { /* nobody is behind anybody: time begins anew */
    memset(t->flow, 0, sizeof t->flow);
    memset(t->now, 0, sizeof t->now);
  }
}

/* While the world stands still: what the dead worker may have been writing is made anew from what runs. Nobody is admitted: who waits is looked at again. */
static inline void aspen_recover_turns(struct aspen_control *c) {
  struct aspen_turns *t = &c->turns;
  uint64_t least[ASPEN_CLASSES];
  memset(t->flow, 0, sizeof t->flow);
  memset(least, 0xff, sizeof least);
  memset(t->asking, 0xff, sizeof t->asking); /* until somebody has looked who still asks */
  memset(t->asker, 0, sizeof t->asker);
  memset(t->demand, 0, sizeof t->demand);
  t->n_active = t->alone = 0;
  t->spent_ns = t->refilled_ns = 0;
  for (uint32_t id = 1; id < ASPEN_MAX_INSTANCES; id++) {
    struct aspen_instance *i = &c->instance[id];
    uint64_t word = aspen_load_relaxed(&i->word), turn = i->order & ASPEN_ORDER_KEY;
    uint32_t class_ = aspen_order_class(i->order);
    if ((uint32_t)word != ASPEN_INSTANCE_RUNNING) continue;
    struct aspen_active a = {.order = i->order, .deadline_ns = aspen_order_timed(i->order) ? i->deadline_ns : 0, .instance = id, .generation = (uint32_t)(word >> 32), .client = i->client, .plan = i->plan};
    aspen_active_add(t, &a);
    aspen_stat_store(&i->alone, 0);
    if (class_ < ASPEN_CLASSES && !aspen_order_timed(i->order) && turn < least[class_]) least[class_] = turn;
  }
  for (uint32_t k = 0; k < ASPEN_CLASSES; k++) {
    if (least[k] != UINT64_MAX) t->now[k] = least[k];
    if (t->now[k] > ASPEN_LAST_TURN) t->now[k] = ASPEN_LAST_TURN;
  }
}

#endif
