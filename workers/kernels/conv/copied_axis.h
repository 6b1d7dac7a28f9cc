/* Where the taps of a window lie in a copy of its input, by axis. Positions of input that no tap reads are left out where that is
 * shorter. */
#ifndef ASPEN_COPIED_AXIS_H
#define ASPEN_COPIED_AXIS_H
#include "conv/window.h"

/* The copy of one axis, for `n` positions of output: tap k of position i sits at i * step + k * tap. */
typedef struct copied_axis {
  int64_t size, step, tap;
  int compact; /* one slot for each (position, tap); otherwise one for each position of input from first to last */
} copied_axis;

static copied_axis copy_axis(const window *s, int64_t n) {
  const int64_t reach = (n - 1) * s->stride + (s->kernel - 1) * s->dilation + 1;
  if (n * s->kernel < reach) return (copied_axis){n * s->kernel, s->kernel, 1, 1};
  return (copied_axis){reach, s->stride, s->dilation, 0};
}

#endif
