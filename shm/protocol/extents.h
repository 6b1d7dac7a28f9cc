/* The extents of a request, in the one word of its slot (docs/protocol/extent.md). One extent has the whole word. Two have 16 bits each, the
 * first one the lowest; three have 11, 11 and 10. */
#ifndef ASPEN_EXTENTS_H
#define ASPEN_EXTENTS_H
#include <stdint.h>

#define ASPEN_MAX_EXTENTS 3

/* Returns extent k of the n in a word. */
static inline uint32_t aspen_extent(uint32_t word, uint32_t n, uint32_t k) {
  if (n < 2) return word;
  uint32_t bits = n == 2 ? 16 : 11;
  return (word >> bits * k) & ((1u << bits) - 1);
}

/* Returns the word of n extents that have room in it. */
static inline uint32_t aspen_extents_word(const uint32_t *extents, uint32_t n) {
  uint32_t bits = n == 2 ? 16 : 11, word = n ? extents[0] : 0;
  for (uint32_t k = 1; k < n; k++) word |= extents[k] << bits * k;
  return word;
}

/* Whether each of the n extents in a word lies in its range. Without extents the word is 0. */
static inline int aspen_extents_fit(uint32_t word, uint32_t n, const uint32_t *least, const uint32_t *most) {
  for (uint32_t k = 0; k < n; k++) {
    uint32_t extent = aspen_extent(word, n, k);
    if (extent < least[k] || extent > most[k]) return 0;
  }
  return n || !word;
}

#endif
