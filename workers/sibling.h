/* Forking a child for one's own parent: what it forks is the parent's to wait for, to be signalled about, and to die with. */
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

/* As fork(), but the new process is a child of the caller's parent. For processes of one thread only: no lock can be held by another.
 *
 * The C library keeps the thread's number where the kernel was told to clear it at the thread's end; the kernel writes the new one there. */
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
