/* What a DSE makes of unlike cores: its pace from its own times, what it leaves to faster ones, and for how long (docs/protocol/cores.md);
 * and which queue share each takes (docs/protocol/pool.md, "Queue shares").
 *
 * exit status: 0 everything is as it should be; else a line says what is not
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/loop.h"
#include "table.h"

size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call) { return 0; }

enum { WORKERS = 4 };
static struct aspen_control control;
static struct aspen_doorbell bell;
static struct aspen_dse dse[WORKERS];
static uint64_t next[64], *links[2] = {NULL, next};
/* Instance 1: two tiles without children, the second of which is not END either. */
static uint32_t missing[2], executed[2];
static struct aspen_tile tiles[2];
static struct aspen_plan_view plan = {.tiles = tiles, .n_tiles = 2, .end_tile = 2};
static struct aspen_instance_view instance = {.plan = &plan, .missing = missing, .executed = executed, .generation = 1}, *instances[2] = {NULL, &instance};

static void check(int condition, const char *what) {
  if (condition) return;
  printf("WRONG: %s\n", what);
  exit(1);
}

/* Worker `w` has executed `tiles` of a millisecond altogether, which took `times` that long. */
static void works(int w, uint32_t tiles, double times) {
  struct aspen_worker *me = &control.worker[w];
  me->tiles += tiles;
  me->kernel_ticks += (uint64_t)(1e6 * times);
  dse[w].expected_ns = 1e6;
  aspen_dse_pace(&dse[w]);
}

static void settle(int w, double times) {
  for (int k = 0; k < 60; k++) works(w, 10, times);
}

static void waiting(int row, uint32_t n) { control.row[row].waiting = n; }

static int about(double a, double b) { return a > 0.98 * b && a < 1.02 * b; }

/* Worker `w` takes a tile of row 0; returns its number. */
static uint32_t takes(int w) {
  uint64_t item = 0;
  int r = aspen_pool_pop(&control.row[0], &dse[w].s.user, (struct aspen_filter){0}, w != 0, &item);
  return r == ASPEN_OK ? ASPEN_ITEM_TILE(item) : ASPEN_NONE;
}

static void push(uint32_t from, uint32_t n) {
  for (uint32_t k = from; k < from + n; k++) {
    uint64_t item = ASPEN_ITEM(1, 1, k);
    uint8_t depth = 3;
    check(aspen_pool_push(&control.row[0], &dse[0].s.user, 1, &item, &depth, 1, 0) == ASPEN_OK, "pushed");
  }
}

/* Neighbouring tiles go to the same worker, whoever takes first, and all tiles are taken. */
static void takes_parts(void) {
  for (int w = 0; w < WORKERS; w++) control.worker[w].pace = 1024, control.row[w].open = w < 3, works(w, 10, 1.0);
  for (uint32_t n = 3; n <= 60; n += 3)
    for (int first = 0; first < 3; first++) {
      push(0, n);
      for (uint32_t k = 0; k < n; k++) {
        int w = (int)(k + (uint32_t)first) % 3;
        check(takes(w) == (uint32_t)w * n / 3 + k / 3, "a third each");
      }
      check(control.row[0].first == 0 && control.row[0].waiting == 0, "all taken");
    }
  push(0, 7);
  uint32_t seen = 0;
  for (int k = 0; k < 7; k++) seen |= 1u << takes(1);
  check(seen == 127 && takes(1) == ASPEN_NONE, "one alone takes all");
  push(0, 2);
  check(takes(2) == 1, "the last one");
  push(1, 1); /* behind what is still there */
  check(takes(0) == 0 && takes(0) == 1 && takes(0) == ASPEN_NONE, "the end of a queue is known");

  /* Half as fast: half as much. A closed row has no share, and nobody looks through more of a queue than it may. */
  control.row[2].open = 0;
  settle(1, 2.0);
  works(0, 10, 1.0);
  check(dse[0].s.user.share == 0 && about(dse[1].s.user.share, 2.0 / 3 * ASPEN_SHARES), "a third for the slow one");
  control.row[2].open = 1;
  for (int w = 0; w < 3; w++) settle(w, 1.0);
  push(0, 1);
  dse[1].s.user.walk = 4;
  check(takes(1) == 0, "alone in a queue");
  push(0, 12);
  check(takes(1) == 1 && takes(1) == 2 && takes(1) == 3, "looks no farther than it may");
  while (takes(0) != ASPEN_NONE) {}
}

/* Worker 0 reads the line of worker `r`, which has ended another tile, `n` times. */
static void hears(uint32_t r, int n, uint64_t took, int busy) {
  static uint64_t tiles;
  for (int k = 0; k < n; k++) aspen_dse_hear(&dse[0], r, ++tiles, took, busy);
}

/* Caches apart: by what the lines of others take, if they are at work. */
static void knows_what_is_apart(void) {
  struct aspen_dse *d = &dse[0];
  for (uint32_t r = 0; r < WORKERS; r++) control.row[r].open = r != 2;
  uint32_t seen = 0;
  for (int k = 0; k < 6; k++) {
    const uint32_t r = aspen_dse_neighbour(d);
    check(r == 1 || r == 3, "only workers whose rows are open are looked at");
    seen += r;
  }
  check(seen == 12, "in turn");
  hears(1, 20, 60, 1);
  check(!d->apart, "near");
  hears(1, 3, 150, 1);
  check(!d->apart, "interrupted, perhaps");
  hears(1, 3, 150, 1);
  check(d->apart, "apart");
  for (int k = 0; k < 20; k++) aspen_dse_hear(d, 1, d->heard, 10, 1);
  check(d->apart, "nothing is learned from a line that was here");
  hears(1, 20, 150, 0);
  check(!d->apart, "who does nothing is no reason");
  for (int k = 0; k < 20; k++) {
    hears(1, 1, 150, 1), hears(3, 1, 40, 1);
    check(k < 4 || d->apart, "one of two");
  }
  for (int k = 0; k < 20; k++) {
    hears(1, 1, 150, 1), hears(3, 9, 40, 1);
    check(k < 2 || !d->apart, "one of ten");
  }
  hears(1, 20, 150, 1);
  for (uint32_t r = 1; r < WORKERS; r++) control.row[r].open = 0;
  aspen_dse_apart(d);
  check(!d->apart, "alone");
  for (uint32_t r = 1; r < WORKERS; r++) control.row[r].open = 1;
  aspen_dse_apart(d);
  check(!d->apart && d->heard_of != ASPEN_NONE, "one look is not enough");
}

int main(void) {
  control.signals.n_rows = WORKERS;
  control.signals.tick_ns_q32 = (uint64_t)1 << 32; /* a tick is a nanosecond */
  control.signals.steal = 1;
  for (int w = 0; w < WORKERS; w++) {
    aspen_worker_reset(&control, (uint32_t)w, ASPEN_NONE, 0, 0, 0);
    control.row[w].open = 1;
    control.worker[w].state = ASPEN_WORKER_RUNNING;
    aspen_dse_init(&dse[w], &control, &bell, (uint32_t)w, NULL, NULL, instances, (uint64_t *const *)links);
  }

  knows_what_is_apart();

  /* Nobody has a pace yet, then one: that is no comparison. */
  waiting(0, 1);
  settle(0, 4.0);
  check(about(control.worker[0].pace, 4096), "pace of one");
  check(about((double)control.worker[0].paced_ns, 240e6) && about((double)control.worker[0].expected_ns, 60e6), "the time that it took, in sum");
  check(dse[0].leaves == 0 && !aspen_dse_leaves(&dse[0]), "slow beside nobody");

  /* Alike within the quarter. */
  settle(1, 1.0);
  settle(2, 1.2);
  check(dse[1].leaves == 0 && dse[2].leaves == 0, "1.2 is alike");

  /* Four times as slow as one and 3.3 times as slow as another; the fourth row is closed, so its worker does not count. */
  settle(3, 1.0);
  control.row[3].open = 0;
  works(0, 10, 4.0);
  check(about(dse[0].leaves, 3.0 + (4.0 / 1.2 - 1)), "how much it leaves");
  for (uint32_t n = 0; n < 10; n++) {
    waiting(0, n / 2);
    waiting(1, n - n / 2);
    dse[0].left_since = 0;
    check(aspen_dse_leaves(&dse[0]) == (n >= 1 && n - 0.5 < dse[0].leaves), "tiles that wait in all rows count");
    check(!aspen_dse_leaves(&dse[1]) && !aspen_dse_leaves(&dse[2]), "fast ones leave nothing");
  }

  /* Beside one fast core, half the speed more or less: one of two waiting tiles is taken, the only one is left. */
  control.row[2].open = 0;
  for (int k = 0; k < 2; k++) {
    settle(0, k ? 1.8 : 2.2);
    for (uint32_t n = 1; n <= 2; n++) {
      waiting(0, n);
      waiting(1, 0);
      dse[0].left_since = 0;
      check(aspen_dse_leaves(&dse[0]) == (n == 1), "the rule does not turn at half the speed");
    }
  }
  control.row[2].open = 1;
  settle(0, 4.0);

  /* Where nobody steals, nobody else would take them. */
  waiting(0, 1);
  waiting(1, 0);
  dse[0].left_since = 0;
  control.signals.steal = 0;
  check(!aspen_dse_leaves(&dse[0]), "leaves nothing without stealing");
  control.signals.steal = 1;
  check(aspen_dse_leaves(&dse[0]), "leaves it with stealing");

  /* A second of Python between kernels is not the core's. */
  for (int k = 0; k < 4; k++) {
    dse[2].opaque = ASPEN_ITEM(1, 1, k % 2);
    dse[2].lap = aspen_ticks() - 1000000000u;
    aspen_dse_complete_opaque(&dse[2], dse[2].opaque, 0, 0, NULL, 0);
    check(control.worker[2].kernel_ticks >= (k + 1) * 1000000000ull, "opaque tiles count as busy");
    works(2, 10, 1.2);
    check(about(control.worker[2].pace, 1.2 * 1024) && about((double)dse[2].patience, 4.8e5), "pace beside opaque tiles");
  }
  check(executed[0] == 1 && executed[1] == 1 && control.worker[2].opaque == 4, "opaque tiles were finished");

  /* Not for ever: as long as four tiles take here, 1.6 ms. */
  waiting(0, 1);
  waiting(1, 0);
  check(about((double)dse[0].patience, 16e5), "patience");
  dse[0].left_since = 0;
  check(aspen_dse_leaves(&dse[0]) && dse[0].left_since, "begins to leave");
  dse[0].left_since = aspen_ticks() - dse[0].patience - 1;
  check(!aspen_dse_leaves(&dse[0]), "has left it long enough");

  /* Taking: left at first and a sleeper is woken, once; taken when patience is over. */
  uint64_t item = ASPEN_ITEM(1, 1, 5), got = 0;
  uint8_t depth = 3;
  waiting(0, 0);
  check(aspen_pool_push(&control.row[0], &dse[0].s.user, 1, &item, &depth, 1, 0) == ASPEN_OK && control.row[0].waiting == 1, "counted when pushed");
  control.idle.sleepers = 1;
  dse[0].left_since = 0;
  uint32_t event = bell.event;
  check(aspen_dse_take(&dse[0], &got) == ASPEN_EMPTY && aspen_dse_take(&dse[0], &got) == ASPEN_EMPTY, "left");
  check(bell.event == event + 1, "one sleeper is woken");
  dse[0].left_since = aspen_ticks() - dse[0].patience - 1;
  check(aspen_dse_take(&dse[0], &got) == ASPEN_OK && got == item && !dse[0].left_since, "taken");
  check(control.row[0].waiting == 0 && control.row[0].first == 0, "counted when taken");

  /* What follows is followed. */
  check(aspen_pool_push(&control.row[1], &dse[1].s.user, 1, &item, &depth, 1, 0) == ASPEN_OK, "pushed");
  dse[0].follow = ASPEN_ITEM(1, 1, 6);
  check(aspen_dse_take(&dse[0], &got) == ASPEN_OK && got == ASPEN_ITEM(1, 1, 6), "followed");

  /* The other program has gone: as fast as the others again. */
  settle(0, 1.0);
  check(dse[0].leaves == 0 && aspen_dse_take(&dse[0], &got) == ASPEN_OK && got == item, "no longer slow");
  while (takes(0) != ASPEN_NONE) {}
  takes_parts();
  printf("fine\n");
  return 0;
}
