/* LSTM, GRU, RNN: a run of steps of one direction of a recurrent layer.
 *
 * The product with the layer's input is there already (P, bias inside). A step multiplies the hidden state h [rows, H] with the recurrent
 * weights R and puts the gates together. With few rows a step takes as long as it takes to read R, so
 *  - R is read once a step for all rows of the tile: loops are units, then blocks of rows, then terms;
 *  - all gates of a vector of units are summed up side by side, from one run of memory (`UNITS` units a panel);
 *  - every other step goes through the units backwards: the part of R that is still in the cache is used before it is pushed out. With 3 MB
 *    and a cache of 2, a step then misses half instead of everything. Each sum has one order (terms ascending, one fused multiply-add
 *    each), whatever the rows beside it, the direction or the box.
 *
 * The states live in scratch memory, padded to whole panels with zeros that stay zeros; Y is written from there and never read. */
#include "kernel.h"
#include "vector/vec.h"
#include "vector/vmath.h"

#define UNITS ASPEN_UNITS
#if VL == 16
#define REGISTERS 32
#else
#define REGISTERS 16
#endif
#define MOST_ROWS 7 /* of a block */
#define MOST_VECTORS 4 /* of units, that a block takes at a time */
#define MOST_SUMS 8    /* vectors for each row of a block, at most */
#define NEAR_BYTES (24 << 10) /* of weights, that stay in the nearest cache beside the states */
/* A block keeps its sums, a term of h for each row and one vector of R in registers. */
#define FITS(gates, rows, vectors) ((rows) * ((gates) * (vectors) + 1) < REGISTERS)

typedef struct job {
  int64_t rows, units, padded; /* `padded`: floats of a row of a state */
  int64_t p_unit, p_row;       /* strides of P */
  const float *rb;             /* GRU's bias inside the reset gate, or NULL */
  int64_t rb_stride;
  int relu, gates;
} job;

/* Some rows and vectors of units of a step. `sums`: [rows, vectors, gates, VL], on their way from products to gates. */
typedef struct block {
  int vectors, gates;
  int64_t rows, row, unit; /* how many, and the first of each */
  float *sums;
} block;

INLINE vf sum_of(const block *b, int64_t row, int vector, int gate) {
  return vload(b->sums + ((row * b->vectors + vector) * b->gates + gate) * VL);
}

/* sums += h R over terms [from, to), for `rows` rows `a_row` floats apart and `vectors` vectors of units: b[v] is the first term's. */
INLINE void multiply_(const int gates, const int rows, const int vectors, float *sums, const float *a, int64_t a_row, const float *const *b,
                      int64_t from, int64_t to) {
  vf s[REGISTERS];
#pragma GCC unroll 32
  for (int i = 0; i < rows * vectors * gates; i++) s[i] = from ? vload(sums + i * VL) : vzero();
  for (int64_t k = from; k < to; k++) {
    vf x[MOST_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) x[r] = vset1(a[r * a_row + k]);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
#pragma GCC unroll 4
      for (int g = 0; g < gates; g++) {
        vf w = vload(b[v] + (k * gates + g) * UNITS);
        if (rows > 1) VKEEP(w);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) VFMA_IN(s[(r * vectors + v) * gates + g], x[r], w);
      }
  }
#pragma GCC unroll 32
  for (int i = 0; i < rows * vectors * gates; i++) vstore(sums + i * VL, s[i]);
}

#define CASE(g, r, v)                                                                                                              \
  case ((g) * 8 + (r)) * 8 + (v):                                                                                                  \
    if (FITS(g, r, v)) multiply_(g, r, v, out->sums, a, a_row, b, from, to);                                                       \
    return;
#define CASES_OF_ROWS(g, r) CASE(g, r, 1) CASE(g, r, 2) CASE(g, r, 3) CASE(g, r, 4)
#define CASES(g)                                                                                                                   \
  CASES_OF_ROWS(g, 1) CASES_OF_ROWS(g, 2) CASES_OF_ROWS(g, 3) CASES_OF_ROWS(g, 4) CASES_OF_ROWS(g, 5) CASES_OF_ROWS(g, 6)          \
  CASES_OF_ROWS(g, 7)

/* `panels`: [panels, terms, gates, UNITS]; terms [from, to) of them. */
static void multiply(const block *out, const float *a, int64_t a_row, const float *panels, int64_t terms, int64_t from, int64_t to) {
  const float *b[MOST_VECTORS];
  for (int v = 0; v < out->vectors; v++) {
    const int64_t unit = out->unit + v * VL;
    b[v] = panels + unit / UNITS * terms * out->gates * UNITS + unit % UNITS;
  }
  switch ((out->gates * 8 + (int)out->rows) * 8 + out->vectors) {
    CASES(1)
    CASES(2)
    CASES(3)
    CASES(4)
  }
}

/* The most rows of a block, and the most vectors of units with that number of rows. */
static int most_rows(int gates) {
  int rows = MOST_ROWS;
  while (!FITS(gates, rows, 1)) rows--;
  return rows;
}

static int most_vectors(int gates, int rows) {
  int vectors = gates > 2 ? 2 : MOST_VECTORS;
  while (vectors > 1 && !FITS(gates, rows, vectors)) vectors /= 2;
  return vectors;
}

/* P of gate `gate` and VL units from `unit` on; zeros beyond the last one. */
INLINE vf projected(const job *j, const float *p, int gate, int64_t unit) {
  const int64_t left = j->units - unit;
  p += (gate * j->units + unit) * j->p_unit;
  if (j->p_unit != 1) return vload_strided(p, j->p_unit, left);
  return left >= VL ? vload(p) : vload_part(p, left);
}

/* The operands of the gates of a step: P of the step, and states before and after. GRUs that reset before the product also have the update
 * gate and the reset state. `cell` is overwritten in place: each element is read by nobody but who writes it. */
typedef struct states {
  const float *p, *h;
  float *next, *cell, *update, *reset, *sums;
} states;

/* e^-t for t ≥ 0. The rounding of t / ln 2 costs t e^-t 6e-8, less than 3e-8; the polynomial 1e-7 of the result. */
INLINE vf decay(vf t) { return vexp2_(vmax(vset1(-150), t * vset1(-1.44269504f))); }

/* Sigmoid and tanh as quotients, of which several share a division: denominators lie between 1 and 2, so neither they nor their products
 * overflow. Both are within 3e-7 of the exact values. */
typedef struct quotient {
  vf over, under;
} quotient;

INLINE quotient sigmoid_quotient(vf x) {
  const vf e = decay(vabs(x));
  return (quotient){vsel(vlt(x, vzero()), e, vset1(1)), vset1(1) + e};
}

INLINE quotient tanh_quotient(vf x) {
  const vf t = vabs(x), e = decay(t + t);
  return (quotient){vcopysign(vset1(1) - e, x), vset1(1) + e};
}

/* tanh where 1 - e^-2t has lost digits. */
INLINE vf tanh_near(vf x, vf far) {
  const vf u = x * x;
  const vf near = vfma(x * u, VPOLY(u, -0.33333284f, 0.13331491f, -0.053743497f, 0.020650586f, -0.0057170433f), x);
  return vsel(vlt(vabs(x), vset1(0.625f)), near, far);
}

INLINE vf quick_tanh(vf x) {
  const quotient q = tanh_quotient(x);
  return tanh_near(x, q.over / q.under);
}

INLINE void lstm_gates(const job *j, const states *s, const block *b) {
  for (int64_t r = 0; r < b->rows; r++)
    for (int v = 0; v < b->vectors; v++) {
      const int64_t unit = b->unit + v * VL, at = (b->row + r) * j->padded + unit;
      const float *p = s->p + (b->row + r) * j->p_row;
      const quotient i = sigmoid_quotient(projected(j, p, 0, unit) + sum_of(b, r, v, 0));
      const quotient o = sigmoid_quotient(projected(j, p, 1, unit) + sum_of(b, r, v, 1));
      const quotient f = sigmoid_quotient(projected(j, p, 2, unit) + sum_of(b, r, v, 2));
      const vf x = projected(j, p, 3, unit) + sum_of(b, r, v, 3);
      const quotient q = tanh_quotient(x);
      const vf iq = i.under * q.under, of = o.under * f.under, all = vset1(1) / (iq * of);
      const vf i_q = all * of, o_f = all * iq; /* 1 / iq, 1 / of */
      const vf g = tanh_near(x, q.over * (i.under * i_q));
      vstore(s->cell + at, vfma(f.over * (o.under * o_f), vload(s->cell + at), i.over * (q.under * i_q) * g));
      vstore(s->next + at, o.over * (f.under * o_f));
    }
  /* By itself: what waits for the functions above and what waits for this one then overlap from vector to vector. */
  for (int64_t r = 0; r < b->rows; r++)
    for (int v = 0; v < b->vectors; v++) {
      const int64_t at = (b->row + r) * j->padded + b->unit + v * VL;
      vstore(s->next + at, vload(s->next + at) * quick_tanh(vload(s->cell + at)));
    }
}

/* (1 - z) n + z h */
INLINE vf blended(vf z, vf n, vf h) { return vfma(z, h - n, n); }

INLINE void gru_gates(const job *j, const states *s, const block *b) {
  for (int64_t r = 0; r < b->rows; r++)
    for (int v = 0; v < b->vectors; v++) {
      const int64_t unit = b->unit + v * VL, at = (b->row + r) * j->padded + unit, left = j->units - unit;
      const float *p = s->p + (b->row + r) * j->p_row;
      const quotient z = sigmoid_quotient(projected(j, p, 0, unit) + sum_of(b, r, v, 0));
      const quotient x = sigmoid_quotient(projected(j, p, 1, unit) + sum_of(b, r, v, 1));
      const vf both = vset1(1) / (z.under * x.under), update = z.over * (x.under * both), reset = x.over * (z.under * both);
      vf inner = sum_of(b, r, v, 2);
      if (j->rb && j->rb_stride == 1) inner += vload_part(j->rb + unit, left);
      else if (j->rb) inner += vload_strided(j->rb + unit * j->rb_stride, j->rb_stride, left);
      vstore(s->next + at, blended(update, quick_tanh(vfma(reset, inner, projected(j, p, 2, unit))), vload(s->h + at)));
    }
}

INLINE void reset_gates(const job *j, const states *s, const block *b) {
  for (int64_t r = 0; r < b->rows; r++)
    for (int v = 0; v < b->vectors; v++) {
      const int64_t unit = b->unit + v * VL, at = (b->row + r) * j->padded + unit;
      const float *p = s->p + (b->row + r) * j->p_row;
      const quotient z = sigmoid_quotient(projected(j, p, 0, unit) + sum_of(b, r, v, 0));
      const quotient x = sigmoid_quotient(projected(j, p, 1, unit) + sum_of(b, r, v, 1));
      const vf both = vset1(1) / (z.under * x.under);
      vstore(s->update + at, z.over * (x.under * both));
      vstore(s->reset + at, x.over * (z.under * both) * vload(s->h + at));
    }
}

INLINE void reset_output(const job *j, const states *s, const block *b) {
  for (int64_t r = 0; r < b->rows; r++)
    for (int v = 0; v < b->vectors; v++) {
      const int64_t unit = b->unit + v * VL, at = (b->row + r) * j->padded + unit;
      const float *p = s->p + (b->row + r) * j->p_row;
      vstore(s->next + at, blended(vload(s->update + at), quick_tanh(projected(j, p, 2, unit) + sum_of(b, r, v, 0)), vload(s->h + at)));
    }
}

INLINE void rnn_output(const job *j, const states *s, const block *b) {
  for (int64_t r = 0; r < b->rows; r++)
    for (int v = 0; v < b->vectors; v++) {
      const int64_t unit = b->unit + v * VL;
      const vf x = projected(j, s->p + (b->row + r) * j->p_row, 0, unit) + sum_of(b, r, v, 0);
      vstore(s->next + (b->row + r) * j->padded + unit, j->relu ? vmax(vzero(), x) : quick_tanh(x));
    }
}

enum phase { LSTM_GATES, GRU_GATES, RESET_GATES, RESET_OUTPUT, RNN_OUTPUT };
static const int gates_of[] = {[LSTM_GATES] = 4, [GRU_GATES] = 3, [RESET_GATES] = 2, [RESET_OUTPUT] = 1, [RNN_OUTPUT] = 1};

/* The part of P that the block's gates will read comes nearer meanwhile: it lies in short pieces, and another core may have made it. */
INLINE void ahead(const job *j, const states *s, const block *b) {
  if (j->p_unit != 1) return;
  for (int64_t r = 0; r < b->rows; r++)
    for (int g = 0; g < j->gates; g++) {
      const float *p = s->p + (b->row + r) * j->p_row + g * j->units + b->unit;
      for (int v = 0; v < b->vectors * VL; v += UNITS) __builtin_prefetch(p + v);
    }
}

/* All rows of units [first, last) of a step: `a`, a state, times `panels`, and its results. */
static void one_step(enum phase phase, const job *j, const states *s, const float *a, const float *panels, int64_t first, int64_t last,
                     int backwards) {
  block all = {.gates = gates_of[phase], .rows = j->rows, .sums = s->sums};
  const int64_t blocks = (j->rows + most_rows(all.gates) - 1) / most_rows(all.gates);
  const int64_t wide = most_vectors(all.gates, (int)((j->rows + blocks - 1) / blocks)) * VL;
  const int64_t begin = first / VL * VL, turns = (last - begin + wide - 1) / wide;
  /* Each of several blocks of rows takes some terms before any goes on: all but the first find the weights in the nearest cache. */
  const int64_t near = blocks > 1 ? NEAR_BYTES / (wide * all.gates * (int64_t)sizeof(float)) : j->units;
  for (int64_t t = 0; t < turns; t++) {
    all.unit = begin + (backwards ? turns - 1 - t : t) * wide;
    all.vectors = (int)(((last < all.unit + wide ? last : all.unit + wide) - all.unit + VL - 1) / VL);
    for (int64_t from = 0; from < j->units; from += near) {
      const int64_t to = j->units - from <= near ? j->units : from + near;
      for (int64_t i = 0; i < blocks; i++) {
        block b = all;
        b.row = j->rows * i / blocks;
        b.rows = j->rows * (i + 1) / blocks - b.row;
        b.sums = all.sums + b.row * all.vectors * all.gates * VL;
        if (to == j->units) ahead(j, s, &b);
        multiply(&b, a + b.row * j->padded, j->padded, panels, j->units, from, to);
      }
    }
    switch (phase) {
    case LSTM_GATES: lstm_gates(j, s, &all); break;
    case GRU_GATES: gru_gates(j, s, &all); break;
    case RESET_GATES: reset_gates(j, s, &all); break;
    case RESET_OUTPUT: reset_output(j, s, &all); break;
    case RNN_OUTPUT: rnn_output(j, s, &all); break;
    }
  }
}

/* ---- tiles ---- */

enum { STEP, DIRECTION, ROW, UNIT }; /* axes of outputs and states */

static int64_t padded_units(int64_t units) { return (units + UNITS - 1) / UNITS * UNITS; }

/* Scratch of a row: two hidden states, and a cell state or update gates and a reset state; sums. */
static int64_t row_floats(int64_t units) { return 4 * padded_units(units) + MOST_SUMS * UNITS; }

#ifdef ISA_PORTABLE
size_t aspen_scratch_recurrent(const aspen_call *c) {
  return (size_t)((c->hi[ROW] - c->lo[ROW]) * row_floats(c->args[0].dims[UNIT])) * sizeof(float);
}
#endif

/* Step `step` of a state or an output, rows of the tile. */
static char *rows_of(const aspen_call *c, const aspen_arg *x, int64_t step) {
  return x->ptr + 4 * (step * x->strides[STEP] + c->lo[ROW] * x->strides[ROW]);
}

static void take_state(const aspen_call *c, const aspen_arg *x, int64_t step, const job *j, float *to) {
  for (int64_t r = 0; r < j->rows; r++) {
    const float *from = (const float *)rows_of(c, x, step) + r * x->strides[ROW];
    if (x->strides[UNIT] == 1) memcpy(to + r * j->padded, from, (size_t)j->units * sizeof *to);
    else
      for (int64_t u = 0; u < j->units; u++) to[r * j->padded + u] = from[u * x->strides[UNIT]];
  }
}

static void give_state(const aspen_call *c, const aspen_arg *x, int64_t step, const job *j, const float *from) {
  const int64_t first = c->lo[UNIT], units = c->hi[UNIT] - first, stride = x->strides[UNIT];
  for (int64_t r = 0; r < j->rows; r++) {
    float *to = (float *)rows_of(c, x, step) + r * x->strides[ROW] + first * stride;
    const float *row = from + r * j->padded + first;
    if (stride == 1) memcpy(to, row, (size_t)units * sizeof *to);
    else
      for (int64_t u = 0; u < units; u++) to[u * stride] = row[u];
  }
}

static int is_state(const aspen_arg *x) { return x->dtype == ASPEN_DT_F32 && x->rank == 4; } /* so are weights */

enum { WHOLE_RESET_FIRST, WHOLE_RESET_LAST, GATES_ALONE, OUTPUT_ALONE }; /* forms of GRU */

/* A step's gates, or its output from gates that another node has made: those of a GRU that resets first. */
static void half_step(const aspen_call *c, const job *j, const states *s, const aspen_arg *gates, const float *panels) {
  const int backwards = c->params[0] & 1;
  if (c->params[2] == GATES_ALONE) {
    one_step(RESET_GATES, j, s, s->h, panels, c->lo[UNIT], c->hi[UNIT], backwards);
    for (int64_t i = c->lo[STEP]; i < c->hi[STEP]; i++) give_state(c, &c->args[0], i, j, i ? s->reset : s->update);
  } else {
    for (int i = 0; i < 2; i++) take_state(c, gates, i, j, i ? s->reset : s->update);
    one_step(RESET_OUTPUT, j, s, s->reset, panels, c->lo[UNIT], c->hi[UNIT], backwards);
    give_state(c, &c->args[0], 0, j, s->next);
  }
}

/* The steps that the box needs, from the run's first one on: `inputs` are P, R, h?, then c? of LSTM, rb? or gates of GRU. */
static int run_steps(const aspen_call *c, enum phase phase, const aspen_arg *inputs) {
  const aspen_arg none = {0};
  const aspen_arg *y = &c->args[0], *cell = phase == LSTM_GATES ? &c->args[1] : &none, *p = &inputs[0], *w = &inputs[1];
  const aspen_arg *h = c->n_inputs > 2 ? &inputs[2] : &none, *more = c->n_inputs > 3 ? &inputs[3] : &none;
  if (!is_state(y) || p->dtype != ASPEN_DT_F32 || p->rank != 3 || !is_state(w)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (h->dtype && !is_state(h)) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (phase == LSTM_GATES && (!is_state(cell) || (more->dtype && !is_state(more)))) return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t form = phase == RESET_GATES || phase == GRU_GATES ? c->params[2] : WHOLE_RESET_LAST;
  if (form == OUTPUT_ALONE && !is_state(more)) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int i = 0; i < 4; i++)
    if (c->lo[i] >= c->hi[i]) return 0;
  const int64_t steps = y->dims[STEP], first = c->params[0];
  const int reverse = c->params[1] != 0;
  job j = {.rows = c->hi[ROW] - c->lo[ROW], .units = y->dims[UNIT], .padded = padded_units(y->dims[UNIT]), .p_unit = p->strides[2],
           .p_row = p->strides[1], .relu = phase == RNN_OUTPUT && c->params[2], .gates = (int)w->dims[2]};
  if (phase == GRU_GATES && more->dtype) j.rb = (const float *)more->ptr, j.rb_stride = more->strides[0];
  const int64_t floats = j.rows * j.padded;
  if (c->scratch_bytes < (size_t)(j.rows * row_floats(j.units)) * sizeof(float)) return ASPEN_KERNEL_SCRATCH;
  float *now = c->scratch, *next = now + floats;
  states s = {.cell = next + floats, .update = next + floats, .reset = next + 2 * floats, .sums = next + 3 * floats};
  memset(now, 0, (size_t)(4 * floats) * sizeof *now);
  if (h->dtype) take_state(c, h, reverse ? 0 : h->dims[STEP] - 1, &j, now);
  if (phase == LSTM_GATES && more->dtype) take_state(c, more, 0, &j, s.cell);

  const float *panels = (const float *)w->ptr;
  if (form == GATES_ALONE || form == OUTPUT_ALONE) {
    s.p = (const float *)p->ptr + first * p->strides[0] + c->lo[ROW] * p->strides[1];
    s.h = now, s.next = next;
    half_step(c, &j, &s, more, panels);
    return 0;
  }
  const float *inner = panels + j.padded * j.units * 2; /* of RESET_OUTPUT, behind those of the gates */
  /* The cell state behind the last step is written by the tile that holds step 0, whichever comes first. */
  const int64_t last = cell->dtype && c->lo[STEP] == 0 ? steps - 1 : reverse ? steps - 1 - c->lo[STEP] : c->hi[STEP] - 1;
  for (int64_t i = 0; i <= last; i++) {
    const int64_t step = reverse ? steps - 1 - i : i, from = i < last ? 0 : c->lo[UNIT], to = i < last ? j.units : c->hi[UNIT];
    const int backwards = (first + step) & 1;
    s.p = (const float *)p->ptr + (first + step) * p->strides[0] + c->lo[ROW] * p->strides[1];
    s.h = now, s.next = next;
    if (phase == RESET_GATES) {
      one_step(RESET_GATES, &j, &s, now, panels, 0, j.units, backwards);
      one_step(RESET_OUTPUT, &j, &s, s.reset, inner, from, to, backwards);
    } else
      one_step(phase, &j, &s, now, panels, from, to, backwards);
    if (step >= c->lo[STEP] && step < c->hi[STEP]) give_state(c, y, step, &j, next);
    float *swap = now;
    now = next;
    next = swap;
  }
  if (cell->dtype && c->lo[STEP] == 0) give_state(c, cell, 0, &j, s.cell);
  return 0;
}

int FN(lstm)(const aspen_call *c) { return run_steps(c, LSTM_GATES, c->args + 2); }
int FN(gru)(const aspen_call *c) { return run_steps(c, c->params[2] == WHOLE_RESET_LAST ? GRU_GATES : RESET_GATES, c->args + 1); }
int FN(rnn)(const aspen_call *c) { return run_steps(c, RNN_OUTPUT, c->args + 1); }
