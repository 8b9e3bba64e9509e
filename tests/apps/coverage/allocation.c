// The C library's malloc under load by many threads, with blocks that others free; each block knows what is in it.
#include "coverage.h"
#include <malloc.h>

enum { THREADS = 12, SLOTS = 512 };
static char *_Atomic slots[SLOTS];
static volatile int stop;
static volatile long rounds[THREADS];

// Size and a number that all else follows from, then the content.
static void fill(char *block, size_t size, unsigned seed) {
  memcpy(block, &size, 8), memcpy(block + 8, &seed, 4);
  for (size_t i = 12; i < size; i++) block[i] = (char)(seed += 0x9e3779b9u);
}

static void check(const char *block) {
  size_t size;
  unsigned seed;
  memcpy(&size, block, 8), memcpy(&seed, block + 8, 4);
  for (size_t i = 12; i < size; i++)
    if (block[i] != (char)(seed += 0x9e3779b9u)) {
      CHECK(!"a block's content");
      return;
    }
}

static void *worker(void *argument) {
  long me = (long)argument;
  unsigned seed = 17 + (unsigned)me;
  while (!stop) {
    size_t size = 16 + rand_r(&seed) % (rand_r(&seed) % 64 ? 3000 : 600000);
    char *block = rand_r(&seed) % 8 ? malloc(size) : memalign(256, size);
    CHECK(block);
    fill(block, size, seed);
    char *before = __atomic_exchange_n(&slots[rand_r(&seed) % SLOTS], block, __ATOMIC_ACQ_REL);
    if (before) {
      check(before);
      if (rand_r(&seed) % 4 == 0) {
        before = realloc(before, 16 + rand_r(&seed) % 5000);
        memset(before, 1, 16);
      }
      free(before);
    }
    rounds[me]++;
  }
  return NULL;
}

int main(void) {
  pthread_t threads[THREADS];
  mallopt(M_ARENA_MAX, 4);
  for (long i = 0; i < THREADS; i++) NEED(!pthread_create(&threads[i], NULL, worker, (void *)i));
  for (int i = 0; i < THREADS; i++)
    while (rounds[i] < 50) usleep(1000);
  ready();
  await_go();
  for (int i = 0; i < THREADS; i++) {
    long before = rounds[i];
    for (int tries = 0; rounds[i] == before && tries < 20000; tries++) usleep(1000);
    CHECK(rounds[i] > before);
  }
  stop = 1;
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < SLOTS; i++) if (slots[i]) check(slots[i]), free(slots[i]);
  return verdict();
}
