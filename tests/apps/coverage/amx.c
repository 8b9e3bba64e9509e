// Tile registers (AMX): of threads that never leave a loop, wait in a call, or stand in a handler on an alternate stack; the vector
// registers of threads that used tiles once, which the kernel keeps in a larger frame; and the permission to use them.
#include "coverage.h"

#define ARCH_GET_XCOMP_PERM 0x1022
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XTILE_DATA 18

struct __attribute__((packed, aligned(64))) shape {
  uint8_t palette, start, reserved[14];
  uint16_t columns[16];
  uint8_t rows[16];
};

static volatile int stop, held;

static void load(const char *data) {
  struct shape shape = {.palette = 1};
  for (int i = 0; i < 8; i++) shape.columns[i] = 64, shape.rows[i] = 16;
  __asm__ volatile("ldtilecfg %0" : : "m"(shape));
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm0\n tileloadd (%0,%1,1), %%tmm7" : : "r"(data), "r"(64l) : "memory");
}

static void store(char *data) {
  __asm__ volatile("tilestored %%tmm7, (%0,%1,1)\n tilerelease" : : "r"(data), "r"(64l) : "memory");
}

static void fill(char *data, long number) {
  for (int i = 0; i < 1024; i++) data[i] = (char)(number * 31 + i * 7 + i / 64);
}

__attribute__((target("avx512f"))) static int vectors_stay(long number) {
  char before[64], after[64];
  for (int i = 0; i < 64; i++) before[i] = (char)(number * 37 + i);
  __atomic_add_fetch(&held, 1, __ATOMIC_SEQ_CST);
  __asm__ volatile("vmovdqu64 (%0), %%zmm29\n 1: testl $1, %2\n jz 1b\n vmovdqu64 %%zmm29, (%1)" : : "r"(before), "r"(after), "m"(stop) : "cc", "memory");
  return !memcmp(before, after, 64);
}

static void *loops(void *number) {
  char before[1024], after[1024];
  fill(before, (long)number);
  load(before);
  CHECK(vectors_stay((long)number));
  store(after);
  CHECK(!memcmp(before, after, 1024));
  return NULL;
}

static void *waits(void *number) {
  char before[1024], after[1024];
  struct timespec pause = {0, 2000000};
  fill(before, (long)number);
  load(before);
  __atomic_add_fetch(&held, 1, __ATOMIC_SEQ_CST);
  while (!stop) syscall(SYS_nanosleep, &pause, NULL);
  store(after);
  CHECK(!memcmp(before, after, 1024));
  return NULL;
}

// Used tiles, holds none.
static void *used(void *number) {
  char data[1024];
  fill(data, (long)number);
  load(data);
  store(data);
  CHECK(vectors_stay((long)number));
  return loops(number);
}

// Uses them for the first time in the end.
static void *later(void *number) {
  CHECK(vectors_stay((long)number));
  return loops(number);
}

static void handle(int signal) {
  char before[1024], after[1024];
  (void)signal;
  fill(before, 99);
  load(before);
  CHECK(vectors_stay(99));
  store(after);
  CHECK(!memcmp(before, after, 1024));
}

static void *interrupted(void *number) {
  char before[1024], after[1024];
  size_t size = 256 << 10;
  stack_t stack = {.ss_sp = malloc(size), .ss_size = size}, now;
  NEED(stack.ss_sp && !sigaltstack(&stack, NULL));
  fill(before, (long)number);
  load(before);
  syscall(SYS_tgkill, getpid(), (int)syscall(SYS_gettid), SIGUSR1);
  store(after);
  CHECK(!memcmp(before, after, 1024));
  CHECK(!sigaltstack(NULL, &now) && now.ss_sp == stack.ss_sp && now.ss_size == size && now.ss_flags == 0);
  return NULL;
}

int main(void) {
  pthread_t threads[6];
  void *(*kinds[])(void *) = {loops, loops, waits, used, later, interrupted};
  unsigned long permitted = 0;
  if (!__builtin_cpu_supports("avx512f") || syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILE_DATA)) return 77;
  struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
  NEED(!sigaction(SIGUSR1, &action, NULL));
  for (long i = 0; i < 6; i++) NEED(!pthread_create(&threads[i], NULL, kinds[i], (void *)i));
  while (held < 6) usleep(1000);
  ready();
  await_go();
  CHECK(!syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &permitted) && permitted >> XTILE_DATA & 1);
  stop = 1;
  for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
  return verdict();
}
