// Regular files: offsets shared by dup and not, appending, all three kinds of locks (also while the program runs on), signals
// for input; directories, places, devices, files without a name.
#include "coverage.h"
#include <dirent.h>
#include <sys/file.h>

static int locked_for_others(const char *path, int kind, off_t start) {
  // Only another process sees POSIX locks.
  pid_t child = fork();
  if (!child) {
    int fd = open(path, O_RDWR);
    struct flock wanted = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    if (kind == 0) _exit(flock(fd, LOCK_EX | LOCK_NB) == -1);
    _exit(fcntl(fd, F_SETLK, &wanted) == -1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status);
}

static volatile int told;
static void on_input(int signal, siginfo_t *info, void *context) { (void)signal, (void)context, told = info->si_fd; }

int main(void) {
  NEED(!mkdir("below", 0750) && !chdir("below"));
  umask(027);
  int file = open("file", O_RDWR | O_CREAT, 0666), twin = dup(file), other = open("file", O_RDONLY), high = fcntl(file, F_DUPFD_CLOEXEC, 700);
  NEED(write(file, "0123456789", 10) == 10 && lseek(other, 3, SEEK_SET) == 3 && high >= 700);
  int append = open("log", O_WRONLY | O_CREAT | O_APPEND, 0666);
  NEED(write(append, "one\n", 4) == 4);
  FILE *buffered = fopen("buffered", "w");
  fprintf(buffered, "not written yet");
  int nameless = open(".", O_TMPFILE | O_RDWR, 0600), unlinked = open("unlinked", O_RDWR | O_CREAT, 0600);
  NEED(write(nameless, "nameless", 8) == 8 && write(unlinked, "unlinked", 8) == 8 && !unlink("unlinked"));
  int place = open("file", O_PATH), directory = open(".", O_RDONLY | O_DIRECTORY);
  int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY), random = open("/dev/urandom", O_RDONLY);
  char name[64];
  snprintf(name, sizeof name, "/mend-coverage-%d-%ld", getpid(), time(NULL));
  int memory = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
  NEED(memory >= 0 && write(memory, "in /dev/shm", 11) == 11);
  // Entries are read half before and half after.
  NEED(!mkdir("many", 0700));
  for (int i = 0; i < 300; i++) {
    char path[32];
    snprintf(path, sizeof path, "many/%d", i);
    NEED(!close(open(path, O_WRONLY | O_CREAT, 0600)));
  }
  DIR *entries = opendir("many");
  char seen[300] = "";
  for (int i = 0; i < 102; i++) {
    struct dirent *entry = readdir(entries);
    if (entry->d_name[0] != '.') seen[atoi(entry->d_name)]++;
  }
  // Locks; one of the locked files is mapped, too.
  int whole = open("flock", O_RDWR | O_CREAT, 0600), part = open("posix", O_RDWR | O_CREAT, 0600), own = open("ofd", O_RDWR | O_CREAT, 0600);
  struct flock middle = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
  NEED(!ftruncate(part, 8192) && !flock(whole, LOCK_EX) && !fcntl(part, F_SETLK, &middle) && !fcntl(own, F_OFD_SETLK, &middle));
  middle.l_start = 100, middle.l_type = F_RDLCK;
  NEED(!fcntl(part, F_SETLK, &middle));
  char *mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, part, 0);
  mapped[500] = 'm';
  int input[2];
  struct sigaction action = {.sa_sigaction = on_input, .sa_flags = SA_SIGINFO | SA_RESTART};
  struct f_owner_ex owner = {F_OWNER_TID, syscall(SYS_gettid)}, now;
  NEED(!pipe(input) && !sigaction(SIGRTMIN + 2, &action, NULL) && !fcntl(input[0], F_SETSIG, SIGRTMIN + 2));
  NEED(!fcntl(input[0], F_SETOWN_EX, &owner) && !fcntl(input[0], F_SETFL, O_ASYNC | O_NONBLOCK));
  ready();
  while (access("../go", F_OK) != 0) usleep(2000);

  CHECK(lseek(file, 0, SEEK_CUR) == 10 && write(twin, "ab", 2) == 2 && lseek(file, 0, SEEK_CUR) == 12 && lseek(high, 0, SEEK_CUR) == 12);
  CHECK(lseek(other, 0, SEEK_CUR) == 3 && fcntl(high, F_GETFD) == FD_CLOEXEC && fcntl(file, F_GETFD) == 0);
  char text[64] = "";
  CHECK(read(other, text, 9) == 9 && !memcmp(text, "3456789ab", 9));
  int truncated = open("log", O_WRONLY);
  CHECK(write(truncated, "ONE\n", 4) == 4 && write(append, "two\n", 4) == 4 && fcntl(append, F_GETFL) & O_APPEND);
  FILE *log = fopen("log", "r");
  CHECK(fread(text, 1, 64, log) == 8 && !memcmp(text, "ONE\ntwo\n", 8));
  CHECK(fprintf(buffered, ", now\n") == 6 && !fclose(buffered));
  buffered = fopen("buffered", "r");
  CHECK(fgets(text, 64, buffered) && !strcmp(text, "not written yet, now\n"));
  CHECK(pread(nameless, text, 8, 0) == 8 && !memcmp(text, "nameless", 8) && lseek(nameless, 0, SEEK_CUR) == 8);
  CHECK(pread(unlinked, text, 8, 0) == 8 && !memcmp(text, "unlinked", 8) && write(unlinked, "!", 1) == 1);
  CHECK(fcntl(place, F_GETFL) & O_PATH && read(place, text, 1) == -1);
  struct stat by_place, by_path;
  CHECK(!fstat(place, &by_place) && !stat("file", &by_path) && by_place.st_ino == by_path.st_ino);
  CHECK(openat(directory, "file", O_RDONLY) >= 0);
  CHECK(write(null, text, 5) == 5 && read(zero, text, 8) == 8 && text[3] == 0 && read(random, text, 8) == 8);
  CHECK(pread(memory, text, 11, 0) == 11 && !memcmp(text, "in /dev/shm", 11));
  shm_unlink(name);
  for (struct dirent *entry; (entry = readdir(entries));)
    if (entry->d_name[0] != '.') seen[atoi(entry->d_name)]++;
  for (int i = 0; i < 300; i++) CHECK(seen[i] == 1);
  CHECK(locked_for_others("flock", 0, 0));
  CHECK(locked_for_others("posix", 1, 12) && locked_for_others("posix", 1, 100) && !locked_for_others("posix", 1, 50));
  CHECK(locked_for_others("ofd", 1, 14) && !locked_for_others("ofd", 1, 15));
  CHECK(mapped[500] == 'm' && pread(part, text, 1, 500) == 1 && *text == 'm');
  CHECK(umask(0) == 027);
  CHECK(fcntl(input[0], F_GETSIG) == SIGRTMIN + 2 && !fcntl(input[0], F_GETOWN_EX, &now) && now.type == owner.type && now.pid == owner.pid);
  CHECK(fcntl(input[0], F_GETFL) & O_ASYNC && write(input[1], "x", 1) == 1);
  for (int tries = 0; told != input[0] && tries < 2000; tries++) usleep(1000);
  CHECK(told == input[0]);
  return verdict();
}
