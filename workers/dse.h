/* The distributed scheduling engine: the loop that every worker runs (Algorithm 1 of ASPEN; protocol and proofs in docs/protocol).
 *
 *     take a tile: the child that became ready last, else the best of the own row, else one of another row (nearest first)
 *     execute it, mark it executed, count its children down
 *     keep the ready child of lowest rank, push the others together
 *
 * The same functions run in worker processes (workers/_dse.pyx), as threads under ThreadSanitizer, and under the model checker.
 * aspen_dse_run() comes back for what Python has to do: enum aspen_reason.
 */
#ifndef ASPEN_DSE_H
#define ASPEN_DSE_H
#include <sys/eventfd.h>

#include "claim.h"
#include "exec.h"

enum aspen_reason {
  ASPEN_REASON_OPAQUE = 1, /* `opaque` has to be executed by Python, then aspen_dse_finish() */
  ASPEN_REASON_ATTACH,     /* something was announced: map it, then aspen_dse_attached() */
  ASPEN_REASON_DRAINED,    /* a dropped plan's, client's or data segment's last request may have ended: the planner process has to look */
  ASPEN_REASON_LEAVE,      /* the row is closed; what is left in it is anybody's */
  ASPEN_REASON_STOP
};

struct aspen_dse {
  struct aspen_station s; /* first: the protocol's steps take it */
  /* A tile waits in one row's queue, or here, or in `s.seed`, and nowhere else (I12); what is here dies with the worker or its epoch. */
  uint64_t follow;        /* the tile to run next, not in the pool; 0: none */
  struct aspen_batch held; /* ready tiles that could not be pushed before something new is mapped */
  uint64_t opaque;        /* the tile that Python executes; 0: none */
  uint32_t holds;         /* a token */
  uint32_t vain_tiles;    /* for so many tiles more … */
  uint64_t vain;          /* … the request of this order does not count as older; 0: none */
  uint32_t looking;       /* counted in idle.spinners */
  uint32_t gap;           /* enum aspen_gap, … */
  uint64_t gap_since;     /* … in ticks: since when it is ASPEN_GAP_HOLDS */
  uint64_t shared_at;     /* ticks: up to here time is divided between classes; 0: requests of one class run */
  int64_t owed_ns;        /* to classes below the highest, ASPEN_LENT times as much as their tiles may take; below 0: they have had it */
  int32_t owes;           /* so much for each nanosecond that passes: 1, for a lent tile -ASPEN_LENT, for others of lower classes 0 */
  uint32_t highest;       /* class of which a request runs */
  uint32_t lent;          /* the last turn of those below was the lowest one's, of two */
  uint32_t n_victims, roster;
  int told;               /* eventfd: written to when this DSE has parked for a recovery, so that nobody has to look for it; -1: none */
  uint64_t looked_since;  /* ticks */
  uint64_t lap;           /* ticks: up to here all time is accounted for */
  double expected_ns;     /* of the kernels since `paced` */
  uint64_t paced, paced_tiles; /* the worker's kernel_ticks and tiles when it last said how fast its core is, and those since that nothing is expected of */
  double leaves;          /* ready tiles that faster cores will be done with before this one has done one; 0: it is not slow */
  uint64_t patience;      /* ticks: how long a tile is left to them */
  uint64_t left_since;    /* ticks: since then tiles are left to others; 0: they are not */
  uint32_t called;        /* one of them has been woken for it */
  void *scratch;
  size_t scratch_bytes;
  uint32_t scratch_of, scratch_generation, scratch_op; /* instance, its generation and the op whose tile used `scratch` last; ASPEN_NONE: none did */
  double far;             /* share of looks at others' lines that took as long as from another cache, the latest counting most */
  int apart;              /* enough did: as in aspen_call */
  uint32_t turn, heard_of; /* victims that were looked at; the last one's row … */
  uint64_t heard;         /* … and the tiles that it had executed then */
  uint16_t victim[ASPEN_MAX_WORKERS]; /* other rows, nearest first */
};

/* ------------------------------------------------------------------------------------------------ setting up */

/* How far another worker's core is: same class and cache, then same node, then the rest; ties by distance of the rows, so that thieves
 * begin at different victims. The planner process may be giving a row to another worker meanwhile: then `roster` asks for another look. */
static inline uint32_t aspen_distance(const struct aspen_control *c, uint32_t a, uint32_t b) {
  const struct aspen_worker *x = &c->worker[a], *y = &c->worker[b];
  uint32_t n = c->signals.n_rows, far = 2;
  if (aspen_stat_load(&x->node) == aspen_stat_load(&y->node))
    far = aspen_stat_load(&x->cache) == aspen_stat_load(&y->cache) && aspen_stat_load(&x->core_class) == aspen_stat_load(&y->core_class) ? 0 : 1;
  return far * ASPEN_MAX_WORKERS + (b + n - a) % n;
}

static inline void aspen_dse_sort_victims(struct aspen_dse *d) {
  struct aspen_control *c = d->s.control;
  uint32_t n = 0;
  d->roster = aspen_load_acquire(&c->signals.roster);
  for (uint32_t r = 0; r < c->signals.n_rows; r++) {
    if (r == d->s.row) continue;
    uint32_t k = n++, far = aspen_distance(c, d->s.row, r);
    for (; k > 0 && aspen_distance(c, d->s.row, d->victim[k - 1]) > far; k--) d->victim[k] = d->victim[k - 1];
    d->victim[k] = (uint16_t)r;
  }
  d->n_victims = n;
}

/* `segment`, `plan`, `instance`, `next`: the caller's tables, indexed by id; it changes them only while the loop is not running. */
static inline void aspen_dse_init(struct aspen_dse *d, struct aspen_control *control, struct aspen_doorbell *bell, uint32_t row,
                                  const struct aspen_mapping *segment, struct aspen_plan_view *const *plan,
                                  struct aspen_instance_view *const *instance, uint64_t *const *next) {
  memset(d, 0, sizeof *d);
  d->told = -1;
  d->scratch_of = d->heard_of = ASPEN_NONE;
  d->s = (struct aspen_station){.control = control, .bell = bell, .row = row, .segment = segment, .plan = plan, .instance = instance};
  d->s.user = (struct aspen_user){.signals = &control->signals,
                                  .next = next,
                                  .owner = row + 1,
                                  .epoch = aspen_load_acquire(&control->signals.epoch) & ~1u,
                                  .random = control->signals.seed * 2654435761u + row + 1};
  aspen_dse_sort_victims(d);
}

/* Everything announced up to `seq` is mapped and prepared. */
static inline void aspen_dse_attached(struct aspen_dse *d, uint32_t seq) {
  d->s.user.attached = seq;
  d->scratch_of = ASPEN_NONE; /* other scratch, or another plan of the same numbers */
  aspen_store_release(&aspen_me(&d->s)->attached, seq);
}

/* ------------------------------------------------------------------------------------------------ time */

static inline uint64_t aspen_dse_ns(const struct aspen_dse *d, uint64_t ticks) {
  return (uint64_t)(((unsigned __int128)ticks * d->s.control->signals.tick_ns_q32) >> 32);
}

/* Adds the time since the last call to `what`, one of the worker's four durations. Two calls a tile with a kernel: before it and after it. */
static inline void aspen_dse_lap(struct aspen_dse *d, uint64_t *what) {
  uint64_t now = aspen_ticks();
  aspen_stat_add(what, now - d->lap);
  d->lap = now;
}

/* The client that is woken may take this very core before the call returns: its time is not this worker's. */
static inline void aspen_dse_complete(struct aspen_dse *d, uint32_t instance, uint32_t generation) {
  uint64_t *what = &aspen_me(&d->s)->schedule_ticks, before = aspen_thread_ns();
  aspen_dse_lap(d, what);
  aspen_complete(&d->s, instance, generation);
  d->lap = aspen_ticks();
  aspen_stat_add(what, ((aspen_thread_ns() - before) << 32) / (d->s.control->signals.tick_ns_q32 | 1));
}

/* ------------------------------------------------------------------------------------------------ unlike cores */

#define ASPEN_PACE_NS 1e6 /* of expected kernel time: so often a DSE looks how fast its core is */
#define ASPEN_PACE_NEW 0.1 /* share of the latest look in a pace; with more of it, what a slow core leaves changes with every disturbance */

/* Which queue share, of a layer's tiles, is this worker's: shares lie in the order of the rows, and are as large as their cores are fast. */
static inline void aspen_dse_share(struct aspen_dse *d, double pace) {
  const struct aspen_control *c = d->s.control;
  double fastest = pace, before = 0, all = 0;
  uint32_t open = 0;
  for (int round = 0; round < 2; round++)
    for (uint32_t r = 0; r < c->signals.n_rows; r++) {
      double other = r == d->s.row ? pace : aspen_stat_load(&c->worker[r].pace), share = 1;
      if (r != d->s.row && !aspen_load_relaxed(&c->row[r].open)) continue;
      if (!(other > 0)) other = fastest; /* not known yet */
      if (!round && other < fastest) fastest = other;
      if (!round) continue;
      if (fastest * ASPEN_SLOWER < other) share = fastest / other;
      before += r < d->s.row ? share : 0;
      all += share;
      open++;
    }
  double share = before / all * ASPEN_SHARES;
  d->s.user.share = (uint32_t)share;
  d->s.user.share += d->s.user.share < share; /* rounded up: of three tiles the second of three workers takes the second */
  d->s.user.walk = ASPEN_WALK / open;
}

/* ---- caches apart ---- */

#define ASPEN_FAR_NS 110 /* a line of a core behind the same last-level cache takes less, of one behind another more: 30 to 80 and 130 to 170 (Zen 4) */
#define ASPEN_FAR_NEW 0.05 /* share of the latest look in what is believed */
#define ASPEN_FAR_SHARE 0.2 /* of looks that took so long: where caches are apart 0.4 to 0.8, the others finding that a prefetcher was there before; else 0.004 */

/* Whose line to look at: of each in turn whose row is open. ASPEN_NONE: there is no other. */
static inline uint32_t aspen_dse_neighbour(struct aspen_dse *d) {
  for (uint32_t k = 0; k < d->n_victims; k++) {
    const uint32_t r = d->victim[d->turn++ % d->n_victims];
    if (aspen_load_relaxed(&d->s.control->row[r].open)) return r;
  }
  return ASPEN_NONE;
}

/* The ticks that it takes to read a word in a line that its worker alone writes. */
static inline uint64_t aspen_dse_read(const uint64_t *word, uint64_t *found) {
#if defined(__x86_64__) && !defined(ASPEN_MODEL_CHECK)
  __builtin_ia32_lfence(); /* what came before is done, */
  const uint64_t began = aspen_ticks();
  __builtin_ia32_lfence(); /* and the clock is read, before the line is asked for */
  *found = aspen_stat_load(word);
  __builtin_ia32_lfence();
  return aspen_ticks() - began;
#else
  *found = aspen_stat_load(word); /* no kernel of this processor stores past the caches */
  return 0;
#endif
}

/* Worker `r` had executed so many tiles when its line was read, which took so many ticks. A worker that is not at work has read nothing lately: it
 * is as good as near. Nothing is learned of one that has ended no tile since it was looked at last: then the line was here. */
static inline void aspen_dse_hear(struct aspen_dse *d, uint32_t r, uint64_t tiles, uint64_t took, int busy) {
  const int news = r != d->heard_of || tiles != d->heard;
  d->heard_of = r;
  d->heard = tiles;
  if (busy && !news) return;
  d->far += ASPEN_FAR_NEW * ((busy && aspen_dse_ns(d, took) > ASPEN_FAR_NS) - d->far);
  d->apart = d->far > ASPEN_FAR_SHARE;
}

/* Whether others are behind other last-level caches, of which machines do not always tell the truth, virtual ones least. */
static inline void aspen_dse_apart(struct aspen_dse *d) {
  const uint32_t r = aspen_dse_neighbour(d);
  uint64_t tiles = 0, took = 0;
  if (r == ASPEN_NONE) {
    d->far = d->apart = 0;
    return;
  }
  const struct aspen_worker *other = &d->s.control->worker[r];
  took = aspen_dse_read(&other->tiles, &tiles);
  aspen_dse_hear(d, r, tiles, took, !aspen_stat_load(&other->idle));
}

/* How long kernels take here beside what plans expect, and beside what they take elsewhere. No class of core has to be known: a core that is
 * shared with others is slow, too, for as long as it is. */
static inline void aspen_dse_pace(struct aspen_dse *d) {
  struct aspen_control *c = d->s.control;
  struct aspen_worker *me = aspen_me(&d->s);
  uint64_t ticks = aspen_stat_load(&me->kernel_ticks), tiles = aspen_stat_load(&me->tiles);
  aspen_dse_apart(d); /* first: what is read below may bring more lines along */
  uint64_t spent = aspen_dse_ns(d, ticks - d->paced);
  double found = (double)spent * 1024 / d->expected_ns, old = aspen_stat_load(&me->pace);
  double pace = old > 0 ? old + ASPEN_PACE_NEW * (found - old) : found;
  pace = pace < 1 ? 1 : pace > 1e9 ? 1e9 : pace;
  aspen_stat_store(&me->pace, (uint32_t)pace);
  aspen_stat_add(&me->paced_ns, spent);
  aspen_stat_add(&me->expected_ns, (uint64_t)d->expected_ns);
  d->leaves = 0;
  for (uint32_t r = 0; r < c->signals.n_rows; r++) {
    double other = aspen_stat_load(&c->worker[r].pace);
    if (r != d->s.row && other > 0 && other * ASPEN_SLOWER < pace && aspen_load_relaxed(&c->row[r].open)) d->leaves += pace / other - 1;
  }
  aspen_dse_share(d, pace);
  d->patience = ASPEN_PATIENCE * (ticks - d->paced) / (tiles > d->paced_tiles ? tiles - d->paced_tiles : 1);
  d->paced = ticks;
  d->paced_tiles = tiles;
  d->expected_ns = 0;
}

/* A tile of which the plan expects nothing says nothing about the core: what Python executes, and what is shorter than planned. */
static inline void aspen_dse_unpaced(struct aspen_dse *d, uint64_t ticks) {
  d->paced += ticks;
  d->paced_tiles++;
}

/* Near the end of a layer, a tile that a slow core takes is done later than if it had waited for a faster one, and all that needs it waits.
 * So a slow core takes one only when the faster ones have enough to do: with `waiting` ready tiles they get to the last one after what they
 * have underway and waiting - 1 tiles of their time, shared by all of them. For no longer than ASPEN_PATIENCE tiles take it here: who should
 * take it may be held up. Without stealing nobody else would take it. */
static inline int aspen_dse_leaves(struct aspen_dse *d) {
  struct aspen_control *c = d->s.control;
  double waiting = 0;
  if (!(d->leaves > 0) || !aspen_stat_load(&c->signals.steal)) return 0;
  for (uint32_t r = 0; r < c->signals.n_rows; r++) waiting += aspen_stat_load(&c->row[r].waiting);
  if (waiting < 1 || waiting >= 1 - ASPEN_UNDERWAY + d->leaves) return 0;
  uint64_t now = aspen_ticks();
  if (!d->left_since) {
    d->left_since = now | 1;
    d->called = 0;
  } else if (now - d->left_since > d->patience) {
    return 0;
  }
  return 1;
}

/* ------------------------------------------------------------------------------------------------ hints */

#define ASPEN_VAIN 8 /* tiles for which a request is not tried again that hints advised against */

static inline uint32_t *aspen_dse_holders(const struct aspen_dse *d) {
  return &d->s.control->hints.holders[aspen_stat_load(&aspen_me(&d->s)->node) % ASPEN_MEMORIES];
}

/* Counts this DSE among the workers of `instance`, 0: of none, and among those that hold a token, or not. */
static inline void aspen_dse_stand(struct aspen_dse *d, uint32_t instance, uint32_t holds) {
  struct aspen_control *c = d->s.control;
  const uint32_t before = d->s.user.advice.instance;
  if (d->holds != holds) {
    if (holds) aspen_add_seq(aspen_dse_holders(d), 1);
    else aspen_sub_seq(aspen_dse_holders(d), 1);
    d->holds = holds;
  }
  if (before == instance) return;
  if (before) aspen_sub_seq(&c->instance[before].at_work, 1);
  if (instance) aspen_add_seq(&c->instance[instance].at_work, 1);
  d->s.user.advice.instance = instance;
}

/* Whether hints are looked at in this turn: not for a request alone, which nobody else is in the way of. */
static inline void aspen_dse_heed(struct aspen_dse *d, uint64_t running) {
  const struct aspen_hints *h = &d->s.control->hints;
  struct aspen_advice *a = &d->s.user.advice;
  a->control = NULL;
  if (aspen_running_all(running) < 2) {
    aspen_dse_stand(d, 0, 0);
    return;
  }
  const uint32_t tokens = aspen_stat_load(&h->tokens), version = aspen_load_acquire(&h->version);
  if (!tokens && !version) return;
  a->table = version & 1;
  a->lacks = tokens && !d->holds && aspen_load_relaxed(aspen_dse_holders(d)) >= tokens;
  a->domain = aspen_stat_load(&aspen_me(&d->s)->domain);
  a->control = d->s.control;
}

static inline unsigned aspen_dse_depth(const struct aspen_dse *d, uint64_t item) {
  return d->s.instance[ASPEN_ITEM_INSTANCE(item)]->plan->tiles[ASPEN_ITEM_TILE(item)].depth;
}

/* A tile was taken; 0: none was. */
static inline void aspen_dse_settle(struct aspen_dse *d, uint64_t item) {
  const struct aspen_hints *h = &d->s.control->hints;
  const uint32_t id = ASPEN_ITEM_INSTANCE(item);
  if (!item) aspen_dse_stand(d, 0, 0);
  else aspen_dse_stand(d, aspen_stat_load(&h->counted) ? id : 0, !!(aspen_hint(&d->s.user.advice, id, aspen_dse_depth(d, item)) & ASPEN_HINT_MEMORY));
}

/* ------------------------------------------------------------------------------------------------ classes */

/* While a request of a higher class runs, and this DSE finds no tile of it: */
enum aspen_gap {
  ASPEN_GAP_NONE = 0, /* it did find one, or nothing of a higher class runs */
  ASPEN_GAP_HOLDS,    /* it leaves tiles of lower classes alone */
  ASPEN_GAP_OVER      /* it takes them, until it gets a tile of that class again */
};

static inline uint64_t aspen_dse_order(const struct aspen_dse *d, uint64_t item) { return d->s.control->instance[ASPEN_ITEM_INSTANCE(item)].order; }

/* For how long a DSE works for the highest class before the others have a turn: until it owes them a tile of the longest that there should be. */
static inline int64_t aspen_dse_turn_ns(const struct aspen_dse *d) {
  const uint32_t ns = aspen_stat_load(&d->s.control->signals.preempt_ns);
  return ASPEN_LENT * (int64_t)(ns ? ns : 1000000);
}

/* What priorities cost, since the last look: time in which nothing ran so that a higher class need not wait, and time that it has waited. */
static inline void aspen_dse_count_classes(struct aspen_dse *d, uint64_t now) {
  struct aspen_worker *me = aspen_me(&d->s);
  if (!d->shared_at) return;
  if (d->gap == ASPEN_GAP_HOLDS) aspen_stat_add(&me->held_ticks, now - d->shared_at);
  else if (d->owes < 0) aspen_stat_add(&me->lent_ticks, now - d->shared_at);
}

/* Divides the time since the last look between the highest class and those below (docs/protocol/pool.md, "Classes"). Is it their turn? */
static inline int aspen_dse_owes(struct aspen_dse *d, uint64_t now) {
  const int64_t most = aspen_dse_turn_ns(d);
  aspen_dse_count_classes(d, now);
  if (d->shared_at) d->owed_ns += d->owes * (int64_t)aspen_dse_ns(d, now - d->shared_at);
  else d->owed_ns = -most;
  if (d->owed_ns > most) d->owed_ns = most;
  d->owes = 1;
  d->shared_at = now | 1;
  return d->owed_ns >= 0;
}

/* Which requests' tiles this DSE takes now. Where requests of one class run: all. Is it the turn of a class below the highest? */
static inline int aspen_dse_classes(struct aspen_dse *d) {
  const uint64_t running = aspen_load_relaxed(&d->s.control->claim.running);
  d->highest = running ? aspen_running_first(running) : 0;
  d->s.user.before = 0;
  aspen_dse_heed(d, running);
  if (!aspen_running_below(running, d->highest)) {
    if (d->shared_at) aspen_dse_count_classes(d, aspen_ticks());
    d->gap = ASPEN_GAP_NONE;
    d->shared_at = 0;
    return 0;
  }
  const uint64_t now = aspen_ticks();
  const int turn = aspen_dse_owes(d, now);
  if (d->gap == ASPEN_GAP_HOLDS && aspen_dse_ns(d, now - d->gap_since) >= aspen_stat_load(&d->s.control->signals.preempt_ns)) d->gap = ASPEN_GAP_OVER;
  if (d->gap != ASPEN_GAP_OVER) d->s.user.before = aspen_order_first(d->highest + 1);
  return turn;
}

/* Requests of several classes run, and `item` was taken; 0: none was. What a lower class gets in a gap that is over is not lent: nobody misses it. */
static inline void aspen_dse_took(struct aspen_dse *d, uint64_t item) {
  if (item) {
    if (aspen_order_class(aspen_dse_order(d, item)) > d->highest) d->owes = 0;
    else d->gap = ASPEN_GAP_NONE;
  } else if (d->gap == ASPEN_GAP_NONE) {
    d->gap = ASPEN_GAP_HOLDS;
    d->gap_since = d->shared_at;
    aspen_stat_add(&aspen_me(&d->s)->held, 1);
  }
}

/* ------------------------------------------------------------------------------------------------ idling */

static inline void aspen_dse_idle(struct aspen_dse *d, uint32_t how) { aspen_stat_store(&aspen_me(&d->s)->idle, how); }

/* May tiles of another row be taken? A closed row's always: it has no worker, whether stealing is on or not. */
static inline int aspen_dse_may_take(const struct aspen_dse *d, const struct aspen_row *row) {
  return aspen_stat_load(&d->s.control->signals.steal) || !aspen_load_seq(&row->open);
}

/* Is there anything this DSE could do? The second look before it sleeps: sequentially consistent throughout. */
static inline int aspen_dse_work(const struct aspen_dse *d) {
  const struct aspen_control *c = d->s.control;
  const struct aspen_signals *g = &c->signals;
  if (aspen_load_seq(&g->epoch) != d->s.user.epoch || aspen_load_seq(&g->attach_seq) != d->s.user.attached || aspen_load_seq(&g->stop)) return 1;
  if (aspen_load_seq(&aspen_me(&d->s)->command)) return 1;
  if (aspen_load_seq(&aspen_own_row(&d->s)->first)) return 1;
  for (uint32_t k = 0; k < d->n_victims; k++) {
    const struct aspen_row *row = &c->row[d->victim[k]];
    if (aspen_load_seq(&row->first) && aspen_dse_may_take(d, row)) return 1;
  }
  return aspen_bell_pending(d->s.bell) || aspen_claim_due(&d->s);
}

static inline void aspen_dse_look(struct aspen_dse *d) {
  d->looking = 1;
  aspen_dse_lap(d, &aspen_me(&d->s)->schedule_ticks);
  d->looked_since = d->lap;
  if (aspen_tracing(&d->s.trace)) aspen_note_idle(&d->s.trace, d->lap);
  aspen_dse_idle(d, 1);
  aspen_add_seq(&d->s.control->idle.spinners, 1);
  if (aspen_stat_load(&d->s.control->signals.roster) != d->roster) aspen_dse_sort_victims(d);
}

static inline void aspen_dse_ring(struct aspen_dse *d, uint32_t n) {
  if (aspen_ring(d->s.bell, n)) aspen_stat_add(&aspen_me(&d->s)->wakes, 1);
}

/* Found something: no longer a spinner. Pushers may have relied on this one to find two tiles; so the last spinner that stops looking wakes
 * the next one when there is more. */
static inline void aspen_dse_found(struct aspen_dse *d) {
  struct aspen_idle *idle = &d->s.control->idle;
  d->looking = 0;
  aspen_dse_lap(d, &aspen_me(&d->s)->search_ticks);
  if (aspen_tracing(&d->s.trace)) aspen_note_idle_end(&d->s.trace, d->lap);
  aspen_dse_idle(d, 0);
  if (aspen_sub_seq(&idle->spinners, 1) == 1 && aspen_load_seq(&idle->sleepers) && aspen_dse_work(d)) aspen_dse_ring(d, 2);
}

/* Nothing to do: looks on for a while, then sleeps. */
static inline void aspen_dse_rest(struct aspen_dse *d) {
  struct aspen_control *c = d->s.control;
  if (!d->looking) {
    aspen_dse_look(d);
    return;
  }
  uint64_t spun = aspen_dse_ns(d, aspen_ticks() - d->looked_since);
  if (spun < aspen_stat_load(&c->signals.spin_ns)) {
    for (uint32_t turns = 0; turns < 32; turns++) aspen_cpu_relax();
    if (spun > 5000) sched_yield(); /* a client may share this core */
    return;
  }
  uint32_t event = aspen_park_prepare(&c->idle, d->s.bell);
  if (!aspen_dse_work(d)) {
    aspen_dse_idle(d, 2);
    aspen_stat_add(&aspen_me(&d->s)->parks, 1);
    aspen_dse_lap(d, &aspen_me(&d->s)->search_ticks);
    uint64_t asleep = d->lap;
    aspen_park_commit(d->s.bell, event);
    aspen_dse_lap(d, &aspen_me(&d->s)->sleep_ticks);
    if (aspen_tracing(&d->s.trace)) aspen_note(&d->s.trace, ASPEN_TRACE_PARK, 0, 0, asleep, d->lap);
    aspen_dse_idle(d, 1);
  } else {
    uint32_t turns = 63; /* somebody holds the lock of what we saw: let it run */
    aspen_spin(&turns);
  }
  aspen_park_end(&c->idle);
  d->looked_since = aspen_ticks();
}

/* ------------------------------------------------------------------------------------------------ epoch */

/* Recovery stops the world: drop everything, say so, and touch nothing shared until the epoch is even again (I7, I8). */
static inline void aspen_dse_epoch(struct aspen_dse *d) {
  struct aspen_signals *g = &d->s.control->signals;
  d->follow = d->opaque = 0;
  d->held.n = 0;
  d->s.seed.instance = 0;
  d->holds = d->s.user.advice.instance = 0; /* recovery counts anew */
  d->looking = 0; /* aspen_epoch_end resets the counts of spinners and sleepers */
  d->gap = ASPEN_GAP_NONE;
  uint64_t stopped = aspen_ticks();
  if (aspen_tracing(&d->s.trace)) aspen_note_idle_end(&d->s.trace, stopped);
  for (;;) {
    uint32_t epoch = aspen_load_acquire(&g->epoch);
    if (!(epoch & 1)) {
      d->s.user.epoch = epoch;
      d->lap = aspen_ticks();
      if (aspen_tracing(&d->s.trace)) aspen_note(&d->s.trace, ASPEN_TRACE_STOP, 0, 0, stopped, d->lap);
      return;
    }
    aspen_store_release(&aspen_me(&d->s)->parked, epoch);
    if (d->told >= 0) eventfd_write(d->told, 1); /* after the store: who hears of it finds it */
    aspen_futex_wait(&g->epoch, epoch, ASPEN_FOREVER);
  }
}

/* ------------------------------------------------------------------------------------------------ tiles */

/* Pushes to the own row and wakes sleepers for what was pushed. On ASPEN_ATTACH the tiles are kept in `held`. */
static inline int aspen_dse_push(struct aspen_dse *d, const struct aspen_batch *b) {
  if (!b->n) return ASPEN_OK;
  int r = aspen_pool_push(aspen_own_row(&d->s), &d->s.user, b->order, b->item, b->depth, b->n, 0);
  if (r == ASPEN_ATTACH && b != &d->held) {
    d->held = *b;
    return r;
  }
  if (r) return r;
  aspen_stat_add(&aspen_me(&d->s)->pushes, b->n);
  if (aspen_stat_load(&d->s.control->signals.steal) && aspen_wake_for(&d->s.control->idle, d->s.bell, b->n)) aspen_stat_add(&aspen_me(&d->s)->wakes, 1);
  if (b == &d->held) d->held.n = 0;
  return ASPEN_OK;
}

static inline void aspen_batch_add(struct aspen_batch *b, uint64_t item, uint8_t depth) {
  b->item[b->n] = item;
  b->depth[b->n++] = depth;
}

/* Puts the tile to follow back into the pool, because something else goes first. */
static inline int aspen_dse_put_back(struct aspen_dse *d) {
  if (!d->follow) return ASPEN_OK;
  struct aspen_batch one = {.order = aspen_dse_order(d, d->follow)};
  aspen_batch_add(&one, d->follow, d->s.instance[ASPEN_ITEM_INSTANCE(d->follow)]->plan->tiles[ASPEN_ITEM_TILE(d->follow)].depth);
  d->follow = 0;
  if (d->held.n) { /* cannot be pushed now anyway; both became ready with the same tile, so they are of one request */
    aspen_batch_add(&d->held, one.item[0], one.depth[0]);
    return ASPEN_ATTACH;
  }
  return aspen_dse_push(d, &one);
}

/* A tile's record, which comes before its flag and count-downs: who has seen a request's answer finds all of its tiles recorded. A tile whose
 * worker dies between the two is executed again, and recorded again. `begin` 0: nothing was called. */
static inline void aspen_dse_note(struct aspen_dse *d, uint64_t item, uint64_t begin, uint32_t flags) {
  struct aspen_recorder *t = &d->s.trace;
  uint64_t end = begin ? d->lap : aspen_ticks();
  aspen_note(t, ASPEN_TRACE_TILE | t->came << 8 | flags, t->from, item, begin ? begin : end, end);
  if (begin) aspen_note_in_hand(t, 0, 0);
}

/* Of the tiles of a layer that became ready together, `best` and those in `ready`, the first of this worker's queue share is followed; `best` comes into
 * the batch before all others, so that they stay in order. A JOIN (rank 0) goes first in any case: it takes no time, and others wait for it. */
static inline uint64_t aspen_dse_own_share(const struct aspen_dse *d, const struct aspen_tile *tiles, struct aspen_batch *ready, uint64_t best) {
  const uint8_t depth = tiles[ASPEN_ITEM_TILE(best)].depth;
  uint32_t n = 1, k = 0, at;
  if (!tiles[ASPEN_ITEM_TILE(best)].rank) return best;
  for (uint32_t i = 0; i < ready->n; i++) n += tiles[ASPEN_ITEM_TILE(ready->item[i])].depth == depth;
  at = aspen_first_of_share(&d->s.user, n);
  if (!at) return best;
  while (tiles[ASPEN_ITEM_TILE(ready->item[k])].depth != depth || --at) k++;
  uint64_t own = ready->item[k];
  memmove(ready->item + 1, ready->item, k * sizeof *ready->item);
  memmove(ready->depth + 1, ready->depth, k * sizeof *ready->depth);
  ready->item[0] = best;
  ready->depth[0] = depth;
  return own;
}

/* Whether weights of a plan were not there, or are not now: then what was computed with them says nothing
 * (docs/protocol/borrow.md, "Weights in files"). */
static inline int aspen_dse_torn(const struct aspen_dse *d, const struct aspen_plan *plan) {
  for (uint32_t k = 0; k < plan->n_weights; k++) {
    const struct aspen_mapping *m = &d->s.segment[plan->weights[k]];
    struct aspen_data_head *head = (struct aspen_data_head *)m->base;
    /* Where its page is missing the mark becomes 0, and `torn` is set. */
    if (head && head->marked && (*(volatile uint64_t *)(m->base + m->bytes - 8) != ASPEN_LAYOUT_HASH || aspen_load_seq(&head->torn))) {
      aspen_store_seq(&head->torn, 1);
      return 1;
    }
  }
  return 0;
}

/* Before END is marked: recovery answers a request whose END is. Whatever else has gone wrong may be for want of the weights, and the client asks
 * for another plan, but not if nobody wants the result. */
static inline void aspen_dse_look_at_weights(struct aspen_dse *d, uint32_t id) {
  struct aspen_instance *i = &d->s.control->instance[id];
  if (!aspen_dse_torn(d, &d->s.control->plan[i->plan])) return;
  d->s.drained = 1; /* the planner process is to look as well */
  uint64_t fault = aspen_load_relaxed(&i->fault);
  if ((uint32_t)fault != ASPEN_E_CANCELLED && (uint32_t)fault != ASPEN_E_CLIENT_GONE && (uint32_t)fault != ASPEN_E_EXPIRED)
    (void)aspen_cas_seq(&i->fault, fault, (uint64_t)ASPEN_E_PLAN_GONE | (uint64_t)ASPEN_NONE << 32);
}

/* A tile has been executed (or was a no-op): mark it with its request's generation (I2), then count its children down (I1), choose what follows.
 * After the last count-down nothing of the arena is touched unless a child is ready, so END cannot have been executed before. */
static inline int aspen_dse_finish(struct aspen_dse *d, uint64_t item) {
  uint32_t id = ASPEN_ITEM_INSTANCE(item), tile = ASPEN_ITEM_TILE(item);
  const struct aspen_instance_view *v = d->s.instance[id];
  const struct aspen_tile *tiles = v->plan->tiles, *t = &tiles[tile];
  struct aspen_worker *me = aspen_me(&d->s);
  uint32_t generation = v->generation;
  uint32_t policy = aspen_stat_load(&d->s.control->signals.policy);
  int follow = policy != ASPEN_POLICY_RANDOM || (aspen_random(&d->s.user.random) & 1);
  if (tile == v->plan->end_tile) aspen_dse_look_at_weights(d, id);
  ASPEN_FOR_RECOVERY
  aspen_store_release(&v->executed[tile], generation);
  struct aspen_batch ready = {.order = aspen_dse_order(d, item)};
  uint64_t best = 0;
  uint32_t best_rank = 0;
  for (uint32_t k = 0; k < t->n_children; k++) {
    uint32_t child = v->plan->children[t->children + k];
    if (aspen_sub_acq_rel(&v->missing[child], 1) != 1) continue;
    const struct aspen_tile *c = &tiles[child];
    uint64_t it = ASPEN_ITEM(generation, id, child);
    if (follow && (!best || c->rank < best_rank)) {
      if (best) aspen_batch_add(&ready, best, tiles[ASPEN_ITEM_TILE(best)].depth);
      best = it;
      best_rank = c->rank;
    } else {
      aspen_batch_add(&ready, it, c->depth);
    }
  }
  if (best && ready.n && d->s.user.share && policy == ASPEN_POLICY_FIFO)
    best = aspen_dse_own_share(d, tiles, &ready, best);
  aspen_stat_add(&me->tiles, 1);
  ASPEN_FOR_RECOVERY
  aspen_stat_store(&me->current, 0);
  d->follow = best;
  if (best) aspen_stat_add(&me->follows, 1);
  if (tile == v->plan->end_tile) aspen_dse_complete(d, id, generation);
  return aspen_dse_push(d, &ready);
}

/* ------------------------------------------------------------------------------------------------ scratch */

#ifndef ASPEN_KEEPS_SCRATCH
#define ASPEN_KEEPS_SCRATCH 1 /* 0: kernels look at nothing that a tile before left there, and which it was is no state of this DSE */
#endif

/* Is scratch as a tile of this op and request left it (`aspen_call.again`)? */
static inline int aspen_dse_again(const struct aspen_dse *d, uint32_t instance, uint32_t generation, uint32_t op) {
  return ASPEN_KEEPS_SCRATCH && d->scratch_of == instance && d->scratch_generation == generation && d->scratch_op == op;
}

static inline void aspen_dse_used_scratch(struct aspen_dse *d, uint32_t instance, uint32_t generation, uint32_t op) {
  if (!ASPEN_KEEPS_SCRATCH) return;
  d->scratch_of = instance;
  d->scratch_generation = generation;
  d->scratch_op = op;
}

/* Executes a tile up to the point where its children are counted down. ASPEN_BUSY: it is for Python. */
static inline int aspen_dse_execute(struct aspen_dse *d, uint64_t item) {
  uint32_t id = ASPEN_ITEM_INSTANCE(item), tile = ASPEN_ITEM_TILE(item);
  struct aspen_instance *i = &d->s.control->instance[id];
  struct aspen_exec_instance *e = (struct aspen_exec_instance *)d->s.instance[id];
  uint64_t word = aspen_load_acquire(&i->word);
  uint32_t generation = (uint32_t)(word >> 32);
  if ((uint32_t)word != ASPEN_INSTANCE_RUNNING || (generation & 0xffff) != ASPEN_ITEM_GENERATION(item)) return ASPEN_EMPTY; /* of a request that ended */
  if (e->view.generation != generation) aspen_exec_move(e, d->s.segment[i->data].base + i->offset, generation, i->extent);
  struct aspen_worker *me = aspen_me(&d->s);
  ASPEN_FOR_RECOVERY
  aspen_stat_store(&me->current, item);
  uint64_t began = 0;
  uint32_t skipped = ASPEN_TRACE_SKIPPED;
  if (aspen_overdue(i)) aspen_fail(&d->s, id, ASPEN_E_EXPIRED, ASPEN_NONE, 0, NULL, 0);
  if (!aspen_load_relaxed(&i->fault)) {
    const struct aspen_exec_plan *p = aspen_exec_plan_of(e);
    uint32_t op = p->view.tiles[tile].op;
    skipped = 0;
    if (p->op[op].kernel == ASPEN_K_OPAQUE) {
      d->opaque = item;
      return ASPEN_BUSY;
    }
    aspen_call call;
    aspen_kernel_fn kernel = aspen_exec_prepare(e, tile, d->scratch, d->scratch_bytes, &call);
    int error = ASPEN_E_OK;
    if (kernel) {
      call.again = aspen_dse_again(d, id, generation, op);
      call.apart = d->apart;
      aspen_exec_ahead(e, tile);
      aspen_dse_lap(d, &me->schedule_ticks);
      began = d->lap;
      if (aspen_tracing(&d->s.trace)) aspen_note_in_hand(&d->s.trace, item, began);
      error = kernel(&call);
      aspen_dse_used_scratch(d, error ? ASPEN_NONE : id, generation, op);
      aspen_dse_lap(d, &me->kernel_ticks);
      if (aspen_exec_expected(e)) d->expected_ns += p->op[op].expected_ns;
      else aspen_dse_unpaced(d, d->lap - began);
      if (d->expected_ns >= ASPEN_PACE_NS) aspen_dse_pace(d);
    }
    if (error) {
      aspen_stat_add(&me->faults, 1);
      aspen_fail(&d->s, id, (uint32_t)error, op, 0, NULL, 0);
    }
  }
  if (aspen_tracing(&d->s.trace)) aspen_dse_note(d, item, began, skipped);
  return aspen_dse_finish(d, item);
}

/* Between the steps of an opaque tile: is there still somebody who wants its result? */
static inline int aspen_dse_unwanted(const struct aspen_dse *d) {
  const struct aspen_instance *i = &d->s.control->instance[ASPEN_ITEM_INSTANCE(d->opaque)];
  return aspen_unwanted(d->s.control, i, aspen_client_mapped(&d->s, i->client)) != ASPEN_E_OK;
}

/* Why nobody wants the result of a request. */
static inline uint32_t aspen_dse_given_up(const struct aspen_dse *d, uint32_t id) {
  const struct aspen_instance *i = &d->s.control->instance[id];
  uint32_t error = aspen_unwanted(d->s.control, i, aspen_client_mapped(&d->s, i->client));
  return error == ASPEN_E_EXPIRED ? error : ASPEN_E_CANCELLED;
}

/* Python has executed the opaque tile. */
static inline int aspen_dse_complete_opaque(struct aspen_dse *d, uint64_t item, uint32_t error, uint64_t needed, const char *message,
                                            uint32_t message_bytes) {
  uint32_t id = ASPEN_ITEM_INSTANCE(item), op = d->s.instance[id]->plan->tiles[ASPEN_ITEM_TILE(item)].op;
  uint64_t began = d->lap;
  d->opaque = 0;
  d->scratch_of = ASPEN_NONE; /* what ran was no kernel: nobody says what it left */
  aspen_dse_lap(d, &aspen_me(&d->s)->kernel_ticks);
  aspen_dse_unpaced(d, d->lap - began);
  if (aspen_tracing(&d->s.trace)) aspen_dse_note(d, item, began, 0);
  aspen_stat_add(&aspen_me(&d->s)->opaque, 1);
  if (error == ASPEN_E_CANCELLED) error = aspen_dse_given_up(d, id); /* Python saw only that nobody wants it */
  if (error) {
    if (error != ASPEN_E_CANCELLED && error != ASPEN_E_EXPIRED) aspen_stat_add(&aspen_me(&d->s)->faults, 1);
    aspen_fail(&d->s, id, error, op, needed, message, message_bytes);
  }
  int r = aspen_dse_finish(d, item);
  aspen_dse_lap(d, &aspen_me(&d->s)->schedule_ticks);
  return r;
}

static inline void aspen_dse_note_taken(struct aspen_dse *d, uint32_t came, uint32_t from) {
  d->s.trace.came = came;
  d->s.trace.from = from;
}

/* Where several requests run: the row, other than the own one, whose oldest request is older than `order` and older than any other row's. ASPEN_NONE: there is none.
 * Of one request alone nobody is older, and nobody's line is looked at. */
static inline uint32_t aspen_dse_older(const struct aspen_dse *d, uint64_t order) {
  uint32_t found = ASPEN_NONE;
  if (aspen_running_all(aspen_load_relaxed(&d->s.control->claim.running)) < 2) return found;
  for (uint32_t k = 0; k < d->n_victims; k++) {
    const struct aspen_row *row = &d->s.control->row[d->victim[k]];
    uint64_t first = aspen_load_relaxed(&row->first);
    if (!first || first >= order || first == d->vain || !aspen_dse_may_take(d, row)) continue;
    found = d->victim[k];
    order = first;
  }
  return found;
}

/* Takes a tile of another row. EMPTY also when its lock is held: a thief does not wait. */
static inline int aspen_dse_steal(struct aspen_dse *d, uint32_t row, uint64_t *item) {
  int r = aspen_pool_pop(&d->s.control->row[row], &d->s.user, 1, item);
  if (r != ASPEN_OK) return r == ASPEN_BUSY ? ASPEN_EMPTY : r;
  aspen_stat_add(&aspen_me(&d->s)->steals, 1);
  if (aspen_tracing(&d->s.trace)) aspen_dse_note_taken(d, ASPEN_TRACE_STOLEN, row);
  return r;
}

/* Hints advised against a tile of this order. It is not tried again for some time: what follows would be put back for each look. */
static inline void aspen_dse_in_vain(struct aspen_dse *d, uint64_t order) {
  d->vain = order;
  d->vain_tiles = ASPEN_VAIN;
}

/* Takes a tile of another row's oldest request. */
static inline int aspen_dse_steal_older(struct aspen_dse *d, uint32_t row, uint64_t *item) {
  const uint64_t first = aspen_load_relaxed(&d->s.control->row[row].first);
  int r = aspen_dse_steal(d, row, item);
  if (r == ASPEN_EMPTY && d->s.user.advice.control) aspen_dse_in_vain(d, first);
  return r;
}

/* Do hints leave this DSE the tile that follows? */
static inline int aspen_dse_follows(struct aspen_dse *d, uint64_t order) {
  const struct aspen_advice *a = &d->s.user.advice;
  if (d->vain && !d->vain_tiles--) d->vain = 0;
  return !a->control || aspen_order_timed(order) || aspen_advised(a, d->follow, aspen_dse_depth(d, d->follow));
}

/* A tile of the own row, else of another one, nearest first. */
static inline int aspen_dse_pop(struct aspen_dse *d, uint64_t *item) {
  int r = aspen_pool_pop(aspen_own_row(&d->s), &d->s.user, 0, item);
  if (aspen_tracing(&d->s.trace)) aspen_dse_note_taken(d, ASPEN_TRACE_OWN, d->s.row);
  for (uint32_t k = 0; k < d->n_victims && r == ASPEN_EMPTY; k++) {
    const struct aspen_row *row = &d->s.control->row[d->victim[k]];
    if (aspen_row_offers(row, &d->s.user) && aspen_dse_may_take(d, row)) r = aspen_dse_steal(d, d->victim[k], item);
  }
  return r;
}

/* A tile of a class below the highest, although the highest may have one: it is their turn. What follows is put back, for others to take meanwhile.
 * The lowest class has every second turn, where there are two. EMPTY: they have no ready tile, and the turn passes. */
static inline int aspen_dse_lend(struct aspen_dse *d, uint64_t *item) {
  struct aspen_user *u = &d->s.user;
  const uint64_t before = u->before;
  int r = aspen_dse_put_back(d);
  if (r) return r;
  d->lent = !d->lent;
  const struct aspen_control *hints = u->advice.control;
  u->from = aspen_order_first(d->highest + 1 + d->lent);
  u->before = 0;
  u->advice.control = NULL;
  r = aspen_dse_pop(d, item);
  u->from = 0;
  u->before = before;
  u->advice.control = hints;
  if (r == ASPEN_OK) {
    d->owes = -ASPEN_LENT;
    aspen_stat_add(&aspen_me(&d->s)->lent, 1);
  } else {
    d->owed_ns = -aspen_dse_turn_ns(d);
  }
  return r;
}

/* The best of the tiles that this DSE takes: an older request's before a younger one's, wherever it waits (docs/protocol/pool.md, "Age"). Else
 * what follows, else the own row's best, else another row's. */
static inline int aspen_dse_best(struct aspen_dse *d, uint64_t *item) {
  struct aspen_row *own = aspen_own_row(&d->s);
  uint64_t first = aspen_load_relaxed(&own->first);
  if (d->follow) {
    uint64_t order = aspen_dse_order(d, d->follow);
    if (aspen_takes(&d->s.user, order) && aspen_dse_follows(d, order) && (!first || first >= order || first == d->vain) && aspen_dse_older(d, order) == ASPEN_NONE) {
      *item = d->follow;
      d->follow = 0;
      if (aspen_tracing(&d->s.trace)) aspen_dse_note_taken(d, ASPEN_TRACE_FOLLOWED, d->s.row);
      return ASPEN_OK;
    }
    int r = aspen_dse_put_back(d);
    if (r) return r;
    first = first && first < order ? first : order;
  }
  if (aspen_dse_leaves(d)) {
    if (!d->called && aspen_load_seq(&d->s.control->idle.sleepers)) {
      d->called = 1; /* whoever pushed them saw this DSE looking for work and woke nobody */
      aspen_dse_ring(d, 1);
    }
    return ASPEN_EMPTY;
  }
  d->left_since = 0;
  int r = ASPEN_EMPTY;
  const uint32_t older = aspen_dse_older(d, first ? first : UINT64_MAX);
  if (older != ASPEN_NONE) r = aspen_dse_steal_older(d, older, item);
  return r == ASPEN_EMPTY ? aspen_dse_pop(d, item) : r;
}

/* The best of the tiles that hints leave to this DSE, of the highest class alone: hints decide nothing between classes. Else the best of all. */
static inline int aspen_dse_hinted(struct aspen_dse *d, uint64_t *item) {
  struct aspen_user *u = &d->s.user;
  const struct aspen_control *c = u->advice.control;
  const uint64_t before = u->before;
  const uint64_t first = aspen_load_relaxed(&aspen_own_row(&d->s)->first);
  if (!before) u->before = aspen_order_first(d->highest + 1);
  int r = aspen_dse_best(d, item);
  u->before = before;
  if (r == ASPEN_OK && first && first < aspen_dse_order(d, *item)) aspen_dse_in_vain(d, first);
  u->advice.control = NULL;
  if (r == ASPEN_EMPTY) r = aspen_dse_best(d, item);
  u->advice.control = c;
  if (r == ASPEN_OK || r == ASPEN_EMPTY) aspen_dse_settle(d, r == ASPEN_OK ? *item : 0);
  u->advice.control = NULL;
  u->advice.lacks = 0;
  return r;
}

/* The tile to run next. EMPTY: there is none, or those that are there are held back (docs/protocol/pool.md, "Classes"). */
static inline int aspen_dse_take(struct aspen_dse *d, uint64_t *item) {
  int r = aspen_dse_classes(d) ? aspen_dse_lend(d, item) : ASPEN_EMPTY;
  if (r != ASPEN_EMPTY) return r;
  r = d->s.user.advice.control ? aspen_dse_hinted(d, item) : aspen_dse_best(d, item);
  if (d->shared_at && (r == ASPEN_OK || r == ASPEN_EMPTY)) aspen_dse_took(d, r == ASPEN_OK ? *item : 0);
  return r;
}

/* ------------------------------------------------------------------------------------------------ joining and leaving */

static inline int aspen_dse_open(struct aspen_dse *d, uint32_t open) {
  int r = aspen_row_lock(aspen_own_row(&d->s), &d->s.user);
  if (r) return r;
  aspen_store_seq(&aspen_own_row(&d->s)->open, open); /* seq: a leaver closes, then looks for sleepers */
  aspen_row_unlock(aspen_own_row(&d->s));
  return ASPEN_OK;
}

/* The row opens: others seed tiles here from now on. RUNNING comes first (seq) and then a look at the epoch (seq): either recovery sees that it has to
 * wait for this DSE, or this DSE sees the odd epoch and parks before it touches the pool (I7, aspen_epoch_late). */
static inline void aspen_dse_join(struct aspen_dse *d) {
  d->lap = aspen_ticks();
  aspen_store_seq(&aspen_me(&d->s)->state, ASPEN_WORKER_RUNNING);
  do {
    if (aspen_load_seq(&d->s.control->signals.epoch) != d->s.user.epoch) aspen_dse_epoch(d);
  } while (aspen_dse_open(d, 1)); /* the lock's holder died: recovery comes */
  if (aspen_tracing(&d->s.trace)) aspen_note_now(&d->s.trace, ASPEN_TRACE_JOIN, 0, 0);
}

/* The row closes. Tiles left in it are anybody's: see aspen_dse_may_take(). */
static inline int aspen_dse_leave(struct aspen_dse *d) {
  aspen_store_release(&aspen_me(&d->s)->state, ASPEN_WORKER_LEAVING);
  int r = aspen_dse_open(d, 0);
  if (r == ASPEN_OK && aspen_tracing(&d->s.trace)) aspen_note_now(&d->s.trace, ASPEN_TRACE_LEAVE, 0, 0);
  return r;
}

/* Every way out of the loop. A wake-up that this DSE consumed is handed on, because it will not look any more. */
static inline enum aspen_reason aspen_dse_exit(struct aspen_dse *d, enum aspen_reason reason) {
  struct aspen_idle *idle = &d->s.control->idle;
  aspen_dse_stand(d, 0, 0);
  aspen_dse_put_back(d); /* ATTACH: stays in `held` and is pushed when the loop is entered again */
  aspen_dse_lap(d, d->looking ? &aspen_me(&d->s)->search_ticks : &aspen_me(&d->s)->schedule_ticks);
  if (aspen_tracing(&d->s.trace)) {
    aspen_note_idle_end(&d->s.trace, d->lap);
    if (reason == ASPEN_REASON_OPAQUE) aspen_note_in_hand(&d->s.trace, d->opaque, d->lap);
    else d->s.trace.away = d->lap;
  }
  if (d->looking) {
    d->looking = 0;
    aspen_sub_seq(&idle->spinners, 1);
  }
  aspen_dse_idle(d, 0);
  if (aspen_load_seq(&idle->sleepers) && aspen_dse_work(d)) aspen_dse_ring(d, 1);
  return reason;
}

/* ------------------------------------------------------------------------------------------------ the loop */

/* Looks at what is asked of the DSE from outside. Returns a reason to leave the loop, 0: none. */
static inline int aspen_dse_asked(struct aspen_dse *d) {
  const struct aspen_signals *g = &d->s.control->signals;
  uint32_t command = aspen_load_relaxed(&aspen_me(&d->s)->command);
  if (aspen_load_relaxed(&g->stop) || command == ASPEN_COMMAND_STOP) return ASPEN_REASON_STOP;
  if (aspen_load_acquire(&g->attach_seq) != d->s.user.attached) return ASPEN_REASON_ATTACH;
  if (d->s.drained) {
    d->s.drained = 0;
    return ASPEN_REASON_DRAINED;
  }
  return command == ASPEN_COMMAND_LEAVE ? ASPEN_REASON_LEAVE : 0;
}

/* Starts what clients have submitted, and pushes what could not be pushed before. */
static inline int aspen_dse_admit(struct aspen_dse *d) {
  int r = ASPEN_OK;
  if (d->held.n) r = aspen_dse_push(d, &d->held);
  if (r == ASPEN_OK && d->s.seed.instance) r = aspen_seed(&d->s);
  if (r) return r;
  aspen_collect(&d->s);
  return aspen_claim_due(&d->s) ? aspen_claim(&d->s) : ASPEN_OK;
}

static inline enum aspen_reason aspen_dse_run(struct aspen_dse *d) {
  struct aspen_worker *me = aspen_me(&d->s);
  d->lap = aspen_ticks();
  if (aspen_tracing(&d->s.trace)) aspen_note_back(&d->s.trace, d->lap);
  for (;;) {
    uint64_t item = 0;
    ASPEN_FOR_RECOVERY
    aspen_stat_add(&me->heartbeat, 1);
    ASPEN_FOR_RECOVERY
    if (aspen_load_acquire(&d->s.control->signals.epoch) != d->s.user.epoch) aspen_dse_epoch(d);
    int asked = aspen_dse_asked(d);
    if (asked == ASPEN_REASON_LEAVE && (aspen_dse_put_back(d) || aspen_dse_admit(d) || aspen_dse_leave(d)))
      continue; /* epoch or attach: the top of the loop sees to it, then we leave */
    if (asked) return aspen_dse_exit(d, (enum aspen_reason)asked);
    int r = aspen_dse_admit(d);
    if (r == ASPEN_OK) r = aspen_dse_take(d, &item);
    if (r == ASPEN_OK) {
      if (d->looking) aspen_dse_found(d);
      r = aspen_dse_execute(d, item);
      if (r == ASPEN_BUSY) return aspen_dse_exit(d, ASPEN_REASON_OPAQUE);
    } else if (r == ASPEN_EMPTY && !d->s.drained) { /* that is said first: nobody wakes this DSE for it */
      aspen_dse_rest(d);
    }
  }
}

#endif
