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
#include "atomics.h"
#include "bounds.h"

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
  if (ASPEN_SIMULATED) aspen_cpu_relax(); /* Time passes in no other way there. */
  return 1e-9 * (double)aspen_now_ns();
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
