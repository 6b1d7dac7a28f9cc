/* Decides which core set runs which layer group of which network, and when: an anytime search (HaX-CoNN, sections 3.4 and 3.5).
 *
 * A state says how far each job is. Time goes on from event to event: a group ends, its data have moved to another core set, a job is
 * released. Whoever has ended a group chooses where the next one runs. It starts now, moves first, or is held until another event. Groups
 * that run at the same time slow each other down, so every interval between two events has rates of its own.
 *
 * States lie in levels by the number of groups that have ended. A pass goes through the levels and expands the best `width` states of each,
 * and each pass is twice as wide as the one before. A state whose lower bound is no better than the best schedule is dropped, and so is one
 * that is behind another in everything. Under contention that is nearly right, not quite: who is ahead may meet others at a worse time. So
 * when such a pass has left no state out, the search is *settled*, and strict passes follow. These drop a state only for one that differs
 * in nothing but being earlier. A strict pass that has left no state out proves its schedule: there is no better one that starts groups at
 * events. Without contention, the first kind of pass proves it.
 *
 * Deterministic: the schedules and their order depend on the problem alone. Only where the search stops depends on the clock.
 */
#ifndef ASPEN_COSCHEDULE_SEARCH_H
#define ASPEN_COSCHEDULE_SEARCH_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CS_JOBS 8
#define CS_GROUPS 64
#define CS_SETS 16
#define CS_DOMAINS 8
#define CS_MEMORIES 8
#define CS_NONE UINT32_MAX
/* Sets of prices, of which each gives a lower bound. */
#define CS_DUALS 24
/* The number of steps in which prices are found, each of which changes them by less. */
#define CS_PRICE_STEPS 40
#define CS_PRICE_RATE 0.6
#define CS_PRICE_SLOWS 0.05
/* In the beginning, all jobs together. */
#define CS_PRICE_TIME 0.05
/* Prices are made for jobs at the beginning, after this part of their groups, and so on: a power of two. */
#define CS_ALIKE 4
/* Differences this small, as a share of the best schedule's length, are none. */
#define CS_ROUNDING 1e-10
/* Each pass is so many times as wide as the one before. */
#define CS_WIDER 2
/* The most states that a pass keeps: others are left out, and later passes would be no wider. */
#define CS_MOST_STATES (1u << 18)
/* The clock is read once for this many states, at most. */
#define CS_STRIDE 16
/* Among states of about the same bound, the one whose jobs have less left on average goes first. */
#define CS_OTHERS 0.3
#define CS_TIE 0.02

enum cs_objective { CS_LATENCY = 0, CS_THROUGHPUT = 1 };
/* CS_WAITS: for its release, or for jobs before it. CS_FREE: the last group has just ended. CS_HELD: as CS_FREE, and it has let an event
 * pass. CS_MOVES: data are on their way to `set`. CS_READY: they have arrived there. CS_RUNS: the group runs on `set`. */
enum cs_phase { CS_WAITS = 0, CS_FREE, CS_HELD, CS_MOVES, CS_READY, CS_RUNS, CS_DONE };
enum cs_result { CS_FOUND = 0, CS_SETTLED, CS_OUT_OF_TIME, CS_FINISHED, CS_NO_MEMORY };

/* Slowdown of a group that asks for own[i] of a memory while others ask for others[j]: factor[i * n_others + j], linear in between. */
struct cs_memory {
  uint32_t n_own, n_others;
  const double *own, *others, *factor;
  double capacity;
};

/* As `Problem` of problem.py. Rows of groups: those of job 0, then those of job 1, and so on. */
struct cs_problem {
  uint32_t jobs, sets, domains, memories, objective;
  const uint32_t *first;  /* [jobs + 1]: row of each job's first group */
  const double *ns;       /* [rows][sets], alone */
  const double *demand;   /* [rows][sets]: bytes per ns, alone */
  const double *leave;    /* [rows][sets]: ns, when the data of the group before this one leave a set */
  const double *enter;    /* [rows][sets]: ns, when they enter one */
  const uint8_t *moves;   /* [sets][sets]: whether going from one to the other moves data */
  const uint32_t *uses;   /* [sets][domains]: cores */
  const uint32_t *cores;  /* [domains] */
  const double *share;    /* [sets][memories]: part of the demand that goes to each */
  const double *release;  /* [jobs] */
  const uint32_t *before; /* [jobs]: bits of the jobs that must end first, all of lower numbers */
  const int32_t *twin;    /* [jobs]: an equal job of lower number, which starts first; -1: there is none */
  const uint8_t *counts;  /* [jobs]: whether throughput counts it */
  const struct cs_memory *memory;
};

struct cs_state {
  double now, bound;
  double rank; /* of states of a level, those of the least are expanded first */
  double left[CS_JOBS];  /* of the running or moving job, alone */
  double began[CS_JOBS]; /* the group that runs, or the last one */
  double end[CS_JOBS];   /* of CS_DONE */
  uint8_t group[CS_JOBS], phase[CS_JOBS], set[CS_JOBS];
  uint32_t parent; /* the state before */
  uint32_t next;   /* state of the same key */
  uint32_t same;   /* state of the same level */
  uint32_t dead;
};

/* Prices of a nanosecond: on a core set, and of a job. */
struct cs_dual {
  double core[CS_SETS], time[CS_JOBS];
};

struct cs_search {
  const struct cs_problem *p;
  uint32_t rows, levels, duals;
  double eps, best, root, bound; /* `best`: of all schedules known; `bound`: no schedule is better */
  double cut;                    /* least bound of a state that this pass has left out */
  uint64_t width;
  int contention, strict, truncated, full, found, settled, proven, finished;
  uint32_t level, at, n_order;   /* where the pass is */
  struct cs_state *state;
  uint32_t n_states, most_states;
  uint32_t *head;                /* [levels]: last state pushed */
  uint32_t *order;               /* [most_states]: of the level that is being expanded */
  uint32_t *bucket, n_buckets;
  uint8_t *kind;                 /* [sets]: equal where going anywhere else costs moves alike */
  double *after;                 /* [rows + jobs][sets]: least time from the end of the group before, on a set, to the end of the job */
  /* [duals][rows + jobs][sets]: least price from the end of the group before, on a set, to the end of the job */
  double *load;
  struct cs_dual dual[CS_DUALS];
  uint64_t expanded;
  uint32_t n_steps;              /* of the best schedule, as it was found */
  uint32_t *step_job, *step_group, *step_set;
  double *step_start, *step_end;
};

/* ------------------------------------------------------------------------------------------------ the model */

static inline uint32_t cs_row(const struct cs_search *s, uint32_t job, uint32_t group) { return s->p->first[job] + group; }
static inline uint32_t cs_groups(const struct cs_search *s, uint32_t job) { return s->p->first[job + 1] - s->p->first[job]; }
/* Rows of `after` and `load` have one more for each job: its end. */
static inline uint32_t cs_mark(const struct cs_search *s, uint32_t job, uint32_t group) { return s->p->first[job] + job + group; }

static inline double cs_ns(const struct cs_search *s, uint32_t job, uint32_t group, uint32_t set) {
  return s->p->ns[(size_t)cs_row(s, job, group) * s->p->sets + set];
}

/* Going from one set to another before a group. */
static inline double cs_transition(const struct cs_search *s, uint32_t job, uint32_t group, uint32_t from, uint32_t to) {
  const struct cs_problem *p = s->p;
  if (!group || !p->moves[from * p->sets + to]) return 0;
  size_t row = (size_t)cs_row(s, job, group) * p->sets;
  return p->leave[row + from] + p->enter[row + to];
}

/* Where `x` lies among ascending points: the one below, and how far to the next. */
static inline uint32_t cs_between(const double *points, uint32_t n, double x, double *part) {
  uint32_t k = 0;
  *part = 0;
  if (n < 2 || x <= points[0]) return 0;
  while (k + 2 < n && x >= points[k + 1]) k++;
  *part = x >= points[k + 1] ? 1 : (x - points[k]) / (points[k + 1] - points[k]);
  return k;
}

static inline double cs_table(const struct cs_memory *m, double own, double others) {
  double u, v;
  uint32_t i = cs_between(m->own, m->n_own, own, &u), j = cs_between(m->others, m->n_others, others, &v);
  const double *f = m->factor + (size_t)i * m->n_others + j;
  uint32_t down = m->n_own > 1 ? m->n_others : 0, right = m->n_others > 1;
  return (1 - u) * ((1 - v) * f[0] + v * f[right]) + u * ((1 - v) * f[down] + v * f[down + right]);
}

/* Shares a memory among several: each gets its want, up to a share that is the same for all. Returns that share. */
static inline double cs_fair(const double *wants, uint32_t n, double capacity) {
  double total = 0, rest = capacity;
  uint32_t left = n;
  for (uint32_t k = 0; k < n; k++) total += wants[k];
  if (total <= capacity) return INFINITY;
  for (double fair = capacity / n;;) {
    uint32_t large = 0;
    rest = capacity;
    for (uint32_t k = 0; k < n; k++) {
      if (wants[k] <= fair) rest -= wants[k];
      else large++;
    }
    if (!large || large == left) return fair;
    left = large;
    fair = rest / large;
  }
}

/* How much longer everything that runs takes (contention intervals, section 3.3). Two that share a memory: as measured for pairs. More of
 * them: what the others ask for counts up to what the memory can give, and nobody gets more than a fair share. */
static inline void cs_slowdowns(const struct cs_search *s, const struct cs_state *x, double *slower) {
  const struct cs_problem *p = s->p;
  for (uint32_t n = 0; n < p->jobs; n++) slower[n] = 1;
  for (uint32_t m = 0; m < p->memories; m++) {
    double want[CS_JOBS], total = 0;
    uint32_t who[CS_JOBS], many = 0;
    for (uint32_t n = 0; n < p->jobs; n++) {
      if (x->phase[n] != CS_RUNS) continue;
      double w = p->demand[(size_t)cs_row(s, n, x->group[n]) * p->sets + x->set[n]] * p->share[x->set[n] * p->memories + m];
      if (!(w > 0)) continue;
      want[many] = w;
      who[many++] = n;
      total += w;
    }
    if (many < 2) continue;
    double fair = many > 2 ? cs_fair(want, many, p->memory[m].capacity) : INFINITY;
    for (uint32_t k = 0; k < many; k++) {
      double others = total - want[k];
      double f = cs_table(&p->memory[m], want[k], others < p->memory[m].capacity ? others : p->memory[m].capacity);
      if (want[k] > f * fair) f = want[k] / fair;
      if (f > slower[who[k]]) slower[who[k]] = f;
    }
  }
}

/* ------------------------------------------------------------------------------------------------ lower bounds */

/* A job cannot end sooner than its groups one after the other, each where that is best, moves included. */
static inline void cs_prepare_after(struct cs_search *s) {
  const struct cs_problem *p = s->p;
  for (uint32_t n = 0; n < p->jobs; n++) {
    uint32_t groups = cs_groups(s, n);
    for (uint32_t a = 0; a < p->sets; a++) s->after[(size_t)cs_mark(s, n, groups) * p->sets + a] = 0;
    for (uint32_t i = groups; i-- > 0;)
      for (uint32_t from = 0; from < p->sets; from++) {
        double least = INFINITY;
        for (uint32_t to = 0; to < p->sets; to++) {
          double t = cs_transition(s, n, i, from, to) + cs_ns(s, n, i, to) + s->after[(size_t)cs_mark(s, n, i + 1) * p->sets + to];
          if (t < least) least = t;
        }
        s->after[(size_t)cs_mark(s, n, i) * p->sets + from] = least;
      }
  }
}

/* A dual prices the bounds of the time until all jobs have ended. They are the core time of each domain, by its cores, and the time of each
 * job, moves included. Prices sum up to 1. So the cost of the cheapest way to run all groups is a lower bound (the dual of fractional
 * shares of groups among core sets). It is better than core time or times of jobs alone: resources that are short on many cores are dear in
 * core time. */
static inline double cs_price(const struct cs_search *s, const struct cs_dual *dual, uint32_t job, uint32_t group, uint32_t set) {
  return (dual->core[set] + dual->time[job]) * cs_ns(s, job, group, set);
}

/* Core sets cost as much as the cores of their domains. */
static inline void cs_price_sets(const struct cs_search *s, struct cs_dual *dual, const double *domains) {
  const struct cs_problem *p = s->p;
  for (uint32_t a = 0; a < p->sets; a++) {
    dual->core[a] = 0;
    for (uint32_t d = 0; d < p->domains; d++) dual->core[a] += domains[d] / p->cores[d] * p->uses[a * p->domains + d];
  }
}

/* The price of the groups of a job from `first` on, by the set of the group before it. */
static inline void cs_price_job(const struct cs_search *s, const struct cs_dual *dual, uint32_t job, uint32_t first, double *cost) {
  const struct cs_problem *p = s->p;
  uint32_t groups = cs_groups(s, job);
  for (uint32_t a = 0; a < p->sets; a++) cost[(size_t)cs_mark(s, job, groups) * p->sets + a] = 0;
  for (uint32_t i = groups; i-- > first;) {
    double *row = cost + (size_t)cs_mark(s, job, i) * p->sets, *next = row + p->sets;
    for (uint32_t from = 0; from < p->sets; from++) {
      row[from] = INFINITY;
      for (uint32_t to = 0; to < p->sets; to++) {
        double t = dual->time[job] * cs_transition(s, job, i, from, to) + cs_price(s, dual, job, i, to) + next[to];
        if (t < row[from]) row[from] = t;
      }
    }
  }
}

/* The time of the cheapest way from `first` on: core time of each domain, by its cores, and the time of the job. Ties go to the first
 * set. */
static inline void cs_spend(const struct cs_search *s, const struct cs_dual *dual, uint32_t job, uint32_t first, const double *cost,
                            double *spent) {
  const struct cs_problem *p = s->p;
  uint32_t from = 0;
  for (uint32_t i = first; i < cs_groups(s, job); i++) {
    const double *next = cost + (size_t)cs_mark(s, job, i + 1) * p->sets;
    double least = INFINITY;
    uint32_t chosen = 0;
    for (uint32_t to = 0; to < p->sets; to++) {
      double move = i > first ? dual->time[job] * cs_transition(s, job, i, from, to) : 0;
      double t = move + cs_price(s, dual, job, i, to) + next[to];
      if (t < least) least = t, chosen = to;
    }
    double ns = cs_ns(s, job, i, chosen);
    if (i > first) spent[p->domains + job] += cs_transition(s, job, i, from, chosen);
    spent[p->domains + job] += ns;
    for (uint32_t d = 0; d < p->domains; d++) spent[d] += ns * p->uses[chosen * p->domains + d] / p->cores[d];
    from = chosen;
  }
}

/* Makes the most used resource dearer, step by step, and keeps the prices of the best bound. `first`: where each job stands. */
static inline void cs_price_all(struct cs_search *s, const uint32_t *first, double *prices, struct cs_dual *best) {
  const struct cs_problem *p = s->p;
  uint32_t n_prices = p->domains + p->jobs;
  double most = -1;
  struct cs_dual dual;
  for (uint32_t step = 0; step < CS_PRICE_STEPS; step++) {
    double spent[CS_DOMAINS + CS_JOBS] = {0}, value = 0, sum = 0;
    cs_price_sets(s, &dual, prices);
    for (uint32_t n = 0; n < p->jobs; n++) dual.time[n] = prices[p->domains + n];
    for (uint32_t n = 0; n < p->jobs; n++) {
      cs_price_job(s, &dual, n, first[n], s->load);
      cs_spend(s, &dual, n, first[n], s->load, spent);
    }
    for (uint32_t k = 0; k < n_prices; k++) value += prices[k] * spent[k];
    if (value > most) most = value, *best = dual;
    if (!(value > 0)) return;
    for (uint32_t k = 0; k < n_prices; k++) sum += prices[k] *= exp(CS_PRICE_RATE / (1 + CS_PRICE_SLOWS * step) * (spent[k] - value) / value);
    for (uint32_t k = 0; k < n_prices; k++) prices[k] /= sum;
  }
}

/* Prices for jobs that stand at many places: all as far as each other, then at random. */
static inline void cs_prepare_loads(struct cs_search *s) {
  const struct cs_problem *p = s->p;
  size_t rows = (size_t)(s->rows + p->jobs) * p->sets;
  uint64_t random = 88172645463325252u;
  s->duals = 0;
  for (uint32_t k = 0; k < CS_DUALS; k++) {
    uint32_t first[CS_JOBS], n_prices = p->domains + p->jobs;
    double prices[CS_DOMAINS + CS_JOBS];
    for (uint32_t n = 0; n < p->jobs; n++) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      first[n] = cs_groups(s, n) * (k < CS_ALIKE ? k : random >> 32 & (CS_ALIKE - 1)) / CS_ALIKE;
    }
    for (uint32_t i = 0; i < n_prices; i++) prices[i] = i < p->domains ? (1 - CS_PRICE_TIME) / p->domains : CS_PRICE_TIME / p->jobs;
    cs_price_all(s, first, prices, &s->dual[k]);
    s->duals++;
  }
  for (uint32_t k = 0; k < s->duals; k++)
    for (uint32_t n = 0; n < p->jobs; n++) cs_price_job(s, &s->dual[k], n, 0, s->load + k * rows);
}

/* Nanoseconds from now to the end of each job, at least. */
static inline void cs_least(const struct cs_search *s, const struct cs_state *x, double *least) {
  const struct cs_problem *p = s->p;
  for (uint32_t n = 0; n < p->jobs; n++) {
    uint32_t g = x->group[n], a = x->set[n];
    const double *after = s->after + (size_t)cs_mark(s, n, g) * p->sets;
    double start = 0;
    switch (x->phase[n]) {
      case CS_WAITS:
        if (p->release[n] > x->now) start = p->release[n] - x->now;
        for (uint32_t m = 0; m < n; m++)
          if (p->before[n] >> m & 1 && least[m] > start) start = least[m];
        least[n] = start + after[0];
        break;
      case CS_FREE:
      case CS_HELD: least[n] = after[a]; break;
      case CS_MOVES:
      case CS_READY:
      case CS_RUNS:
        start = x->phase[n] == CS_READY ? 0 : x->left[n];
        if (x->phase[n] != CS_RUNS) start += cs_ns(s, n, g, a);
        least[n] = start + after[p->sets + a];
        break;
      default: least[n] = 0;
    }
  }
}

/* Nanoseconds from now until all jobs have ended, at least. */
static inline double cs_loads(const struct cs_search *s, const struct cs_state *x) {
  const struct cs_problem *p = s->p;
  double most = 0;
  for (uint32_t k = 0; k < s->duals; k++) {
    const struct cs_dual *dual = &s->dual[k];
    const double *load = s->load + k * (size_t)(s->rows + p->jobs) * p->sets;
    double sum = 0;
    for (uint32_t n = 0; n < p->jobs; n++) {
      uint32_t phase = x->phase[n], a = x->set[n], placed = phase >= CS_MOVES;
      if (phase == CS_DONE) continue;
      sum += load[(size_t)cs_mark(s, n, x->group[n] + placed) * p->sets + a];
      if (phase == CS_RUNS) sum += (dual->core[a] + dual->time[n]) * x->left[n];
      else if (placed) sum += cs_price(s, dual, n, x->group[n], a);
      if (phase == CS_MOVES) sum += dual->time[n] * x->left[n];
      if (phase == CS_WAITS && p->release[n] > x->now) sum += dual->time[n] * (p->release[n] - x->now);
    }
    if (sum > most) most = sum;
  }
  return most;
}

/* The objective of the best schedule that may come of a state: the greatest latency, or less the sum of 1 / latency. */
static inline double cs_bound(const struct cs_search *s, const struct cs_state *x, const double *least, double load) {
  const struct cs_problem *p = s->p;
  double latest = -1, value = 0;
  if (p->objective == CS_LATENCY) {
    for (uint32_t n = 0; n < p->jobs; n++) {
      double latency = (x->phase[n] == CS_DONE ? x->end[n] : x->now + least[n]) - p->release[n];
      if (latency > value) value = latency;
      if (x->phase[n] != CS_DONE && p->release[n] > latest) latest = p->release[n];
    }
    /* Somebody who has not ended ends when all work is done. */
    return latest >= 0 && x->now + load - latest > value ? x->now + load - latest : value;
  }
  /* Somebody ends when all work is done: whoever loses least by it. */
  double loss = INFINITY;
  for (uint32_t n = 0; n < p->jobs; n++) {
    double end = x->phase[n] == CS_DONE ? x->end[n] : x->now + least[n], last = x->now + load > end ? x->now + load : end;
    if (p->counts[n]) value += 1 / (end - p->release[n]);
    if (x->phase[n] == CS_DONE) continue;
    double lost = p->counts[n] ? 1 / (end - p->release[n]) - 1 / (last - p->release[n]) : 0;
    if (lost < loss) loss = lost;
  }
  return isinf(loss) ? -value : loss - value;
}

static inline void cs_judge(const struct cs_search *s, struct cs_state *x) {
  double least[CS_JOBS], load = cs_loads(s, x), tie = x->now + load;
  cs_least(s, x, least);
  for (uint32_t n = 0; n < s->p->jobs; n++) tie += CS_OTHERS * least[n];
  x->bound = cs_bound(s, x, least, load);
  x->rank = x->bound + (s->p->objective == CS_LATENCY ? CS_TIE * tie : -CS_TIE / tie);
}

/* A schedule that is better by less than rounding is not better. */
static inline double cs_margin(const struct cs_search *s) { return isinf(s->best) ? 0 : s->eps * fabs(s->best); }

/* ------------------------------------------------------------------------------------------------ states */

/* Whether a job can only start later, when the clock says so. */
static inline int cs_pending(const struct cs_search *s, const struct cs_state *x) {
  for (uint32_t n = 0; n < s->p->jobs; n++)
    if (x->phase[n] == CS_WAITS && s->p->release[n] > x->now) return 1;
  return 0;
}

/* A state that is not behind in anything can do all that the other can, as soon: by idling, if need be. Strictly, it must be the same one,
 * earlier: then all that follows is the same, earlier. */
static inline int cs_dominates(const struct cs_search *s, const struct cs_state *a, const struct cs_state *b, double eps) {
  if (a->now > b->now + eps) return 0;
  if (s->strict && a->now < b->now - eps && cs_pending(s, a)) return 0;
  for (uint32_t n = 0; n < s->p->jobs; n++) {
    uint32_t phase = a->phase[n];
    if (phase == CS_RUNS || phase == CS_MOVES) {
      if (a->left[n] > b->left[n] + eps) return 0;
      if (s->strict && a->left[n] < b->left[n] - eps) return 0;
    }
    if (phase == CS_DONE && a->end[n] > b->end[n] + eps) return 0;
    if ((phase == CS_FREE || phase == CS_HELD) && a->group[n]) {
      const double *leave = s->p->leave + (size_t)cs_row(s, n, a->group[n]) * s->p->sets;
      if (leave[a->set[n]] > leave[b->set[n]] + eps) return 0;
    }
  }
  return 1;
}

/* States of one key differ in times alone. */
static inline uint64_t cs_key(const struct cs_search *s, const struct cs_state *x, uint8_t *key) {
  uint64_t hash = 1469598103934665603u;
  for (uint32_t n = 0; n < s->p->jobs; n++) {
    uint32_t phase = x->phase[n];
    key[3 * n] = x->group[n];
    key[3 * n + 1] = (uint8_t)phase;
    key[3 * n + 2] = phase >= CS_MOVES && phase != CS_DONE ? x->set[n] : phase == CS_FREE || phase == CS_HELD ? s->kind[x->set[n]] : 0;
    for (uint32_t k = 0; k < 3; k++) hash = (hash ^ key[3 * n + k]) * 1099511628211u;
  }
  return hash ^ hash >> 29;
}

static inline void cs_remember(struct cs_search *s, const struct cs_state *x) {
  uint32_t total = 0;
  for (uint32_t n = 0; n < s->p->jobs; n++) total += cs_groups(s, n);
  s->n_steps = total;
  for (const struct cs_state *at = x; at->parent != CS_NONE; at = &s->state[at->parent]) {
    const struct cs_state *before = &s->state[at->parent];
    for (uint32_t n = s->p->jobs; n-- > 0;) {
      if (at->group[n] == before->group[n]) continue;
      total--;
      s->step_job[total] = n;
      s->step_group[total] = before->group[n];
      s->step_set[total] = at->set[n];
      s->step_start[total] = at->began[n];
      s->step_end[total] = at->now;
    }
  }
}

static inline void cs_complete(struct cs_search *s, const struct cs_state *x) {
  double value = 0;
  for (uint32_t n = 0; n < s->p->jobs; n++) {
    double latency = x->end[n] - s->p->release[n];
    if (s->p->objective == CS_THROUGHPUT) value -= s->p->counts[n] ? 1 / latency : 0;
    else if (latency > value) value = latency;
  }
  if (!(value < s->best - cs_margin(s))) return;
  s->best = value;
  s->found = 1;
  cs_remember(s, x);
}

/* A group has just ended. */
static inline void cs_push(struct cs_search *s, struct cs_state *x) {
  uint8_t key[3 * CS_JOBS], other[3 * CS_JOBS];
  uint32_t level = 0, done = 0, jobs = s->p->jobs;
  for (uint32_t n = 0; n < jobs; n++) {
    level += x->group[n];
    done += x->phase[n] == CS_DONE;
  }
  if (done == jobs) {
    cs_complete(s, x);
    return;
  }
  double eps = s->eps * x->now;
  uint32_t *slot = &s->bucket[cs_key(s, x, key) & (s->n_buckets - 1)], *link = slot;
  while (*link != CS_NONE) {
    struct cs_state *y = &s->state[*link];
    cs_key(s, y, other);
    if (!memcmp(key, other, 3 * jobs)) {
      if (cs_dominates(s, y, x, eps)) return;
      if (cs_dominates(s, x, y, eps)) {
        y->dead = 1;
        *link = y->next;
        continue;
      }
    }
    link = &y->next;
  }
  if (s->n_states == s->most_states) {
    s->truncated = s->full = 1;
    if (x->bound < s->cut) s->cut = x->bound;
    return;
  }
  uint32_t k = s->n_states++;
  x->next = *slot;
  *slot = k;
  x->same = s->head[level];
  s->head[level] = k;
  x->dead = 0;
  s->state[k] = *x;
}

/* ------------------------------------------------------------------------------------------------ events and decisions */

static inline void cs_decide(struct cs_search *s, const struct cs_state *x, uint32_t n);

static inline int cs_released(const struct cs_search *s, const struct cs_state *x, uint32_t n) {
  for (uint32_t m = 0; m < n; m++)
    if (s->p->before[n] >> m & 1 && x->phase[m] != CS_DONE) return 0;
  return s->p->release[n] <= x->now * (1 + s->eps);
}

/* Goes on to the next event. */
static inline void cs_advance(struct cs_search *s, const struct cs_state *from) {
  struct cs_state x = *from;
  const struct cs_problem *p = s->p;
  double slower[CS_JOBS], step = INFINITY;
  uint32_t ended = 0;
  cs_slowdowns(s, &x, slower);
  for (uint32_t n = 0; n < p->jobs; n++) {
    double t = x.phase[n] == CS_RUNS ? x.left[n] * slower[n] : x.phase[n] == CS_MOVES ? x.left[n] : INFINITY;
    if (x.phase[n] == CS_WAITS && p->release[n] > x.now * (1 + s->eps)) t = p->release[n] - x.now;
    if (t < step) step = t;
  }
  if (isinf(step)) return; /* everybody is held: nothing would ever start */
  x.now += step;
  double eps = s->eps * x.now;
  for (uint32_t n = 0; n < p->jobs; n++) {
    if (x.phase[n] == CS_FREE) x.phase[n] = CS_HELD;
    if (x.phase[n] != CS_RUNS && x.phase[n] != CS_MOVES) continue;
    x.left[n] -= step / slower[n];
    if (x.left[n] > eps) continue;
    x.left[n] = 0;
    if (x.phase[n] == CS_MOVES) {
      x.phase[n] = CS_READY;
      continue;
    }
    ended = 1;
    x.phase[n] = CS_FREE;
    if (++x.group[n] < cs_groups(s, n)) continue;
    x.phase[n] = CS_DONE;
    x.end[n] = x.now;
  }
  for (uint32_t n = 0; n < p->jobs; n++)
    if (x.phase[n] == CS_WAITS && cs_released(s, &x, n)) x.phase[n] = CS_HELD;
  cs_judge(s, &x);
  if (!(x.bound < s->best - cs_margin(s))) return;
  if (ended) cs_push(s, &x);
  else cs_decide(s, &x, 0);
}

/* Whether the cores of a set are idle. */
static inline int cs_fits(const struct cs_search *s, const struct cs_state *x, uint32_t set) {
  const struct cs_problem *p = s->p;
  for (uint32_t d = 0; d < p->domains; d++) {
    uint32_t used = p->uses[set * p->domains + d];
    if (!used) continue;
    for (uint32_t m = 0; m < p->jobs; m++)
      if (x->phase[m] == CS_RUNS) used += p->uses[x->set[m] * p->domains + d];
    if (used > p->cores[d]) return 0;
  }
  return 1;
}

static inline void cs_start(struct cs_search *s, const struct cs_state *x, uint32_t n, uint32_t set) {
  struct cs_state y = *x;
  y.phase[n] = CS_RUNS;
  y.set[n] = (uint8_t)set;
  y.left[n] = cs_ns(s, n, x->group[n], set);
  y.began[n] = x->now;
  cs_decide(s, &y, n + 1);
}

/* Whether an equal job must start first: exchanging the two changes nothing. */
static inline int cs_after_twin(const struct cs_search *s, const struct cs_state *x, uint32_t n) {
  int32_t twin = s->p->twin[n];
  return twin >= 0 && !x->group[n] && !x->group[twin] && x->phase[twin] < CS_MOVES;
}

/* All that jobs n, n + 1, … can do now. */
static inline void cs_decide(struct cs_search *s, const struct cs_state *x, uint32_t n) {
  const struct cs_problem *p = s->p;
  if (n == p->jobs) {
    cs_advance(s, x);
    return;
  }
  if (x->phase[n] == CS_READY && cs_fits(s, x, x->set[n])) cs_start(s, x, n, x->set[n]);
  if ((x->phase[n] == CS_FREE || x->phase[n] == CS_HELD) && !cs_after_twin(s, x, n)) {
    for (uint32_t a = 0; a < p->sets; a++) {
      double move = cs_transition(s, n, x->group[n], x->set[n], a);
      if (!(move > 0)) {
        if (cs_fits(s, x, a)) cs_start(s, x, n, a);
      } else if (x->phase[n] == CS_FREE) { /* whoever moves, moves at once */
        struct cs_state y = *x;
        y.phase[n] = CS_MOVES;
        y.set[n] = (uint8_t)a;
        y.left[n] = move;
        cs_decide(s, &y, n + 1);
      }
    }
  }
  cs_decide(s, x, n + 1);
}

/* ------------------------------------------------------------------------------------------------ the search */

static inline double cs_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void cs_release(struct cs_search *s) {
  free(s->state);
  free(s->head);
  free(s->order);
  free(s->bucket);
  free(s->kind);
  free(s->after);
  free(s->load);
  free(s->step_job);
  free(s->step_start);
}

static inline int cs_allocate(struct cs_search *s) {
  uint32_t rows = s->rows, marks = rows + s->p->jobs;
  s->most_states = CS_MOST_STATES;
  s->n_buckets = 1u << 17;
  s->state = (struct cs_state *)malloc((size_t)s->most_states * sizeof *s->state);
  s->head = (uint32_t *)malloc(s->levels * sizeof *s->head);
  s->order = (uint32_t *)malloc((size_t)s->most_states * sizeof *s->order);
  s->bucket = (uint32_t *)malloc(s->n_buckets * sizeof *s->bucket);
  s->kind = (uint8_t *)malloc(s->p->sets);
  s->after = (double *)malloc((size_t)marks * s->p->sets * sizeof *s->after);
  s->load = (double *)malloc((size_t)CS_DUALS * marks * s->p->sets * sizeof *s->load);
  s->step_job = (uint32_t *)malloc(3 * (size_t)rows * sizeof *s->step_job);
  s->step_start = (double *)malloc(2 * (size_t)rows * sizeof *s->step_start);
  if (!s->state || !s->head || !s->order || !s->bucket || !s->kind || !s->after || !s->load || !s->step_job || !s->step_start) return 0;
  s->step_group = s->step_job + rows;
  s->step_set = s->step_group + rows;
  s->step_end = s->step_start + rows;
  return 1;
}

static inline int cs_better(const struct cs_search *s, uint32_t a, uint32_t b) {
  double x = s->state[a].rank, y = s->state[b].rank;
  return x < y || (x == y && a < b);
}

static inline void cs_sift(const struct cs_search *s, uint32_t *heap, uint32_t k, uint32_t n) {
  for (uint32_t child; (child = 2 * k + 1) < n; k = child) {
    if (child + 1 < n && cs_better(s, heap[child], heap[child + 1])) child++;
    if (!cs_better(s, heap[k], heap[child])) return;
    uint32_t x = heap[k];
    heap[k] = heap[child];
    heap[child] = x;
  }
}

/* The living states of a level, best first, as many as the pass is wide. */
static inline void cs_order(struct cs_search *s) {
  uint32_t n = 0, *order = s->order;
  for (uint32_t k = s->head[s->level]; k != CS_NONE; k = s->state[k].same)
    if (!s->state[k].dead && s->state[k].bound < s->best - cs_margin(s)) order[n++] = k;
  for (uint32_t k = n / 2; k-- > 0;) cs_sift(s, order, k, n);
  for (uint32_t left = n; left > 1; left--) {
    uint32_t x = order[0];
    order[0] = order[left - 1];
    order[left - 1] = x;
    cs_sift(s, order, 0, left - 1);
  }
  s->n_order = n;
  s->at = 0;
  if (n <= s->width) return;
  s->n_order = (uint32_t)s->width;
  s->truncated = 1;
  for (uint32_t k = s->n_order; k < n; k++)
    if (s->state[order[k]].bound < s->cut) s->cut = s->state[order[k]].bound;
}

/* Begins a pass with nothing but the first state. */
static inline void cs_begin_pass(struct cs_search *s) {
  struct cs_state x = {.parent = CS_NONE, .next = CS_NONE, .same = CS_NONE};
  memset(s->head, 0xff, s->levels * sizeof *s->head);
  memset(s->bucket, 0xff, s->n_buckets * sizeof *s->bucket);
  s->n_states = s->level = 0;
  s->truncated = s->full = 0;
  s->cut = INFINITY;
  for (uint32_t n = 0; n < s->p->jobs; n++) x.phase[n] = cs_released(s, &x, n) ? CS_HELD : CS_WAITS;
  cs_judge(s, &x);
  s->root = x.bound;
  s->state[s->n_states++] = x;
  s->head[0] = 0;
  cs_order(s);
}

/* `best`: the value of a schedule that is known. CS_NO_MEMORY, or CS_FOUND. */
static inline int cs_open(struct cs_search *s, const struct cs_problem *p, double best) {
  memset(s, 0, sizeof *s);
  s->p = p;
  s->rows = p->first[p->jobs];
  s->levels = s->rows + 1;
  s->eps = CS_ROUNDING;
  s->best = best;
  s->width = 1;
  for (uint32_t m = 0; m < p->memories; m++)
    for (uint32_t k = 0; k < p->memory[m].n_own * p->memory[m].n_others; k++) s->contention |= p->memory[m].factor[k] > 1;
  if (!cs_allocate(s)) {
    cs_release(s);
    return CS_NO_MEMORY;
  }
  for (uint32_t a = 0; a < p->sets; a++) {
    s->kind[a] = (uint8_t)a;
    for (uint32_t b = 0; b < a; b++)
      if (!memcmp(p->moves + a * p->sets, p->moves + b * p->sets, p->sets) && s->kind[a] == a) s->kind[a] = s->kind[b];
  }
  cs_prepare_after(s);
  cs_prepare_loads(s);
  cs_begin_pass(s);
  s->bound = s->root < best ? s->root : best;
  return CS_FOUND;
}

/* A pass has come to its end. The states that a strict pass has left out may be better than the best, by their bound. */
static inline void cs_end_pass(struct cs_search *s) {
  double bound = s->cut < s->best ? s->cut : s->best;
  if ((s->strict || !s->contention) && bound > s->bound) s->bound = bound;
  int complete = !s->truncated || !(s->cut < s->best - cs_margin(s));
  s->settled |= complete;
  s->proven = !(s->bound < s->best - cs_margin(s));
  s->finished = s->proven || (s->full && s->strict);
  if (s->finished) return;
  if (complete || s->full) s->strict = 1;
  s->width *= CS_WIDER;
  cs_begin_pass(s);
}

/* The next state to expand; CS_NONE: the pass has come to its end. */
static inline uint32_t cs_next(struct cs_search *s) {
  for (;;) {
    while (s->at < s->n_order) {
      uint32_t k = s->order[s->at++];
      if (!s->state[k].dead && s->state[k].bound < s->best - cs_margin(s)) return k;
    }
    if (s->level + 1 == s->levels) return CS_NONE;
    s->level++;
    cs_order(s);
  }
}

/* Searches until there is a better schedule (CS_FOUND), the search settles (CS_SETTLED), the clock says `deadline`, or nothing is left to
 * search. */
static inline int cs_run(struct cs_search *s, double deadline) {
  uint32_t stride = 0;
  s->found = 0;
  while (!s->finished) {
    uint32_t k = cs_next(s);
    if (k == CS_NONE) {
      int before = s->settled;
      cs_end_pass(s);
      if (s->settled && !before && !s->finished) return CS_SETTLED;
      continue;
    }
    struct cs_state x = s->state[k];
    x.parent = k;
    s->expanded++;
    cs_decide(s, &x, 0);
    if (s->found) return CS_FOUND;
    if (++stride < CS_STRIDE) continue;
    stride = 0;
    if (cs_clock() > deadline) return CS_OUT_OF_TIME;
  }
  return CS_FINISHED;
}

#endif
