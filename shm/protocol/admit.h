/* Whether a deadline can be met (docs/protocol/deadlines.md, "Admission"). All under the claim lock. */
#ifndef ASPEN_ADMIT_H
#define ASPEN_ADMIT_H
#include "outlook.h"
#include "turns.h"

#define ASPEN_ASKED_NS 1e9    /* what a client has asked for fades in this time */
#define ASPEN_UNKNOWN_NS 1e6  /* a request of which nothing is known is expected to take so much core time */
#define ASPEN_FIRST_WIDTH 0.87 /* share of all cores that a request is expected to use before any has run alone */
#define ASPEN_FIRST_STRETCH 1.1
#define ASPEN_MOST_STRETCH 16.0
#define ASPEN_CAUTION_ONE 65536.0
#define ASPEN_CAUTION_MORE 1.08   /* for each admitted request that was late … */
#define ASPEN_CAUTION_LESS 0.9997 /* … and for each other one: at rest where one of 250 is late */
#define ASPEN_MOST_CAUTION 8.0
#define ASPEN_FADES 0.05 /* of all that was learned of predictions, with a refusal while nothing is admitted, … */
#define ASPEN_FADE_NS 100000000 /* … so often at most */
#define ASPEN_TELL_NS 2000000 /* so long, at most, clients are left alone with what they were told, as long as a DSE comes by */
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

static inline void aspen_learn_caution(struct aspen_turns *t, int late) {
  aspen_stat_store(&t->caution, (uint32_t)(aspen_caution(t) * (late ? ASPEN_CAUTION_MORE : ASPEN_CAUTION_LESS) * ASPEN_CAUTION_ONE));
}

/* A refusal. While nothing is admitted, nothing else would tell that times are better now: so what was learned fades. While something is, refusals teach nothing:
 * admitted requests would be late. */
static inline void aspen_learn_refusal(struct aspen_turns *t, uint64_t now) {
  uint32_t mean = aspen_stat_load(&t->stretch), deviation = aspen_stat_load(&t->deviation);
  for (uint32_t k = 0; k < t->n_active; k++)
    if (t->active[k].deadline_ns) return;
  if (now - t->faded_ns < ASPEN_FADE_NS) return;
  t->faded_ns = now;
  double caution = aspen_caution(t);
  aspen_stat_store(&t->caution, (uint32_t)((caution - (caution - 1) * ASPEN_FADES) * ASPEN_CAUTION_ONE));
  if (mean > 1024) aspen_stat_store(&t->stretch, mean - (uint32_t)((mean - 1024) * ASPEN_FADES));
  aspen_stat_store(&t->deviation, deviation - (uint32_t)(deviation * ASPEN_FADES));
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

/* ------------------------------------------------------------------------------------------------ parts of clients */

/* Core time for a nanosecond that a client has asked for lately, with deadlines. */
static inline double aspen_asked(const struct aspen_turns *t, uint32_t client, uint64_t now) {
  const struct aspen_asker *a = &t->asker[client % ASPEN_MAX_CLIENTS];
  double age = now > a->at_ns ? (double)(now - a->at_ns) : 0;
  return age < ASPEN_ASKED_NS ? (double)a->work_ns * (1 - age / ASPEN_ASKED_NS) / ASPEN_ASKED_NS : 0;
}

static inline void aspen_add_asked(struct aspen_turns *t, uint32_t client, double work, uint64_t now) {
  struct aspen_asker *a = &t->asker[client % ASPEN_MAX_CLIENTS];
  double all = aspen_asked(t, client, now) * ASPEN_ASKED_NS + work;
  aspen_stat_store(&a->work_ns, (uint64_t)(all < 1e18 ? all : 1e18));
  aspen_stat_store(&a->at_ns, now);
}

/* A client has submitted a request with a deadline: from now on it is told the outlook, and what requests of this plan take. */
static inline void aspen_note_asked(struct aspen_station *s, uint32_t client, uint32_t plan, double work, uint64_t now) {
  struct aspen_turns *t = &s->control->turns;
  client %= ASPEN_MAX_CLIENTS;
  aspen_stat_store(&t->asking[client / 64], t->asking[client / 64] | (uint64_t)1 << (client % 64));
  t->demand[client][plan % ASPEN_DEMANDS] = (uint16_t)plan;
  aspen_add_asked(t, client, work, now);
}

/* The part of core time that may be promised to a client: all, unless clients ask for more than there is, and this one for more than its fair part. Who asks for
 * less than that gets what it asks for; the others share what is left. */
static inline double aspen_part(const struct aspen_station *s, uint32_t client, double capacity, uint64_t now) {
  const struct aspen_turns *t = &s->control->turns;
  double asked[ASPEN_MAX_CLIENTS], own = aspen_asked(t, client, now), left = capacity, level = capacity;
  uint32_t n = 0, before = 0;
  for (uint32_t w = 0; w < ASPEN_MAX_CLIENTS / 64; w++)
    for (uint64_t bits = t->asking[w]; bits; bits &= bits - 1) asked[n++] = aspen_asked(t, w * 64 + (uint32_t)__builtin_ctzll(bits), now);
  while (n && n != before) { /* those below the level are content */
    before = n;
    level = left / n;
    for (uint32_t k = 0; k < n;)
      if (asked[k] < level) left -= asked[k], asked[k] = asked[--n];
      else k++;
  }
  return n && own >= level && level < capacity ? level / capacity : 1;
}

/* ------------------------------------------------------------------------------------------------ admission */

/* All that runs, and what is admitted and waits, as a claim for a client sees it. Marks are places in `active`. */
static inline void aspen_scene(struct aspen_station *s, uint32_t client, uint64_t now, struct aspen_scene *out) {
  struct aspen_turns *t = &s->control->turns;
  out->capacity = aspen_capacity(s);
  out->stretch = aspen_stretch(t);
  out->part = aspen_part(s, client, out->capacity, now);
  out->spent = aspen_refilled((double)t->spent_ns, out->capacity, (double)(now > t->refilled_ns ? now - t->refilled_ns : 0));
  out->n = 0;
  for (uint32_t k = 0; k < t->n_active; k++) {
    const struct aspen_active *a = &t->active[k];
    if (!a->instance && !a->deadline_ns) continue;
    struct aspen_fluid *f = &out->f[out->n++];
    *f = aspen_demand(s, a->plan % ASPEN_MAX_PLANS, out->capacity);
    f->order = a->order;
    f->deadline_ns = a->deadline_ns;
    f->holds = a->instance != 0;
    f->own = a->client == client;
    f->mark = k;
    if (a->instance) f->work *= aspen_left(s, a->instance);
  }
}

/* The simulation is what is expected from now on. */
static inline void aspen_note_expected(struct aspen_station *s, const struct aspen_play *p, uint64_t now) {
  for (uint32_t k = 0; k < p->n; k++) {
    if (p->f[k].mark == ASPEN_NONE || p->f[k].ends >= ASPEN_NEVER) continue;
    struct aspen_active *a = &s->control->turns.active[p->f[k].mark];
    a->expected_ns = now + (uint64_t)p->f[k].ends;
    if (a->instance && a->deadline_ns) aspen_stat_store(&s->control->instance[a->instance % ASPEN_MAX_INSTANCES].expected_ns, a->expected_ns);
  }
}

/* How long a new candidate takes from now on; 0: it meets its deadline, breaks no other, and counts as admitted. */
static inline double aspen_simulate(struct aspen_station *s, const struct aspen_candidate *r, uint64_t now) {
  struct aspen_turns *t = &s->control->turns;
  struct aspen_scene scene;
  struct aspen_play play;
  aspen_active_prune(s);
  if (t->n_active >= ASPEN_ACTIVE) return ASPEN_NEVER;
  struct aspen_fluid one = aspen_demand(s, r->plan, aspen_capacity(s));
  one.order = aspen_place(r) | ASPEN_ORDER_TIES;
  one.deadline_ns = r->deadline_ns;
  one.own = 1;
  one.mark = ASPEN_NONE;
  aspen_note_asked(s, r->client, r->plan, one.work, now);
  aspen_scene(s, r->client, now, &scene);
  double takes = aspen_judge(&scene, &one, now, &play);
  if (takes > 0) return takes;
  aspen_note_expected(s, &play, now);
  t->refilled_ns = now;
  t->spent_ns = (uint64_t)(scene.spent + one.work < 1e18 ? scene.spent + one.work : 1e18);
  struct aspen_active a = {.order = aspen_place(r), .deadline_ns = r->deadline_ns, .admitted_ns = now, .client = r->client, .slot = r->slot,
                           .sequence = ASPEN_SLOT_SEQUENCE(r->word), .plan = r->plan};
  for (uint32_t k = 0; k < play.n; k++)
    if (play.f[k].mark == ASPEN_NONE) a.expected_ns = now + (uint64_t)play.f[k].ends;
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
    if (takes <= aspen_stretch(t) * (double)(r->deadline_ns - now)) aspen_learn_refusal(t, now); /* it was refused because of what was learned */
    return ASPEN_E_TOO_LATE;
  }
  r->deadline_ns = 0;
  struct aspen_active a = {.client = r->client, .slot = r->slot, .sequence = ASPEN_SLOT_SEQUENCE(r->word), .plan = r->plan}; /* it is not looked at again */
  aspen_active_add(t, &a);
  return ASPEN_E_OK;
}

/* ------------------------------------------------------------------------------------------------ what clients are told */

/* What requests of a client's plans take, and how many of them it has refused itself since the last look: that counts as if a DSE had. */
static inline void aspen_tell_demands(struct aspen_station *s, struct aspen_client_segment *c, uint32_t client, uint64_t now, struct aspen_outlook *o) {
  struct aspen_turns *t = &s->control->turns;
  for (uint32_t k = 0; k < ASPEN_DEMANDS; k++) {
    uint32_t id = t->demand[client][k] % ASPEN_MAX_PLANS;
    struct aspen_plan *plan = &s->control->plan[id];
    if (!id || aspen_load_seq(&plan->state) != ASPEN_PLAN_LIVE) continue;
    struct aspen_fluid f = aspen_demand(s, id, o->capacity);
    o->demand[o->n_demands++] = (struct aspen_demand){.plan = id, .generation = plan->generation, .limit = f.limit, .work = f.work, .most = f.most};
    if (!aspen_load_relaxed(&c->declined[k])) continue;
    uint32_t declined = aspen_swap_seq(&c->declined[k], 0);
    if (declined > ASPEN_SLOTS) declined = ASPEN_SLOTS; /* a client may say anything */
    aspen_stat_add(&plan->refused, declined);
    aspen_add_asked(t, client, f.work * declined, now);
    aspen_learn_refusal(t, now);
  }
}

static inline void aspen_tell_client(struct aspen_station *s, struct aspen_client_segment *c, uint32_t client, uint64_t now, struct aspen_scene *scene) {
  struct aspen_turns *t = &s->control->turns;
  struct aspen_outlook o = {.at_ns = now, .capacity = scene->capacity, .stretch = scene->stretch, .spent = scene->spent};
  uint32_t mean = aspen_stat_load(&t->stretch);
  o.pace = mean > 1024 ? mean / 1024.0 : 1;
  o.n = scene->n <= ASPEN_OUTLOOK ? scene->n : ASPEN_NONE;
  aspen_tell_demands(s, c, client, now, &o);
  o.part = aspen_part(s, client, scene->capacity, now);
  for (uint32_t k = 0; k < scene->n && o.n != ASPEN_NONE; k++) {
    const struct aspen_fluid *f = &scene->f[k];
    o.rival[k] = (struct aspen_rival){.order = f->order, .deadline_ns = f->deadline_ns, .work = f->work, .most = f->most, .plan = f->plan, .limit = f->limit,
                                      .holds = f->holds, .own = t->active[f->mark].client == client};
  }
  aspen_show_outlook(c, &o);
}

/* Has work gone on for a while since clients were told how much is left? */
static inline int aspen_tell_due(const struct aspen_station *s) {
  const struct aspen_turns *t = &s->control->turns;
  uint64_t asking = 0;
  for (uint32_t w = 0; w < ASPEN_MAX_CLIENTS / 64; w++) asking |= aspen_stat_load(&t->asking[w]);
  if (!asking || !aspen_load_relaxed(&s->control->claim.running)) return 0;
  uint64_t now = aspen_now_ns(), told = aspen_stat_load(&t->told_ns);
  return now > told && now - told > ASPEN_TELL_NS;
}

/* At the end of a claim: what has changed is told to clients that ask. */
static inline void aspen_tell(struct aspen_station *s) {
  struct aspen_turns *t = &s->control->turns;
  struct aspen_scene scene;
  uint64_t now = 0;
  for (uint32_t w = 0; w < ASPEN_MAX_CLIENTS / 64; w++)
    for (uint64_t bits = t->asking[w]; bits; bits &= bits - 1) {
      uint32_t client = w * 64 + (uint32_t)__builtin_ctzll(bits);
      struct aspen_client_segment *c = aspen_client_mapped(s, client);
      if (!now) {
        now = aspen_now_ns() | 1;
        aspen_stat_store(&t->told_ns, now);
        aspen_active_prune(s);
        aspen_scene(s, client, now, &scene);
      }
      uint64_t asked = c ? aspen_stat_load(&c->asked_ns) : 0;
      if (!c || aspen_load_seq(&s->control->client[client].state) != ASPEN_CLIENT_LIVE || !asked || (asked < now && now - asked > ASPEN_ASKING_NS)) {
        aspen_stat_store(&t->asking[w], t->asking[w] & ~(bits & -bits));
        memset(t->demand[client], 0, sizeof t->demand[client]);
        continue;
      }
      aspen_tell_client(s, c, client, now, &scene);
    }
}

/* ------------------------------------------------------------------------------------------------ what is learned */

/* A request that ran alone has ended. */
static inline void aspen_note_alone(const struct aspen_station *s, const struct aspen_instance *i, uint64_t ran_ns) {
  struct aspen_plan *p = &s->control->plan[i->plan];
  const struct aspen_plan_view *view = s->plan[i->plan];
  uint64_t old = aspen_stat_load(&p->alone_ns), rows = aspen_stat_load(&s->control->turns.rows);
  if (!aspen_stat_load(&i->alone) || !view || i->extent != view->largest) return;
  if (rows != aspen_stat_load(&p->alone_rows)) old = 0; /* with other workers it is another time */
  if (old && ran_ns > 4 * old) ran_ns = 4 * old; /* somebody had the core */
  aspen_stat_store(&p->alone_ns, old ? old - old / 8 + ran_ns / 8 : ran_ns);
  aspen_stat_store(&p->alone_rows, rows);
}

#endif
