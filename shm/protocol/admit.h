/* Whether a deadline can be met (docs/protocol/deadlines.md, "Admission"). All under the claim lock. */
#ifndef ASPEN_ADMIT_H
#define ASPEN_ADMIT_H
#include "fluid.h"
#include "turns.h"

#define ASPEN_MOST_SPAN_NS (24 * 3600 * (uint64_t)1000000000) /* a later deadline counts as this one */
#define ASPEN_TIMED_PART 0.95 /* of core time, at most, for requests with deadlines; so the others of their class always get on … */
#define ASPEN_TIMED_BURST_NS 2e9 /* … after so much of all cores' time, … */
#define ASPEN_TIMED_AHEAD_NS 1e10 /* … and what will have flowed in until the deadline, or so far ahead */
#define ASPEN_UNKNOWN_NS 1e6  /* a request of which nothing is known is expected to take so much core time */
#define ASPEN_FIRST_WIDTH 0.87 /* share of all cores that a request is expected to use before any has run alone */
#define ASPEN_FIRST_STRETCH 1.1
#define ASPEN_MOST_STRETCH 16.0
#define ASPEN_CAUTION_ONE 65536.0
#define ASPEN_CAUTION_MORE 1.05   /* for each admitted request that was late … */
#define ASPEN_CAUTION_LESS 0.9995 /* … and for each other one: at rest where one of a hundred is late */
#define ASPEN_MOST_CAUTION 8.0
#define ASPEN_SAMPLE 256      /* tiles, at most, that say how far a request is */

/* What all workers compute in a nanosecond, in nanoseconds that plans expect. */
static inline double aspen_capacity(const struct aspen_station *s) {
  double all = 0;
  for (uint32_t r = 0; r < s->control->signals.n_rows; r++) {
    uint32_t pace = aspen_stat_load(&s->control->worker[r].pace);
    if (aspen_load_relaxed(&s->control->row[r].open)) all += pace ? 1024.0 / pace : 1;
  }
  return all > 0 ? all : 1;
}

static inline double aspen_caution(const struct aspen_turns *t) {
  double caution = aspen_stat_load(&t->caution) / ASPEN_CAUTION_ONE;
  return caution < 1 ? 1 : caution > ASPEN_MOST_CAUTION ? ASPEN_MOST_CAUTION : caution;
}

/* Refusals count as well: where nothing is admitted any more, nothing else would make it less. */
static inline void aspen_learn_caution(struct aspen_turns *t, int late) {
  aspen_stat_store(&t->caution, (uint32_t)(aspen_caution(t) * (late ? ASPEN_CAUTION_MORE : ASPEN_CAUTION_LESS) * ASPEN_CAUTION_ONE));
}

/* How much longer requests take than predicted, by those that were admitted: the mean, and twice the deviation; and more where they are late. */
static inline double aspen_stretch(const struct aspen_turns *t) {
  uint32_t mean = aspen_stat_load(&t->stretch), deviation = aspen_stat_load(&t->deviation);
  double stretch = (mean ? (mean + 2.0 * deviation) / 1024 : ASPEN_FIRST_STRETCH) * aspen_caution(t);
  return stretch < 1 ? 1 : stretch > ASPEN_MOST_STRETCH ? ASPEN_MOST_STRETCH : stretch;
}

/* The part of a running request's work that is left, by the tiles that have been executed. */
static inline double aspen_left(const struct aspen_station *s, uint32_t id) {
  const struct aspen_instance_view *v = id < ASPEN_MAX_INSTANCES ? s->instance[id] : NULL;
  if (!v) return 1;
  const struct aspen_plan_view *p = v->plan;
  const struct aspen_op *ops = (const struct aspen_op *)((const char *)p->header + p->header->ops);
  uint32_t generation = (uint32_t)(aspen_load_relaxed(&s->control->instance[id].word) >> 32), stride = p->n_tiles / ASPEN_SAMPLE + 1;
  double all = 0, left = 0;
  for (uint32_t n = 0; n < p->n_tiles; n += stride) {
    double cost = ops[p->tiles[n].op].cost_ns;
    if (!(cost > 0 && cost < 1e12)) continue; /* a plan may say anything */
    all += cost;
    if (aspen_load_relaxed(&v->executed[n]) != generation) left += cost;
  }
  return all > 0 ? left / all : 1;
}

/* What a request of a plan asks of the simulation, by what requests took that ran alone, or else by the plan. */
static inline struct aspen_fluid aspen_demand(const struct aspen_station *s, uint32_t plan, double capacity) {
  const struct aspen_plan *p = &s->control->plan[plan];
  double alone = (double)aspen_stat_load(&p->alone_ns), speed = capacity / aspen_open_rows(s), work = (double)p->core_ns;
  double rows = (double)aspen_stat_load(&p->alone_rows);
  struct aspen_fluid f = {.plan = plan, .limit = p->n_instances};
  if (alone > 0) { /* it had one core at least, and no more than there were */
    work = work > alone * speed ? work : alone * speed;
    if (rows >= 1 && work > alone * speed * rows) work = alone * speed * rows;
  }
  f.work = work > 0 ? work : ASPEN_UNKNOWN_NS;
  f.most = alone > 0 ? f.work / alone : ASPEN_FIRST_WIDTH * capacity;
  return f;
}

/* The requests of the simulation: all that run, those with deadlines that wait, and a candidate. Returns how many. */
static inline uint32_t aspen_rivals(const struct aspen_station *s, const struct aspen_fluid *candidate, double capacity, struct aspen_fluid *out) {
  const struct aspen_turns *t = &s->control->turns;
  uint32_t n = 0;
  for (uint32_t k = 0; k < t->n_active; k++) {
    const struct aspen_active *a = &t->active[k];
    if (!a->instance && !a->deadline_ns) continue;
    out[n] = aspen_demand(s, a->plan % ASPEN_MAX_PLANS, capacity);
    out[n].order = a->order;
    out[n].holds = a->instance != 0;
    out[n].mark = k;
    if (a->instance) out[n].work *= aspen_left(s, a->instance);
    n++;
  }
  if (candidate) out[n++] = *candidate;
  return n;
}

/* How many deadlines of admitted requests of a class are broken by what was simulated; of the candidate, how long it takes. */
static inline uint32_t aspen_broken(const struct aspen_station *s, const struct aspen_fluid *f, uint32_t n, uint32_t class_, uint64_t now, double stretch,
                                    double *takes) {
  uint32_t broken = 0;
  for (uint32_t k = 0; k < n; k++) {
    double ends = f[k].ends * stretch;
    if (f[k].mark == ASPEN_NONE) *takes = ends;
    else if (aspen_order_class(f[k].order) == class_) {
      uint64_t deadline = s->control->turns.active[f[k].mark].deadline_ns;
      broken += deadline && (deadline < now || ends > (double)(deadline - now));
    }
  }
  return broken;
}

/* The simulation is what is expected from now on. */
static inline void aspen_note_expected(struct aspen_station *s, const struct aspen_fluid *f, uint32_t n, uint64_t now) {
  for (uint32_t k = 0; k < n; k++) {
    if (f[k].mark == ASPEN_NONE || f[k].ends >= ASPEN_NEVER) continue;
    struct aspen_active *a = &s->control->turns.active[f[k].mark];
    a->expected_ns = now + (uint64_t)f[k].ends;
    if (a->instance && a->deadline_ns) aspen_stat_store(&s->control->instance[a->instance % ASPEN_MAX_INSTANCES].expected_ns, a->expected_ns);
  }
}

/* Core time for requests with deadlines flows in at ASPEN_TIMED_PART of what there is. Returns how long until `work` of it is there, ns; with `spend` it is
 * spent now. */
static inline double aspen_spend(struct aspen_turns *t, uint64_t now, double capacity, double work, int spend) {
  double rate = ASPEN_TIMED_PART * capacity, most = ASPEN_TIMED_BURST_NS * capacity;
  double spent = (double)t->spent_ns - (double)(now > t->refilled_ns ? now - t->refilled_ns : 0) * rate;
  if (!(spent > 0)) spent = 0;
  if (!spend) return spent > 0 && spent + work > most ? (spent + work - most) / rate : 0;
  t->refilled_ns = now;
  t->spent_ns = (uint64_t)(spent + work < 1e18 ? spent + work : 1e18);
  return 0;
}

/* How long a new candidate takes from now on; 0: it meets its deadline, breaks no other, and counts as admitted. */
static inline double aspen_simulate(struct aspen_station *s, const struct aspen_candidate *r, uint64_t now) {
  struct aspen_turns *t = &s->control->turns;
  struct aspen_fluid f[ASPEN_ACTIVE + 1];
  double rate[ASPEN_ACTIVE + 1];
  double capacity = aspen_capacity(s), stretch = aspen_stretch(t), takes = 0, alone = 0, span = (double)(r->deadline_ns - now);
  struct aspen_fluid one = aspen_demand(s, r->plan, capacity);
  one.order = aspen_place(r) | ASPEN_ORDER_TIES;
  one.mark = ASPEN_NONE;
  aspen_active_prune(s);
  if (t->n_active >= ASPEN_ACTIVE) return ASPEN_NEVER;
  uint32_t n = aspen_rivals(s, &one, capacity, f);
  aspen_fluid_run(f, n, capacity, rate);
  uint32_t broken = aspen_broken(s, f, n, r->class_, now, stretch, &takes);
  if (takes > span) return takes;
  double wait = aspen_spend(t, now, capacity, one.work, 0);
  if (wait > span || wait > ASPEN_TIMED_AHEAD_NS) return wait + takes > span ? wait + takes : span + 1;
  if (broken) {
    uint32_t others = aspen_rivals(s, NULL, capacity, f);
    aspen_fluid_run(f, others, capacity, rate);
    if (aspen_broken(s, f, others, r->class_, now, stretch, &alone) < broken) { /* after all of them, then */
      one.order = aspen_order(r->class_, 0, ASPEN_ORDER_KEY);
      n = aspen_rivals(s, &one, capacity, f);
      aspen_fluid_run(f, n, capacity, rate);
      aspen_broken(s, f, n, r->class_, now, stretch, &takes);
      return takes > span ? takes : span + 1;
    }
    n = aspen_rivals(s, &one, capacity, f);
    aspen_fluid_run(f, n, capacity, rate);
  }
  aspen_note_expected(s, f, n, now);
  aspen_spend(t, now, capacity, one.work, 1);
  struct aspen_active a = {.order = aspen_place(r), .deadline_ns = r->deadline_ns, .admitted_ns = now, .client = r->client, .slot = r->slot,
                           .sequence = ASPEN_SLOT_SEQUENCE(r->word), .plan = r->plan};
  for (uint32_t k = 0; k < n; k++)
    if (f[k].mark == ASPEN_NONE) a.expected_ns = now + (uint64_t)f[k].ends;
  aspen_active_add(t, &a);
  return 0;
}

/* An admitted request has ended, or was given up when it was late: how long that took beside what was predicted. */
static inline void aspen_note_stretch(struct aspen_turns *t, uint64_t admitted_ns, uint64_t expected_ns, uint64_t now, int late) {
  if (expected_ns <= admitted_ns || now <= admitted_ns) return;
  aspen_learn_caution(t, late);
  double took = (double)(now - admitted_ns) / (double)(expected_ns - admitted_ns) * 1024;
  double mean = aspen_stat_load(&t->stretch), deviation = aspen_stat_load(&t->deviation);
  took = took < 256 ? 256 : took > 8192 ? 8192 : took;
  if (!(mean > 0)) mean = took;
  deviation += ((took > mean ? took - mean : mean - took) - deviation) / 8;
  mean += (took - mean) / 16;
  aspen_stat_store(&t->stretch, (uint32_t)mean);
  aspen_stat_store(&t->deviation, (uint32_t)deviation);
}

/* A candidate is answered without having run. */
static inline void aspen_give_up(struct aspen_station *s, const struct aspen_candidate *r) {
  struct aspen_turns *t = &s->control->turns;
  const struct aspen_active *a = aspen_admitted(t, r);
  if (!a) return;
  uint64_t now = aspen_now_ns();
  if (a->deadline_ns && now >= a->deadline_ns) {
    aspen_stat_add(&s->control->plan[a->plan % ASPEN_MAX_PLANS].expired, 1);
    aspen_note_stretch(t, a->admitted_ns, a->expected_ns, now, 1);
  }
  aspen_active_remove(t, (uint32_t)(a - t->active));
}

/* A candidate with a deadline. Returns the error to answer with, and how long the request would have taken since it was submitted; 0: it may run. One that runs on
 * though it is late then goes without its deadline. */
static inline uint32_t aspen_admit(struct aspen_station *s, struct aspen_candidate *r, uint64_t *predicted_ns) {
  struct aspen_turns *t = &s->control->turns;
  struct aspen_plan *plan = &s->control->plan[r->plan];
  uint64_t now = aspen_now_ns(), from = r->submitted_ns < now ? r->submitted_ns : now; /* a client that says otherwise gets an earlier deadline, never a later one */
  struct aspen_active *known = aspen_admitted(t, r);
  r->due_ns = from + (r->span_ns < ASPEN_MOST_SPAN_NS ? r->span_ns : ASPEN_MOST_SPAN_NS);
  r->deadline_ns = known && known->deadline_ns ? known->deadline_ns : r->due_ns;
  if (now >= r->deadline_ns && !r->runs_on) {
    if (!known) aspen_stat_add(&plan->expired, 1); /* else aspen_give_up counts it */
    return ASPEN_E_EXPIRED;
  }
  if (known) {
    if (now >= r->deadline_ns) known->deadline_ns = 0;
    r->deadline_ns = known->deadline_ns;
    return ASPEN_E_OK;
  }
  double takes = now < r->deadline_ns ? aspen_simulate(s, r, now) : ASPEN_NEVER;
  if (!(takes > 0)) return ASPEN_E_OK;
  if (!r->runs_on) {
    *predicted_ns = now - from + (uint64_t)(takes < 1e18 ? takes : 1e18);
    aspen_stat_add(&plan->refused, 1);
    aspen_learn_caution(t, 0);
    return ASPEN_E_TOO_LATE;
  }
  r->deadline_ns = 0;
  struct aspen_active a = {.client = r->client, .slot = r->slot, .sequence = ASPEN_SLOT_SEQUENCE(r->word), .plan = r->plan}; /* it is not looked at again */
  aspen_active_add(t, &a);
  return ASPEN_E_OK;
}

/* A request that ran alone has ended. */
static inline void aspen_note_alone(const struct aspen_station *s, const struct aspen_instance *i, uint64_t ran_ns) {
  struct aspen_plan *p = &s->control->plan[i->plan];
  const struct aspen_plan_view *view = s->plan[i->plan];
  uint64_t old = aspen_stat_load(&p->alone_ns), rows = aspen_stat_load(&s->control->turns.rows);
  if (!aspen_stat_load(&i->alone) || !view || i->extent != view->most) return;
  if (rows != aspen_stat_load(&p->alone_rows)) old = 0; /* with other workers it is another time */
  if (old && ran_ns > 4 * old) ran_ns = 4 * old; /* somebody had the core */
  aspen_stat_store(&p->alone_ns, old ? old - old / 8 + ran_ns / 8 : ran_ns);
  aspen_stat_store(&p->alone_rows, rows);
}

#endif
