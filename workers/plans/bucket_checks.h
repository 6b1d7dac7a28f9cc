/* A worker's checks of a plan for a shape bucket: no extents lead it outside its mappings. Each check returns NULL, or what is wrong.
 *
 * Operands that lie in their spaces at the largest extents (aspen_operands_check) and at the smallest do so between them. No value falls
 * as an extent rises, nor does a number of an operand that follows from it. Strides that follow from a value are not negative. So the last
 * byte that is touched never falls. The first byte falls where an axis with another, negative stride grows. If the offset changes too, it
 * has to follow from the same value as the lengths of all such axes. The first byte is then linear in that value, and so lies behind one
 * at the ends.
 */
#ifndef ASPEN_BUCKET_CHECKS_H
#define ASPEN_BUCKET_CHECKS_H
#include <stdlib.h>
#include <string.h>

#include "plans/checks.h"
#include "plans/plan.h"

/* Computes a value from earlier ones. Returns 0 where it would overflow or be negative, or is none. */
static inline int aspen_value_try(const struct aspen_value *x, const int64_t *value, uint32_t n, int64_t *out) {
  int64_t left, right;
  if (x->u >= n || (x->kind != ASPEN_VALUE_FLOOR && x->v >= n)) return 0;
  switch (x->kind) {
    case ASPEN_VALUE_FLOOR:
      if (x->a < 0 || x->c < 1 || __builtin_mul_overflow(x->a, value[x->u], &left) || __builtin_add_overflow(left, x->b, &left)) return 0;
      *out = left / x->c;
      return left >= 0;
    case ASPEN_VALUE_PRODUCT: return !__builtin_mul_overflow(value[x->u], value[x->v], out);
    case ASPEN_VALUE_SUM:
      if (x->a < 0 || x->b < 0) return 0;
      if (__builtin_mul_overflow(x->a, value[x->u], &left) || __builtin_mul_overflow(x->b, value[x->v], &right)) return 0;
      return !__builtin_add_overflow(left, right, out);
  }
  return 0;
}

/* Writes all values at these extents into `value`. */
static inline const char *aspen_values_check(const struct aspen_exec_plan *p, const uint32_t *extents, int64_t *value) {
  const struct aspen_plan_header *h = p->view.header;
  for (uint32_t k = 0; k < h->n_extents; k++) value[k] = extents[k];
  for (uint32_t i = 0, n = h->n_extents; i < h->n_values; i++, n++)
    if (!aspen_value_try(&p->values[i], value, n, &value[n])) return "a value is none, negative or too large";
  return NULL;
}

/* Checks a number, and writes it as it is at the smallest extents into `smallest`, a copy of the operands. An axis that is empty there
 * alone counts as having a length of one. */
static inline const char *aspen_number_check(const struct aspen_exec_plan *p, const struct aspen_number *n, const int64_t *at_least,
                                             struct aspen_operand *smallest) {
  const struct aspen_plan_header *h = p->view.header;
  const int64_t *largest = aspen_number_at(n, h, p->operands, p->params);
  uint32_t count = aspen_values_count(h);
  int64_t less, number;
  if (!largest || n->value >= count) return "a number belongs to nothing";
  if (n->table == ASPEN_NUMBER_RATIO) return n->per < 0 || n->per >= count || !at_least[n->per] ? "a ratio has no value below" : NULL;
  if (__builtin_mul_overflow(n->per, p->at_most[n->value] - at_least[n->value], &less) || __builtin_sub_overflow(*largest, less, &number))
    return "a number is too steep";
  if (n->table == ASPEN_NUMBER_PARAM) return NULL;
  if (n->per < 0 || smallest[n->table == ASPEN_NUMBER_OFFSET ? n->index : n->index / ASPEN_RANK].dtype == ASPEN_DT_NONE)
    return "an operand's number falls, or there is no operand";
  if (n->table != ASPEN_NUMBER_OFFSET && number < 0) return "a dimension or stride is negative at the smallest extents";
  if (n->table == ASPEN_NUMBER_DIM && number == 0 && *largest > 0) number = 1;
  *(int64_t *)aspen_number_at(n, h, smallest, p->params) = number;
  return NULL;
}

/* Where an operand's offset changes, the axes that go downwards follow from the same value. `offset_of`: memory for one word an operand. */
static inline const char *aspen_downwards_check(const struct aspen_exec_plan *p, uint32_t *offset_of) {
  const struct aspen_number *first = p->numbers, *end = first + p->view.header->n_numbers;
  memset(offset_of, 0, p->n_operands * sizeof *offset_of);
  for (const struct aspen_number *n = first; n < end; n++)
    if (n->table == ASPEN_NUMBER_OFFSET && n->per) offset_of[n->index] = n->value + 1u;
  for (const struct aspen_number *n = first; n < end; n++) {
    if (n->table != ASPEN_NUMBER_DIM || !n->per) continue;
    uint32_t operand = n->index / ASPEN_RANK;
    if (p->operands[operand].strides[n->index % ASPEN_RANK] < 0 && offset_of[operand] && offset_of[operand] != n->value + 1u)
      return "an operand grows downwards by one value, and moves by another";
  }
  return NULL;
}

/* `smallest`, `words`, `value`: memory for the operands, a word for each of them, and all values. */
static inline const char *aspen_bucket_check(const struct aspen_exec_plan *p, struct aspen_operand *smallest, uint32_t *words, int64_t *value) {
  const struct aspen_plan_header *h = p->view.header;
  const char *why;
  if ((why = aspen_values_check(p, h->most, p->at_most)) || (why = aspen_values_check(p, h->least, value))) return why;
  memcpy(smallest, p->operands, p->n_operands * sizeof *smallest);
  for (uint32_t i = 0; i < h->n_numbers; i++)
    if ((why = aspen_number_check(p, &p->numbers[i], value, smallest))) return why;
  if ((why = aspen_downwards_check(p, words))) return why;
  return aspen_operands_check(h, smallest);
}

/* Checks the plan, and makes `at_most`. */
static inline const char *aspen_bucket_load(struct aspen_exec_plan *p) {
  size_t n = p->n_operands + 1, values = aspen_values_count(p->view.header);
  struct aspen_operand *smallest = (struct aspen_operand *)malloc(n * (sizeof *smallest + sizeof(uint32_t)));
  int64_t *value = (int64_t *)malloc(values * sizeof *value);
  p->at_most = (int64_t *)malloc(values * sizeof *value);
  const char *why = "out of memory";
  if (smallest && value && p->at_most) why = aspen_bucket_check(p, smallest, (uint32_t *)(smallest + n), value);
  free(smallest);
  free(value);
  return why;
}

#endif
