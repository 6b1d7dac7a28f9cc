/* The hooks of shm/protocol/system/simulation.h: each one calls a Python function, which may run other greenlets before it returns.
 *
 * C code calls them with the interpreter's lock or without. A greenlet switches only while the lock is held, and each one releases exactly
 * what it has taken. So the counts of PyGILState come out right, in whatever order greenlets go on. Greenlets do not save all that belongs
 * to a thread. The rest is saved here: the budget, errno and the exception that is on its way.
 *
 * Nobody pauses while a hook's function runs, unless it sets a budget: what schedules is not scheduled.
 */
#ifndef ASPEN_HOOKS_H
#define ASPEN_HOOKS_H
#include <Python.h>
#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "places.h"
#include "system/simulation.h"

#define FAULT_STATUS 70 /* The simulation itself has failed (EX_SOFTWARE). */
#define FOREVER UINT64_MAX

#define HOOKS(X) \
  X(pause) X(spin) X(futex_wait) X(futex_wake) X(event_make) X(event_tell) X(event_drain) X(event_close) X(memory_make) X(memory_close) \
  X(descriptor) X(mapped) X(unmapped)
#define X(name) HOOK_##name,
enum hook { HOOKS(X) N_HOOKS };
#undef X
#define X(name) #name,
static const char *const hook_names[] = {HOOKS(X)};
#undef X

uint64_t aspen_sim_budget, aspen_sim_time_ns;
static PyObject *hook_functions[N_HOOKS]; /* NULL: none. */
static uint64_t hook_calls[N_HOOKS];
static uint64_t budgets_set;

/* The state of the caller. */
struct hook_call {
  PyGILState_STATE gil;
  PyObject *type, *value, *traceback;
  uint64_t budget, set;
  int held, error; /* Whether the caller had the interpreter's lock; its errno. */
};

static void hook_enter(struct hook_call *c) {
  c->error = errno;
  c->budget = aspen_sim_budget;
  c->set = budgets_set;
  aspen_sim_budget = 0;
  c->held = PyGILState_Check();
  c->gil = PyGILState_Ensure();
  PyErr_Fetch(&c->type, &c->value, &c->traceback);
}

static void hook_leave(struct hook_call *c) {
  PyErr_Restore(c->type, c->value, c->traceback);
  PyGILState_Release(c->gil);
  if (budgets_set == c->set) aspen_sim_budget = c->budget;
  errno = c->error;
}

/* An exception has no caller to go to: C code that is in the middle of the protocol cannot be left. */
static void hook_fault(enum hook which) {
  fprintf(stderr, "a simulation's %s has failed:\n", hook_names[which]);
  PyErr_Print();
  fflush(NULL);
  _exit(FAULT_STATUS);
}

/* Calls the function of a hook with `n` arguments, which it takes. The result is NULL where there is no function. */
static PyObject *hook_invoke(enum hook which, PyObject **argument, size_t n) {
  PyObject *function = hook_functions[which], *result = NULL;
  hook_calls[which]++;
  for (size_t k = 0; k < n; k++)
    if (!argument[k]) hook_fault(which);
  if (function) {
    Py_INCREF(function); /* It may install another one. */
    result = PyObject_Vectorcall(function, argument, n, NULL);
    Py_DECREF(function);
    if (!result) hook_fault(which);
  }
  for (size_t k = 0; k < n; k++) Py_DECREF(argument[k]);
  return result;
}

/* The number that a hook returns; `otherwise` where it has no function. */
static long hook_number(enum hook which, PyObject **argument, size_t n, long otherwise) {
  PyObject *result = hook_invoke(which, argument, n);
  if (!result) return otherwise;
  long number = result == Py_None ? 0 : PyLong_AsLong(result);
  if (number == -1 && PyErr_Occurred()) hook_fault(which);
  Py_DECREF(result);
  return number;
}

/* A maker's answer is a descriptor, or an error's number with a minus. */
static int hook_made(long number, struct hook_call *c) {
  if (number >= 0) return (int)number;
  c->error = (int)-number;
  return -1;
}

/* (device, inode, offset) of an address; (0, 0, address) where no file is mapped there. */
static PyObject *hook_place(const void *at) {
  const struct place *p = place_of((uintptr_t)at);
  uint64_t dev = p ? p->dev : 0, ino = p ? p->ino : 0, offset = p ? p->offset + ((uintptr_t)at - p->begin) : (uintptr_t)at;
  return Py_BuildValue("(KKK)", (unsigned long long)dev, (unsigned long long)ino, (unsigned long long)offset);
}

/* ------------------------------------------------------------------------------------------------ scheduling */

static void hook_let_run(enum hook which) {
  struct hook_call c;
  hook_enter(&c);
  PyObject *argument[] = {PyBool_FromLong(c.held)};
  Py_XDECREF(hook_invoke(which, argument, 1));
  hook_leave(&c);
}

void aspen_sim_pause(void) { hook_let_run(HOOK_pause); }
void aspen_sim_spin(void) { hook_let_run(HOOK_spin); }

int aspen_sim_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns) {
  struct hook_call c;
  if (*(volatile uint32_t *)word != expected) return EAGAIN;
  hook_enter(&c);
  PyObject *timeout = timeout_ns == FOREVER ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(timeout_ns);
  PyObject *argument[] = {hook_place(word), timeout, PyBool_FromLong(c.held)};
  int result = (int)hook_number(HOOK_futex_wait, argument, 3, EINTR);
  hook_leave(&c);
  return result;
}

int aspen_sim_futex_wake(uint32_t *word, uint32_t n) {
  struct hook_call c;
  hook_enter(&c);
  PyObject *argument[] = {hook_place(word), PyLong_FromUnsignedLong(n)};
  int result = (int)hook_number(HOOK_futex_wake, argument, 2, 0);
  hook_leave(&c);
  return result;
}

/* ------------------------------------------------------------------------------------------------ descriptors */

static long hook_of_descriptor(enum hook which, int number, long otherwise) {
  struct hook_call c;
  hook_enter(&c);
  PyObject *argument[] = {PyLong_FromLong(number)};
  long result = hook_number(which, argument, 1, otherwise);
  hook_leave(&c);
  return result;
}

int aspen_sim_event_make(void) {
  struct hook_call c;
  if (!hook_functions[HOOK_event_make]) return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  hook_enter(&c);
  int result = hook_made(hook_number(HOOK_event_make, NULL, 0, 0), &c);
  hook_leave(&c);
  return result;
}

void aspen_sim_event_tell(int event) {
  if (hook_functions[HOOK_event_tell]) hook_of_descriptor(HOOK_event_tell, event, 0);
  else eventfd_write(event, 1);
}

void aspen_sim_event_drain(int event) {
  eventfd_t count;
  if (hook_functions[HOOK_event_drain]) hook_of_descriptor(HOOK_event_drain, event, 0);
  else eventfd_read(event, &count);
}

void aspen_sim_event_close(int event) {
  if (hook_functions[HOOK_event_close]) hook_of_descriptor(HOOK_event_close, event, 0);
  else close(event);
}

int aspen_sim_memory_make(const char *name, unsigned flags) {
  struct hook_call c;
  if (!hook_functions[HOOK_memory_make]) return memfd_create(name, flags);
  hook_enter(&c);
  PyObject *argument[] = {PyUnicode_FromString(name), PyLong_FromUnsignedLong(flags)};
  int result = hook_made(hook_number(HOOK_memory_make, argument, 2, 0), &c);
  hook_leave(&c);
  return result;
}

void aspen_sim_memory_close(int memory) {
  if (hook_functions[HOOK_memory_close]) hook_of_descriptor(HOOK_memory_close, memory, 0);
  else close(memory);
}

int aspen_sim_descriptor(int number) {
  return hook_functions[HOOK_descriptor] ? (int)hook_of_descriptor(HOOK_descriptor, number, number) : number;
}

/* ------------------------------------------------------------------------------------------------ mappings */

static void hook_lacks_memory(void) {
  fputs("a simulation has no memory for its table of mappings\n", stderr);
  _exit(FAULT_STATUS);
}

void aspen_sim_mapped(const void *base, size_t nbytes, int number, uint64_t offset) {
  struct hook_call c;
  struct stat file;
  if (fstat(aspen_sim_descriptor(number), &file)) memset(&file, 0, sizeof file);
  const struct place p = {(uintptr_t)base, (uintptr_t)base + nbytes, file.st_dev, file.st_ino, offset};
  if (!place_map(p)) hook_lacks_memory();
  if (!hook_functions[HOOK_mapped]) return;
  hook_enter(&c);
  PyObject *argument[] = {PyLong_FromVoidPtr((void *)base), PyLong_FromSize_t(nbytes), PyLong_FromLong(number)};
  Py_XDECREF(hook_invoke(HOOK_mapped, argument, 3));
  hook_leave(&c);
}

void aspen_sim_unmapped(const void *base, size_t nbytes) {
  struct hook_call c;
  if (hook_functions[HOOK_unmapped]) {
    hook_enter(&c);
    PyObject *argument[] = {PyLong_FromVoidPtr((void *)base), PyLong_FromSize_t(nbytes)};
    Py_XDECREF(hook_invoke(HOOK_unmapped, argument, 2));
    hook_leave(&c);
  }
  if (!place_cut((uintptr_t)base, (uintptr_t)base + nbytes)) hook_lacks_memory();
}

/* Puts memory that nobody may touch over a mapping. Its addresses stay taken, because an object may unmap them later. 0, or -1: errno. */
static int hook_vacate(void *base, size_t nbytes) {
  if (mmap(base, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) return -1;
  if (!place_cut((uintptr_t)base, (uintptr_t)base + nbytes)) hook_lacks_memory();
  return 0;
}

#endif
