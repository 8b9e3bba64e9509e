// The file in which a JVM shows its counters: mapped, open and locked, and gone when the process comes back.
#include "coverage.h"
#include <sys/file.h>

int main(void) {
  char place[64], path[96];
  snprintf(place, sizeof place, "/tmp/hsperfdata_mend-test-%d", (int)getuid());
  NEED(mkdir(place, 0700) == 0 || errno == EEXIST);
  snprintf(path, sizeof path, "%s/%d", place, (int)getpid());
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  NEED(file >= 0 && ftruncate(file, 32768) == 0 && flock(file, LOCK_EX | LOCK_NB) == 0);
  char *counters = mmap(NULL, 32768, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  NEED(counters != MAP_FAILED);
  strcpy(counters + 20000, "counted");

  ready();
  await_go();

  char text[16] = "";
  CHECK(!strcmp(counters + 20000, "counted"));
  CHECK(pread(file, text, 8, 20000) == 8 && !strcmp(text, "counted"));
  strcpy(counters, "more");
  CHECK(pread(file, text, 5, 0) == 5 && !strcmp(text, "more"));
  unlink(path);
  rmdir(place);
  return verdict();
}
