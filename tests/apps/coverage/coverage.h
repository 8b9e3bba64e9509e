// For the programs here: each brings itself into a state, says "ready", stays in it until there is a file `go`, and then
// finds out by itself whether anything of the state was lost. The last line is "OK", or "LOST" lines say what is missing.
#ifndef COVERAGE_H
#define COVERAGE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int failures;

#define CHECK(x)                                                                                                             \
  do {                                                                                                                       \
    errno = 0;                                                                                                               \
    if (!(x)) {                                                                                                              \
      int was = errno;                                                                                                       \
      printf("LOST %s:%d %s (%s)\n", __FILE__, __LINE__, #x, strerror(was));                                                 \
      __atomic_add_fetch(&failures, 1, __ATOMIC_SEQ_CST);                                                                    \
    }                                                                                                                        \
  } while (0)

// Something the program needs before anything can be lost.
#define NEED(x)                                                                                                              \
  do {                                                                                                                       \
    if (!(x)) {                                                                                                              \
      fprintf(stderr, "%s:%d cannot be set up: %s (%s)\n", __FILE__, __LINE__, #x, strerror(errno));                         \
      exit(3);                                                                                                               \
    }                                                                                                                        \
  } while (0)

static inline void ready(void) {
  puts("ready");
  fflush(stdout);
}

static inline void await_go(void) {
  while (access("go", F_OK) != 0) usleep(2000);
}

static inline int verdict(void) {
  if (failures) return 1;
  puts("OK");
  return 0;
}

// The value of a line "Name:  value" of a file in /proc.
static inline long proc_number(const char *path, const char *name, int base) {
  char line[512];
  long value = -1;
  FILE *file = fopen(path, "re");
  while (file && fgets(line, sizeof line, file))
    if (!strncmp(line, name, strlen(name))) value = strtol(line + strlen(name), NULL, base);
  if (file) fclose(file);
  return value;
}
#endif
