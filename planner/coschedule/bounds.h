/* Lower bounds of what a state can still become. */
#ifndef ASPEN_COSCHEDULE_BOUNDS_H
#define ASPEN_COSCHEDULE_BOUNDS_H
#include "problem.h"

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

#endif
