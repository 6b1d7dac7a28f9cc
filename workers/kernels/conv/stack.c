/* STACK: layers that do not mix channels, depth-first (BrainSlug: Weber et al., 2018, sections 3 and 4).
 *
 * A program of steps, each a call of POOL, DWCONV, UNARY, BINARY or TERNARY, runs for a few channels of an image at a time. Rows roll
 * through it. A step makes rows as soon as those that its window sees are there. Its rows stay in scratch only until the steps behind it
 * have seen them. So nothing is computed twice within a tile. A few rows of a few channels of each step are alive, which fit a core's own
 * cache, whatever the height of the image. (The paper cuts patches instead, whose margins are computed again.)
 *
 * A value lies in its buffer as rows of ASPEN_STACK_CHANNELS channels, channels last. Steps see it with the indices of the whole image:
 * pointers are moved back by the missing part. So a step's kernel makes the same bits as in a call of its own. Images and outputs whose
 * channels do not lie side by side are read and written by a COPY, a step like the others. Where all images have the pixels of a row side
 * by side and all steps are as good at that, buffers have them, too. Then nothing is copied. POOL (pool/planes.h) and kernels of elements
 * are such steps.
 *
 * A COPY takes a step's result to an output. Where the tile has all rows of the image the output is the step's buffer.
 */
#include "kernel.h"
#include "numbers.h"
#include "vector/vec.h"
#include "conv/window.h"

enum {
  OUTPUT = ASPEN_STACK_OUTPUT,
  HEAD = 5, /* words of a step before its inputs */
  REFS = ASPEN_STACK_REFS,
  WORDS = ASPEN_STACK_WORDS,
  MOST = ASPEN_STACK_STEPS,
  CHANNELS = ASPEN_STACK_CHANNELS,
  IMAGES = ASPEN_STACK_IMAGES,
  OUTPUTS = ASPEN_STACK_OUTPUTS,
  COPIES = IMAGES + OUTPUTS, /* steps besides those of the program */
  BAND_BYTES = 32 << 10, /* rows that a step makes at a time, about */
  /* the same along rows: a part of this for each step, within bounds */
  PLANES_BYTES = 512 << 10, PLANES_MOST = 64 << 10, PLANES_LEAST = 16 << 10,
  TOGETHER = 2,          /* rows of windows that POOL likes to make together */
  STEPS_A_COPY = 3,      /* so many steps are as fast along rows as along channels and a copy … */
  NARROW = 64,           /* … and of rows with fewer pixels than this, one */
};

/* An operand of a step: an input of the call, or the result of an earlier step. */
typedef struct ref {
  int input, step; /* one of them, the other -1; both -1: absent */
} ref;

typedef struct step {
  uint32_t kernel;
  int n_inputs;
  ref in[REFS];
  window rows;           /* of in[0]: other images are read row by row */
  const int64_t *params;
  int64_t width;
  int output;            /* of the call, which takes the place of its buffer; -1: none */
  int rolls;             /* POOL that takes rows from rings and puts them there */
  /* its buffer */
  int ring;              /* row r lies in place r % held; or else rows lie side by side from `first` on */
  int64_t live, held;    /* rows that steps behind it may need at once, and rows that the buffer can hold */
  float *buffer;
  /* while it runs */
  int64_t begin, made, end; /* rows from `begin` on, up to `made` by now, up to `end` when all is done */
  int64_t first;            /* of the buffer, unless it is a ring */
} step;

typedef struct stack {
  const aspen_call *call;
  int n, n_outputs;
  int planes;       /* whether the pixels of a row, not channels, lie side by side */
  int64_t channels; /* that run through the program at a time */
  int64_t band;     /* bytes that a step makes at a time, about */
  step steps[MOST + COPIES];
  size_t kernels_at, bytes; /* scratch of the steps' kernels behind the buffers; all */
} stack;

int FN(pool)(const aspen_call *);
int FN(pool_rolls)(const int64_t *params, int64_t height, int64_t width, int planes);
int FN(dwconv)(const aspen_call *);
int FN(unary)(const aspen_call *);
int FN(binary)(const aspen_call *);
int FN(ternary)(const aspen_call *);
int FN(copy)(const aspen_call *);

static aspen_kernel_fn function(uint32_t kernel) {
  switch (kernel) {
  case ASPEN_K_POOL: return FN(pool);
  case ASPEN_K_DWCONV: return FN(dwconv);
  case ASPEN_K_UNARY: return FN(unary);
  case ASPEN_K_BINARY: return FN(binary);
  case ASPEN_K_TERNARY: return FN(ternary);
  case ASPEN_K_COPY: return FN(copy);
  default: return NULL;
  }
}

static int windowed(uint32_t kernel) { return kernel == ASPEN_K_POOL || kernel == ASPEN_K_DWCONV; }

/* ---- rows ---- */

/* The window that step s has on its input i, along rows. */
static window seen(const step *s, int i) {
  const window row = {s->rows.in, 1, 1, 1, 0};
  return i == 0 ? s->rows : row;
}

/* First row, and row behind the last, that rows [lo, hi) see, in an image without end. */
static int64_t sees_from(window w, int64_t lo) { return lo * w.stride - w.pad; }
static int64_t sees_to(window w, int64_t hi) { return (hi - 1) * w.stride - w.pad + (w.kernel - 1) * w.dilation + 1; }

/* Rows that can be made of `there` rows of an input. */
static int64_t makes(window w, int64_t there) {
  const int64_t left = there + w.pad - (w.kernel - 1) * w.dilation - 1;
  return left < 0 ? 0 : left / w.stride + 1;
}

/* Rows of `value` that must be there at once for any step to proceed: the paths of its inputs may differ in length. */
static int64_t alive(const stack *s, int value) {
  const int64_t FAR = 1 << 20, FARTHEST = (int64_t)1 << 40;
  int64_t most = 1;
  for (int k = value + 1; k < s->n; k++) {
    int64_t to[MOST + COPIES], from = INT64_MAX;
    for (int i = 0; i < s->steps[k].n_inputs; i++)
      if (s->steps[k].in[i].step == value) from = min64(from, sees_from(seen(&s->steps[k], i), FAR));
    if (from == INT64_MAX) continue;
    for (int j = value; j < k; j++) to[j] = INT64_MIN;
    to[k] = FAR + TOGETHER;
    for (int j = k; j > value; j--)
      for (int i = 0; i < s->steps[j].n_inputs && to[j] != INT64_MIN; i++) {
        const int of = s->steps[j].in[i].step;
        if (of >= value) to[of] = min64(max64(to[of], sees_to(seen(&s->steps[j], i), to[j])), FARTHEST);
      }
    most = max64(most, to[value] - from);
  }
  return most;
}

/* Rows that a step makes at a time. */
static int64_t band(const stack *s, const step *t) {
  const int64_t rows = s->band / (max64(t->width, 1) * s->channels * (int64_t)sizeof(float));
  return max64(rows / TOGETHER * TOGETHER, TOGETHER);
}

/* ---- the program ---- */

static const aspen_arg *input(const stack *s, int i) { return &s->call->args[s->n_outputs + i]; }

/* Does what a step calls run along rows as well as along channels? `p`: its words. */
static int runs_along_rows(const int64_t *p) {
  const int64_t *q = p + HEAD + REFS;
  if (p[0] != ASPEN_K_POOL) return p[0] != ASPEN_K_DWCONV;
  return q[0] == 0 && q[1] == q[2] && (q[1] == 3 || q[1] == 5) && q[3] == 1 && q[4] == 1 && q[5] == 1 && q[6] == 1 && q[8] == q[2] / 2;
}

/* Finds out which way the rows of buffers lie, and for how many channels there is room in a band. `p`: words of n steps. Images are worth
 * copying if there are many more steps than copies. */
static void choose_layout(stack *s, const int64_t *p, int64_t n) {
  int64_t pixels = 1, copies = s->n_outputs;
  for (int i = 0; i < (int)s->call->n_inputs; i++) copies += input(s, i)->rank == 4 && input(s, i)->dims[3] > 1;
  s->planes = 1;
  for (int i = 0; i < s->n_outputs; i++) s->planes &= s->call->args[i].strides[3] == 1;
  for (int64_t k = 0; k < n && s->planes; k++, p += WORDS) {
    pixels = max64(pixels, p[2] * p[3]);
    s->planes &= runs_along_rows(p) && n <= copies * (p[3] < NARROW ? 1 : STEPS_A_COPY);
    for (int64_t i = 0; i < p[1]; i++) {
      const aspen_arg *a = p[HEAD + i] >= 0 ? input(s, (int)p[HEAD + i]) : NULL;
      if (a && a->rank == 4 && a->dims[3] > 1) s->planes &= a->strides[3] == 1;
    }
  }
  s->band = s->planes ? max64(min64(PLANES_BYTES / n, PLANES_MOST), PLANES_LEAST) : BAND_BYTES;
  s->channels = s->planes ? min64(max64(s->band / (pixels * (int64_t)sizeof(float)), 1), CHANNELS) : CHANNELS;
}

/* Is input `i` of a step an image that is read by way of a COPY? An image that is broadcast along rows or columns is read as it is. */
static int is_copied(const stack *s, const step *t, int i, int64_t height) {
  const aspen_arg *a = input(s, t->in[i].input);
  if (s->planes || a->rank != 4 || a->strides[1] == 1 || a->dims[1] == 1) return 0;
  return (i == 0 && windowed(t->kernel)) || (a->dims[2] == height && a->dims[3] == t->width);
}

static void insert_copy(stack *s, int at) {
  step *const t = &s->steps[at];
  const aspen_arg *x = input(s, t->in[0].input);
  *t = (step){.kernel = ASPEN_K_COPY, .n_inputs = 1, .in = {t->in[0]}, .rows = {x->dims[2], 1, 1, 1, 0}, .width = x->dims[3], .output = -1};
}

/* Does an argument lie as buffers do? */
static int as_buffers(const stack *s, const aspen_arg *a) { return a->strides[s->planes ? 3 : 1] == 1; }

/* Output o of the call takes the result of step k. */
static void write_output(stack *s, int k, int o) {
  const aspen_call *c = s->call;
  const aspen_arg *out = &c->args[o];
  if (as_buffers(s, out) && s->steps[k].output < 0 && c->lo[2] == 0 && c->hi[2] == out->dims[2]) {
    s->steps[k].output = o;
    return;
  }
  const step *from = &s->steps[k];
  const step copy = {.kernel = ASPEN_K_COPY, .n_inputs = 1, .in = {{-1, k}}, .rows = {0, 1, 1, 1, 0}, .width = from->width, .end = from->end, .output = o};
  s->steps[s->n++] = copy;
}

/* Reads the program, with COPY steps where images lie another way than buffers do. */
static int read_program(stack *s) {
  const aspen_call *c = s->call;
  const int64_t *p = c->params + 1, n = c->params[0];
  int at[MOST], made_by[OUTPUTS] = {0}, copied[IMAGES], copies = 0;
  s->n = s->n_outputs = 0;
  if (n < 1 || n > MOST) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int k = 0; k < n; k++) {
    const int64_t *step = p + k * WORDS;
    if (step[1] < 1 || step[1] > REFS) return ASPEN_KERNEL_BAD_ARGUMENT;
    for (int i = 0; i < REFS; i++)
      if (step[HEAD + i] >= (int64_t)c->n_inputs) return ASPEN_KERNEL_BAD_ARGUMENT;
    s->n_outputs += step[OUTPUT] >= 0;
  }
  if (s->n_outputs < 1 || s->n_outputs > OUTPUTS) return ASPEN_KERNEL_BAD_ARGUMENT;
  choose_layout(s, p, n);
  for (int k = 0; k < n; k++, p += WORDS) {
    step t = {.kernel = (uint32_t)p[0], .n_inputs = (int)p[1], .width = p[3], .params = p + HEAD + REFS, .output = -1};
    if (!function(t.kernel) || p[OUTPUT] >= s->n_outputs) return ASPEN_KERNEL_BAD_ARGUMENT;
    for (int i = 0; i < REFS; i++) {
      const int64_t r = i < t.n_inputs ? p[HEAD + i] : -1;
      if (r < -1 - k) return ASPEN_KERNEL_BAD_ARGUMENT;
      t.in[i] = r >= 0 ? (ref){(int)r, -1} : r == -1 ? (ref){-1, -1} : (ref){-1, at[-2 - r]};
      if (r < 0 || !is_copied(s, &t, i, p[2])) continue;
      int found = 0;
      while (found < copies && s->steps[copied[found]].in[0].input != r) found++;
      if (found == copies) {
        if (copies == IMAGES) return ASPEN_KERNEL_BAD_ARGUMENT;
        s->steps[s->n].in[0] = t.in[i];
        insert_copy(s, s->n);
        copied[copies++] = s->n++;
      }
      t.in[i] = (ref){-1, copied[found]};
    }
    const int64_t *q = t.params;
    const int64_t in = t.in[0].step >= 0 ? 0 : t.in[0].input >= 0 ? input(s, t.in[0].input)->dims[2] : 0;
    t.rows = windowed(t.kernel) ? (window){in, q[1], q[3], q[5], q[7]} : (window){in, 1, 1, 1, 0};
    t.end = p[2]; /* the height of its image, until the rows of the tile are known */
    if (p[OUTPUT] >= 0) made_by[p[OUTPUT]] = s->n;
    at[k] = s->n;
    s->steps[s->n++] = t;
  }
  for (int o = 0; o < s->n_outputs; o++) write_output(s, made_by[o], o);
  for (int k = 0; k < s->n; k++) {
    step *t = &s->steps[k];
    if (t->kernel == ASPEN_K_COPY && t->in[0].input >= 0) t->end = t->rows.in;
    if (t->in[0].step >= 0) t->rows.in = s->steps[t->in[0].step].end;
  }
  return 0;
}

/* ---- calls of steps ---- */

typedef struct operands {
  aspen_arg arg[1 + REFS];
  int64_t dims[1 + REFS][4], strides[1 + REFS][4];
} operands;

/* The result of step k, with the indices of the image, from row `lo` on. `rolls`: the kernel knows rings. */
static void of_step(const stack *s, int k, const int64_t heights[], int64_t channel, int64_t lo, int rolls, operands *o, int i) {
  const step *t = &s->steps[k];
  if (t->output >= 0) {
    o->arg[i] = s->call->args[t->output];
    return;
  }
  const int64_t row = t->width * s->channels, right = s->planes ? 1 : s->channels, next = s->planes ? t->width : 1;
  int64_t *const dims = o->dims[i], *const strides = o->strides[i];
  dims[0] = s->call->args[0].dims[0], dims[1] = s->call->args[0].dims[1], dims[2] = heights[k], dims[3] = t->width;
  strides[0] = 0, strides[1] = next, strides[2] = row, strides[3] = right;
  const int64_t first = !t->ring ? t->first : rolls ? 0 : lo - lo % t->held;
  const intptr_t back = (intptr_t)(first * row + channel * next) * (intptr_t)sizeof(float);
  o->arg[i] = (aspen_arg){.ptr = (char *)((intptr_t)t->buffer - back), .dims = o->dims[i], .strides = o->strides[i], .dtype = ASPEN_DT_F32,
                          .rank = 4, .ring = t->ring && rolls ? (uint32_t)t->held : 0};
}

/* An input of the call; for kernels of elements as broadcast to the step's image. */
static void of_call(const stack *s, int k, int input_number, const int64_t heights[], operands *o, int i) {
  const step *t = &s->steps[k];
  o->arg[i] = *input(s, input_number);
  if (o->arg[i].rank != 4 || windowed(t->kernel)) return;
  const int64_t dims[4] = {s->call->args[0].dims[0], s->call->args[0].dims[1], heights[k], t->width};
  for (int a = 0; a < 4; a++) {
    o->strides[i][a] = o->arg[i].dims[a] == 1 && dims[a] != 1 ? 0 : o->arg[i].strides[a];
    o->dims[i][a] = dims[a];
  }
  o->arg[i].dims = o->dims[i], o->arg[i].strides = o->strides[i];
}

static void call_of(const stack *s, int k, const int64_t heights[], int64_t image, int64_t channel, int64_t channels, int64_t lo, int64_t hi,
                    operands *o, aspen_call *c) {
  const step *t = &s->steps[k];
  of_step(s, k, heights, channel, lo, t->rolls, o, 0);
  for (int i = 0; i < t->n_inputs; i++) {
    if (t->in[i].step >= 0)
      of_step(s, t->in[i].step, heights, channel, lo, t->rolls, o, 1 + i);
    else if (t->in[i].input >= 0)
      of_call(s, k, t->in[i].input, heights, o, 1 + i);
    else
      o->arg[1 + i] = (aspen_arg){.dtype = ASPEN_DT_NONE};
  }
  *c = (aspen_call){.args = o->arg, .n_inputs = (uint32_t)t->n_inputs, .params = t->params, .lo = {image, channel, lo, 0},
                    .hi = {image + 1, channel + channels, hi, t->width}, .apart = t->output >= 0 ? s->call->apart : 0};
}

/* ---- scratch ---- */

/* Is it a POOL that takes rings? */
static int rolls(const stack *s, const step *t) {
  if (t->kernel != ASPEN_K_POOL || (t->output >= 0 && !as_buffers(s, &s->call->args[t->output]))) return 0;
  if (t->in[0].step < 0) {
    const aspen_arg *x = input(s, t->in[0].input);
    return as_buffers(s, x) && FN(pool_rolls)(t->params, t->rows.in, x->dims[3], s->planes);
  }
  const step *of = &s->steps[t->in[0].step];
  if (of->output >= 0 && !as_buffers(s, &s->call->args[of->output])) return 0;
  return FN(pool_rolls)(t->params, t->rows.in, of->width, s->planes);
}

/* Can what step k makes lie in a ring? Its readers take rows from one, or read row by row. */
static int may_ring(const stack *s, int k) {
  for (int j = k + 1; j < s->n; j++)
    if (windowed(s->steps[j].kernel) && s->steps[j].in[0].step == k && !s->steps[j].rolls) return 0;
  return 1;
}

/* Reads the program and lays its buffers out from `base`. */
static int open_stack(stack *s, const aspen_call *c, char *base, int64_t heights[]) {
  s->call = c;
  const int error = read_program(s);
  if (error) return error;
  size_t at = 0;
  for (int k = 0; k < s->n; k++) {
    step *t = &s->steps[k];
    heights[k] = t->end;
    t->rolls = rolls(s, t);
  }
  for (int k = 0; k < s->n; k++) {
    step *t = &s->steps[k];
    t->live = alive(s, k);
    t->ring = t->output < 0 && may_ring(s, k);
    const int64_t rows = t->ring ? (t->live + TOGETHER - 1) / TOGETHER * TOGETHER + band(s, t) : t->live + 2 * band(s, t);
    t->held = min64(rows, max64(t->end, 1));
    t->buffer = (float *)(base + at);
    if (t->output < 0) at += ((size_t)(t->held * t->width * s->channels) * sizeof(float) + 63) & ~(size_t)63;
  }
  s->kernels_at = at;
  s->bytes = at;
  return 0;
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_stack(const aspen_call *c) {
  stack s;
  int64_t heights[MOST + COPIES];
  aspen_call part = *c;
  part.hi[2] = -1; /* some tile may not have all rows, and needs buffers for all steps */
  if (open_stack(&s, &part, (char *)64, heights)) return 0;
  size_t most = 0;
  for (int k = 0; k < s.n; k++) {
    operands o;
    aspen_call call;
    call_of(&s, k, heights, 0, 0, min64(s.channels, c->args[0].dims[1]), 0, min64(band(&s, &s.steps[k]), heights[k]), &o, &call);
    const size_t bytes = aspen_kernel_scratch(s.steps[k].kernel, &call);
    if (bytes > most) most = bytes;
  }
  return s.bytes + most;
}
#endif

/* ---- running ---- */

/* Plans the rows that each step has to make for the rows [lo, hi) of the outputs. */
static void plan_rows(stack *s, const int64_t heights[], int64_t lo, int64_t hi) {
  for (int k = 0; k < s->n; k++) {
    const int out = s->steps[k].output >= 0;
    s->steps[k].begin = out ? lo : INT64_MAX, s->steps[k].end = out ? hi : INT64_MIN;
  }
  for (int k = s->n - 1; k >= 0; k--) {
    step *t = &s->steps[k];
    if (t->begin > t->end) t->begin = t->end = 0; /* nobody reads it */
    for (int i = 0; i < t->n_inputs && t->begin < t->end; i++) {
      if (t->in[i].step < 0) continue;
      step *of = &s->steps[t->in[i].step];
      const int64_t h = heights[t->in[i].step];
      of->begin = min64(of->begin, min64(max64(sees_from(seen(t, i), t->begin), 0), h));
      of->end = max64(of->end, max64(min64(sees_to(seen(t, i), t->end), h), 0));
    }
    t->made = t->first = t->begin;
  }
}

/* The first row of step k that steps behind it still need. */
static int64_t needed_from(const stack *s, int k) {
  int64_t from = s->steps[k].made;
  for (int j = k + 1; j < s->n; j++) {
    const step *t = &s->steps[j];
    for (int i = 0; i < t->n_inputs && t->made < t->end; i++)
      if (t->in[i].step == k) from = min64(from, max64(sees_from(seen(t, i), t->made), s->steps[k].begin));
  }
  return from;
}

/* The end of rows from `row` on that lie side by side in the buffer of a step. */
static int64_t lap(const step *s, int64_t row) { return s->ring ? row - row % s->held + s->held : INT64_MAX; }

/* The row up to which step k can go now, by its inputs and its room. Moves rows to the front of its buffer for that. */
static int64_t goes_to(stack *s, int k) {
  step *t = &s->steps[k];
  int64_t to = min64(t->made + band(s, t), t->end);
  for (int i = 0; i < t->n_inputs; i++)
    if (t->in[i].step >= 0) {
      const step *of = &s->steps[t->in[i].step];
      if (of->made < of->end) to = min64(to, makes(seen(t, i), of->made));
      if (!t->rolls) to = min64(to, lap(of, t->made));
    }
  if (!t->rolls) to = min64(to, lap(t, t->made));
  if (t->ring) to = min64(to, needed_from(s, k) + t->held);
  if (to < t->end) to -= to % TOGETHER;
  if (to <= t->made || t->output >= 0 || t->ring) return to;
  if (to - t->first > t->held) {
    const int64_t from = needed_from(s, k), row = t->width * s->channels;
    to = min64(to, from + t->held);
    if (to < t->end) to -= to % TOGETHER;
    if (to <= t->made) return t->made;
    memmove(t->buffer, t->buffer + (from - t->first) * row, (size_t)((t->made - from) * row) * sizeof(float));
    t->first = from;
  }
  return to;
}

/* Brings rows [lo, hi) of an image nearer, whose channels lie side by side but are not all of this block. The processor's prefetchers do
 * not foresee few channels of a pixel. */
INLINE void fetch(const aspen_arg *a, int64_t image, int64_t channel, int64_t lo, int64_t hi, const int write) {
  if (a->rank != 4 || a->dims[3] < 2 || a->strides[1] != 1 || a->strides[3] < 2 * CHANNELS) return;
  const int64_t column = a->strides[3] * (int64_t)sizeof(float);
  for (int64_t h = lo; h < hi; h++) {
    const char *at = a->ptr + (image * a->strides[0] + channel + h * a->strides[2]) * (int64_t)sizeof(float);
    for (int64_t x = 0; x < a->dims[3]; x++, at += column) __builtin_prefetch(at, write);
  }
}

/* Fetches the rows of the call's images that a step reads and writes after its rows [made, to). */
static void fetch_next(const stack *s, int k, int64_t image, int64_t channel, int64_t to) {
  const step *t = &s->steps[k];
  const int64_t next = min64(to + (to - t->made), t->end);
  for (int i = 0; i < t->n_inputs; i++)
    if (t->in[i].input >= 0 && t->width > 1) {
      const window w = seen(t, i);
      const aspen_arg *a = input(s, t->in[i].input);
      if (a->rank == 4) fetch(a, image, channel, max64(sees_to(w, to), 0), min64(sees_to(w, next), a->dims[2]), 0);
    }
  if (t->output >= 0) fetch(&s->call->args[t->output], image, channel, to, next, 1);
}

static int run_block(stack *s, const int64_t heights[], int64_t image, int64_t channel, int64_t channels) {
  for (int moved = 1; moved;) {
    moved = 0;
    for (int k = 0; k < s->n; k++) {
      step *t = &s->steps[k];
      const int64_t to = t->made < t->end ? goes_to(s, k) : t->made;
      if (to <= t->made) continue;
      operands o;
      aspen_call c;
      call_of(s, k, heights, image, channel, channels, t->made, to, &o, &c);
      fetch_next(s, k, image, channel, to);
      c.scratch = (char *)s->call->scratch + s->kernels_at;
      c.scratch_bytes = s->call->scratch_bytes - s->kernels_at;
      const int error = function(t->kernel)(&c);
      if (error) return error;
      t->made = to;
      moved = 1;
    }
  }
  for (int k = 0; k < s->n; k++)
    if (s->steps[k].made < s->steps[k].end) return ASPEN_KERNEL_BAD_ARGUMENT;
  return 0;
}

int FN(stack)(const aspen_call *c) {
  stack s;
  int64_t heights[MOST + COPIES];
  int error = open_stack(&s, c, c->scratch, heights);
  if (error) return error;
  if (s.bytes > c->scratch_bytes) return ASPEN_KERNEL_SCRATCH;
  for (int64_t n = c->lo[0]; n < c->hi[0]; n++)
    for (int64_t channel = c->lo[1]; channel < c->hi[1]; channel += s.channels) {
      plan_rows(&s, heights, c->lo[2], c->hi[2]);
      error = run_block(&s, heights, n, channel, min64(s.channels, c->hi[1] - channel));
      if (error) return error;
    }
  return 0;
}
