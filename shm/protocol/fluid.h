/* When requests end, by a fluid simulation (docs/protocol/deadlines.md, "Simulation"): work flows through all cores at once, the earliest order
 * first, as far as each request can use cores and its plan has instances. No shared memory here: only numbers. */
#ifndef ASPEN_FLUID_H
#define ASPEN_FLUID_H
#include <stdint.h>

#define ASPEN_NEVER 1e300

/* One request; times in ns, cores of speed 1. */
struct aspen_fluid {
  uint64_t order;
  double work;    /* core time that is left */
  double most;    /* cores that it can use at a time, more than 0 */
  uint32_t plan;
  uint32_t limit; /* requests of the plan that run at a time: its instances */
  uint32_t holds; /* it has an instance */
  uint32_t mark;  /* the caller's, as the next two */
  uint32_t own;
  uint64_t deadline_ns;
  double ends;    /* from now on; ASPEN_NEVER: it does not. By aspen_fluid_run */
};

static inline void aspen_fluid_sort(struct aspen_fluid *r, uint32_t n) {
  for (uint32_t k = 1; k < n; k++) {
    struct aspen_fluid one = r[k];
    uint32_t at = k;
    for (; at > 0 && r[at - 1].order > one.order; at--) r[at] = r[at - 1];
    r[at] = one;
  }
}

/* May this request have an instance now? It holds one then. */
static inline int aspen_fluid_holds(struct aspen_fluid *r, uint32_t n, uint32_t at) {
  uint32_t held = 0;
  if (r[at].holds) return 1;
  for (uint32_t k = 0; k < n; k++) held += r[k].plan == r[at].plan && r[k].holds && r[k].ends == ASPEN_NEVER;
  r[at].holds = held < r[at].limit;
  return (int)r[at].holds;
}

/* Until the first request ends with the cores as they are shared now, or for `longest`. Returns 0 if nothing runs. `rate`: room for n numbers. */
static inline int aspen_fluid_step(struct aspen_fluid *r, uint32_t n, double cores, double longest, double *now, double *rate) {
  double step = ASPEN_NEVER;
  for (uint32_t k = 0; k < n; k++) {
    rate[k] = 0;
    if (r[k].ends != ASPEN_NEVER || !(cores > 1e-9) || !aspen_fluid_holds(r, n, k)) continue;
    rate[k] = r[k].most < cores ? r[k].most : cores;
    cores -= rate[k];
    if (r[k].work / rate[k] < step) step = r[k].work / rate[k];
  }
  if (step >= ASPEN_NEVER) return 0;
  if (step > longest) step = longest;
  *now += step;
  for (uint32_t k = 0; k < n; k++) {
    if (!(rate[k] > 0)) continue;
    r[k].work -= rate[k] * step;
    if (r[k].work < 1e-3) r[k].ends = *now; /* a picosecond of work is none */
  }
  return 1;
}

/* Sorts the requests by order and says when each ends. Each step ends one request at least, so there are n steps at most. `rate`: room for n numbers. */
static inline void aspen_fluid_run(struct aspen_fluid *r, uint32_t n, double cores, double *rate) {
  double now = 0;
  aspen_fluid_sort(r, n);
  for (uint32_t k = 0; k < n; k++) r[k].ends = ASPEN_NEVER;
  for (uint32_t k = 0; k < n; k++)
    if (!aspen_fluid_step(r, n, cores, ASPEN_NEVER, &now, rate)) return;
}

/* Lets `span` pass. Those that end go. Returns how many are left. */
static inline uint32_t aspen_fluid_pass(struct aspen_fluid *r, uint32_t n, double cores, double span, double *rate) {
  double now = 0;
  uint32_t left = 0;
  aspen_fluid_sort(r, n);
  for (uint32_t k = 0; k < n; k++) r[k].ends = ASPEN_NEVER;
  for (uint32_t k = 0; k <= n && now < span; k++)
    if (!aspen_fluid_step(r, n, cores, span - now, &now, rate)) break;
  for (uint32_t k = 0; k < n; k++)
    if (r[k].ends == ASPEN_NEVER) r[left++] = r[k];
  return left;
}

#endif
