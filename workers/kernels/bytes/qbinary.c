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

/* PIECE elements side by side. */
INLINE void piece(const int op, const bytes_job *job, const stored of[2], const uint8_t *a, const uint8_t *b, uint8_t *out) {
  vf y[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const vf x = value_of(&of[0], a + i * VL), z = value_of(&of[1], b + i * VL);
    y[i] = op == ASPEN_B_ADD ? x + z : op == ASPEN_B_SUB ? x - z : x * z;
  }
  if (job->act.kind != EPILOGUE_NONE) epilogue_act(&job->act, y, 4);
  if (job->divide) {
    const range to = range_of(job->to.zero, job->to.lowest);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) store_levels(out + i * VL, level_of(&to, y[i] / vset1(job->to.scale)));
    return;
  }
  const quick by = quick_of(&job->to);
  vi q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) q[i] = quick_quotient(&by, y[i]);
  quick_levels(&by, job->to.dtype == ASPEN_DT_I8, q, out, out + PIECE / 2);
}

/* n elements side by side; of an operand, one for all where its step is 0. */
INLINE void row_of(const int op, const bytes_job *job, int64_t n, uint8_t *out, const uint8_t *const x[2], const int64_t step[2]) {
  const stored of[2] = {job->of[0], job->of[1]};
  uint8_t kept[2][PIECE], made[PIECE];
  const uint8_t *from[2];
  for (int k = 0; k < 2; k++) {
    from[k] = step[k] ? x[k] : kept[k];
    if (!step[k]) memset(kept[k], *x[k], PIECE);
  }
  int64_t i = 0;
  for (; i + PIECE <= n; i += PIECE) piece(op, job, of, from[0] + i * step[0], from[1] + i * step[1], out + i);
  if (i == n) return;
  for (int k = 0; k < 2; k++) {
    if (!step[k]) continue;
    memset(kept[k], 0, PIECE);
    memcpy(kept[k], x[k] + i, (size_t)(n - i));
  }
  piece(op, job, of, kept[0], kept[1], made);
  memcpy(out + i, made, (size_t)(n - i));
}

static void whole_row(const bytes_job *job, int64_t n, uint8_t *out, const uint8_t *const x[2], const int64_t step[2]) {
  if (job->opcode == ASPEN_B_ADD) row_of(ASPEN_B_ADD, job, n, out, x, step);
  else if (job->opcode == ASPEN_B_SUB) row_of(ASPEN_B_SUB, job, n, out, x, step);
  else row_of(ASPEN_B_MUL, job, n, out, x, step);
}

/* A row whose elements are apart. */
static void row_apart(const bytes_job *job, const nd *it) {
  const int64_t n = nd_row(it), side_by_side[2] = {1, 1};
  for (int64_t i = 0; i < n; i += PIECE) {
    const int64_t m = nd_min(PIECE, n - i);
    uint8_t taken[2][PIECE], made[PIECE];
    for (int k = 0; k < 2; k++)
      for (int64_t j = 0; j < m; j++) taken[k][j] = (uint8_t)it->ptr[1 + k][(i + j) * nd_step(it, 1 + k)];
    whole_row(job, m, made, (const uint8_t *const[2]){taken[0], taken[1]}, side_by_side);
    for (int64_t j = 0; j < m; j++) it->ptr[0][(i + j) * nd_step(it, 0)] = (char)made[j];
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
  const int64_t step[2] = {nd_step(&it, 1), nd_step(&it, 2)};
  const int whole = nd_step(&it, 0) == 1 && (step[0] == 0 || step[0] == 1) && (step[1] == 0 || step[1] == 1);
  do {
    const uint8_t *const from[2] = {(const uint8_t *)it.ptr[1], (const uint8_t *)it.ptr[2]};
    if (whole) whole_row(&job, nd_row(&it), (uint8_t *)it.ptr[0], from, step);
    else row_apart(&job, &it);
  } while (nd_next(&it));
  return ASPEN_KERNEL_OK;
}
