/* QPACK: matrices of bytes become panels of QMATMUL's right factor, where they are not constant.
 *
 * Loops: leading axes, panels of ASPEN_NR columns, groups of four terms. Where terms of a column lie side by side (a transposed factor), a
 * column is copied at a time. Where columns do, four rows are woven into one.
 */
#include "bytes/int8.h"

/* A matrix: its first element, and the strides of terms and columns. */
typedef struct matrix {
  const uint8_t *from;
  int64_t terms, term, column;
  uint8_t flip; /* 128: of unsigned bytes 128 is taken */
} matrix;

INLINE int32_t as_signed(uint8_t x) { return (int8_t)x; }

/* Columns of a panel whose terms lie side by side. */
static void copy_columns(const matrix *m, int width, uint8_t *to, int32_t *sums) {
  const int64_t groups = m->terms / INT8_GROUP;
  for (int j = 0; j < width; j++) {
    const uint8_t *p = m->from + j * m->column;
    uint8_t *at = to + j * INT8_GROUP;
    for (int64_t g = 0; g < groups; g++) {
      uint32_t word;
      memcpy(&word, p + g * INT8_GROUP, sizeof word);
      word ^= 0x01010101u * m->flip;
      memcpy(at + g * INT8_PANEL_GROUP, &word, sizeof word);
    }
    for (int64_t i = groups * INT8_GROUP; i < m->terms; i++) at[groups * INT8_PANEL_GROUP + i % INT8_GROUP] = p[i] ^ m->flip;
    int32_t sum = 0;
    for (int64_t i = 0; i < m->terms; i++) sum += as_signed(p[i] ^ m->flip);
    sums[j] = sum;
  }
}

/* A whole panel whose columns lie side by side. */
static void weave_rows(const matrix *m, uint8_t *to, int32_t *sums) {
  uint8_t none[ASPEN_NR];
  memset(none, m->flip, sizeof none);
  for (int64_t i = 0; i < m->terms; i += INT8_GROUP, to += INT8_PANEL_GROUP) {
    const uint8_t *r[INT8_GROUP];
    for (int k = 0; k < INT8_GROUP; k++) r[k] = i + k < m->terms ? m->from + (i + k) * m->term : none;
    uint32_t words[ASPEN_NR];
    for (int j = 0; j < ASPEN_NR; j++) {
      words[j] = ((uint32_t)r[0][j] | (uint32_t)r[1][j] << 8 | (uint32_t)r[2][j] << 16 | (uint32_t)r[3][j] << 24) ^ 0x01010101u * m->flip;
      sums[j] += as_signed(r[0][j] ^ m->flip) + as_signed(r[1][j] ^ m->flip) + as_signed(r[2][j] ^ m->flip) + as_signed(r[3][j] ^ m->flip);
    }
    memcpy(to, words, sizeof words);
  }
}

static void pack_elements(const matrix *m, int width, uint8_t *to, int32_t *sums) {
  for (int64_t i = 0; i < m->terms; i++)
    for (int j = 0; j < width; j++) {
      const uint8_t x = m->from[i * m->term + j * m->column] ^ m->flip;
      to[i / INT8_GROUP * INT8_PANEL_GROUP + j * INT8_GROUP + i % INT8_GROUP] = x;
      sums[j] += as_signed(x);
    }
}

/* The panel of the first `width` columns. */
static void pack_panel(const matrix *m, int width, int32_t point, char *to) {
  int32_t head[ASPEN_BYTES_HEADER][ASPEN_NR] = {0};
  uint8_t *terms = (uint8_t *)to + INT8_HEADER;
  const int64_t groups = int8_groups(m->terms);
  const int woven = m->column == 1 && width == ASPEN_NR;
  for (int j = 0; j < width; j++) head[1][j] = point;
  if (m->terms == 0) width = 0;
  else if (!woven && width < ASPEN_NR) memset(terms, 0, (size_t)(groups * INT8_PANEL_GROUP));
  else if (!woven) memset(terms + (groups - 1) * INT8_PANEL_GROUP, 0, INT8_PANEL_GROUP);
  if (woven) weave_rows(m, terms, head[0]);
  else if (m->term == 1) copy_columns(m, width, terms, head[0]);
  else pack_elements(m, width, terms, head[0]);
  memcpy(to, head, sizeof head);
}

int FN(qpack)(const aspen_call *c) {
  const aspen_arg *out = &c->args[0], *b = &c->args[1], *zero = c->n_inputs > 1 && c->args[2].dtype ? &c->args[2] : NULL;
  const int rank = b->rank, panels = rank - 2, last = rank - 1;
  if (rank < 2 || out->rank != rank + 1 || out->dtype != ASPEN_DT_I8 || (b->dtype != ASPEN_DT_I8 && b->dtype != ASPEN_DT_U8) ||
      (zero && zero->dtype != b->dtype))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  const int64_t terms = b->dims[panels], columns = b->dims[last];
  if (out->strides[rank] != 1 || out->strides[last] != INT8_PANEL_GROUP || out->dims[rank] != INT8_PANEL_GROUP ||
      out->dims[last] != ASPEN_BYTES_HEADER + int8_groups(terms))
    return ASPEN_KERNEL_BAD_ARGUMENT;
  const int whole = b->dtype == ASPEN_DT_U8;
  const uint8_t stored = zero ? (uint8_t)zero->ptr[0] : 0;
  const int32_t point = whole ? (int32_t)stored - 128 : as_signed(stored);
  int64_t index[ASPEN_MAX_RANK], from = 0, to = 0;
  for (int i = 0; i < rank; i++) {
    if (c->lo[i] >= c->hi[i]) return ASPEN_KERNEL_OK;
    index[i] = c->lo[i];
    if (i < panels) from += c->lo[i] * b->strides[i];
    if (i < last) to += c->lo[i] * out->strides[i];
  }
  for (;;) {
    for (int64_t p = c->lo[panels]; p < c->hi[panels]; p++) {
      const int64_t first = p * ASPEN_NR, left = columns - first;
      const matrix m = {(const uint8_t *)b->ptr + from + first * b->strides[last], terms, b->strides[panels], b->strides[last], whole ? 0x80 : 0};
      pack_panel(&m, (int)(left < ASPEN_NR ? left : ASPEN_NR), point, out->ptr + to + (p - c->lo[panels]) * out->strides[panels]);
    }
    int i = panels - 1;
    for (; i >= 0; i--) {
      from += b->strides[i], to += out->strides[i];
      if (++index[i] < c->hi[i]) break;
      from -= b->strides[i] * (c->hi[i] - c->lo[i]), to -= out->strides[i] * (c->hi[i] - c->lo[i]);
      index[i] = c->lo[i];
    }
    if (i < 0) return ASPEN_KERNEL_OK;
  }
}
