/* Descriptors that C and Cython code makes by itself: events, and memory without a name. */
#ifndef ASPEN_DESCRIPTORS_H
#define ASPEN_DESCRIPTORS_H
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "system/simulation.h"

#if !ASPEN_SIMULATED

/* An event that can be polled for: a descriptor, or -1 with errno. It does not block, and children do not inherit it. */
static inline int aspen_event_make(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

static inline void aspen_event_tell(int event) { eventfd_write(event, 1); }

/* Forgets what the event was told. */
static inline void aspen_event_drain(int event) {
  eventfd_t count;
  eventfd_read(event, &count);
}

static inline void aspen_event_close(int event) { close(event); }

/* A file in memory: a descriptor, or -1 with errno. */
static inline int aspen_memory_make(const char *name, unsigned flags) { return memfd_create(name, flags); }
static inline void aspen_memory_close(int memory) { close(memory); }

#else

static inline int aspen_event_make(void) { return aspen_sim_event_make(); }
static inline void aspen_event_tell(int event) { aspen_sim_event_tell(event); }
static inline void aspen_event_drain(int event) { aspen_sim_event_drain(event); }
static inline void aspen_event_close(int event) { aspen_sim_event_close(event); }
static inline int aspen_memory_make(const char *name, unsigned flags) { return aspen_sim_memory_make(name, flags); }
static inline void aspen_memory_close(int memory) { aspen_sim_memory_close(memory); }

#endif

#endif
