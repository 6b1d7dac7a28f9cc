/* Pages that a segment borrows from files that others can change: of a client's (docs/protocol/borrow.md, "Borrow"), or of the plan cache
 * ("Weights in files"). Where the file turns out to be shorter than was promised, the kernel answers a look at the missing pages with SIGBUS;
 * where a slot's offset puts a plan's outputs on these pages, it answers the store with SIGSEGV, for they are mapped read-only. Neither must
 * end the worker: it would cost all other clients a recovery. The handler puts private memory there and says so in the segment's first line. */
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

static const int aspen_borrow_signal[2] = {SIGBUS, SIGSEGV};
static struct sigaction aspen_borrow_before[2]; /* what each would do without us */

static void aspen_borrow_fault(int number, siginfo_t *info, void *context) {
  char *at = info->si_addr;
  int error = errno, sent = info->si_code <= 0; /* by a process, not by an instruction of ours: then si_addr means nothing */
  const uint64_t budget = aspen_sim_hold();
  (void)context;
  for (int i = 0; i < ASPEN_MAX_BORROWED && !sent; i++) {
    struct aspen_borrowed *b = &aspen_borrowed[i];
    if (!b->begin || at < b->begin || at >= b->end) continue;
    char *page = at - (uintptr_t)at % ASPEN_PAGE;
    /* All that follows is missing, or about to be written to, as well. The zeros stay for as long as the segment is mapped, so that nothing
     * flickers. They may be written to: the tile goes on with whatever it does, and its request fails. */
    if (mmap(page, (size_t)(b->end - page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) break;
    aspen_store_seq(&b->head->torn, 1);
    aspen_sim_go_on(budget);
    errno = error;
    return;
  }
  sigaction(number, &aspen_borrow_before[number == SIGSEGV], NULL); /* a fault of any other kind happens again, and does what it would without us */
  if (sent) raise(number);                                          /* which does not happen again by itself */
  errno = error;
}

/* Only a process that borrows watches for faults. 0, or errno. */
static int aspen_borrow_watch(void) {
  static int watched;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = aspen_borrow_fault;
  action.sa_flags = SA_SIGINFO;
  for (; watched < 2; watched++)
    if (sigaction(aspen_borrow_signal[watched], &action, &aspen_borrow_before[watched])) return errno;
  return 0;
}

/* Maps `bytes` of a file, read-only, over part of a mapped data segment. 0, or errno. */
static int aspen_borrow(char *segment, uint64_t at, int fd, uint64_t offset, uint64_t bytes) {
  int i = 0, error = aspen_borrow_watch();
  if (error) return error;
  while (i < ASPEN_MAX_BORROWED && aspen_borrowed[i].begin) i++;
  if (i == ASPEN_MAX_BORROWED) return ENOMEM;
  if (mprotect(segment, ASPEN_PAGE, PROT_READ | PROT_WRITE)) return errno; /* the segment's own: `torn` is there */
  if (mmap(segment + at, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, aspen_sim_descriptor(fd), (off_t)offset) == MAP_FAILED) return errno;
  aspen_sim_mapped(segment + at, bytes, fd, offset);
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
  return fstatfs(aspen_sim_descriptor(fd), &s) == 0 && (uint32_t)s.f_type == ASPEN_TMPFS;
}

#endif
