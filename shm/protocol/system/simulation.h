/* The build variant ASPEN_SIMULATION: a whole runtime in one thread, under a scheduler of its tests (tests/simulation).
 *
 * Planner process, clients and workers are then greenlets of one Python process. A scheduler with a seed decides which one runs. Time and
 * descriptors are virtual. So the C parts may neither block, nor ask the kernel for anything that decides what happens next. They call the
 * hooks below instead, which tests/simulation/native/hooks.h defines. A hook may run other greenlets before it returns.
 *
 * No build for users defines ASPEN_SIMULATION. Without it nothing here is compiled to any code.
 */
#ifndef ASPEN_SIMULATION_H
#define ASPEN_SIMULATION_H
#include <stddef.h>
#include <stdint.h>

#ifdef ASPEN_SIMULATION
#define ASPEN_SIMULATED 1

extern uint64_t aspen_sim_budget;  /* Atomic operations up to the next pause. 0: no pause. */
extern uint64_t aspen_sim_time_ns; /* The time of all clocks. */

void aspen_sim_pause(void); /* Others may run here, before an atomic operation. */
void aspen_sim_spin(void);  /* The caller waits for another process, or for a time: others run, and time passes. */

/* As the system calls. A wait returns 0, EAGAIN, EINTR or ETIMEDOUT. */
int aspen_sim_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns);
int aspen_sim_futex_wake(uint32_t *word, uint32_t n);

/* Descriptors, by the numbers that the simulated process knows. A maker returns -1 and sets errno where it fails. */
int aspen_sim_event_make(void);
void aspen_sim_event_tell(int event);
void aspen_sim_event_drain(int event);
void aspen_sim_event_close(int event);
int aspen_sim_memory_make(const char *name, unsigned flags);
void aspen_sim_memory_close(int memory);
int aspen_sim_descriptor(int number); /* The real descriptor behind a number. */

/* Where files are mapped. A futex word is known by its place in a file, because each simulated process maps it elsewhere. */
void aspen_sim_mapped(const void *base, size_t nbytes, int number, uint64_t offset);
void aspen_sim_unmapped(const void *base, size_t nbytes);

/* A signal handler does not pause. It holds the budget back, and gives it back at its end. */
static inline uint64_t aspen_sim_hold(void) {
  uint64_t budget = aspen_sim_budget;
  aspen_sim_budget = 0;
  return budget;
}
static inline void aspen_sim_go_on(uint64_t budget) { aspen_sim_budget = budget; }

#else
#define ASPEN_SIMULATED 0

static inline int aspen_sim_descriptor(int number) { return number; }
static inline void aspen_sim_mapped(const void *base, size_t nbytes, int number, uint64_t offset) {}
static inline void aspen_sim_unmapped(const void *base, size_t nbytes) {}
static inline uint64_t aspen_sim_hold(void) { return 0; }
static inline void aspen_sim_go_on(uint64_t budget) {}
#endif

#endif
