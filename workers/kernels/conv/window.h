/* One spatial axis of a sliding window: which taps of the window at an output position lie inside the input. */
#ifndef ASPEN_WINDOW_H
#define ASPEN_WINDOW_H
#include <stdint.h>

typedef struct window {
  int64_t in, kernel, stride, dilation, pad; /* input length; tap k of position o reads input o * stride - pad + k * dilation */
} window;

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Input position of tap 0; may lie outside. */
static inline int64_t window_start(const window *w, int64_t o) { return o * w->stride - w->pad; }

/* Taps [*from, *to) that lie inside the input; an empty range for none. */
static inline void window_taps(const window *w, int64_t o, int64_t *from, int64_t *to) {
  const int64_t first = window_start(w, o);
  *from = first < 0 ? min64((-first + w->dilation - 1) / w->dilation, w->kernel) : 0;
  *to = first >= w->in ? *from : max64(*from, min64(w->kernel, (w->in - 1 - first) / w->dilation + 1));
}

/* Positions [*from, *to) among [lo, hi) whose taps all lie inside. */
static inline void window_inside(const window *w, int64_t lo, int64_t hi, int64_t *from, int64_t *to) {
  const int64_t last = w->in - 1 - (w->kernel - 1) * w->dilation + w->pad; /* largest o * stride */
  *from = min64(max64(lo, (max64(w->pad, 0) + w->stride - 1) / w->stride), hi);
  *to = last < 0 ? *from : max64(*from, min64(hi, last / w->stride + 1));
}

#endif
