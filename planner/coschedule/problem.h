/* The data of a search for schedules: the problem, its states, and how groups slow each other down. */
#ifndef ASPEN_COSCHEDULE_PROBLEM_H
#define ASPEN_COSCHEDULE_PROBLEM_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

#endif
