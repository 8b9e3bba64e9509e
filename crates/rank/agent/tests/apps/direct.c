// Reads a file with O_DIRECT, tick by tick, and checks what it reads.
//
//   direct TICKS
//
// Standard output: "tick N" after each, "OK" in the end. Exit code 0, 3 where a byte is wrong, 2 where there is no direct I/O.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH = 64 * 4096 };

int main(int argc, char **argv) {
  int ticks = argc > 1 ? atoi(argv[1]) : 60;
  int file = open("direct.data", O_RDWR | O_CREAT | O_DIRECT, 0600);
  char *buffer = aligned_alloc(4096, LENGTH);
  if (file < 0 || buffer == NULL) return 2;
  for (int tick = 1; tick <= ticks && access("end", F_OK); tick++) {
    memset(buffer, tick, LENGTH);
    if (pwrite(file, buffer, LENGTH, 0) != LENGTH) return 2;
    memset(buffer, 0, LENGTH);
    if (pread(file, buffer, LENGTH, 0) != LENGTH) return 2;
    for (int at = 0; at < LENGTH; at++)
      if (buffer[at] != (char)tick) return 3;
    printf("tick %d\n", tick);
    fflush(stdout);
    usleep(20000);
  }
  printf("OK\n");
  return 0;
}
