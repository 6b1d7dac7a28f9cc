/* What a worker makes of what it has measured (workers/kernels/stores.h), on a clock of the test's own. Ends with the line of the first check
 * that fails, or 0. */
#include "stores.h"

#define CHECK(x) \
  if (!(x)) return __LINE__

/* Runs n tiles of which those that stay in the caches take `kept` ticks a line, those that go past them `past`. Returns how many of them did. */
static int run(stores *s, int n, double kept, double past) {
  int went = 0;
  for (int i = 0; i < n; i++) {
    const stores_tile tile = stores_begin(s, STORES_LINES);
    stores_learn(s, tile.past, tile.past ? past : kept);
    went += tile.past;
  }
  return went;
}

static int check(void) {
  stores s = {0};
#if !STORES_PAST
  CHECK(run(&s, 1000, 100, 1) == 0);
  return 0;
#endif
  CHECK(!stores_begin(&s, STORES_LINES).past); /* nothing is known */
  stores_learn(&s, 0, 4);
  CHECK(stores_begin(&s, STORES_LINES).past); /* nothing of this is known */
  stores_learn(&s, 1, 5);
  CHECK(run(&s, 10 * STORES_TRY_PAST, 4, 5) == 10);
  CHECK(!stores_begin(&s, 1).past);
  stores_learn(&s, 0, 1000); /* interrupted */
  CHECK(!stores_begin(&s, STORES_LINES).past);
  CHECK(run(&s, 3, 4, 5) == 0);
  /* Caches become several: it takes some tiles to believe it, then a few tries stay in them. */
  CHECK(run(&s, 8, 40, 4) < 8);
  CHECK(stores_begin(&s, 1).past); /* small tiles do as large ones */
  const int went = run(&s, 10 * STORES_TRY_KEPT, 40, 4);
  CHECK(went >= 10 * STORES_TRY_KEPT - 11 && went < 10 * STORES_TRY_KEPT);
  /* And one again: the next try shows it. */
  CHECK(run(&s, STORES_TRY_KEPT, 4, 5) <= STORES_TRY_KEPT);
  CHECK(run(&s, STORES_TRY_PAST, 4, 5) <= 1);
  /* Three times as long is not enough. */
  CHECK(run(&s, STORES_TRY_PAST, 11, 4) <= 1);
  return 0;
}

int main(void) { return check(); }
