/* Pages that a data segment borrows from files of a client's (README, "Borrow"): what happens when such a file turns out to be shorter than
 * was promised. The kernel then answers a look at the missing pages with SIGBUS, which must not end the worker: whoever cut the file short
 * would cost all other clients a recovery. The handler puts zeros there and says so in the segment's first line. */
#ifndef ASPEN_BORROW_H
#define ASPEN_BORROW_H
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>

#include "atomics.h"
#include "layout.h"

#define ASPEN_TMPFS 0x01021994

struct aspen_borrowed {
  char *begin, *end; /* of the borrowed pages; begin NULL: not in use */
  struct aspen_data_head *head;
};
static struct aspen_borrowed aspen_borrowed[ASPEN_MAX_BORROWED]; /* changed by the one thread that also runs the kernels, never in a handler */

static void aspen_borrow_fault(int number, siginfo_t *info, void *context) {
  char *at = info->si_addr;
  int error = errno;
  (void)context;
  for (int i = 0; i < ASPEN_MAX_BORROWED; i++) {
    struct aspen_borrowed *b = &aspen_borrowed[i];
    if (!b->begin || at < b->begin || at >= b->end) continue;
    char *page = at - (uintptr_t)at % ASPEN_PAGE;
    /* All that follows is missing as well. The zeros stay for as long as the segment is mapped, so that nothing flickers. */
    if (mmap(page, (size_t)(b->end - page), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) break;
    aspen_store_seq(&b->head->torn, 1);
    errno = error;
    return;
  }
  signal(number, SIG_DFL); /* a fault of any other kind happens again, and ends the process as it would without us */
}

/* Maps `bytes` of a file, read-only, over part of a mapped data segment. 0, or errno. */
static int aspen_borrow(char *segment, uint64_t at, int fd, uint64_t offset, uint64_t bytes) {
  static int watched;
  int i = 0;
  while (i < ASPEN_MAX_BORROWED && aspen_borrowed[i].begin) i++;
  if (i == ASPEN_MAX_BORROWED) return ENOMEM;
  if (!watched) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = aspen_borrow_fault;
    action.sa_flags = SA_SIGINFO;
    if (sigaction(SIGBUS, &action, NULL)) return errno;
    watched = 1;
  }
  if (mmap(segment + at, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED) return errno;
  aspen_borrowed[i] = (struct aspen_borrowed){segment + at, segment + at + bytes, (struct aspen_data_head *)segment};
  return 0;
}

/* The segment is about to be unmapped. */
static void aspen_borrow_end(const char *segment, uint64_t bytes) {
  for (int i = 0; i < ASPEN_MAX_BORROWED; i++)
    if (aspen_borrowed[i].begin >= segment && aspen_borrowed[i].begin < segment + bytes) aspen_borrowed[i].begin = NULL;
}

/* Whether a descriptor is of memory that never waits for a device, a network or another process: tmpfs and memfd. */
static int aspen_is_memory(int fd) {
  struct statfs s;
  return fstatfs(fd, &s) == 0 && (uint32_t)s.f_type == ASPEN_TMPFS;
}

#endif
