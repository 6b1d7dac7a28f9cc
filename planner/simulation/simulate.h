/* Simulates the workers of a machine with a tile graph: the scheduling engine (workers/engine, shm/protocol/pool.h, shm/protocol/claim.h)
 * as events in time.
 *
 * Each core does the steps of its DSE, in the same order. It counts the children of a finished tile down, follows the ready one of lowest
 * rank, and pushes the others into its own row. It claims the requests that clients have submitted. Then it takes the tile that follows,
 * else the best of its own row, else one of another row, nearest first. A tile of an older request goes before all of these. Only time is
 * made up. A tile takes `ns` alone on a core of speed 1, and scheduling takes the times of `sim_engine`. Tiles that run at the same time
 * share the memory's
 * bandwidth: each gets its want, up to a fair share. Bytes that another core has written, and its own core has not fetched before, take a
 * tile longer (`far`). A tile that finds its transformed input in scratch takes less time (`made`).
 *
 * Deterministic: simultaneous events happen in the order of cores. No state outlives a run.
 */
#ifndef ASPEN_SIMULATE_H
#define ASPEN_SIMULATE_H
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "numbers.h"

enum sim_order { SIM_FIFO = 0, SIM_LIFO = 1, SIM_RANDOM = 2, SIM_LAYER = 3 };
enum sim_result { SIM_OK = 0, SIM_STUCK, SIM_NO_MEMORY };

#define SIM_NONE UINT32_MAX
#define SIM_COLUMNS 64
#define SIM_ROUNDING 1e-12
#define SIM_NEVER (-1.0)

/* As `Tiles` of simulate.py. The last tile is END. */
struct sim_graph {
  uint32_t n, n_initial;
  const uint32_t *child_begin, *children, *parent_counts, *initial, *rank;
  const uint8_t *depth;
  const double *ns, *bytes;
  /* As `Flow` of flow.py; `far`: ns more for each byte that another core has written. */
  double far;
  uint32_t flow_tiles, flow_rows;
  const uint32_t *flow_begin, *flow_source;
  const float *flow_bytes;
  /* As `Made` of made.py; NULL: tiles find nothing. */
  const uint32_t *made;
  const double *made_first, *made_again;
};

/* Nanoseconds on a core of speed 1, as `Engine` of machine.py. */
struct sim_engine {
  double tile, join, push, pushed, steal, look, wake, spin, claim, claimed, submit, end;
};

struct sim_machine {
  uint32_t cores;
  const double *speed;
  const uint16_t *victim; /* [cores][cores - 1]: other rows, nearest first */
  double bytes_per_ns;    /* of all cores together */
  struct sim_engine engine;
};

struct sim_rules {
  uint32_t order, steal, seed, requests, in_flight;
};

struct sim_outcome {
  double *latency;                 /* [requests] */
  double *busy, *schedule;         /* [cores]: kernels, scheduling */
  uint32_t *tiles, *steals;        /* [cores] */
  double makespan;
  uint64_t events;
  /* Each tile in the order of ends, [requests * n]; NULL: not wanted. */
  uint32_t *line_tile, *line_request;
  uint16_t *line_core;
  double *line_start, *line_end;
};

struct sim_core {
  uint32_t item;    /* running; SIM_NONE: idle */
  uint32_t follow;
  uint32_t looks;   /* idle, and about to look */
  uint32_t random;
  double begun, start;    /* taken; its kernel begins */
  double left, since;     /* work left at rate 1 at `since` */
  double rate, demand;    /* bytes a nanosecond that it wants */
  double idle_since;
  double leaves;    /* aspen_dse_leaves: ready tiles that faster cores will be done with before this one has done one */
  /* how long it leaves tiles to them: as long as ASPEN_PATIENCE take it on average. A DSE counts those of its last millisecond */
  double patience;
  double left_since; /* since then it leaves tiles; SIM_NEVER: it does not */
  uint32_t made, made_request; /* the group that its last tile left in scratch, 0: none, and for which request */
  uint32_t share;   /* where its queue share begins, of ASPEN_SHARES (aspen_dse_share). A DSE knows it after its first millisecond */
};

struct sim {
  const struct sim_graph *g;
  const struct sim_machine *m;
  const struct sim_rules *r;
  struct sim_outcome *o;
  struct sim_core *core;
  double *at; /* of each core's next event */
  uint32_t lanes;               /* of a row, for one request each: aspen_row. SIM_LAYER has one */
  uint32_t *busy, *first;       /* [cores]: a bit for each lane with tiles; the oldest request that has some, SIM_NONE: none has */
  uint32_t *lane;               /* [cores][lanes]: the request of each */
  uint64_t *mask;               /* [cores][lanes] */
  uint32_t *head, *tail;        /* [cores][lanes][SIM_COLUMNS] */
  uint32_t *next, *child;       /* [in_flight][n]; `child`: of SIM_LAYER's heaps */
  uint32_t *missing;            /* [in_flight][n] */
  uint32_t *ready;              /* [n]: tiles that became ready together */
  uint64_t *has;                /* [in_flight][flow_rows]: bits of the cores in whose caches a tile's output, or a group's, is */
  uint32_t *request;            /* [in_flight] */
  double *submitted, *arrival;  /* [requests], [in_flight]: times at which the next ones are seen, a ring */
  uint32_t n_arrivals, first_arrival, n_submitted, n_done, *free_instance, n_free;
  uint32_t waiting, looking, idle, contended, slow;
  uint64_t n_line;
  double now;
};

/* ------------------------------------------------------------------------------------------------ rows */

static inline uint32_t sim_random(uint32_t *state) {
  uint32_t x = *state ? *state : 0x9e3779b9u;
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return *state = x;
}

static inline uint32_t sim_tile(const struct sim *s, uint32_t item) { return item % s->g->n; }

/* SIM_LAYER: a row is a pairing heap by request and rank in column 0; `child`, `next` link it. */
static inline int sim_before(const struct sim *s, uint32_t a, uint32_t b) {
  uint32_t n = s->g->n, x = s->request[a / n], y = s->request[b / n];
  return x != y ? x < y : s->g->rank[a % n] < s->g->rank[b % n] || (s->g->rank[a % n] == s->g->rank[b % n] && a < b);
}

static inline uint32_t sim_meld(struct sim *s, uint32_t a, uint32_t b) {
  if (a == SIM_NONE || b == SIM_NONE) return a == SIM_NONE ? b : a;
  if (sim_before(s, b, a)) {
    uint32_t t = a;
    a = b;
    b = t;
  }
  s->next[b] = s->child[a];
  s->child[a] = b;
  return a;
}

static inline uint32_t sim_pop_heap(struct sim *s, uint32_t root) {
  uint32_t list = s->child[root], pairs = SIM_NONE, out = SIM_NONE;
  while (list != SIM_NONE) {
    uint32_t a = list, b = s->next[a], rest = b == SIM_NONE ? SIM_NONE : s->next[b];
    s->next[a] = SIM_NONE;
    if (b != SIM_NONE) s->next[b] = SIM_NONE;
    a = sim_meld(s, a, b);
    s->next[a] = pairs;
    pairs = a;
    list = rest;
  }
  while (pairs != SIM_NONE) {
    uint32_t rest = s->next[pairs];
    s->next[pairs] = SIM_NONE;
    out = sim_meld(s, out, pairs);
    pairs = rest;
  }
  return out;
}

/* The lane of a request in a row (aspen_row_lane). */
static inline uint32_t sim_lane(struct sim *s, uint32_t row, uint32_t request) {
  uint32_t *lane = s->lane + (size_t)row * s->lanes, older = SIM_NONE, younger = SIM_NONE, empty = SIM_NONE, found;
  if (s->r->order == SIM_LAYER) return 0;
  for (uint32_t k = 0; k < s->lanes; k++) {
    if (!(s->busy[row] >> k & 1)) {
      if (empty == SIM_NONE) empty = k;
      continue;
    }
    if (lane[k] == request) return k;
    uint32_t *best = lane[k] < request ? &older : &younger;
    if (*best == SIM_NONE || (lane[k] < request) == (lane[k] > lane[*best])) *best = k;
  }
  found = empty != SIM_NONE ? empty : older != SIM_NONE ? older : younger;
  if (found == empty || found == younger) lane[found] = request;
  return found;
}

/* The lane of a row's oldest request. */
static inline uint32_t sim_oldest(const struct sim *s, uint32_t row) {
  const uint32_t *lane = s->lane + (size_t)row * s->lanes;
  uint32_t first = SIM_NONE;
  for (uint32_t bits = s->busy[row]; bits; bits &= bits - 1) {
    uint32_t k = (uint32_t)__builtin_ctz(bits);
    if (first == SIM_NONE || lane[k] < lane[first]) first = k;
  }
  return first;
}

static inline void sim_put(struct sim *s, uint32_t row, uint32_t item, uint32_t *random) {
  uint32_t depth = s->g->depth[sim_tile(s, item)], request = s->request[item / s->g->n];
  uint32_t column = depth < ASPEN_DEPTHS ? depth : ASPEN_DEPTHS - 1;
  uint32_t which = sim_lane(s, row, request);
  size_t lane = (size_t)row * s->lanes + which;
  s->waiting++;
  s->busy[row] |= 1u << which;
  if (request < s->first[row]) s->first[row] = request;
  uint32_t *head = &s->head[lane * SIM_COLUMNS + column], *tail = &s->tail[lane * SIM_COLUMNS + column];
  if (s->r->order == SIM_LAYER) {
    s->next[item] = s->child[item] = SIM_NONE;
    s->head[lane * SIM_COLUMNS] = s->mask[lane] ? sim_meld(s, s->head[lane * SIM_COLUMNS], item) : item;
    s->mask[lane] = 1;
    return;
  }
  int at_head = s->r->order == SIM_LIFO || (s->r->order == SIM_RANDOM && (sim_random(random) & 1));
  if (!(s->mask[lane] >> column & 1)) {
    s->next[item] = SIM_NONE;
    *head = *tail = item;
  } else if (at_head) {
    s->next[item] = *head;
    *head = item;
  } else {
    s->next[item] = SIM_NONE;
    s->next[*tail] = item;
    *tail = item;
  }
  s->mask[lane] |= (uint64_t)1 << column;
}

/* The last tile of a column was taken (aspen_row_emptied). */
static inline void sim_emptied(struct sim *s, uint32_t row, uint32_t which, uint32_t column) {
  uint64_t *mask = &s->mask[(size_t)row * s->lanes + which];
  *mask &= ~((uint64_t)1 << column);
  if (*mask) return;
  s->busy[row] &= ~(1u << which);
  uint32_t oldest = sim_oldest(s, row);
  s->first[row] = oldest == SIM_NONE ? SIM_NONE : s->lane[(size_t)row * s->lanes + oldest];
}

static inline uint32_t sim_first_of_share(const struct sim_core *k, uint32_t n) { return (uint32_t)((uint64_t)n * k->share / ASPEN_SHARES); }

/* Core `c` takes an item of a row (aspen_row_take). */
static inline uint32_t sim_pop(struct sim *s, uint32_t row, uint32_t c) {
  struct sim_core *k = &s->core[c];
  uint32_t which = sim_oldest(s, row);
  if (which == SIM_NONE) return SIM_NONE;
  s->waiting--;
  if (s->r->order == SIM_LAYER) {
    uint32_t item = s->head[row * SIM_COLUMNS], root = sim_pop_heap(s, item);
    s->head[row * SIM_COLUMNS] = root;
    if (root == SIM_NONE) sim_emptied(s, row, 0, 0);
    else s->first[row] = s->request[root / s->g->n];
    return item;
  }
  uint32_t busy = s->busy[row];
  if (s->r->order == SIM_RANDOM && (busy & (busy - 1))) {
    for (uint32_t skip = sim_random(&k->random) % (uint32_t)__builtin_popcount(busy); skip; skip--) busy &= busy - 1;
    which = (uint32_t)__builtin_ctz(busy);
  }
  size_t lane = (size_t)row * s->lanes + which;
  uint64_t mask = s->mask[lane];
  if (s->r->order == SIM_RANDOM)
    for (uint32_t skip = sim_random(&k->random) % (uint32_t)__builtin_popcountll(mask); skip; skip--) mask &= mask - 1;
  uint32_t column = (uint32_t)__builtin_ctzll(mask), before = SIM_NONE;
  uint32_t *head = &s->head[lane * SIM_COLUMNS + column], item = *head;
  if (k->share && s->r->order == SIM_FIFO)
    for (uint32_t n = 2, at = 0, seen = s->next[item]; seen != SIM_NONE && n <= ASPEN_WALK / s->m->cores; n++, seen = s->next[seen])
      if (sim_first_of_share(k, n) > at) at++, before = item, item = s->next[item];
  if (before != SIM_NONE) {
    s->next[before] = s->next[item];
    if (s->next[item] == SIM_NONE) s->tail[lane * SIM_COLUMNS + column] = before;
    return item;
  }
  *head = s->next[item];
  if (*head == SIM_NONE) sim_emptied(s, row, which, column);
  return item;
}

/* ------------------------------------------------------------------------------------------------ idle cores */

/* An idle core sleeps when it has looked for work in vain for long enough. One that leaves tiles sees some. */
static inline int sim_asleep(const struct sim *s, uint32_t c, double at) {
  return at - s->core[c].idle_since > s->m->engine.spin && s->core[c].left_since == SIM_NEVER;
}

/* An idle core will look: soon if it still spins, later if it has gone to sleep. */
static inline void sim_look(struct sim *s, uint32_t c, double from) {
  struct sim_core *k = &s->core[c];
  const struct sim_engine *e = &s->m->engine;
  k->looks = 1;
  s->looking++;
  s->at[c] = from + (sim_asleep(s, c, from) ? e->wake : e->look);
}

/* Does a slow core leave what is ready to faster ones (aspen_dse_leaves)? */
static inline int sim_leaves(const struct sim *s, uint32_t c) { return s->waiting && s->waiting < 1 - ASPEN_UNDERWAY + s->core[c].leaves; }

/* Idle slow cores begin to leave ready tiles, as long as they are awake, or have nothing to leave any more. One that leaves tiles does not
 * go to sleep, and takes one when its patience is at an end. */
static inline void sim_leave(struct sim *s) {
  for (uint32_t c = 0; c < s->m->cores; c++) {
    struct sim_core *k = &s->core[c];
    if (k->item != SIM_NONE || !(k->leaves > 0)) continue;
    int leaves = sim_leaves(s, c);
    if (leaves && (k->left_since != SIM_NEVER || k->looks || sim_asleep(s, c, s->now))) continue;
    k->left_since = leaves ? s->now : SIM_NEVER;
    if (!k->looks) s->at[c] = leaves ? s->now + k->patience : INFINITY;
  }
}

/* The idle core to look next: spinning ones before sleeping ones, near ones first. `for_tiles`: for ready tiles, not for a new request. */
static inline uint32_t sim_idle_near(const struct sim *s, uint32_t c, double from, int for_tiles) {
  const uint16_t *victim = &s->m->victim[(size_t)c * (s->m->cores - 1)];
  uint32_t asleep = SIM_NONE;
  for (uint32_t k = 0; k + 1 <= s->m->cores; k++) {
    uint32_t v = k ? victim[k - 1] : c;
    const struct sim_core *x = &s->core[v];
    if (x->item != SIM_NONE || x->looks || v == c || (for_tiles && sim_leaves(s, v))) continue;
    if (!sim_asleep(s, v, from)) return v;
    if (asleep == SIM_NONE) asleep = v;
  }
  return asleep;
}

/* Core `c` has put tiles into rows. */
static inline void sim_call(struct sim *s, uint32_t c) {
  if (!s->r->steal) {
    for (uint32_t v = 0; v < s->m->cores; v++)
      if (v != c && s->busy[v] && s->core[v].item == SIM_NONE && !s->core[v].looks) sim_look(s, v, s->now);
    return;
  }
  while (s->looking < s->waiting && s->looking < s->idle) {
    uint32_t v = sim_idle_near(s, c, s->now, 1);
    if (v == SIM_NONE) return;
    sim_look(s, v, s->now);
  }
}

/* ------------------------------------------------------------------------------------------------ memory */

/* Running tiles get the bandwidth that they want, up to a share that is the same for all. */
static inline void sim_share(struct sim *s) {
  uint32_t n = s->m->cores, many = 0;
  double total = 0;
  for (uint32_t c = 0; c < n; c++)
    if (s->core[c].item != SIM_NONE) total += s->core[c].demand, many++;
  int contended = total > s->m->bytes_per_ns;
  if (!contended && !s->contended) return;
  s->contended = (uint32_t)contended;
  double fair = INFINITY;
  if (contended) {
    uint32_t large = many;
    fair = s->m->bytes_per_ns / many;
    for (;;) {
      double small = 0;
      uint32_t still = 0;
      for (uint32_t c = 0; c < n; c++) {
        if (s->core[c].item == SIM_NONE) continue;
        if (s->core[c].demand <= fair) small += s->core[c].demand;
        else still++;
      }
      if (still == 0 || still == large) break;
      large = still;
      fair = (s->m->bytes_per_ns - small) / still;
    }
  }
  for (uint32_t c = 0; c < n; c++) {
    struct sim_core *k = &s->core[c];
    if (k->item == SIM_NONE) continue;
    double rate = k->demand > fair ? fair / k->demand : 1.0;
    if (rate == k->rate) continue;
    k->left -= (s->now - k->since) * k->rate;
    if (k->left < 0) k->left = 0;
    k->since = s->now;
    k->rate = rate;
    s->at[c] = s->now + k->left / rate;
  }
}

/* ------------------------------------------------------------------------------------------------ caches */

/* More cores than bits share them. */
static inline uint64_t sim_bit(uint32_t c) { return (uint64_t)1 << (c & 63); }

/* Bytes that core `c` fetches from others' caches before it can run a tile. They are in its own from then on. */
static inline double sim_fetch(struct sim *s, uint32_t c, uint32_t instance, uint32_t tile) {
  const struct sim_graph *g = s->g;
  if (!(g->far > 0) || tile >= g->flow_tiles) return 0;
  uint64_t *has = s->has + (size_t)instance * g->flow_rows, bit = sim_bit(c);
  double bytes = 0;
  for (uint32_t i = g->flow_begin[tile]; i < g->flow_begin[tile + 1]; i++) {
    uint32_t source = g->flow_source[i];
    if (has[source] & bit) continue;
    has[source] |= bit;
    if (source < g->flow_tiles) {
      bytes += g->flow_bytes[i];
      continue;
    }
    for (uint32_t j = g->flow_begin[source]; j < g->flow_begin[source + 1]; j++) {
      uint32_t member = g->flow_source[j];
      if (!(has[member] & bit)) bytes += g->flow_bytes[j];
      has[member] |= bit;
    }
  }
  return bytes;
}

/* ------------------------------------------------------------------------------------------------ scratch */

/* The extra time of a tile on core `c`, or its gain, by the content of its last tile's scratch. */
static inline double sim_making(struct sim *s, uint32_t c, uint32_t instance, uint32_t tile) {
  const struct sim_graph *g = s->g;
  struct sim_core *k = &s->core[c];
  if (!g->made || !(g->ns[tile] > 0)) return 1;
  uint32_t made = g->made[tile], request = s->request[instance];
  int again = k->made == made && k->made_request == request;
  k->made = made;
  k->made_request = request;
  return !made ? 1 : again ? g->made_again[tile] : g->made_first[tile];
}

/* ------------------------------------------------------------------------------------------------ a core's steps */

/* aspen_dse_own_share. */
static inline uint32_t sim_own_share(const struct sim *s, const struct sim_core *k, uint32_t best, uint32_t pushed) {
  const struct sim_graph *g = s->g;
  uint32_t n = 1, at, i = 0;
  if (!g->rank[best]) return best;
  for (uint32_t j = 0; j < pushed; j++) n += g->depth[s->ready[j]] == g->depth[best];
  at = sim_first_of_share(k, n);
  if (!at) return best;
  while (g->depth[s->ready[i]] != g->depth[best] || --at) i++;
  uint32_t own = s->ready[i];
  memmove(s->ready + 1, s->ready, i * sizeof *s->ready);
  s->ready[0] = best;
  return own;
}

/* Counts the children of a finished tile down; returns the time of pushing the others. */
static inline double sim_finish(struct sim *s, uint32_t c) {
  const struct sim_graph *g = s->g;
  struct sim_core *k = &s->core[c];
  uint32_t n = g->n, tile = k->item % n, instance = k->item / n, base = instance * n, best = SIM_NONE, pushed = 0, *ready = s->ready;
  int follow = s->r->order == SIM_RANDOM ? (int)(sim_random(&k->random) & 1) : s->r->order != SIM_LAYER;
  if (s->o->line_tile) {
    s->o->line_tile[s->n_line] = tile;
    s->o->line_request[s->n_line] = s->request[instance];
    s->o->line_core[s->n_line] = (uint16_t)c;
    s->o->line_start[s->n_line] = k->start;
    s->o->line_end[s->n_line] = s->now;
  }
  s->n_line++;
  s->o->busy[c] += s->now - k->start;
  s->o->schedule[c] += k->start - k->begun;
  s->o->tiles[c]++;
  if (tile < g->flow_tiles) s->has[(size_t)instance * g->flow_rows + tile] = sim_bit(c);
  k->item = SIM_NONE;
  for (uint32_t i = g->child_begin[tile]; i < g->child_begin[tile + 1]; i++) {
    uint32_t child = g->children[i];
    if (--s->missing[base + child]) continue;
    if (follow && (best == SIM_NONE || g->rank[child] < g->rank[best])) {
      if (best != SIM_NONE) ready[pushed++] = best;
      best = child;
    } else {
      ready[pushed++] = child;
    }
  }
  if (best != SIM_NONE && k->share && s->r->order == SIM_FIFO) best = sim_own_share(s, k, best, pushed);
  for (uint32_t i = 0; i < pushed; i++) sim_put(s, c, base + ready[i], &k->random);
  k->follow = best == SIM_NONE ? SIM_NONE : base + best;
  if (tile == n - 1) {
    uint32_t q = s->request[instance];
    double seen = s->now + s->m->engine.end;
    s->o->latency[q] = seen - s->submitted[q];
    if (seen > s->o->makespan) s->o->makespan = seen;
    s->n_done++;
    s->free_instance[s->n_free++] = instance;
    if (s->n_submitted < s->r->requests) {
      s->submitted[s->n_submitted++] = seen;
      s->arrival[(s->first_arrival + s->n_arrivals++) % s->r->in_flight] = seen + s->m->engine.submit;
    }
  }
  return pushed ? s->m->engine.push + pushed * s->m->engine.pushed : 0;
}

/* Starts the submitted requests: the first tiles go to all rows in contiguous shares, the claimer's first. Returns the time of that. */
static inline double sim_admit(struct sim *s, uint32_t c) {
  double cost = 0;
  while (s->n_arrivals && s->n_free && s->arrival[s->first_arrival] <= s->now) {
    uint32_t instance = s->free_instance[--s->n_free], n = s->g->n, base = instance * n, rows = s->m->cores;
    uint32_t share = (s->g->n_initial + rows - 1) / rows;
    /* Requests are submitted in the order in which they arrive. */
    s->request[instance] = s->n_submitted - s->n_arrivals;
    s->first_arrival = (s->first_arrival + 1) % s->r->in_flight;
    s->n_arrivals--;
    memcpy(s->missing + base, s->g->parent_counts, sizeof(uint32_t) * n);
    memset(s->has + (size_t)instance * s->g->flow_rows, 0, sizeof *s->has * s->g->flow_rows);
    for (uint32_t i = 0; i < s->g->n_initial; i++) sim_put(s, (c + i / share) % rows, base + s->g->initial[i], &s->core[c].random);
    cost += s->m->engine.claim + s->m->engine.claimed * n;
  }
  return cost;
}

/* Where several requests run: the row whose oldest request is older than `request` and older than any other row's (aspen_dse_older). */
static inline uint32_t sim_older(const struct sim *s, uint32_t c, uint32_t request) {
  const uint16_t *victim = &s->m->victim[(size_t)c * (s->m->cores - 1)];
  uint32_t found = SIM_NONE;
  if (!s->r->steal || s->r->in_flight - s->n_free < 2) return found;
  for (uint32_t v = 0; v + 1 < s->m->cores; v++)
    if (s->first[victim[v]] < request) found = victim[v], request = s->first[found];
  return found;
}

/* The tile to run next (aspen_dse_best); the time to get it is added to `cost`. SIM_NONE: there is none, or the core leaves it to others
 * (`leaves`). */
static inline uint32_t sim_take(struct sim *s, uint32_t c, double *cost, int *leaves) {
  const struct sim_engine *e = &s->m->engine;
  struct sim_core *k = &s->core[c];
  uint32_t item = k->follow, request = item == SIM_NONE ? SIM_NONE : s->request[item / s->g->n];
  k->follow = SIM_NONE;
  *leaves = 0;
  if (item != SIM_NONE) {
    if (s->first[c] >= request && sim_older(s, c, request) == SIM_NONE) return item;
    sim_put(s, c, item, &k->random);
    *cost += e->push + e->pushed;
  }
  *leaves = sim_leaves(s, c) && (k->left_since == SIM_NEVER || s->now < k->left_since + k->patience);
  if (*leaves || !s->waiting) return SIM_NONE;
  uint32_t older = sim_older(s, c, s->first[c]);
  if (older == SIM_NONE && s->busy[c]) return sim_pop(s, c, c);
  if (!s->r->steal) return SIM_NONE;
  const uint16_t *victim = &s->m->victim[(size_t)c * (s->m->cores - 1)];
  for (uint32_t v = 0; older == SIM_NONE; v++)
    if (s->busy[victim[v]]) older = victim[v];
  s->o->steals[c]++;
  *cost += e->steal;
  return sim_pop(s, older, c);
}

/* Takes a tile and begins it, or idles. */
static inline void sim_step(struct sim *s, uint32_t c, double cost) {
  const struct sim_engine *e = &s->m->engine;
  struct sim_core *k = &s->core[c];
  int leaves;
  cost += sim_admit(s, c);
  uint32_t item = sim_take(s, c, &cost, &leaves);
  if (item == SIM_NONE) {
    s->idle++;
    k->idle_since = s->now;
    if (leaves && k->left_since == SIM_NEVER) k->left_since = s->now;
    s->at[c] = leaves ? k->left_since + k->patience : INFINITY;
    return;
  }
  k->left_since = SIM_NEVER;
  uint32_t tile = sim_tile(s, item);
  double speed = s->m->speed[c], ns = s->g->ns[tile];
  cost += ns > 0 ? e->tile : e->join;
  ns = ns * sim_making(s, c, item / s->g->n, tile) + s->g->far * sim_fetch(s, c, item / s->g->n, tile);
  k->item = item;
  k->begun = k->since = s->now;
  k->start = s->now + cost / speed;
  k->left = (cost + ns) / speed;
  k->rate = 1;
  k->demand = k->left > 0 ? s->g->bytes[tile] / k->left : 0;
  s->at[c] = s->now + k->left;
}

/* ------------------------------------------------------------------------------------------------ the run */

static inline int sim_allocate(struct sim *s) {
  size_t cores = s->m->cores, items = (size_t)s->g->n * s->r->in_flight;
  s->core = (struct sim_core *)calloc(cores, sizeof *s->core);
  s->at = (double *)malloc(cores * sizeof *s->at);
  s->lanes = s->r->order == SIM_LAYER ? 1 : s->r->in_flight < ASPEN_LANES ? s->r->in_flight : ASPEN_LANES;
  s->busy = (uint32_t *)calloc(cores, sizeof *s->busy);
  s->first = (uint32_t *)malloc(cores * sizeof *s->first);
  s->lane = (uint32_t *)malloc(cores * s->lanes * sizeof *s->lane);
  s->mask = (uint64_t *)calloc(cores * s->lanes, sizeof *s->mask);
  s->head = (uint32_t *)malloc(2 * cores * s->lanes * SIM_COLUMNS * sizeof *s->head);
  s->next = (uint32_t *)malloc((3 * items + s->g->n) * sizeof *s->next);
  s->request = (uint32_t *)malloc(2 * (size_t)s->r->in_flight * sizeof *s->request);
  s->submitted = (double *)malloc(((size_t)s->r->requests + s->r->in_flight) * sizeof *s->submitted);
  s->has = (uint64_t *)malloc(((size_t)s->g->flow_rows * s->r->in_flight + 1) * sizeof *s->has);
  if (!s->core || !s->at || !s->busy || !s->first || !s->lane || !s->mask || !s->head || !s->next || !s->request || !s->submitted || !s->has) return 0;
  s->tail = s->head + cores * s->lanes * SIM_COLUMNS;
  s->child = s->next + items;
  s->missing = s->child + items;
  s->ready = s->missing + items;
  s->free_instance = s->request + s->r->in_flight;
  s->arrival = s->submitted + s->r->requests;
  return 1;
}

static inline void sim_release(struct sim *s) {
  free(s->core);
  free(s->at);
  free(s->busy);
  free(s->first);
  free(s->lane);
  free(s->mask);
  free(s->head);
  free(s->next);
  free(s->request);
  free(s->submitted);
  free(s->has);
}

/* How large a core's queue share is, beside that of the fastest. */
static inline double sim_queue_share(const struct sim *s, uint32_t c, double fastest) {
  return fastest > ASPEN_SLOWER * s->m->speed[c] ? s->m->speed[c] / fastest : 1;
}

static inline void sim_begin(struct sim *s) {
  double total = 0, fastest = 0, before = 0, all = 0;
  for (uint32_t t = 0; t < s->g->n; t++) total += s->g->ns[t];
  for (uint32_t c = 0; c < s->m->cores; c++)
    if (s->m->speed[c] > fastest) fastest = s->m->speed[c];
  for (uint32_t c = 0; c < s->m->cores; c++) all += sim_queue_share(s, c, fastest);
  for (uint32_t c = 0; c < s->m->cores; c++) {
    s->core[c].item = s->core[c].follow = SIM_NONE;
    for (uint32_t v = 0; v < s->m->cores && s->r->steal; v++)
      if (s->m->speed[v] > ASPEN_SLOWER * s->m->speed[c]) s->core[c].leaves += s->m->speed[v] / s->m->speed[c] - 1;
    s->core[c].random = s->r->seed * 2654435761u + c + 1;
    s->core[c].patience = ASPEN_PATIENCE * total / s->g->n / s->m->speed[c];
    s->core[c].left_since = SIM_NEVER;
    if (s->core[c].leaves > 0) s->slow = 1;
    s->core[c].share = (uint32_t)ceil(before / all * ASPEN_SHARES);
    before += sim_queue_share(s, c, fastest);
    s->at[c] = INFINITY;
    s->first[c] = SIM_NONE;
  }
  s->idle = s->m->cores;
  for (uint32_t k = s->r->in_flight; k-- > 0;) s->free_instance[s->n_free++] = k;
  for (; s->n_submitted < s->r->in_flight && s->n_submitted < s->r->requests; s->n_arrivals++) {
    s->submitted[s->n_submitted++] = 0;
    s->arrival[s->n_arrivals] = s->m->engine.submit;
  }
}

/* The core of the next event. Times that differ by rounding alone are equal, and then the first core goes first. */
static inline uint32_t sim_next(const struct sim *s) {
  uint32_t c = 0;
  double at = s->at[0];
  for (uint32_t k = 1; k < s->m->cores; k++)
    if (s->at[k] < at) at = s->at[k];
  while (s->at[c] > at + at * SIM_ROUNDING) c++;
  return c;
}

/* A submission is seen: by an idle core, or by whichever finishes a tile next. */
static inline uint32_t sim_arrives(const struct sim *s) {
  return s->n_arrivals && s->n_free && s->idle > s->looking ? s->first_arrival : SIM_NONE;
}

static inline int sim_run(const struct sim_graph *g, const struct sim_machine *m, const struct sim_rules *r, struct sim_outcome *o) {
  struct sim s = {.g = g, .m = m, .r = r, .o = o};
  int result = SIM_OK;
  if (!sim_allocate(&s)) {
    sim_release(&s);
    return SIM_NO_MEMORY;
  }
  sim_begin(&s);
  while (s.n_done < r->requests) {
    uint32_t c = sim_next(&s);
    uint32_t a = sim_arrives(&s);
    if (a != SIM_NONE && !(s.at[c] < s.arrival[a]) && !s.looking) {
      double from = s.arrival[a] > s.now ? s.arrival[a] : s.now;
      uint32_t v = s.core[0].item == SIM_NONE && !s.core[0].looks && !sim_asleep(&s, 0, from) ? 0 : sim_idle_near(&s, 0, from, 0);
      sim_look(&s, v == SIM_NONE ? 0 : v, from);
      continue;
    }
    if (isinf(s.at[c])) {
      result = SIM_STUCK;
      break;
    }
    if (s.at[c] > s.now) s.now = s.at[c];
    o->events++;
    double cost = 0;
    if (s.core[c].item != SIM_NONE) {
      cost = sim_finish(&s, c);
    } else {
      if (s.core[c].looks) s.looking--; /* else its patience is at an end */
      s.core[c].looks = 0;
      s.idle--;
    }
    sim_step(&s, c, cost);
    if (s.slow) sim_leave(&s);
    if (s.idle && s.waiting) sim_call(&s, c);
    sim_share(&s);
  }
  sim_release(&s);
  return result;
}

#endif
