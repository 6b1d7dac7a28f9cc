/* Convolutions over three axes, said to kernels of images.
 *
 * A volume [N, C, D, H, W] is a row of images along D. An image of output is a sum over as many images of input as the window has depth:
 * its planes. Neighbouring images of output that see the same planes of the window inside the volume are one batch for a kernel over two
 * axes. That kernel only has to sum over the planes besides. Planes outside are skipped; this depends on the output's place alone.
 */
#ifndef ASPEN_VOLUME_H
#define ASPEN_VOLUME_H
#include "kernel.h"
#include "conv/window.h"

#define VOLUME_ARGS 9

typedef struct planes {
  int64_t n, step; /* of input that an image of output is summed over, and elements from one to the next */
  int64_t first, all; /* which of the window's is the first of them, and how many that has */
} planes;

static const planes one_plane = {1, 0, 0, 1};

typedef struct volume {
  aspen_call call; /* the batch of images at hand */
  planes planes;
  aspen_arg args[VOLUME_ARGS];
  int64_t dims[VOLUME_ARGS][4], strides[VOLUME_ARGS][4];
  const aspen_call *whole;
  window depth;
  int64_t image, next;     /* of the batch to come: index on axis 0, on the axis of depth */
  int64_t plane_weights;   /* floats between the weights of two planes */
} volume;

static inline int is_volume(const aspen_call *c) { return c->args[0].rank == 5; }

/* An operand without its axis of depth: the images of one volume at a time, `along` planes from one to the next. */
static inline void volume_flatten(volume *v, int i, int64_t along) {
  const aspen_arg *a = &v->whole->args[i];
  v->args[i].rank = 4;
  v->args[i].dims = v->dims[i];
  v->args[i].strides = v->strides[i];
  v->dims[i][0] = a->dims[2], v->strides[i][0] = along * a->strides[2];
  v->dims[i][1] = a->dims[1], v->strides[i][1] = a->strides[1];
  for (int k = 2; k < 4; k++) v->dims[i][k] = a->dims[k + 1], v->strides[i][k] = a->strides[k + 1];
}

/* Before the first volume_next: `call` is like one of all planes. `at`: where the params of the depth are. */
static inline int volume_open(volume *v, const aspen_call *c, int at) {
  const int64_t *p = c->params + at;
  if (c->n_inputs + 1 > VOLUME_ARGS || c->n_inputs < 2 || c->args[1].rank != 5 || p[0] < 1) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int residual = c->n_inputs > 3 && c->args[4].dtype;
  if (residual && c->args[4].rank != 5) return ASPEN_KERNEL_BAD_ARGUMENT;
  v->call = *c;
  v->call.args = v->args;
  v->whole = c;
  v->depth = (window){c->args[1].dims[2], p[0], p[1], p[2], p[3]};
  memcpy(v->args, c->args, (c->n_inputs + 1) * sizeof *v->args);
  volume_flatten(v, 0, 1);
  volume_flatten(v, 1, v->depth.stride);
  if (residual) volume_flatten(v, 4, 1);
  v->call.lo[0] = 0, v->call.hi[0] = c->hi[2] - c->lo[2];
  for (int k = 2; k < 4; k++) v->call.lo[k] = c->lo[k + 1], v->call.hi[k] = c->hi[k + 1];
  v->planes = (planes){v->depth.kernel, v->depth.dilation * c->args[1].strides[2], 0, v->depth.kernel};
  v->image = c->lo[0], v->next = c->lo[2];
  v->plane_weights = 0;
  return 0;
}

/* The next batch of images of the box: 0 where there is none. All operands are f32. */
static inline int volume_next(volume *v) {
  const aspen_call *c = v->whole;
  if (v->next >= c->hi[2]) v->image++, v->next = c->lo[2];
  if (v->image >= c->hi[0] || v->next >= c->hi[2]) return 0;
  int64_t from, to, a, b, end = v->next + 1;
  window_taps(&v->depth, v->next, &from, &to);
  for (; end < c->hi[2]; end++) {
    window_taps(&v->depth, end, &a, &b);
    if (b - a != to - from || (to > from && a != from)) break;
  }
  for (int i = 0; i < 5; i += i ? 3 : 1)
    if (i < 2 || (c->n_inputs > 3 && c->args[4].dtype)) v->args[i].ptr = c->args[i].ptr + v->image * c->args[i].strides[0] * (int64_t)sizeof(float);
  v->args[1].ptr += (from * v->depth.dilation - v->depth.pad) * c->args[1].strides[2] * (int64_t)sizeof(float);
  v->args[2].ptr = c->args[2].ptr + from * v->plane_weights * (int64_t)sizeof(float);
  v->planes.n = to - from;
  v->planes.first = from;
  v->call.lo[0] = v->next, v->call.hi[0] = end;
  v->next = end;
  return 1;
}

#endif
