// Descriptor numbers as a program may use them: the lowest free one comes first, all from 3 to 1023 are closed without having
// been opened, and (with "fill") duplicated onto. What is written to a file is what the program wrote. The descriptor in
// PMI_FD is the program's, as under any launcher.
#include "coverage.h"
#include <sys/resource.h>

enum { LIMIT = 1024 };
static int pmi = -1;

static int lowest(void) {
  for (int fd = 3; fd < LIMIT; fd++)
    if (fd != pmi) return fd;
  return -1;
}

// As many as there is room for come in order.
static void in_order(void) {
  int before = lowest(), opened[40];
  for (int at = 0; at < 40; at++) {
    opened[at] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK(opened[at] == before);
    before = opened[at] + 1 == pmi ? pmi + 1 : opened[at] + 1;
  }
  for (int at = 0; at < 40; at++) close(opened[at]);
}

int main(int argc, char **argv) {
  int fill = argc > 1 && !strcmp(argv[1], "fill");
  if (getenv("PMI_FD")) pmi = atoi(getenv("PMI_FD"));
  in_order();
  struct rlimit limit;
  NEED(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = LIMIT;
  NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  for (int fd = 3; fd < LIMIT; fd++)
    if (fd != pmi) CHECK(close(fd) == -1 && errno == EBADF);
  int log = open("log", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  CHECK(log == lowest());
  if (fill)
    for (int fd = log + 1; fd < LIMIT; fd++)
      if (fd != pmi) NEED(dup2(log, fd) == fd);
  dprintf(log, "before\n");

  ready();
  int go = 0;
  // No number is free for `fopen`, and none of the program's own changes.
  while (!go) {
    usleep(2000);
    go = access("go", F_OK) == 0;
  }

  if (fill) {
    CHECK(open("/dev/null", O_RDONLY) == -1 && errno == EMFILE);
    for (int fd = log + 1; fd < LIMIT; fd++)
      if (fd != pmi) CHECK(lseek(fd, 0, SEEK_CUR) == 7 && fcntl(fd, F_GETFD) == 0);
  }
  int last = fill ? LIMIT - 1 : log;
  CHECK(dprintf(last, "after\n") == 6);
  for (int fd = log + 1; fd < LIMIT; fd++)
    if (fd != pmi) CHECK((close(fd) == 0) == fill);
  CHECK(close(log) == 0);
  in_order();
  char text[64] = "";
  int file = open("log", O_RDONLY);
  CHECK(file == lowest() && read(file, text, sizeof text - 1) == 13);
  CHECK(!strcmp(text, "before\nafter\n"));
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == LIMIT);
  return verdict();
}
