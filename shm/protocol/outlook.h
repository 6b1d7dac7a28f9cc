/* Whether a deadline can be met, decided from what somebody has written down (docs/protocol/deadlines.md, "Admission", "Outlook"). The claiming DSE
 * decides so on admission, and tells clients what it decides by. A client decides so whether it need ask at all. */
#ifndef ASPEN_OUTLOOK_H
#define ASPEN_OUTLOOK_H
#include <string.h>

#include "atomics.h"
#include "fluid.h"
#include "pool.h"

#define ASPEN_MOST_SPAN_NS (24 * 3600 * (uint64_t)1000000000) /* a later deadline counts as this one */
#define ASPEN_TIMED_PART 0.95 /* of core time, at most, for requests with deadlines; so the others of their class always get on … */
#define ASPEN_TIMED_BURST_NS 2e9 /* … after so much of all cores' time, … */
#define ASPEN_TIMED_AHEAD_NS 1e10 /* … and what will have flowed in until the deadline, or so far ahead */
#define ASPEN_ASKING_NS 1000000000 /* so long after its last request with a deadline a client is told the outlook */

/* All that decides but the request itself. */
struct aspen_scene {
  double capacity, stretch, spent, part; /* as in aspen_outlook; `spent` as it is now */
  uint32_t n;
  struct aspen_fluid f[ASPEN_ACTIVE + 1]; /* marks: whatever the caller finds them by, never ASPEN_NONE */
};

/* A scene that has been played. */
struct aspen_play {
  uint32_t n;
  struct aspen_fluid f[ASPEN_ACTIVE + 1]; /* sorted by order. The request itself has the mark ASPEN_NONE */
  double rate[ASPEN_ACTIVE + 1];
};

static inline void aspen_play(const struct aspen_scene *s, const struct aspen_fluid *one, struct aspen_play *p) {
  memcpy(p->f, s->f, s->n * sizeof *p->f);
  p->n = s->n;
  if (one) p->f[p->n++] = *one;
  aspen_fluid_run(p->f, p->n, s->capacity, p->rate);
}

/* How many promises to requests of a class are broken in a play; of the request itself, how long it takes. */
static inline uint32_t aspen_broken(const struct aspen_play *p, double stretch, uint32_t class_, uint64_t now, double *takes) {
  uint32_t broken = 0;
  for (uint32_t k = 0; k < p->n; k++) {
    const struct aspen_fluid *f = &p->f[k];
    double ends = f->ends * stretch;
    if (f->mark == ASPEN_NONE) *takes = ends;
    else if (f->deadline_ns && aspen_order_class(f->order) == class_) broken += f->deadline_ns < now || ends > (double)(f->deadline_ns - now);
  }
  return broken;
}

/* Core time for requests with deadlines flows in at ASPEN_TIMED_PART of what there is. */
static inline double aspen_refilled(double spent, double capacity, double ns) {
  spent -= ns * ASPEN_TIMED_PART * capacity;
  return spent > 0 ? spent : 0;
}

/* How long until `work` of it is there, ns. */
static inline double aspen_reserve_wait(const struct aspen_scene *s, double work) {
  double most = ASPEN_TIMED_BURST_NS * s->capacity;
  return s->spent > 0 && s->spent + work > most ? (s->spent + work - most) / (ASPEN_TIMED_PART * s->capacity) : 0;
}

/* Work that is promised to the client of `one` until `until`, with that of `one`. */
static inline double aspen_promised(const struct aspen_scene *s, const struct aspen_fluid *one, uint64_t until) {
  double work = one->work;
  for (uint32_t k = 0; k < s->n; k++) {
    const struct aspen_fluid *f = &s->f[k];
    if (f->own && f->deadline_ns && f->deadline_ns <= until && aspen_order_class(f->order) == aspen_order_class(one->order)) work += f->work;
  }
  return work;
}

/* How long `one` and what is promised to its client would take with the part of core time that is its; 0: it is there by all their deadlines. */
static inline double aspen_part_wait(const struct aspen_scene *s, const struct aspen_fluid *one, uint64_t now) {
  double rate = s->part * s->capacity / s->stretch, wait = aspen_promised(s, one, one->deadline_ns) / rate;
  if (!(s->part < 1)) return 0;
  int late = wait > (double)(one->deadline_ns - now);
  for (uint32_t k = 0; k < s->n && !late; k++) {
    const struct aspen_fluid *f = &s->f[k];
    if (f->own && f->deadline_ns > one->deadline_ns && aspen_order_class(f->order) == aspen_order_class(one->order))
      late = aspen_promised(s, one, f->deadline_ns) / rate > (double)(f->deadline_ns - now);
  }
  return late ? wait : 0;
}

/* How long a request takes from now on; 0: it meets its deadline, which has not passed, and no other one is broken. */
static inline double aspen_judge(const struct aspen_scene *s, const struct aspen_fluid *one, uint64_t now, struct aspen_play *p) {
  double span = (double)(one->deadline_ns - now), takes = 0, alone = 0;
  uint32_t class_ = aspen_order_class(one->order);
  aspen_play(s, one, p);
  uint32_t broken = aspen_broken(p, s->stretch, class_, now, &takes);
  if (takes > span) return takes;
  double wait = aspen_reserve_wait(s, one->work), part = aspen_part_wait(s, one, now);
  if (wait > span || wait > ASPEN_TIMED_AHEAD_NS) return wait + takes > span ? wait + takes : span + 1;
  if (part > 0) return part > span ? part : span + 1;
  if (!broken) return 0;
  aspen_play(s, NULL, p);
  if (aspen_broken(p, s->stretch, class_, now, &alone) < broken) { /* after all of them, then */
    struct aspen_fluid last = *one;
    last.order = aspen_order(class_, 0, ASPEN_ORDER_KEY);
    aspen_play(s, &last, p);
    aspen_broken(p, s->stretch, class_, now, &takes);
    return takes > span ? takes : span + 1;
  }
  aspen_play(s, one, p);
  return 0;
}

/* ------------------------------------------------------------------------------------------------ from DSE to client */

/* Under the claim lock. A dead DSE may have left the version odd. */
static inline void aspen_show_outlook(struct aspen_client_segment *c, const struct aspen_outlook *o) {
  uint32_t version = aspen_load_relaxed(&c->version) | 1, n = o->n <= ASPEN_OUTLOOK ? o->n : 0;
  aspen_store_seq(&c->version, version);
  aspen_show_words(&c->outlook, o, offsetof(struct aspen_outlook, demand));
  if (o->n_demands) aspen_show_words(c->outlook.demand, o->demand, o->n_demands * sizeof *o->demand);
  if (n) aspen_show_words(c->outlook.rival, o->rival, n * sizeof *o->rival);
  aspen_store_release(&c->version, version + 1 ? version + 1 : 2); /* 0: there is none */
}

/* Returns 0 if there is none, or a DSE is writing there. */
static inline int aspen_see_outlook(struct aspen_client_segment *c, struct aspen_outlook *o) {
  uint32_t version = aspen_load_acquire(&c->version);
  if (!version || version & 1) return 0;
  aspen_see_words(o, &c->outlook, offsetof(struct aspen_outlook, demand));
  if (o->n > ASPEN_OUTLOOK || o->n_demands > ASPEN_DEMANDS) return 0;
  if (o->n_demands) aspen_see_words(o->demand, c->outlook.demand, o->n_demands * sizeof *o->demand);
  if (o->n) aspen_see_words(o->rival, c->outlook.rival, o->n * sizeof *o->rival);
  return aspen_load_relaxed(&c->version) == version;
}

/* ------------------------------------------------------------------------------------------------ the client */

/* A client's request as the simulation takes it. Returns 0 where nothing is known of its plan. */
static inline int aspen_foreseen(const struct aspen_outlook *o, uint32_t plan, uint32_t generation, uint32_t class_, uint64_t deadline_ns, struct aspen_fluid *f) {
  const struct aspen_demand *d = o->demand, *end = o->demand + o->n_demands;
  while (d < end && (d->plan != plan || d->generation != generation)) d++;
  if (d == end || !(d->most > 0)) return 0;
  *f = (struct aspen_fluid){.order = aspen_order(class_, 1, deadline_ns | ASPEN_ORDER_TIES), .work = d->work, .most = d->most, .plan = plan, .limit = d->limit,
                            .own = 1, .deadline_ns = deadline_ns};
  return 1;
}

/* What the client has submitted since. Returns 0 if that is too much. */
static inline int aspen_add_submitted(const struct aspen_client_segment *c, const struct aspen_outlook *o, struct aspen_scene *s) {
  for (uint32_t w = 0; w < ASPEN_SLOTS / 64; w++)
    for (uint64_t bits = aspen_load_seq(&c->pending[w]); bits; bits &= bits - 1) {
      const struct aspen_slot *slot = &c->slot[w * 64 + (uint32_t)__builtin_ctzll(bits)];
      uint64_t span = aspen_stat_load(&slot->span_ns), deadline = aspen_stat_load(&slot->submitted_ns) + span;
      if (!span || ASPEN_SLOT_STATE(aspen_load_acquire(&slot->word)) != ASPEN_SLOT_SUBMITTED) continue;
      uint32_t known = 0;
      for (uint32_t k = 0; k < o->n; k++) known |= o->rival[k].own && o->rival[k].deadline_ns == deadline;
      if (known) continue;
      if (s->n >= ASPEN_ACTIVE) return 0;
      if (aspen_foreseen(o, aspen_load_relaxed(&slot->plan), aspen_load_relaxed(&slot->generation), aspen_load_relaxed(&slot->class_), deadline, &s->f[s->n]))
        s->spent += s->f[s->n++].work;
    }
  return 1;
}

/* The outlook as it is now. */
static inline int aspen_scene_now(const struct aspen_client_segment *c, const struct aspen_outlook *o, uint64_t now, struct aspen_scene *s, double *rate) {
  double passed = now > o->at_ns ? (double)(now - o->at_ns) : 0;
  s->capacity = o->capacity;
  s->stretch = o->stretch;
  s->part = o->part;
  s->spent = aspen_refilled(o->spent, o->capacity, passed);
  for (uint32_t k = 0; k < o->n; k++) {
    const struct aspen_rival *r = &o->rival[k];
    s->f[k] = (struct aspen_fluid){.order = r->order, .deadline_ns = r->deadline_ns, .work = r->work, .most = r->most, .plan = r->plan, .limit = r->limit,
                                   .holds = r->holds, .own = r->own};
  }
  s->n = aspen_fluid_pass(s->f, o->n, s->capacity, passed / o->pace, rate);
  return aspen_add_submitted(c, o, s);
}

/* The client is about to submit a request with a deadline. Returns 0 if it was told nothing since it began to do so again and again. */
static inline int aspen_ask(struct aspen_client_segment *c, struct aspen_outlook *o, uint64_t now) {
  uint64_t asked = aspen_stat_load(&c->asked_ns);
  aspen_stat_store(&c->asked_ns, now | 1);
  if (now > asked && now - asked > ASPEN_ASKING_NS / 2) aspen_stat_store(&c->asking_ns, now);
  return aspen_see_outlook(c, o) && o->at_ns >= aspen_stat_load(&c->asking_ns) && o->capacity > 0 && o->stretch > 0 && o->pace > 0 && o->part > 0;
}

/* How long a request would take from now on that the claiming DSE would refuse; 0: it would not, or that cannot be told here. A client that errs loses its own
 * requests only. */
static inline uint64_t aspen_foresee(const struct aspen_client_segment *c, const struct aspen_outlook *o, uint32_t plan, uint32_t generation, uint32_t class_,
                                     uint64_t span_ns, uint64_t now) {
  struct aspen_scene s;
  struct aspen_play p;
  struct aspen_fluid one;
  if (!aspen_foreseen(o, plan, generation, class_, now + (span_ns < ASPEN_MOST_SPAN_NS ? span_ns : ASPEN_MOST_SPAN_NS), &one)) return 0;
  one.mark = ASPEN_NONE;
  if (!aspen_scene_now(c, o, now, &s, p.rate)) return 0;
  double takes = aspen_judge(&s, &one, now, &p);
  return !(takes > 0) ? 0 : takes < 1e18 ? (uint64_t)takes : (uint64_t)1e18;
}

#endif
