/* Tells Mend which time step is done, so that a rank that had to leave a node goes back when that is worth it (docs/back-migration.md).
 *
 *   #include "mend_step.h"
 *   for (step = 0; step < steps; step++) {
 *     compute();
 *     mend_step(step + 1, steps);
 *   }
 *
 * mend_step(now, total): `now` steps are done of `total`; a total of 0, or a negative one: it is not known. Any thread may call it, as often as it likes: a call takes some
 * tens of nanoseconds. Without Mend it does nothing. There is nothing to link: the function is looked up when it is first called (with glibc before
 * 2.34: -ldl). C99 and C++. */
#ifndef MEND_STEP_H
#define MEND_STEP_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline void mend_step(uint64_t now, uint64_t total) {
  /* 0: not looked up, 1: not here, else the function. */
  static uintptr_t found = 0;
  uintptr_t address = __atomic_load_n(&found, __ATOMIC_RELAXED);
  if (address == 0) {
    /* NULL: the whole program, as RTLD_DEFAULT, which some headers hide. */
    address = (uintptr_t)dlsym(NULL, "mend_fi_step");
    if (address == 0) address = 1;
    __atomic_store_n(&found, address, __ATOMIC_RELAXED);
  }
  if (address != 1) ((void (*)(uint64_t, uint64_t))address)(now, total);
}

#ifdef __cplusplus
}
#endif

#endif
