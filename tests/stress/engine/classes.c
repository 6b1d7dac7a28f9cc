/* What a DSE takes where requests of several classes run (docs/protocol/pool.md, "Classes"): what it holds back, for how long, and what lower
 * classes get all the same.
 *
 * exit status: 0 everything is as it should be; else a line says what is not
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/loop.h"

size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call) { return 0; }

enum { WORKERS = 3, TILES = 64, HIGH = 1, NORMAL, LOW, REQUESTS = LOW }; /* a request of each class */
static struct aspen_control control;
static struct aspen_doorbell bell;
static struct aspen_dse dse[WORKERS], *const d = &dse[0];
static uint64_t next[REQUESTS + 1][TILES], *links[REQUESTS + 1];
static struct aspen_tile tiles[TILES];
static struct aspen_plan_view plan = {.tiles = tiles, .n_tiles = TILES, .end_tile = TILES - 1};
static struct aspen_instance_view view[REQUESTS + 1], *views[REQUESTS + 1];

static void check(int condition, const char *what) {
  if (condition) return;
  printf("WRONG: %s\n", what);
  exit(1);
}

static uint64_t tile_of(uint32_t request, uint32_t tile) { return ASPEN_ITEM(1, request, tile); }

static void push(uint32_t row, uint64_t item) {
  uint8_t depth = tiles[ASPEN_ITEM_TILE(item)].depth;
  uint64_t order = control.instance[ASPEN_ITEM_INSTANCE(item)].order;
  check(aspen_pool_push(&control.row[row], &dse[row].s.user, order, &item, &depth, 1, 0) == ASPEN_OK, "pushed");
}

static uint64_t takes(uint32_t w) {
  uint64_t item = 0;
  return aspen_dse_take(&dse[w], &item) == ASPEN_OK ? item : 0;
}

static void runs(int high, int normal, int low) {
  control.claim.running = (uint64_t)high * ASPEN_RUNNING(0) + (uint64_t)normal * ASPEN_RUNNING(1) + (uint64_t)low * ASPEN_RUNNING(2);
}

static void patience(uint32_t ns) {
  control.signals.preempt_ns = ns;
  runs(0, 0, 1);
  for (uint32_t w = 0; w < WORKERS; w++) check(!takes(w), "nothing is left"); /* and what was is forgotten */
}

static void one_class(void) {
  patience(UINT32_MAX);
  for (int n = 1; n < 3; n++) {
    runs(0, 0, n);
    d->follow = tile_of(LOW, 1);
    push(0, tile_of(LOW, 2)), push(1, tile_of(LOW, 3));
    check(takes(0) == tile_of(LOW, 1) && takes(0) == tile_of(LOW, 2) && takes(0) == tile_of(LOW, 3), "requests of one class take turns by age");
    check(!d->shared_at && !control.worker[0].held, "and nobody looks at a clock");
  }
}

static void holds_back(void) {
  patience(UINT32_MAX);
  runs(1, 0, 1);
  d->follow = tile_of(LOW, 1);
  push(0, tile_of(LOW, 2)), push(1, tile_of(LOW, 3));
  check(!takes(0) && !d->follow && control.row[0].waiting == 2, "what follows goes back to the pool");
  check(!takes(0) && control.worker[0].held == 1, "a gap is one, however often one looks");
  check(control.worker[0].held_ticks && !control.worker[0].lent_ticks, "and lasts");
  check(aspen_dse_work(d), "who holds back does not sleep");
  push(2, tile_of(HIGH, 1));
  check(takes(0) == tile_of(HIGH, 1) && !takes(0) && control.worker[0].held == 2, "a tile of the higher class is taken wherever it waits");
  control.row[0].first = control.instance[HIGH].order;
  check(!takes(0), "who comes late for one gets none of a lower class");
  control.row[0].first = control.instance[LOW].order;
  control.row[2].lock = 3;
  control.row[2].first = control.instance[HIGH].order;
  check(!takes(0), "nor does who finds its row locked");
  control.row[2].lock = 0, control.row[2].first = 0;
  runs(0, 0, 1);
  check(takes(0) && takes(0) && takes(0) && !takes(0), "when the last request of the higher class is complete all are taken");
  runs(0, 1, 1);
  push(0, tile_of(LOW, 1));
  check(!takes(0), "normal goes before low");
  runs(1, 1, 0);
  push(0, tile_of(NORMAL, 1));
  check(!takes(0), "and high before normal");
  runs(0, 1, 1);
  check(takes(0) == tile_of(NORMAL, 1), "which is taken when high is complete");
  runs(0, 0, 1);
  check(takes(0) == tile_of(LOW, 1), "all are taken");
}

/* Patience of no time at all: each gap is over at the second look. */
static void has_enough(void) {
  patience(0);
  runs(1, 0, 1);
  push(0, tile_of(LOW, 1)), push(0, tile_of(LOW, 2)), push(0, tile_of(LOW, 3));
  check(!takes(0) && takes(0) == tile_of(LOW, 1), "when a gap is over tiles of lower classes are taken");
  push(1, tile_of(HIGH, 1));
  d->follow = tile_of(LOW, 4);
  check(takes(0) == tile_of(HIGH, 1), "but those of the higher class go first");
  check(!takes(0) && d->gap == ASPEN_GAP_HOLDS, "and then there is another gap");
  check(takes(0) && takes(0) && takes(0) && !takes(0), "that is over, too");
}

static void lends(void) {
  patience(UINT32_MAX);
  runs(1, 0, 1);
  push(1, tile_of(HIGH, 1));
  check(takes(0) == tile_of(HIGH, 1) && d->owed_ns < 0, "a DSE begins with nothing to lend");
  d->owed_ns = INT64_MAX / 2;
  d->follow = tile_of(HIGH, 2);
  push(1, tile_of(LOW, 1)), push(1, tile_of(LOW, 2));
  check(takes(0) == tile_of(LOW, 1) && control.worker[0].lent == 1, "at its turn a tile of a lower class goes first");
  d->owed_ns = -1;
  check(takes(0) == tile_of(HIGH, 2) && !takes(0), "then what would have followed, and no second one");
  check(control.worker[0].lent_ticks, "and it took its time");
  d->owed_ns = INT64_MAX / 2;
  check(takes(0) == tile_of(LOW, 2) && control.worker[0].lent == 2, "also in a gap");
  d->owed_ns = INT64_MAX / 2;
  push(0, tile_of(HIGH, 3));
  check(takes(0) == tile_of(HIGH, 3) && d->owed_ns < 0, "a turn without a tile passes");
  runs(1, 1, 1);
  for (uint32_t t = 0; t < 4; t++) push(0, tile_of(NORMAL, t)), push(1, tile_of(LOW, t));
  uint32_t got[REQUESTS + 1] = {0};
  for (int k = 0; k < 4; k++) {
    d->owed_ns = INT64_MAX / 2;
    got[ASPEN_ITEM_INSTANCE(takes(0))]++;
  }
  check(got[NORMAL] + got[LOW] == 4 && got[NORMAL] >= 2 && got[LOW] >= 1, "lower classes have turns, the lowest, too");
  runs(0, 0, 1);
  while (takes(0)) {}
}

/* Tiles of a higher class without end: those of a lower one go on. */
static void progresses(void) {
  patience(1);
  runs(1, 0, 1);
  for (uint32_t t = 0; t < 3; t++) push(1, tile_of(LOW, t));
  uint64_t before = control.worker[0].lent;
  push(0, tile_of(HIGH, 1));
  while (control.worker[0].lent < before + 3) {
    uint64_t item = takes(0);
    check(item != 0, "something is taken as long as something is there");
    if (ASPEN_ITEM_INSTANCE(item) == HIGH) push(0, item);
  }
  check(takes(0) == tile_of(HIGH, 1) && !control.row[1].first, "all are executed");
}

int main(void) {
  control.signals.n_rows = WORKERS;
  control.signals.steal = 1;
  control.signals.tick_ns_q32 = (uint64_t)1 << 32;
  for (uint32_t t = 0; t < TILES; t++) tiles[t].depth = (uint8_t)(t % ASPEN_DEPTHS);
  for (uint32_t r = 1; r <= REQUESTS; r++) {
    links[r] = next[r], views[r] = &view[r], view[r].plan = &plan;
    control.instance[r].order = aspen_order(r - 1, 0, 10 - r); /* the lowest is the oldest */
  }
  for (uint32_t w = 0; w < WORKERS; w++) aspen_dse_init(&dse[w], &control, &bell, w, NULL, NULL, views, links);
  one_class();
  holds_back();
  has_enough();
  lends();
  progresses();
  printf("fine\n");
  return 0;
}
