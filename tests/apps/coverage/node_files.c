// Files in /dev/shm by their names: open, mapped alone, a semaphore's, and those that the program has neither open nor mapped,
// with directories, links and pipes; one mapped privately; one that it works in.
#include "coverage.h"
#include <semaphore.h>

static char base[64];
static const char *at(const char *name) {
  static char path[4][256];
  static int next;
  char *this = path[next++ % 4];
  snprintf(this, sizeof path[0], "/dev/shm/%s/%s", base, name);
  return this;
}

static void put(const char *path, const char *text, mode_t mode) {
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
  NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && !fchmod(fd, mode) && !close(fd));
}

static int holds(const char *path, const char *text) {
  char found[256] = "";
  int fd = open(path, O_RDONLY);
  ssize_t got = fd < 0 ? -1 : read(fd, found, sizeof found - 1);
  if (fd >= 0) close(fd);
  return got == (ssize_t)strlen(text) && !memcmp(found, text, got);
}

static char *mapped(const char *path, int flags) {
  int fd = open(path, O_RDWR);
  char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (fd >= 0) close(fd);
  return memory;
}

int main(void) {
  char directory[4096];
  NEED(getcwd(directory, sizeof directory));
  snprintf(base, sizeof base, "coverage-%d-%ld", getpid(), time(NULL));
  NEED(!mkdir(at(""), 0750) && !chmod(at(""), 0750) && !mkdir(at("below"), 0700));
  put(at("loose"), "nobody holds it", 0640);
  put(at("below/loose"), "deeper", 0600);
  put(at("empty"), "", 0600);
  put(at("twice"), "two names", 0600);
  NEED(!link(at("twice"), at("below/again")) && !symlink("loose", at("link")) && !mkfifo(at("pipe"), 0620) && !chmod(at("pipe"), 0620));
  // Closed to their owner, too: nothing is to be added, in one below the other.
  NEED(!mkdir(at("closed"), 0700) && !mkdir(at("closed/below"), 0700));
  put(at("closed/loose"), "in a closed one", 0400), put(at("closed/below/loose"), "in the lower one", 0400);
  NEED(!chmod(at("closed/below"), 0500) && !chmod(at("closed"), 0550));
  put(at("log"), "one,", 0600);
  int log = open(at("log"), O_WRONLY | O_APPEND);
  put(at("shared"), "shared", 0600);
  put(at("private"), "private", 0600);
  NEED(log >= 0 && !truncate(at("shared"), 8192) && !truncate(at("private"), 8192));
  char *shared = mapped(at("shared"), MAP_SHARED), *private = mapped(at("private"), MAP_PRIVATE);
  NEED(shared != MAP_FAILED && private != MAP_FAILED);
  strcpy(shared + 5000, "by memory"), strcpy(private + 5000, "mine");
  char name[80];
  snprintf(name, sizeof name, "/%s", base);
  sem_t *semaphore = sem_open(name, O_CREAT | O_EXCL, 0600, 3);
  NEED(semaphore != SEM_FAILED && !sem_wait(semaphore));
  struct stat before, after;
  NEED(!stat(at("loose"), &before) && !chdir(at("below")));
  ready();
  char go[4200];
  snprintf(go, sizeof go, "%s/go", directory);
  while (access(go, F_OK) != 0) usleep(2000);

  CHECK(holds(at("loose"), "nobody holds it") && holds(at("link"), "nobody holds it") && holds(at("empty"), ""));
  CHECK(!stat(at("loose"), &after) && after.st_mode == before.st_mode && after.st_mtim.tv_sec == before.st_mtim.tv_sec &&
        after.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
  CHECK(holds("loose", "deeper") && holds(at("twice"), "two names") && holds("again", "two names"));
  CHECK(!stat(at(""), &after) && S_ISDIR(after.st_mode) && (after.st_mode & 07777) == 0750);
  CHECK(holds(at("closed/loose"), "in a closed one") && holds(at("closed/below/loose"), "in the lower one"));
  CHECK(!stat(at("closed"), &after) && (after.st_mode & 07777) == 0550);
  CHECK(!stat(at("closed/below"), &after) && (after.st_mode & 07777) == 0500);
  CHECK(!lstat(at("link"), &after) && S_ISLNK(after.st_mode));
  CHECK(!stat(at("pipe"), &after) && S_ISFIFO(after.st_mode) && (after.st_mode & 07777) == 0620);
  // Open: what is written by the descriptor is found by the name.
  CHECK(write(log, "two", 3) == 3 && holds(at("log"), "one,two"));
  // Mapped: both ways.
  char *again = mapped(at("shared"), MAP_SHARED);
  CHECK(again != MAP_FAILED && !strcmp(again, "shared") && !strcmp(again + 5000, "by memory"));
  strcpy(again + 100, "from there"), strcpy(shared + 200, "from here");
  CHECK(!strcmp(shared + 100, "from there") && !strcmp(again + 200, "from here"));
  CHECK(!strcmp(private, "private") && !strcmp(private + 5000, "mine"));
  CHECK(holds(at("private"), "private") == 0 && !stat(at("private"), &after) && after.st_size == 8192);
  // A semaphore is another process's, too.
  pid_t child = fork();
  if (!child) {
    sem_t *theirs = sem_open(name, 0);
    int value = -1;
    _exit(theirs == SEM_FAILED || sem_getvalue(theirs, &value) || value != 2 || sem_post(theirs));
  }
  int status = 1, value = -1;
  CHECK(waitpid(child, &status, 0) == child && !status);
  CHECK(!sem_getvalue(semaphore, &value) && value == 3 && !sem_unlink(name));
  char clear[200];
  snprintf(clear, sizeof clear, "chmod -R u+w /dev/shm/%s && rm -r /dev/shm/%s", base, base);
  CHECK(!system(clear));
  return verdict();
}
