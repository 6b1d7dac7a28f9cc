/* The planner process of world.h: starts workers, waits for their ends, recovers, and looks whether everything has come to rest. */
#ifndef ASPEN_TEST_SUPERVISE_H
#define ASPEN_TEST_SUPERVISE_H
#include "world.h"

#define MS 1000000ull
#define PARK_NS (2000 * MS) /* a worker that has not parked by then is ended, as in the product */

static struct row_state { pid_t pid; uint32_t stopped, leaving; uint64_t kill_at; } row_of[ROWS];
static pid_t client_pid[CLIENTS];
static uint32_t n_workers, random_state, dead, restart; /* workers there are to be; deaths that no recovery has seen yet, one of them a fault */
static uint64_t watchdog_ns = 20000 * MS;
static uint32_t stopped_us = 3000; /* how long a stopped worker stays, at most */
static struct { uint64_t deaths, stops, faults, left, starts, recoveries, restarts, late, plans, continued, restarted, completed, resubmitted; } count;
static uint64_t *lasted, n_lasted; /* nanoseconds from the first look at a death to the end of its recovery */
enum { MOST_LASTED = 1 << 22 };

/* ------------------------------------------------------------------------------------------------ starting and reaping */

static void start(uint32_t row) {
  aspen_worker_reset(&world->control, row, ASPEN_NONE, 0, row & 1, 0);
  uint32_t random = aspen_random(&random_state);
  pid_t pid = fork();
  if (pid == 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor) _exit(0);
    worker(row, random);
  }
  if (pid < 0) complain("no process");
  row_of[row] = (struct row_state){.pid = pid};
  count.starts++;
}

static void refill(void) {
  for (uint32_t r = 0; r < n_workers; r++)
    if (!row_of[r].pid) start(r);
}

static void start_client(uint32_t k) {
  uint32_t random = aspen_random(&random_state);
  if ((client_pid[k] = fork())) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  client(k, random);
}

static void worker_ended(uint32_t row, int status) {
  int asked = row_of[row].leaving && WIFEXITED(status) && WEXITSTATUS(status) == 0, with = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  aspen_worker_gone(&world->control, row, !asked);
  row_of[row] = (struct row_state){0};
  aspen_store_seq(&world->drained, 1); /* what it has not reported is looked for */
  if (asked) {
    count.left++;
    return;
  }
  if (!with) complain("a worker ended by itself");
  count.deaths++;
  count.faults += with == SIGSEGV;
  restart |= with == SIGSEGV;
  dead++;
}

static void reap(void) {
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
    for (uint32_t r = 0; r < ROWS; r++)
      if (row_of[r].pid == pid) {
        if (!WIFSTOPPED(status)) {
          worker_ended(r, status);
        } else if (!row_of[r].stopped) {
          row_of[r].stopped = 1;
          row_of[r].kill_at = aspen_now_ns() + below(&random_state, stopped_us) * 1000;
          count.stops++;
        }
        break;
      }
    for (uint32_t k = 0; k < CLIENTS; k++)
      if (client_pid[k] == pid) client_pid[k] = 0;
  }
}

static void end_worker(uint32_t row, int with) {
  if (row_of[row].pid) kill(row_of[row].pid, with);
}

/* ------------------------------------------------------------------------------------------------ recovery */

static uint64_t junk(void) {
  uint32_t kind = below(&random_state, 4);
  return kind == 0 ? 0 : kind == 1 ? below(&random_state, 64) : (uint64_t)aspen_random(&random_state) << 32 | aspen_random(&random_state);
}
static void spoil(void *at, uint64_t bytes) {
  for (uint64_t *p = at; bytes >= 8; p++, bytes -= 8) *p = junk();
}

static void spoil_instance(uint32_t id) {
  struct aspen_instance *i = &world->control.instance[id];
  const struct aspen_plan_header *h = world->mapped_at[world->control.plan[i->plan].segment];
  char *arena = world->mapped_at[i->arena];
  uint32_t generation = (uint32_t)(i->word >> 32), *executed = (uint32_t *)(arena + h->arena_executed);
  uint32_t *missing = (uint32_t *)(arena + h->arena_counters);
  spoil(arena + h->arena_next, 8 * h->n_tiles);
  for (uint32_t n = 0; n < h->n_tiles; n++) missing[n] = (uint32_t)junk();
  if (!restart) return;
  for (uint32_t n = 0; n < h->n_tiles; n++) executed[n] = below(&random_state, 3) ? generation + below(&random_state, 2) : (uint32_t)junk();
  spoil(arena + h->arena_data, h->arena_bytes - h->arena_data);
  uint32_t state = (uint32_t)i->word, word = world->client[i->client - 1].slot[i->slot].word;
  if ((state == ASPEN_INSTANCE_RUNNING || state == ASPEN_INSTANCE_DONE) && word == ASPEN_SLOT_WORD(i->sequence, ASPEN_SLOT_RUNNING))
    spoil(world->data[i->client - 1] + i->offset + VECTOR, VECTOR); /* its result, while nobody has been told */
}

/* While the world stands still, whatever recovery must not read is overwritten: caches always, and what a fault may have hit after a fault. */
static void spoil_all(void) {
  struct aspen_control *c = &world->control;
  for (uint32_t r = 0; r < ROWS; r++) {
    c->row[r].lock = (uint32_t)junk();
    c->row[r].first = junk();
    c->row[r].busy = (uint32_t)junk();
    spoil(c->row[r].lane, sizeof c->row[r].lane);
  }
  c->claim.lock = (uint32_t)junk();
  c->idle.sleepers = (uint32_t)junk();
  c->idle.spinners = (uint32_t)junk();
  spoil(c->claim.waiting, sizeof c->claim.waiting);
  c->claim.running = (uint32_t)junk();
  spoil(&c->turns, sizeof c->turns);
  spoil(c->hints.holders, sizeof c->hints.holders);
  /* Hints survive, and any are right. */
  for (uint32_t id = 0; id < IDS; id++) {
    c->instance[id].at_work = (uint32_t)junk();
    for (unsigned t = 0; t < 2 && id < ASPEN_MAX_PLANS; t++) spoil(&c->hints.table[t][id], sizeof c->hints.table[t][id]);
  }
  for (uint32_t r = 0; r < ROWS; r++) c->worker[r].domain = (uint32_t)junk();
  c->hints.version++;
  c->hints.tokens = (uint32_t)below(&random_state, 3);
  c->hints.counted = (uint32_t)below(&random_state, 2);
  for (uint32_t id = 1; id < IDS; id++)
    if ((uint32_t)c->instance[id].word != ASPEN_INSTANCE_NONE) spoil_instance(id);
}

/* Until every worker has parked, or has ended and been reaped. A stopped one is ended at once. */
static void stop_the_world(void) {
  uint64_t until = aspen_now_ns() + PARK_NS;
  for (;;) {
    uint32_t late = 0, over = aspen_now_ns() > until;
    reap();
    for (uint32_t r = 0; r < ROWS; r++) {
      if (!aspen_epoch_late(&world->control, r)) continue;
      late++;
      count.late += over && !row_of[r].stopped;
      if (over || row_of[r].stopped) end_worker(r, SIGKILL);
    }
    if (!late) return;
    if (over) until = aspen_now_ns() + PARK_NS;
    sched_yield();
  }
}

static void recover(void) {
  static uint64_t *next[ASPEN_MAX_INSTANCES];
  uint64_t since = aspen_now_ns();
  aspen_epoch_begin(&world->control, &world->bell);
  stop_the_world();
  map_segments();
  uint64_t before = aspen_now_ns();
  if (restart || below(&random_state, 2)) spoil_all();
  uint64_t spoiling = aspen_now_ns() - before;
  struct aspen_recovery r = {.station = {.control = &world->control, .bell = &world->bell, .segment = mine.mapping}, .next = next};
  r.station.user = (struct aspen_user){.signals = &world->control.signals, .next = next};
  aspen_recover(&r, (int)restart);
  aspen_epoch_end(&world->control);
  count.restarts += restart;
  restart = dead = 0;
  count.recoveries++;
  count.continued += r.continued, count.restarted += r.restarted, count.completed += r.completed, count.resubmitted += r.resubmitted;
  if (n_lasted < MOST_LASTED) lasted[n_lasted++] = aspen_now_ns() - since - spoiling;
}

/* Sleeps until something has happened to a child, a client has something to say, or `until`. Then does what is to be done. */
static void attend(uint64_t until) {
  sigset_t what;
  sigemptyset(&what);
  sigaddset(&what, SIGCHLD);
  sigaddset(&what, SIGUSR1);
  uint64_t now = aspen_now_ns(), left = until > now ? until - now : 0;
  struct timespec t = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
  sigtimedwait(&what, NULL, &t);
  reap();
  now = aspen_now_ns();
  for (uint32_t r = 0; r < ROWS; r++)
    if (row_of[r].stopped && row_of[r].kill_at && now >= row_of[r].kill_at) {
      end_worker(r, SIGKILL);
      row_of[r].kill_at = 0;
    }
  if (dead) recover();
  refill();
}

/* ------------------------------------------------------------------------------------------------ plans */

static uint32_t add_segment(uint32_t role, void *at, uint64_t bytes) {
  uint32_t id = aspen_add_segment(&world->control, role, bytes);
  check(id && id < IDS, "too many segments");
  aspen_store_release(&world->mapped_at[id], at);
  return id;
}

static void add_plan(uint32_t k, uint32_t n_arenas) {
  uint32_t arenas[ARENAS], random = 1 + aspen_random(&random_state);
  memset(world->plan[k], 0, PLAN_BYTES);
  memset(world->arena[k], 0, sizeof world->arena[k]);
  write_plan(&world->graph[k], world->plan[k], &random);
  ((struct aspen_op *)(world->plan[k] + ((struct aspen_plan_header *)world->plan[k])->ops))[HUB].kernel = ASPEN_K_OPAQUE; /* it has one tile */
  uint32_t segment = add_segment(ASPEN_ROLE_PLAN, world->plan[k], PLAN_BYTES);
  for (uint32_t a = 0; a < n_arenas; a++) arenas[a] = add_segment(ASPEN_ROLE_ARENA, world->arena[k][a], ARENA_BYTES);
  check(aspen_add_plan(&world->control, segment, NULL, 0, arenas, n_arenas) == k + 1, "no plan");
  aspen_publish(&world->control, &world->bell);
  aspen_store_release(&world->generation_of[k], world->control.plan[k + 1].generation);
}

/* One step in the life of the second plan: there, asked to go, gone, unmapped by everyone, there again. Returns 1 when it is there. */
static int churn(void) {
  static uint32_t step = 1, seq;
  uint32_t out[1 + ASPEN_PLAN_INSTANCES], n;
  switch (step) {
  case 1:
    aspen_store_relaxed(&world->generation_of[1], 0); /* clients may have read it just before */
    aspen_drop_plan(&world->control, &world->bell, 2);
    step = 2;
    break;
  case 2: /* told by workers that something is free, or not yet */
    if (!aspen_load_seq(&world->drained)) break;
    aspen_store_seq(&world->drained, 0);
    __attribute__((fallthrough));
  case 3:
    step = 2;
    if (!(n = aspen_collect_plan(&world->control, 2, out))) break;
    for (uint32_t i = 0; i < n; i++) aspen_store_relaxed(&world->mapped_at[out[i]], NULL);
    seq = aspen_publish(&world->control, &world->bell);
    count.plans++;
    step = 4;
    break;
  case 4:
    if (!aspen_all_attached(&world->control, seq)) break; /* somebody may still look at its segments */
    add_plan(1, 2);
    step = 1;
    return 1;
  }
  if (step == 2 && world->control.plan[2].state == ASPEN_PLAN_DRAINING && aspen_plan_idle(&world->control, 2)) step = 3;
  return 0;
}

/* ------------------------------------------------------------------------------------------------ all together */

static void make_world(uint32_t seed, uint32_t workers) {
  world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  lasted = mmap(NULL, MOST_LASTED * sizeof *lasted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (world == MAP_FAILED || lasted == MAP_FAILED) {
    perror("no memory");
    exit(3);
  }
  setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
  sigset_t what;
  sigemptyset(&what);
  sigaddset(&what, SIGCHLD);
  sigaddset(&what, SIGUSR1);
  sigprocmask(SIG_BLOCK, &what, NULL);
  supervisor = getpid();
  random_state = seed * 2654435761u + 1;
  n_workers = workers;
  aspen_table_create(&world->control, ROWS, 20000, 1000000);
  world->control.signals.seed = seed;
  for (uint32_t k = 0; k < CLIENTS; k++) {
    uint32_t segment = add_segment(ASPEN_ROLE_CLIENT, &world->client[k], sizeof world->client[k]);
    uint32_t region = add_segment(ASPEN_ROLE_DATA, world->data[k], DATA_BYTES);
    check(aspen_add_client(&world->control, segment, &world->client[k]) == k + 1 && aspen_add_data(&world->control, k + 1, region) == 1, "no client");
  }
  for (uint32_t k = 0; k < PLANS; k++) {
    uint32_t random = seed * 7919 + k + 1;
    make_nodes(&world->graph[k], &random);
    make_edges(&world->graph[k]);
    make_joins(&world->graph[k]);
    add_plan(k, k ? 2 : ARENAS);
  }
}

static uint64_t answers(void) {
  uint64_t n = 0;
  for (int k = 0; k < CHECKED; k++) n += aspen_load_relaxed(&world->answers[k]);
  return n;
}

/* No worker busy, counted in vain, or on its way; no tile, lock, claim, mark or request left. Returns what is not so, NULL: at rest. */
static const char *restless(void) {
  const struct aspen_control *c = &world->control;
  for (uint32_t r = 0; r < n_workers; r++) {
    if (!row_of[r].pid || row_of[r].stopped || aspen_load_seq(&c->worker[r].state) != ASPEN_WORKER_RUNNING) return "a worker is not there";
    if (aspen_load_seq(&c->worker[r].attached) != c->signals.attach_seq) return "a worker has not mapped what was announced";
  }
  for (uint32_t r = 0; r < ROWS; r++)
    if (aspen_load_seq(&c->row[r].first) || aspen_load_seq(&c->row[r].lock)) return "a row is not empty or still locked";
  if (aspen_load_seq(&c->idle.sleepers) != n_workers || aspen_load_seq(&c->idle.spinners)) return "workers that do not sleep, or are counted in vain";
  if (aspen_load_seq(&c->claim.lock) || aspen_load_seq(&c->claim.wanted) != aspen_load_seq(&c->claim.done)) return "a claim is due and nobody makes it";
  for (uint32_t i = 1; i < IDS; i++) {
    uint32_t state = (uint32_t)aspen_load_seq(&c->instance[i].word);
    if (state != ASPEN_INSTANCE_FREE && state != ASPEN_INSTANCE_NONE) return "an instance is not free";
  }
  if (aspen_bell_pending(&world->bell)) return "a bit of the doorbell is set";
  return NULL;
}

static int report(const char *what) {
  int bad = aspen_load_seq(&world->verdict) != 0;
  for (uint32_t r = 0; r < ROWS; r++) end_worker(r, SIGKILL);
  for (uint32_t k = 0; k < CLIENTS; k++)
    if (client_pid[k] > 0) kill(client_pid[k], SIGKILL);
  while (wait(NULL) > 0) {}
  if (bad) printf("WRONG: %s\n", world->why);
  else printf("fine: %s\n", what);
  fflush(stdout);
  return bad;
}

static void describe(void) {
  const struct aspen_control *c = &world->control;
  printf("epoch %u attach_seq %u sleepers %u spinners %u claim lock %u wanted %u done %u waiting %lx\n", c->signals.epoch, c->signals.attach_seq, c->idle.sleepers,
         c->idle.spinners, c->claim.lock, c->claim.wanted, c->claim.done, (unsigned long)c->claim.waiting[0]);
  for (uint32_t r = 0; r < ROWS; r++)
    if (row_of[r].pid || c->row[r].first || c->row[r].lock)
      printf("row %u: pid %d stopped %u state %u open %u lock %u first %lx parked %u idle %u current %lx\n", r, row_of[r].pid, row_of[r].stopped, c->worker[r].state,
             c->row[r].open, c->row[r].lock, (unsigned long)c->row[r].first, c->worker[r].parked, c->worker[r].idle, (unsigned long)c->worker[r].current);
  for (uint32_t i = 1; i < IDS; i++)
    if ((uint32_t)c->instance[i].word)
      printf("instance %u: generation %lu state %u plan %u client %u slot %u fault %lx\n", i, (unsigned long)(c->instance[i].word >> 32), (uint32_t)c->instance[i].word,
             c->instance[i].plan, c->instance[i].client, c->instance[i].slot, (unsigned long)c->instance[i].fault);
  for (uint32_t k = 0; k < CLIENTS; k++)
    for (uint32_t s = 0; s < THREADS * SLOTS; s++) {
      const struct aspen_slot *slot = &world->client[k].slot[s];
      printf("client %u slot %u: state %u waiters %u error %u pending %d cancel %d\n", k + 1, s, ASPEN_SLOT_STATE(slot->word), slot->waiters, slot->error,
             (int)(world->client[k].pending[0] >> s & 1), (int)(world->client[k].cancel[0] >> s & 1));
    }
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void print_times(void) {
  qsort(lasted, n_lasted, sizeof *lasted, by_value);
  if (n_lasted)
    printf("recovery: p50 %lu us, p99 %lu us, worst %lu us\n", (unsigned long)(lasted[n_lasted / 2] / 1000), (unsigned long)(lasted[n_lasted * 99 / 100] / 1000),
           (unsigned long)(lasted[n_lasted - 1] / 1000));
}

#endif
