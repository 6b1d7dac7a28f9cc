/* How a process ends that faults because it had no more memory. Not every library looks at what malloc gives it. */
#ifndef ASPEN_FAULTS_H
#define ASPEN_FAULTS_H
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define ASPEN_FAULT_ROOM (16 << 20)  /* A fault has other causes when this many bytes can be had. */
#define ASPEN_FAULT_STACK (64 << 10) /* This also holds a frame with all registers of AMX. */

static volatile sig_atomic_t aspen_fault_status;

/* The handler calls only what a handler may call. It needs no stack of the thread, because that may be what ran out. */
static void aspen_fault(int number) {
  const void *room = mmap(NULL, ASPEN_FAULT_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED && errno == ENOMEM) _exit(aspen_fault_status);
  signal(number, SIG_DFL);
  raise(number); /* It comes as soon as this handler has ended. */
}

/* From now on SIGSEGV and SIGABRT end this process with `status` if no memory is left, and as usual if some is. The process must have one
 * thread. Returns 0, or -1 with errno set. */
static inline int aspen_faults_tell(int status) {
  static char stack[ASPEN_FAULT_STACK];
  const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
  struct sigaction action = {.sa_handler = aspen_fault, .sa_flags = SA_ONSTACK};
  aspen_fault_status = status;
  if (sigaltstack(&other, NULL)) return -1;
  return sigaction(SIGSEGV, &action, NULL) || sigaction(SIGABRT, &action, NULL) ? -1 : 0;
}

#endif
