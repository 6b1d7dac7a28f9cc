/* Forks a child for one's own parent. The parent waits for it, hears of its end, and the child dies with the parent. */
#ifndef ASPEN_SIBLING_H
#define ASPEN_SIBLING_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Forks like fork(), but the new process is a child of the caller's parent. The caller must have one thread only, so that no other thread
 * holds a lock.
 *
 * The kernel clears a word at the thread's end, and the C library keeps the thread's number there. So the kernel writes the new number
 * there, too. */
static inline long aspen_fork_sibling(void) {
  unsigned long flags = CLONE_PARENT | SIGCHLD;
  int *tid = NULL;
#ifdef PR_GET_TID_ADDRESS
  if (prctl(PR_GET_TID_ADDRESS, &tid, 0, 0, 0) == 0 && tid != NULL) flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
  else tid = NULL;
#endif
#if defined(__x86_64__) || defined(__loongarch__)
  return syscall(SYS_clone, flags, NULL, NULL, tid, NULL);
#elif defined(__s390x__)
  return syscall(SYS_clone, NULL, flags, NULL, tid, NULL);
#else
  return syscall(SYS_clone, flags, NULL, NULL, NULL, tid);
#endif
}

#endif
