/* REACH: which part of each tile runs (docs/protocol/reach.md): what changed parts of a model's inputs reach, or what has become possible
 * as its inputs arrive.
 *
 * Changes are boxes. They go from step to step through maps, which the planner makes of the region maps of ops (planner/tiling/reach.py).
 * A tile's part is the hull of what reaches it, rounded outwards to multiples of the step's grains, within the tile. A tile that nothing
 * reaches has an empty part.
 *
 *     Read the changed boxes of the inputs, and the marks of MOVED (moved.c) where thresholds lie before these steps.
 *     For each step in order: map the boxes of each source to boxes of the step's output. These are reached.
 *     For each step from the last to the first: what runs is what is reached, if its outputs are kept. It is what other steps that run
 *     read, if they are not. Widen the parts of the tiles that its boxes meet.
 *
 * The parameters are a program, in words of 64 bits (`struct program`). The planner checks it when a plan is loaded.
 */
#include "kernel.h"
#include "vector/vec.h"

enum { RANK = ASPEN_MAX_RANK, AXES = 6, MOST = ASPEN_REACH_BOXES };

struct box { int64_t lo[RANK], hi[RANK]; };
struct list { int64_t n; struct box box[MOST]; };

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Rounded down and up; b > 0. */
static inline int64_t floor_of(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
static inline int64_t ceiling_of(int64_t a, int64_t b) { return -floor_of(-a, b); }

static double volume(const struct box *b, int64_t rank) {
  double v = 1;
  for (int64_t k = 0; k < rank; k++) v *= (double)(b->hi[k] - b->lo[k]);
  return v;
}

static struct box hull(const struct box *a, const struct box *b, int64_t rank) {
  struct box h = *a;
  for (int64_t k = 0; k < rank; k++) {
    h.lo[k] = least(a->lo[k], b->lo[k]);
    h.hi[k] = most(a->hi[k], b->hi[k]);
  }
  return h;
}

/* Adds a box to a list. It is joined with a box if their hull is not larger than both together, and in any case if the list is full. */
static void add(struct list *list, struct box b, int64_t rank) {
  for (int again = 1; again;) {
    again = 0;
    double fewest = 0;
    int64_t best = -1;
    for (int64_t i = 0; i < list->n; i++) {
      struct box h = hull(&list->box[i], &b, rank);
      double more = volume(&h, rank) - volume(&list->box[i], rank) - volume(&b, rank);
      if (best < 0 || more < fewest) best = i, fewest = more;
    }
    if (best >= 0 && (fewest <= 0 || list->n == MOST)) {
      b = hull(&list->box[best], &b, rank);
      list->box[best] = list->box[--list->n];
      again = 1;
    }
  }
  list->box[list->n++] = b;
}

/* A map says which outputs along `out_axis`, from `first` on and before `last`, read from the axis `in_axis` of a source. Output o reads
 * from floor((a * o + from) / c) on and before floor((a * o + until) / c). */
struct map { int64_t out_axis, in_axis, first, last, a, from, until, c; };

/* Cuts the outputs off that read nothing of [lo, hi) along a map's axis. Returns 0 where none is left. */
static int through(const struct map *m, int64_t lo, int64_t hi, struct box *out) {
  int64_t first = m->first, last = m->last;
  if (m->a) {
    first = most(first, ceiling_of(m->c * (lo + 1) - m->until, m->a));
    last = least(last, floor_of(m->c * hi - 1 - m->from, m->a) + 1);
  } else if (floor_of(m->until, m->c) <= lo || floor_of(m->from, m->c) >= hi) {
    return 0;
  }
  out->lo[m->out_axis] = most(out->lo[m->out_axis], first);
  out->hi[m->out_axis] = least(out->hi[m->out_axis], last);
  return out->lo[m->out_axis] < out->hi[m->out_axis];
}

/* A step's words are their number, the output's rank and lengths, the work of an element, whether outputs are kept, the tile grid, and
 * reads. The work has the bits of a double. */
enum kept { ALL_KEPT = 0, NONE_KEPT, SOME_KEPT };

struct step {
  int64_t rank, axes;
  const int64_t *dims;
  double work;
  int64_t kept;
  const int64_t *cells[AXES], *cuts[AXES]; /* of each axis: {number of cells, grain, distance in tile numbers}, and cut points */
  int64_t n_reads;
  const int64_t *reads;
};

static struct step step_at(const int64_t *w) {
  struct step s = {.rank = w[1], .dims = w + 2};
  memcpy(&s.work, w + 2 + s.rank, sizeof s.work);
  s.kept = w[3 + s.rank];
  s.axes = least(s.rank, AXES);
  w += 4 + s.rank;
  for (int64_t k = 0; k < s.axes; k++) {
    s.cells[k] = w, s.cuts[k] = w + 3;
    w += 4 + w[0];
  }
  s.n_reads = w[0], s.reads = w + 1;
  return s;
}

/* Where the words of a step are, and its first tile. */
struct place { const int64_t *words; int64_t tile; };

/* Lists for what is read of each step by parts of later ones, as far as that is not kept. */
struct needs { const struct place *places; int64_t n_inputs; struct list *needed; };

/* The box of a step's output that a box of a source reaches by a read. Returns 0 where it reaches nothing. */
static int reaches(const struct step *s, const int64_t *read, const struct box *from, struct box *out) {
  const struct map *maps = (const struct map *)(read + 2);
  *out = (struct box){{0}, {0}};
  for (int64_t k = 0; k < s->rank; k++) out->hi[k] = s->dims[k];
  for (int64_t m = 0; m < read[1]; m++)
    if (!through(&maps[m], from->lo[maps[m].in_axis], from->hi[maps[m].in_axis], out)) return 0;
  return 1;
}

static inline const int64_t *next_read(const int64_t *read) { return read + 2 + 8 * read[1]; }

/* The list of a step, from those of its sources. */
static void follow(const struct step *s, const struct list *lists, struct list *own) {
  const int64_t *w = s->reads;
  own->n = 0;
  for (int64_t r = 0; r < s->n_reads; r++, w = next_read(w)) {
    const struct list *source = &lists[w[0]];
    struct box out;
    for (int64_t i = 0; i < source->n; i++)
      if (reaches(s, w, &source->box[i], &out)) add(own, out, s->rank);
  }
}

/* Cuts a box of a source off at what a part of a tile reads along a map's axis. Returns 0 where nothing is left. */
static int back(const struct map *m, int64_t lo, int64_t hi, struct box *source) {
  lo = most(lo, m->first), hi = least(hi, m->last);
  if (lo >= hi) return 0;
  int64_t from = floor_of(m->a * lo + m->from, m->c), until = floor_of(m->a * (hi - 1) + m->until, m->c);
  source->lo[m->in_axis] = most(source->lo[m->in_axis], from);
  source->hi[m->in_axis] = least(source->hi[m->in_axis], until);
  return source->lo[m->in_axis] < source->hi[m->in_axis];
}

/* Adds what a part of a tile reads of steps that are not all kept to the lists of these steps. `part`: as in `widen`. */
static void ask(const struct step *s, const uint32_t *part, const struct needs *needs) {
  const int64_t *w = s->reads;
  for (int64_t r = 0; r < s->n_reads; r++, w = next_read(w)) {
    if (w[0] < needs->n_inputs) continue;
    const struct step source = step_at(needs->places[w[0] - needs->n_inputs].words);
    if (source.kept == ALL_KEPT) continue;
    const struct map *maps = (const struct map *)(w + 2);
    struct box box = {{0}, {0}};
    int there = 1;
    for (int64_t k = 0; k < source.rank; k++) there &= (box.hi[k] = source.dims[k]) > 0;
    for (int64_t m = 0; m < w[1] && there; m++) {
      const int64_t axis = maps[m].out_axis;
      there = axis < s->axes ? back(&maps[m], part[axis], part[AXES + axis], &box) : back(&maps[m], 0, s->dims[axis], &box);
    }
    if (there) add(&needs->needed[w[0] - needs->n_inputs], box, source.rank);
  }
}

/* Parts of tiles as the engine reads them: AXES lower bounds, then AXES upper bounds. */
static void widen(const struct step *s, const struct box *b, uint32_t *part) {
  int64_t at[AXES], first[AXES], end[AXES];
  for (int64_t k = 0; k < s->axes; k++) {
    const int64_t *cuts = s->cuts[k], n = s->cells[k][0];
    for (first[k] = 0; first[k] + 1 < n && cuts[first[k] + 1] <= b->lo[k];) first[k]++;
    for (end[k] = first[k]; end[k] < n && cuts[end[k]] < b->hi[k];) end[k]++;
    at[k] = first[k];
  }
  for (int64_t k = 0; k >= 0;) {
    int64_t number = 0;
    for (int64_t j = 0; j < s->axes; j++) number += at[j] * s->cells[j][2];
    uint32_t *row = part + number * 2 * AXES;
    for (int64_t j = 0; j < s->axes; j++) {
      int64_t lo = most(b->lo[j], s->cuts[j][at[j]]), hi = least(b->hi[j], s->cuts[j][at[j] + 1]);
      if ((uint32_t)lo < row[j]) row[j] = (uint32_t)lo;
      if ((uint32_t)hi > row[AXES + j]) row[AXES + j] = (uint32_t)hi;
    }
    for (int64_t j = s->axes; j < AXES; j++) row[j] = 0, row[AXES + j] = 1;
    for (k = s->axes - 1; k >= 0 && ++at[k] == end[k]; k--) at[k] = first[k];
  }
}

/* Rounds a tile's part outwards. */
static void widest(const struct step *s, uint32_t *row, const int64_t *at) {
  if (row[0] >= row[AXES]) return;
  for (int64_t k = 0; k < s->axes; k++) {
    int64_t grain = s->cells[k][1], lo = row[k] / grain * grain, hi = (row[AXES + k] + grain - 1) / grain * grain;
    row[k] = (uint32_t)most(lo, s->cuts[k][at[k]]);
    row[AXES + k] = (uint32_t)least(hi, s->cuts[k][at[k] + 1]);
  }
}

/* The part of a step's output that can be computed: all before `end` along `axis`; everything where `axis` is -1. */
struct done { int64_t axis, end; };

/* The part of a tile that can be computed now and could not before. NULL: nothing could. Where the axes differ, some of it was computed
 * before. */
static void newest(const struct step *s, uint32_t *row, const int64_t *at, struct done now, const struct done *before) {
  int some = !before || before->axis >= 0;
  for (int64_t k = 0; k < s->axes; k++) {
    int64_t lo = s->cuts[k][at[k]], hi = s->cuts[k][at[k] + 1];
    if (now.axis == k) hi = least(hi, now.end);
    if (before && before->axis == k && (now.axis == k || now.axis < 0)) lo = most(lo, before->end);
    row[k] = (uint32_t)lo, row[AXES + k] = (uint32_t)hi;
    some &= lo < hi;
  }
  for (int64_t k = s->axes; k < AXES; k++) row[k] = 0, row[AXES + k] = 1;
  if (now.axis >= s->axes) some = 0; /* a number: its only axis has no index */
  if (!some) row[0] = UINT32_MAX, row[AXES] = 0;
}

static double elements(const struct step *s, const uint32_t *row) {
  double n = 1;
  if (row[0] >= row[AXES]) return 0;
  for (int64_t k = 0; k < s->axes; k++) n *= row[AXES + k] - row[k];
  for (int64_t k = s->axes; k < s->rank; k++) n *= (double)s->dims[k];
  return n;
}

/* Tiles of a step, and their elements. */
struct count { double tiles, all_tiles, work, all_work; };

/* `now`: NULL for changes. `needs`: NULL where all steps are kept. */
static void finish(const struct step *s, uint32_t *part, struct count *count, const struct done *now, const struct done *before,
                   const struct needs *needs) {
  int64_t at[AXES] = {0}, k = 0;
  double all = s->work;
  for (int64_t j = 0; j < s->rank; j++) all *= (double)s->dims[j];
  count->all_work += all;
  while (k >= 0) {
    int64_t number = 0;
    for (int64_t j = 0; j < s->axes; j++) number += at[j] * s->cells[j][2];
    uint32_t *row = part + number * 2 * AXES;
    if (now) newest(s, row, at, *now, before);
    else widest(s, row, at);
    double n = elements(s, row);
    if (needs && n > 0) ask(s, row, needs);
    count->tiles += n > 0;
    count->all_tiles += 1;
    count->work += n * s->work;
    for (k = s->axes - 1; k >= 0 && ++at[k] == s->cells[k][0]; k--) at[k] = 0;
  }
}

static size_t scratch_of(int64_t n_inputs, int64_t n_steps) {
  return (size_t)(n_inputs + 2 * n_steps) * sizeof(struct list) + (size_t)n_steps * sizeof(struct place);
}

static int64_t tiles_of(const struct step *s) {
  int64_t n = 1;
  for (int64_t k = 0; k < s->axes; k++) n *= s->cells[k][0];
  return n;
}

/* A box of an input as a client wrote it, who may write there meanwhile. Returns 0 where it is empty. */
static int read_box(const volatile int32_t *in, const int64_t *dims, int64_t rank, struct box *b) {
  int there = 1;
  *b = (struct box){{0}, {0}};
  for (int64_t k = 0; k < rank; k++) {
    b->lo[k] = most(in[k], 0);
    b->hi[k] = least(in[RANK + k], dims[k]);
    there &= b->lo[k] < b->hi[k];
  }
  return there;
}

/* Makes boxes of the blocks that moved in a frame: one of each run in a row. Boxes that fit together are joined (`add`). */
static void read_marks(const aspen_arg *marks, int32_t frame, struct list *list) {
  const volatile int32_t *row = (const volatile int32_t *)marks->ptr;
  const int64_t across = marks->dims[2];
  list->n = 0;
  for (int64_t n = 0; n < marks->dims[0]; n++)
    for (int64_t i = 0; i < marks->dims[1]; i++, row += across)
      for (int64_t j = 0; j < across; j++) {
        if (row[j] != frame) continue;
        struct box b = {{n, i, j}, {n + 1, i + 1, j + 1}};
        while (j + 1 < across && row[j + 1] == frame) j++;
        b.hi[2] = j + 1;
        add(list, b, 3);
      }
}

/* Reads an input's changed boxes: their number, and RANK lower and upper bounds for each. */
static void read(const volatile int32_t *in, const int64_t *dims, int64_t rank, struct list *list) {
  int32_t n = in[0];
  struct box b;
  list->n = 0;
  for (int32_t i = 0; i < n && i < MOST; i++)
    if (read_box(in + 1 + 2 * i * RANK, dims, rank, &b)) add(list, b, rank);
}

/* Inputs that arrive. Lists have other contents then: box 0 is missing now, box 1 was missing before. Bit t of `n` says whether box t is
 * there. */
enum { NOW, BEFORE, TIMES };

static void read_missing(const volatile int32_t *in, const int64_t *dims, int64_t rank, struct list *list) {
  list->n = 0;
  for (int t = 0; t < TIMES; t++, in += 2 * RANK) {
    const int there = rank ? read_box(in + 1, dims, rank, &list->box[t]) : in[1] < in[1 + RANK]; /* a number: a row of one element */
    list->n |= (int64_t)there << t;
  }
}

/* The part of a step that can be computed, where a box of its output reads what is missing. It is all before that box, if the box has all
 * the rest. Otherwise it is nothing. */
static struct done before_box(const struct step *s, const struct box *missing) {
  const struct done nothing = {0, 0};
  int64_t axis = -1;
  for (int64_t k = 0; k < s->rank; k++) {
    if (missing->hi[k] < s->dims[k]) return nothing;
    if (!missing->lo[k]) continue;
    if (axis >= 0) return nothing;
    axis = k;
  }
  if (axis < 0 || axis >= s->axes) return nothing;
  return (struct done){axis, missing->lo[axis] / s->cells[axis][1] * s->cells[axis][1]};
}

/* The part of a step that can be computed at a time. Everything else of it becomes what its readers miss. */
static struct done possible(const struct step *s, const struct list *lists, int t, struct list *own) {
  struct box missing, out;
  const int64_t *w = s->reads;
  int some = 0;
  for (int64_t r = 0; r < s->n_reads; r++, w = next_read(w))
    if (lists[w[0]].n >> t & 1 && reaches(s, w, &lists[w[0]].box[t], &out)) missing = some ? hull(&missing, &out, s->rank) : out, some = 1;
  if (!some) return (struct done){-1, 0};
  struct done d = before_box(s, &missing);
  struct box *rest = &own->box[t];
  *rest = (struct box){{0}, {0}};
  for (int64_t k = 0; k < s->rank; k++) rest->hi[k] = s->dims[k];
  if (s->rank) rest->lo[d.axis] = d.end;
  own->n |= (int64_t)1 << t;
  return d;
}

/* A program begins with the numbers of the model's inputs, of marks, of steps, and of outputs among these. */
enum { INPUTS, MARKS, STEPS, OUTPUTS, HEAD };

int FN(reach)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *counts = &c->args[1], *in = &c->args[2], *marks = in + 1;
  const volatile int32_t *words = (const volatile int32_t *)in->ptr;
  const int64_t *inputs = c->params + HEAD, *w = inputs, n_given = c->params[INPUTS], n_marks = c->params[MARKS];
  const int64_t n_inputs = n_given + n_marks, n_steps = c->params[STEPS], n_outputs = c->params[OUTPUTS];
  uint32_t *part = (uint32_t *)out->ptr;
  double *ready = (double *)counts->ptr + sizeof(struct count) / sizeof(double);
  struct list *lists = (struct list *)c->scratch, *needed = lists + n_inputs + n_steps;
  struct place *places = (struct place *)(needed + n_steps);
  const struct needs needs = {places, n_inputs, needed};
  struct count count = {0, 0, 0, 0};
  int forgets = 0;
  if (c->scratch_bytes < scratch_of(n_inputs, n_steps)) return ASPEN_KERNEL_SCRATCH;
  for (int64_t i = 0; i < n_inputs; i++) w += 1 + w[0];
  for (int64_t k = 0, tile = 1; k < n_steps; k++) { /* row 0 is that of REACH itself */
    struct step s = step_at(w);
    places[k] = (struct place){w, tile};
    needed[k].n = 0;
    forgets |= s.kept != ALL_KEPT;
    tile += tiles_of(&s);
    w += w[0];
  }
  const int32_t mode = n_given && !forgets ? words[0] : 0; /* what is forgotten would be read before it is computed */
  const int arriving = !n_marks && (mode == ASPEN_REACH_ARRIVING || mode == ASPEN_REACH_FIRST);
  w = inputs;
  for (int64_t i = 0; i < n_given; i++, words += ASPEN_REACH_WORDS) {
    if (arriving) read_missing(words, w + 1, w[0], &lists[i]);
    else read(words, w + 1, w[0], &lists[i]);
    w += 1 + w[0];
  }
  for (int64_t i = 0; i < n_marks; i++) read_marks(&marks[i], words[0], &lists[n_given + i]);
  for (int64_t row = 0; row < out->dims[0]; row++)
    for (int64_t k = 0; k < AXES; k++) part[row * 2 * AXES + k] = UINT32_MAX, part[row * 2 * AXES + AXES + k] = 0;
  memset(ready, 0, (size_t)(2 * n_outputs) * sizeof *ready);
  for (int64_t k = 0; k < n_steps; k++) {
    struct step s = step_at(places[k].words);
    int64_t output = k - (n_steps - n_outputs);
    struct list *own = &lists[n_inputs + k];
    if (!arriving) {
      follow(&s, lists, own);
      continue;
    }
    own->n = 0;
    struct done now = possible(&s, lists, NOW, own), before = possible(&s, lists, BEFORE, own);
    if (tiles_of(&s)) finish(&s, part + places[k].tile * 2 * AXES, &count, &now, mode == ASPEN_REACH_FIRST ? NULL : &before, NULL);
    if (output >= 0) ready[2 * output] = (double)now.axis, ready[2 * output + 1] = (double)now.end;
  }
  for (int64_t k = n_steps - 1; !arriving && k >= 0; k--) {
    struct step s = step_at(places[k].words);
    struct list *own = &lists[n_inputs + k];
    uint32_t *rows = part + places[k].tile * 2 * AXES;
    if (!tiles_of(&s)) continue;
    if (s.kept == NONE_KEPT) own->n = 0;
    for (int64_t i = 0; i < own->n; i++) widen(&s, &own->box[i], rows);
    for (int64_t i = 0; i < needed[k].n; i++) widen(&s, &needed[k].box[i], rows);
    finish(&s, rows, &count, NULL, NULL, forgets ? &needs : NULL);
  }
  memcpy(counts->ptr, &count, sizeof count);
  return ASPEN_KERNEL_OK;
}

#ifdef ISA_PORTABLE
size_t aspen_scratch_reach(const aspen_call *c) { return scratch_of(c->params[INPUTS] + c->params[MARKS], c->params[STEPS]); }
#endif
