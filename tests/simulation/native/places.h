/* A table of the files that simulated processes have mapped: an address of the one real process becomes a place in a file. */
#ifndef ASPEN_PLACES_H
#define ASPEN_PLACES_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct place {
  uintptr_t begin, end;      /* Addresses. */
  uint64_t dev, ino, offset; /* The file, and the byte of it at `begin`. */
};

static struct place *places; /* They do not overlap, and ascend. */
static size_t n_places, most_places;

/* The first one that ends after an address. */
static size_t place_after(uintptr_t at) {
  size_t low = 0, high = n_places;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (places[middle].end > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

/* The one that holds an address; NULL: none. */
static const struct place *place_of(uintptr_t at) {
  size_t k = place_after(at);
  return k < n_places && places[k].begin <= at ? &places[k] : NULL;
}

/* Makes room for a place before number `k`. 0: no memory. */
static int place_insert(size_t k, struct place p) {
  if (n_places == most_places) {
    size_t most = most_places ? 2 * most_places : 64;
    struct place *grown = realloc(places, most * sizeof *grown);
    if (!grown) return 0;
    places = grown;
    most_places = most;
  }
  memmove(&places[k + 1], &places[k], (n_places - k) * sizeof *places);
  places[k] = p;
  n_places++;
  return 1;
}

/* Nothing is mapped from `begin` to `end` any more. 0: no memory. */
static int place_cut(uintptr_t begin, uintptr_t end) {
  size_t k = place_after(begin);
  if (k < n_places && places[k].begin < begin) {
    struct place left = places[k];
    left.end = begin;
    places[k].offset += begin - places[k].begin;
    places[k].begin = begin;
    if (!place_insert(k++, left)) return 0;
  }
  size_t last = k;
  while (last < n_places && places[last].end <= end) last++;
  if (last < n_places && places[last].begin < end) {
    places[last].offset += end - places[last].begin;
    places[last].begin = end;
  }
  memmove(&places[k], &places[last], (n_places - last) * sizeof *places);
  n_places -= last - k;
  return 1;
}

/* A file is mapped, over whatever was there. 0: no memory. */
static int place_map(struct place p) { return place_cut(p.begin, p.end) && place_insert(place_after(p.begin), p); }

#endif
