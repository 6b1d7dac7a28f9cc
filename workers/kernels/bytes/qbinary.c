/* QBINARY: sums, differences and products of bytes, as bytes. These are the steps of DEQUANTIZE, BINARY and QUANTIZE, with their rounding,
 * between registers.
 */
#include "bytes/byte_levels.h"
#include "vector/nd.h"

#define PIECE (4 * VL) /* elements that are computed together */

/* Bytes of an operand: (byte - zero) * scale. */
typedef struct stored {
  vi flip, zero; /* of bytes as unsigned ones: flip changes signed ones */
  vf scale;
} stored;

typedef struct bytes_job {
  int64_t opcode;
  stored of[2];
  epilogue act;
  int8_job to; /* what levels need */
  int divide;
} bytes_job;

static stored stored_of(const aspen_arg *x, double scale, int64_t zero) {
  const int is_signed = x->dtype == ASPEN_DT_I8;
  return (stored){viset1(is_signed ? 0x80 : 0), viset1((int32_t)(zero + (is_signed ? 0x80 : 0))), vset1((float)scale)};
}

INLINE vf value_of(const stored *s, const uint8_t *from) { return vfromi((unsigned_bytes(from) ^ s->flip) - s->zero) * s->scale; }

/* V * VL elements side by side, V 4 or 2. */
INLINE void piece(const int op, const int V, const bytes_job *job, const stored of[2], const uint8_t *a, const uint8_t *b, uint8_t *out) {
  vf y[4];
#pragma GCC unroll 4
  for (int i = 0; i < V; i++) {
    const vf x = value_of(&of[0], a + i * VL), z = value_of(&of[1], b + i * VL);
    y[i] = op == ASPEN_B_ADD ? x + z : op == ASPEN_B_SUB ? x - z : x * z;
  }
  if (job->act.kind != EPILOGUE_NONE) epilogue_act(&job->act, y, V);
  if (job->divide) {
    const range to = range_of(job->to.zero, job->to.lowest);
#pragma GCC unroll 4
    for (int i = 0; i < V; i++) store_levels(out + i * VL, level_of(&to, y[i] / vset1(job->to.scale)));
    return;
  }
  const quick by = quick_of(&job->to);
  vi q[4];
#pragma GCC unroll 4
  for (int i = 0; i < V; i++) q[i] = quick_quotient(&by, y[i]);
#if VL == 16
  if (V == 2) quick_half(&by, job->to.dtype == ASPEN_DT_I8, q, out, out + VL);
  else
#endif
    quick_levels(&by, job->to.dtype == ASPEN_DT_I8, q, out, out + PIECE / 2);
}

/* Lines of elements: the output (0) and the operands, each line's and each element's distance. */
typedef struct lines {
  int64_t n, length, line[3], step[3];
  uint8_t *at[3];
} lines;

/* The elements [i, i + m) of a line, m <= PIECE, wherever they lie. */
INLINE void elsewhere(const int op, const bytes_job *job, const stored of[2], const lines *l, int64_t line, int64_t i, int64_t m) {
  uint8_t taken[2][PIECE] = {{0}}, made[PIECE];
  for (int k = 0; k < 2; k++) {
    const uint8_t *from = l->at[1 + k] + line * l->line[1 + k] + i * l->step[1 + k];
    if (l->step[1 + k] == 1) memcpy(taken[k], from, (size_t)m);
    else if (l->step[1 + k] == 0) memset(taken[k], *from, PIECE);
    else
      for (int64_t j = 0; j < m; j++) taken[k][j] = from[j * l->step[1 + k]];
  }
  piece(op, 4, job, of, taken[0], taken[1], made);
  uint8_t *to = l->at[0] + line * l->line[0] + i * l->step[0];
  if (l->step[0] == 1) memcpy(to, made, (size_t)m);
  else
    for (int64_t j = 0; j < m; j++) to[j * l->step[0]] = made[j];
}

/* Columns of elements, through all lines: operands that lines share stay near. */
INLINE void lines_of(const int op, const bytes_job *job, const lines *l) {
  const stored of[2] = {job->of[0], job->of[1]};
  const int whole = l->step[0] == 1 && l->step[1] == 1 && l->step[2] == 1;
  int64_t i = 0;
  for (int64_t m; i < l->length; i += m) {
    const int64_t least = VL == 16 ? PIECE / 2 : PIECE; /* side by side */
    if (whole && l->length - i < least && l->length >= least) i = l->length - least; /* some once more */
    const int64_t left = l->length - i;
    m = left >= PIECE || !whole ? PIECE : VL == 16 && left >= PIECE / 2 ? PIECE / 2 : left;
    uint8_t *out = l->at[0] + i;
    const uint8_t *a = l->at[1] + i, *b = l->at[2] + i;
    if (whole && m == PIECE)
      for (int64_t r = 0; r < l->n; r++, out += l->line[0], a += l->line[1], b += l->line[2]) piece(op, 4, job, of, a, b, out);
    else if (whole && VL == 16 && m == PIECE / 2)
      for (int64_t r = 0; r < l->n; r++, out += l->line[0], a += l->line[1], b += l->line[2]) piece(op, 2, job, of, a, b, out);
    else
      for (int64_t r = 0; r < l->n; r++) elsewhere(op, job, of, l, r, i, m < left ? m : left);
  }
}

int FN(qbinary)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *x = &c->args[1];
  bytes_job job = {.opcode = c->params[0]};
  for (int k = 0; k < 3; k++)
    if (c->args[k].dtype != ASPEN_DT_I8 && c->args[k].dtype != ASPEN_DT_U8) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (job.opcode != ASPEN_B_ADD && job.opcode != ASPEN_B_SUB && job.opcode != ASPEN_B_MUL) return ASPEN_KERNEL_BAD_ARGUMENT;
  if (FN(epilogue_open)(&job.act, c->params[1], aspen_param_f(c, 2), aspen_param_f(c, 3), 0)) return ASPEN_KERNEL_BAD_ARGUMENT;
  for (int k = 0; k < 2; k++) job.of[k] = stored_of(&x[k], aspen_param_f(c, 4 + 2 * k), c->params[5 + 2 * k]);
  FN(int8_scale)(&job.to, out->dtype, aspen_param_f(c, 8), c->params[9]);
  job.divide = !job.to.quick;
  nd it;
  if (!nd_open(&it, c, 2)) return ASPEN_KERNEL_OK;
  lines l = {.n = 1, .length = nd_row(&it)};
  const int outer = it.rank - 2; /* the axis of lines, which nd_next need not visit */
  for (int k = 0; k < 3; k++) l.step[k] = nd_step(&it, k), l.line[k] = outer >= 0 ? it.strides[k][outer] : 0;
  if (outer >= 0) l.n = it.dims[outer], it.dims[outer] = 1;
  do {
    for (int k = 0; k < 3; k++) l.at[k] = (uint8_t *)it.ptr[k];
    if (job.opcode == ASPEN_B_ADD) lines_of(ASPEN_B_ADD, &job, &l);
    else if (job.opcode == ASPEN_B_SUB) lines_of(ASPEN_B_SUB, &job, &l);
    else lines_of(ASPEN_B_MUL, &job, &l);
  } while (nd_next(&it));
  return ASPEN_KERNEL_OK;
}
