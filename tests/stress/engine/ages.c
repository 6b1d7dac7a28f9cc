/* The order in which tiles of several requests are taken (docs/protocol/pool.md, "Age"): rows keep them by request and depth, and a DSE looks
 * for older requests' tiles wherever they wait.
 *
 * exit status: 0 everything is as it should be; else a line says what is not
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/loop.h"

size_t aspen_kernel_scratch(uint32_t kernel, const aspen_call *call) { return 0; }

enum { WORKERS = 3, REQUESTS = 2 * ASPEN_LANES, TILES = 64 };
static struct aspen_control control;
static struct aspen_doorbell bell;
static struct aspen_dse dse[WORKERS];
static uint64_t next[REQUESTS + 1][TILES], *links[REQUESTS + 1];
static struct aspen_tile tiles[TILES];
static struct aspen_plan_view plan = {.tiles = tiles, .n_tiles = TILES, .end_tile = TILES - 1};
static struct aspen_instance_view view[REQUESTS + 1], *views[REQUESTS + 1];
static uint32_t seed;

static void check(int condition, const char *what) {
  if (condition) return;
  printf("WRONG: %s (seed %u)\n", what, seed);
  exit(1);
}

static uint32_t below(uint32_t n) {
  static uint32_t state = 1;
  seed = state;
  return aspen_random(&state) % n;
}

/* A request's tile, whose depth is its number modulo ASPEN_DEPTHS. */
static uint64_t tile_of(uint32_t request, uint32_t tile) { return ASPEN_ITEM(1, request, tile); }
static uint64_t order_of(uint64_t item) { return control.instance[ASPEN_ITEM_INSTANCE(item)].order; }
static uint8_t depth_of(uint64_t item) { return tiles[ASPEN_ITEM_TILE(item)].depth; }

static void push(uint32_t row, uint64_t item) {
  uint8_t depth = depth_of(item);
  check(aspen_pool_push(&control.row[row], &dse[row].s.user, order_of(item), &item, &depth, 1, 0) == ASPEN_OK, "pushed");
}

static uint64_t pop(uint32_t row) {
  uint64_t item = 0;
  return aspen_pool_pop(&control.row[row], &dse[row].s.user, (struct aspen_filter){0}, 0, &item) == ASPEN_OK ? item : 0;
}

static int before(uint64_t a, uint64_t b) { return order_of(a) != order_of(b) ? order_of(a) < order_of(b) : depth_of(a) < depth_of(b); }

/* Requests in random order of age and class, tiles pushed and taken at random: beside a list that is searched. With more requests than lanes nothing is lost,
 * `first` is the oldest one's order, and that one's tiles are not held up by those of more than one other. */
static void one_row(uint32_t n_requests) {
  static uint64_t there[REQUESTS * TILES];
  static uint8_t in[REQUESTS + 1][TILES];
  uint32_t n = 0;
  for (uint32_t r = 1; r <= n_requests; r++) control.instance[r].order = aspen_order(below(ASPEN_CLASSES), (int)below(2), 1 + below(1000) * REQUESTS + r);
  memset(in, 0, sizeof in);
  for (uint32_t turn = 0; turn < 20000; turn++) {
    uint32_t request = 1 + below(n_requests), tile = below(TILES);
    if (below(100) < (turn / 1000 % 2 ? 35u : 60u) && !in[request][tile]) {
      push(0, there[n++] = tile_of(request, tile));
      in[request][tile] = 1;
    } else {
      uint64_t item = pop(0);
      check(!item == !n, "something is taken as long as something is there");
      if (!item) continue;
      uint32_t at = n;
      for (uint32_t k = 0; k < n; k++) {
        if (there[k] == item) at = k;
        else if (n_requests <= ASPEN_LANES) check(!before(there[k], item), "the oldest request's shallowest tile is taken");
      }
      check(at < n, "what is taken was there");
      in[ASPEN_ITEM_INSTANCE(item)][ASPEN_ITEM_TILE(item)] = 0;
      there[at] = there[--n];
    }
    uint64_t oldest = 0;
    for (uint32_t k = 0; k < n; k++)
      if (!oldest || order_of(there[k]) < oldest) oldest = order_of(there[k]);
    if (n_requests <= ASPEN_LANES) check(control.row[0].first == oldest, "a row says how old its oldest request is");
    else check(!n == !control.row[0].first && control.row[0].first <= oldest, "a row that shares lanes says that something is there");
    check(control.row[0].waiting == n, "tiles are counted");
  }
  while (pop(0)) n--;
  check(n == 0 && !control.row[0].first && !control.row[0].busy, "all tiles are taken");
}

static uint64_t takes(uint32_t w) {
  uint64_t item = 0;
  return aspen_dse_take(&dse[w], &item) == ASPEN_OK ? item : 0;
}

/* Request 1 is older than 2, 3 has a higher class. */
static void several_rows(void) {
  control.instance[1].order = aspen_order(1, 0, 7);
  control.instance[2].order = aspen_order(1, 0, 9);
  control.instance[3].order = aspen_order(0, 0, 11);
  control.claim.running = 3;
  push(1, tile_of(1, 20)), push(0, tile_of(2, 0));
  check(takes(0) == tile_of(1, 20) && takes(0) == tile_of(2, 0), "an older request's tile is taken from another row first, however deep");
  dse[0].follow = tile_of(2, 1);
  push(1, tile_of(1, 20));
  check(takes(0) == tile_of(1, 20) && takes(0) == tile_of(2, 1), "what follows waits for an older request's tile in another row");
  dse[0].follow = tile_of(2, 1);
  push(0, tile_of(1, 20));
  check(takes(0) == tile_of(1, 20) && takes(0) == tile_of(2, 1), "and in the own row");
  dse[0].follow = tile_of(1, 1);
  push(0, tile_of(1, 0)), push(1, tile_of(2, 0));
  check(takes(0) == tile_of(1, 1), "what follows goes before its own request's tiles");
  check(takes(0) == tile_of(1, 0) && takes(0) == tile_of(2, 0), "then those, then a younger request's");
  dse[0].follow = tile_of(1, 1);
  push(1, tile_of(2, 0)), push(2, tile_of(3, 40));
  check(takes(0) == tile_of(3, 40) && takes(0) == tile_of(1, 1) && takes(0) == tile_of(2, 0), "a higher class goes first");
  push(1, tile_of(2, 0)), push(2, tile_of(1, 40));
  check(takes(0) == tile_of(1, 40) && takes(0) == tile_of(2, 0), "of two rows that of the oldest request");
  control.row[1].lock = 2;
  push(0, tile_of(2, 0));
  control.row[1].first = aspen_order(1, 0, 7);
  check(takes(0) == tile_of(2, 0), "a thief does not wait for a lock");
  control.row[1].lock = 0, control.row[1].first = 0;
  control.signals.steal = 0;
  control.row[1].open = 1;
  push(1, tile_of(1, 0)), push(0, tile_of(2, 0));
  check(takes(0) == tile_of(2, 0) && !takes(0), "without stealing others' rows are others'");
  control.row[1].open = 0;
  check(takes(0) == tile_of(1, 0), "but for those without a worker");
  control.signals.steal = 1;
  control.claim.running = 1;
  push(1, tile_of(1, 0)), push(0, tile_of(1, 1));
  check(takes(0) == tile_of(1, 1) && takes(0) == tile_of(1, 0), "a request alone: the own row first");
}

int main(void) {
  control.signals.n_rows = WORKERS;
  control.signals.steal = 1;
  for (uint32_t t = 0; t < TILES; t++) tiles[t].depth = (uint8_t)(t % ASPEN_DEPTHS);
  for (uint32_t r = 1; r <= REQUESTS; r++) links[r] = next[r], views[r] = &view[r], view[r].plan = &plan;
  for (uint32_t w = 0; w < WORKERS; w++) aspen_dse_init(&dse[w], &control, &bell, w, NULL, NULL, views, links);
  for (uint32_t n = 1; n <= REQUESTS; n = n < 4 ? n + 1 : n * 2) one_row(n);
  several_rows();
  printf("fine\n");
  return 0;
}
