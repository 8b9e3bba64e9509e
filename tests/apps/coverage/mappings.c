// Mappings of all kinds, their advice as the kernel shows it, memory that faults where it should, brk.
#include "coverage.h"
#include <setjmp.h>
#include <sys/resource.h>

enum { PAGES = 64, SIZE = PAGES * 4096 };
static struct { const char *name; char *at; size_t size; char flags[256]; } noted[32];
static int notes;

// Flags that say how memory is to be treated, in the kernel's order.
static void flags_of(const char *at, char *flags) {
  char line[1024];
  int inside = 0;
  *flags = 0;
  FILE *file = fopen("/proc/self/smaps", "re");
  while (fgets(line, sizeof line, file)) {
    unsigned long start, end;
    if (sscanf(line, "%lx-%lx ", &start, &end) == 2) inside = (unsigned long)at >= start && (unsigned long)at < end;
    if (!inside || strncmp(line, "VmFlags:", 8)) continue;
    for (char *flag = strtok(line + 8, " \n"); flag; flag = strtok(NULL, " \n"))
      if (strstr("rd wr ex mr mw me ms gd lo lf hg nh dd dc wf mg rr sr ht", flag)) strcat(strcat(flags, flag), " ");
  }
  fclose(file);
}

static char *note(const char *name, void *at, size_t size) {
  NEED(at != MAP_FAILED);
  noted[notes].name = name, noted[notes].at = at, noted[notes].size = size;
  flags_of(at, noted[notes++].flags);
  return at;
}

static char *anonymous(size_t size, int protection) { return mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

static sigjmp_buf back;
static void on_fault(int signal) { siglongjmp(back, signal); }
static int faults(volatile char *at, int write) {
  struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK}, before, before_bus;
  sigaction(SIGSEGV, &action, &before), sigaction(SIGBUS, &action, &before_bus);
  int signal = sigsetjmp(back, 1);
  if (!signal) write ? (void)(*at = 1) : (void)*at;
  sigaction(SIGSEGV, &before, NULL), sigaction(SIGBUS, &before_bus, NULL);
  return signal;
}

static char *advised(const char *name, int advice) {
  char *at = anonymous(SIZE, PROT_READ | PROT_WRITE);
  strcpy(at + 5000, name);
  if (madvise(at, SIZE, advice)) printf("not here: %s\n", name);
  return note(name, at, SIZE);
}

static int stack_grows(int depth) {
  volatile char frame[16384];
  frame[100] = (char)depth;
  return depth ? stack_grows(depth - 1) + (frame[100] == (char)depth) : 0;
}

static volatile int *shared;
static volatile int rounds, stop;
static void *partner(void *argument) {
  while (!stop) {
    if (shared[0] == 1) shared[1] = shared[2] * 3, shared[0] = 2;
    rounds++;
    sched_yield();
  }
  return argument;
}

int main(void) {
  static const struct { const char *name; int advice; } kinds[] = {
      {"MADV_DONTFORK", MADV_DONTFORK},   {"MADV_HUGEPAGE", MADV_HUGEPAGE}, {"MADV_NOHUGEPAGE", MADV_NOHUGEPAGE},
      {"MADV_DONTDUMP", MADV_DONTDUMP},   {"MADV_RANDOM", MADV_RANDOM},     {"MADV_SEQUENTIAL", MADV_SEQUENTIAL},
      {"MADV_MERGEABLE", MADV_MERGEABLE}, {"MADV_WIPEONFORK", MADV_WIPEONFORK}};
  char *by_advice[8];
  for (int i = 0; i < 8; i++) by_advice[i] = advised(kinds[i].name, kinds[i].advice);
  char *locked = note("mlock", anonymous(SIZE, PROT_READ | PROT_WRITE), SIZE);
  NEED(!mlock(locked, SIZE));
  flags_of(locked, noted[notes - 1].flags);
  char *on_fault = anonymous(SIZE, PROT_READ | PROT_WRITE);
  NEED(!syscall(SYS_mlock2, on_fault, SIZE, 1));
  note("mlock2 on fault", on_fault, SIZE);
  on_fault[0] = 1;
  // A hole between two parts, guards around.
  char *guarded = anonymous(3 * SIZE, PROT_NONE);
  NEED(!mprotect(guarded + SIZE, SIZE, PROT_READ | PROT_WRITE));
  strcpy(guarded + SIZE, "between guards");
  note("guards", guarded, SIZE);
  char *light = anonymous(SIZE, PROT_READ | PROT_WRITE);
  memset(light, 7, SIZE);
  int light_guards = !madvise(light + 4096 * 3, 4096 * 2, 102 /* MADV_GUARD_INSTALL */);
  // It locks all but the guards, and says that it could not lock these.
  (void)mlock(light, SIZE);
  char *hidden = anonymous(SIZE, PROT_READ | PROT_WRITE);
  strcpy(hidden + 9000, "hidden");
  NEED(!mprotect(hidden, SIZE, PROT_NONE));
  char *growing = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0);
  note("MAP_GROWSDOWN", growing, SIZE);
  growing[0] = 'g';
  // Freed lazily: what is written after that must stay.
  char *lazy = anonymous(SIZE, PROT_READ | PROT_WRITE);
  memset(lazy, 1, SIZE);
  NEED(!madvise(lazy, SIZE, MADV_FREE));
  lazy[4096] = 'w';
  char *gone = anonymous(SIZE, PROT_READ | PROT_WRITE);
  memset(gone, 1, SIZE);
  NEED(!madvise(gone + 4096, 4096, MADV_DONTNEED));
  int (*code)(void) = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy((void *)code, "\xb8\x2a\x00\x00\x00\xc3", 6);
  NEED(!mprotect((void *)code, 4096, PROT_READ | PROT_EXEC));
  // Shared between threads, twice mapped.
  shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  volatile int *alias = mremap((void *)shared, 0, SIZE, MREMAP_MAYMOVE);
  pthread_t thread;
  NEED(!pthread_create(&thread, NULL, partner, NULL));
  // A sealed memfd, mapped from a descriptor that can only be read.
  int sealed = memfd_create("sealed", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  NEED(write(sealed, "sealed content", 14) == 14 && !ftruncate(sealed, 8192));
  NEED(!fcntl(sealed, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
  char *sealed_map = note("sealed memfd", mmap(NULL, 8192, PROT_READ, MAP_SHARED, sealed, 0), 8192);
  // Files: deleted ones mapped both ways, and one mapped for reading that may be written.
  int file = open("mapped", O_RDWR | O_CREAT | O_TRUNC, 0600), deleted = open("deleted", O_RDWR | O_CREAT | O_TRUNC, 0600);
  NEED(!ftruncate(file, SIZE) && !ftruncate(deleted, SIZE) && pwrite(deleted, "was in a file", 13, 4096) == 13);
  char *reader = note("file, read only yet", mmap(NULL, SIZE, PROT_READ, MAP_SHARED, file, 0), SIZE);
  char *deleted_shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, deleted, 0);
  char *deleted_private = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, deleted, 0);
  NEED(!unlink("deleted") && !close(deleted) && !close(file));
  deleted_shared[0] = 's', deleted_private[8192] = 'p';
  // The break.
  char *top = sbrk(0);
  NEED(sbrk(3 * 4096) == top);
  strcpy(top + 4096, "on the break");
  struct rlimit stack_limit;
  getrlimit(RLIMIT_STACK, &stack_limit);
  ready();
  await_go();

  for (int i = 0; i < notes; i++) {
    char now[256];
    flags_of(noted[i].at, now);
    if (strcmp(now, noted[i].flags)) printf("LOST %s: flags were %s, are %s\n", noted[i].name, noted[i].flags, now), failures++;
  }
  for (int i = 0; i < 8; i++) CHECK(!strcmp(by_advice[i] + 5000, kinds[i].name));
  CHECK(on_fault[0] == 1);
  CHECK(!strcmp(guarded + SIZE, "between guards") && faults(guarded + SIZE - 1, 0) && faults(guarded + 2 * SIZE, 0));
  if (light_guards) CHECK(faults(light + 4096 * 3, 0) && faults(light + 4096 * 5 - 1, 1) && light[4096 * 5] == 7 && light[4096 * 3 - 1] == 7);
  CHECK(faults(hidden, 0) == SIGSEGV && !mprotect(hidden, SIZE, PROT_READ) && !strcmp(hidden + 9000, "hidden") && faults(hidden, 1));
  CHECK(growing[0] == 'g');
  CHECK(lazy[4096] == 'w' && (lazy[4097] == 1 || lazy[4097] == 0));
  CHECK(gone[0] == 1 && gone[4096] == 0 && gone[8191] == 0 && gone[8192] == 1);
  CHECK(code() == 42 && faults((char *)code, 1));
  for (int i = 1; i < 1000; i++) {
    shared[2] = i, shared[0] = 1;
    while (alias[0] != 2) sched_yield();
    CHECK(alias[1] == 3 * i);
  }
  stop = 1;
  pthread_join(thread, NULL);
  CHECK(!memcmp(sealed_map, "sealed content", 14) && pwrite(sealed, "x", 1, 0) == -1);
  CHECK(fcntl(sealed, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
  CHECK(mprotect(sealed_map, 8192, PROT_READ | PROT_WRITE) == -1);
  CHECK(!mprotect(reader, SIZE, PROT_READ | PROT_WRITE));
  reader[4096] = 'n';
  char byte = 0;
  file = open("mapped", O_RDONLY);
  CHECK(pread(file, &byte, 1, 4096) == 1 && byte == 'n');
  CHECK(deleted_shared[0] == 's' && !memcmp(deleted_shared + 4096, "was in a file", 13));
  CHECK(deleted_private[8192] == 'p' && !memcmp(deleted_private + 4096, "was in a file", 13));
  CHECK(sbrk(0) == top + 3 * 4096 && !strcmp(top + 4096, "on the break") && sbrk(4096) == top + 3 * 4096);
  CHECK(stack_grows(200) == 200);
  struct rlimit now;
  getrlimit(RLIMIT_STACK, &now);
  CHECK(now.rlim_cur == stack_limit.rlim_cur);
  return verdict();
}
