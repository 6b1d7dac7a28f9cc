/* Workers die at any operation, in the middle of kernels, and by signals from outside at any moment, while clients keep requests in flight and
 * check every answer against a serial reference. Workers are also stopped, and asked to leave; a plan comes and goes meanwhile.
 *
 * usage: storm SEED WORKERS DEATHS SECONDS [stops=PERCENT] [watchdog=MS] [quiet]
 *        ends after so many deaths or seconds, whichever is first. stops: of 100 workers that end themselves so many are stopped instead.
 *        exit status: 0 every request was answered once and right, and everything came to rest; 1 not
 */
#define _GNU_SOURCE
#include "supervise.h"

/* Somebody else's hand: mostly SIGKILL, of one worker or of all. */
static void strike(void) {
  uint32_t row = below(&random_state, n_workers), kind = below(&random_state, 100);
  if (kind < 15) {
    row_of[row].leaving = 1;
    aspen_worker_command(&world->control, &world->bell, row, ASPEN_COMMAND_LEAVE);
  } else if (kind < 25) {
    end_worker(row, SIGSTOP);
  } else if (kind < 28) {
    end_worker(row, SIGSEGV);
  } else if (kind < 30) {
    for (uint32_t r = 0; r < n_workers; r++) end_worker(r, SIGKILL);
  } else {
    end_worker(row, SIGKILL);
  }
}

static void vary(void) {
  struct aspen_signals *g = &world->control.signals;
  aspen_stat_store(&g->policy, below(&random_state, 3));
  aspen_publish(&world->control, &world->bell); /* nothing new, but workers have to look */
  if (below(&random_state, 8)) return;
  aspen_store_seq(&g->steal, below(&random_state, 4) != 0);
  aspen_wake_all(&world->bell);
}

static void watch(void) {
  static uint64_t seen, since;
  uint64_t n = answers(), now = aspen_now_ns();
  if (n != seen || !since) {
    seen = n;
    since = now;
  } else if (now - since > watchdog_ns) {
    describe();
    complain("nobody is answered any more");
  }
}

/* Clients take their last answers, then everything comes to rest. */
static void finish(void) {
  world->random_deaths = 0; /* the workers there are may still die; new ones do not */
  aspen_store_seq(&world->finish, 1);
  uint64_t until = aspen_now_ns() + watchdog_ns;
  const char *why = NULL;
  for (;;) {
    attend(aspen_now_ns() + MS);
    if (aspen_load_seq(&world->verdict)) return;
    int there = 0;
    for (uint32_t k = 0; k < CLIENTS; k++) there += client_pid[k] != 0;
    why = there ? "a client waits for ever" : restless();
    if (!why) return;
    churn();
    if (aspen_now_ns() > until) {
      describe();
      complain(why);
      return;
    }
  }
}

int main(int argc, char **argv) {
  if (argc < 5) return 3;
  uint32_t seed = (uint32_t)strtoul(argv[1], NULL, 10), stops = 7;
  uint64_t most = strtoull(argv[3], NULL, 10);
  for (int k = 5; k < argc; k++) {
    if (!strncmp(argv[k], "stops=", 6)) stops = (uint32_t)atoi(argv[k] + 6);
    if (!strncmp(argv[k], "watchdog=", 9)) watchdog_ns = strtoull(argv[k] + 9, NULL, 10) * MS;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  uint32_t workers = (uint32_t)strtoul(argv[2], NULL, 10);
  if (workers < 1 || workers > ROWS) return 3;
  make_world(seed, workers);
  world->random_deaths = 1;
  world->stops = stops;
  for (uint32_t k = 0; k < CLIENTS; k++) start_client(k);
  refill();
  uint64_t began = aspen_now_ns(), end = began + (uint64_t)(atof(argv[4]) * 1e9), strike_at = began, vary_at = began, churn_at = began;
  while (count.deaths < most && !aspen_load_seq(&world->verdict)) {
    uint64_t now = aspen_now_ns();
    if (now > end) break;
    attend(strike_at < churn_at ? strike_at : churn_at);
    now = aspen_now_ns();
    if (now >= strike_at) {
      strike();
      strike_at = now + below(&random_state, 4000) * 1000;
    }
    if (now >= vary_at) {
      vary();
      vary_at = now + below(&random_state, 4000) * 1000;
    }
    if (now >= churn_at) {
      churn();
      churn_at = now + below(&random_state, 3000) * 1000;
    }
    watch();
  }
  if (!aspen_load_seq(&world->verdict)) finish();
  uint32_t sites = 0, reached = 0;
  for (uint32_t k = 0; k < SITES; k++) {
    sites += world->site[k].key != 0;
    reached += world->site[k].deaths != 0;
  }
  double seconds = (double)(aspen_now_ns() - began) / 1e9;
  printf("%lu deaths (%lu faults, %lu stopped), %lu left, %lu recoveries (%lu restarts) in %.1f s\n", (unsigned long)count.deaths, (unsigned long)count.faults,
         (unsigned long)count.stops, (unsigned long)count.left, (unsigned long)count.recoveries, (unsigned long)count.restarts, seconds);
  printf("%lu answers: %lu failed, %lu cancelled, %lu too late for their plan, which went %lu times\n", (unsigned long)answers(), (unsigned long)world->failed,
         (unsigned long)world->cancelled, (unsigned long)world->gone, (unsigned long)count.plans);
  printf("requests recovered: %lu continued, %lu begun anew, %lu completed, %lu submitted again\n", (unsigned long)count.continued, (unsigned long)count.restarted,
         (unsigned long)count.completed, (unsigned long)count.resubmitted);
  print_times();
  printf("ended because they did not park: %lu\n", (unsigned long)count.late);
  printf("sites: %u, at which somebody died: %u\n", sites, reached);
  return report("every request was answered once, and right");
}
