/* How a process ends that faults because it had no more memory: not every library looks at what malloc gives it. */
#ifndef ASPEN_FAULTS_H
#define ASPEN_FAULTS_H
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define ASPEN_FAULT_ROOM (16 << 20) /* with so much to be had a fault has other causes */
#define ASPEN_FAULT_STACK (64 << 10) /* also for a frame with all registers of AMX */

static volatile sig_atomic_t aspen_fault_status;

/* Calls nothing that may not be called from a handler, and needs no stack of the thread, which may be what ran out. */
static void aspen_fault(int number) {
  const void *room = mmap(NULL, ASPEN_FAULT_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED && errno == ENOMEM) _exit(aspen_fault_status);
  signal(number, SIG_DFL);
  raise(number); /* as soon as this handler has ended */
}

/* SIGSEGV and SIGABRT end this process with `status` if no memory is left, and as ever if some is. For processes of one thread. Returns 0, or -1 with
 * errno set. */
static inline int aspen_faults_tell(int status) {
  static char stack[ASPEN_FAULT_STACK];
  const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
  struct sigaction action = {.sa_handler = aspen_fault, .sa_flags = SA_ONSTACK};
  aspen_fault_status = status;
  if (sigaltstack(&other, NULL)) return -1;
  return sigaction(SIGSEGV, &action, NULL) || sigaction(SIGABRT, &action, NULL) ? -1 : 0;
}

#endif
