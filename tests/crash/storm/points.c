/* Every crash point with every signal: the n-th arrival of a worker at one operation kills, stops or faults it, while clients have requests in
 * flight, a worker leaves and joins, and something is announced. Then every request must have been answered, and everything must come to rest.
 *
 * A dry run finds the points: every place in the headers with an atomic operation that a worker reaches, and the middle of the kernels. Cases
 * at which nobody arrives in the rounds they get are counted apart. In `blocked` rounds there is no free instance, and every request is
 * cancelled: a cancellation that gets lost leaves its client waiting.
 *
 * usage: points SEED WORKERS [watchdog=MS] [at=FILE] [pairs=SECONDS]
 *        at: only the points of a header; pairs: two points at once instead, at random, for so long
 *        exit status: 0 fine, 1 not
 */
#define _GNU_SOURCE
#include "supervise.h"

enum { DRY = 60, ROUNDS = 8 };
static const int signals[] = {SIGKILL, SIGSTOP, SIGSEGV};
static uint32_t n_rounds;
static char now_at[200];
static const char *file = ""; /* points of this one only */

static void set_instances(uint32_t from, uint32_t to) {
  for (uint32_t i = 1; i < IDS; i++) {
    uint64_t word = world->control.instance[i].word;
    if (world->control.instance[i].arena && (uint32_t)word == from) aspen_store_seq(&world->control.instance[i].word, ASPEN_STATE(word >> 32, to));
  }
}

static int watched(uint64_t since, const char *why) {
  if (aspen_load_seq(&world->verdict)) return 0;
  if (aspen_now_ns() - since < watchdog_ns) return 1;
  describe();
  complain(why ? why : "requests are not answered");
  return 0;
}

/* One round of requests. `only`: of one thread a client. `hit`: another worker is killed meanwhile, so that others meet an epoch. Returns 0 if something went wrong. */
static int play(int blocked, int hit, uint32_t only) {
  uint32_t row = below(&random_state, n_workers);
  uint64_t since = aspen_now_ns();
  world->blocked = (uint32_t)blocked;
  world->only = only;
  if (blocked) set_instances(ASPEN_INSTANCE_FREE, ASPEN_INSTANCE_NONE);
  n_rounds++;
  aspen_store_seq(&world->finished, 0);
  aspen_store_seq(&world->control.signals.steal, below(&random_state, 4) != 0);
  aspen_add_seq(&world->round, 1);
  aspen_futex_wake(&world->round, INT_MAX);
  if (hit) {
    for (uint64_t until = since + below(&random_state, 400) * 1000; aspen_now_ns() < until;) sched_yield();
    end_worker(below(&random_state, n_workers), SIGKILL);
  }
  if (row_of[row].pid && !hit) {
    row_of[row].leaving = 1;
    aspen_worker_command(&world->control, &world->bell, row, ASPEN_COMMAND_LEAVE);
  }
  aspen_publish(&world->control, &world->bell);
  int there = blocked || (n_rounds % 4 && world->control.plan[2].state == ASPEN_PLAN_LIVE);
  while (aspen_load_seq(&world->finished) < CHECKED) {
    attend(aspen_now_ns() + MS / 2);
    there = there || churn();
    if (!watched(since, NULL)) return 0;
  }
  for (const char *why = NULL; !there || (why = restless());) {
    attend(aspen_now_ns() + MS / 10);
    there = there || churn();
    if (!watched(since, there ? why : "a plan is not let go")) return 0;
  }
  if (blocked) set_instances(ASPEN_INSTANCE_NONE, ASPEN_INSTANCE_FREE);
  return 1;
}

static void arm(uint32_t k, uint32_t site, uint32_t n, int with) {
  struct arm *a = &world->arm[k];
  a->n = n;
  a->signal = (uint32_t)with;
  a->seen = 0;
  aspen_store_seq(&a->site, site);
}
static int fired(uint32_t k) { return aspen_load_seq(&world->arm[k].seen) >= world->arm[k].n; }

/* Returns 1: somebody was there; 0: nobody; -1: something went wrong. */
static int run_case(uint32_t site, uint32_t n, int with, int blocked, uint32_t only) {
  struct site *s = &world->site[site];
  const char *name = strrchr(s->file, '/');
  snprintf(now_at, sizeof now_at, "%s:%u, arrival %u, %s%s", name ? name + 1 : s->file, s->line, n, strsignal(with), blocked ? ", blocked" : "");
  arm(0, site, n, with);
  int good = 1;
  for (int r = 0; r < ROUNDS && good && !fired(0); r++) good = play(blocked, r > 2, r == 0 ? only : 0);
  int there = fired(0);
  arm(0, 0, 0, 0);
  return good ? there : -1;
}

static int all_cases(void) {
  static uint32_t sites[SITES], n_sites;
  uint64_t cases = 0, reached = 0, blocked = 0;
  world->counting = 1;
  for (int r = 0; r < DRY; r++)
    if (!play(r % 3 == 2, r % 2, 0)) return 0;
  world->counting = 0;
  for (uint32_t id = 1; id < SITES; id++)
    if (world->site[id].arrivals && strstr(world->site[id].file, file)) sites[n_sites++] = id;
  for (uint32_t k = 0; k < n_sites; k++) {
    uint32_t often = (uint32_t)(world->site[sites[k]].arrivals / DRY);
    for (uint32_t what = 0; what < 7; what++) {
      uint32_t n = what % 2 ? 2 + below(&random_state, often + 1) : 1;
      int r = run_case(sites[k], n, what < 6 ? signals[what / 2] : SIGKILL, what == 6, what == 2 || what == 4 ? what / 2 : 0);
      if (r < 0) return 0;
      if (what == 6) {
        blocked += (uint64_t)r;
        continue;
      }
      cases++;
      reached += (uint64_t)r;
      if (!r && what == 0) printf("nobody came to %s\n", now_at);
    }
  }
  printf("%u points, %lu cases, somebody was there in %lu, and in %lu blocked ones; %u rounds\n", n_sites, (unsigned long)cases, (unsigned long)reached,
         (unsigned long)blocked, n_rounds);
  return 1;
}

static int pairs(double seconds) {
  uint64_t until = aspen_now_ns() + (uint64_t)(seconds * 1e9), cases = 0, both = 0;
  for (int r = 0; r < DRY; r++)
    if (!play(r % 3 == 2, r % 2, 0)) return 0;
  while (aspen_now_ns() < until) {
    for (uint32_t k = 0; k < ARMS; k++) {
      uint32_t id = 1 + below(&random_state, SITES - 1);
      while (!world->site[id].key) id = id % (SITES - 1) + 1;
      arm(k, id, 1 + below(&random_state, 1u << below(&random_state, 6)), signals[below(&random_state, 3)]);
    }
    snprintf(now_at, sizeof now_at, "%s:%u and %s:%u", world->site[world->arm[0].site].file, world->site[world->arm[0].site].line,
             world->site[world->arm[1].site].file, world->site[world->arm[1].site].line);
    for (int r = 0; r < ROUNDS && !(fired(0) && fired(1)); r++)
      if (!play(r % 4 == 3, 0, below(&random_state, 3))) return 0;
    cases++;
    both += (uint64_t)(fired(0) && fired(1));
    arm(0, 0, 0, 0);
    arm(1, 0, 0, 0);
  }
  printf("%lu pairs, both were met in %lu; %u rounds\n", (unsigned long)cases, (unsigned long)both, n_rounds);
  return 1;
}

int main(int argc, char **argv) {
  double seconds = 0;
  if (argc < 3) return 3;
  for (int k = 3; k < argc; k++) {
    if (!strncmp(argv[k], "watchdog=", 9)) watchdog_ns = strtoull(argv[k] + 9, NULL, 10) * MS;
    if (!strncmp(argv[k], "at=", 3)) file = argv[k] + 3;
    if (!strncmp(argv[k], "pairs=", 6)) seconds = atof(argv[k] + 6);
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  stopped_us = 300;
  make_world((uint32_t)strtoul(argv[1], NULL, 10), (uint32_t)strtoul(argv[2], NULL, 10));
  uint64_t began = aspen_now_ns();
  refill();
  for (uint32_t k = 0; k < CLIENTS; k++) start_client(k);
  int good = seconds ? pairs(seconds) : all_cases();
  if (!good) printf("at %s\n", now_at);
  printf("%lu deaths (%lu faults, %lu stopped), %lu recoveries, %lu answers in %.1f s\n", (unsigned long)count.deaths, (unsigned long)count.faults,
         (unsigned long)count.stops, (unsigned long)count.recoveries, (unsigned long)answers(), (double)(aspen_now_ns() - began) / 1e9);
  print_times();
  printf("ended because they did not park: %lu\n", (unsigned long)count.late);
  return report("every case came to rest");
}
