// Memory of a huge page pool. Exit code 77: this machine offers none.
#include "coverage.h"

enum { HUGE = 2 << 20 };

int main(void) {
  char *private = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (private == MAP_FAILED) return 77;
  char *shared = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  NEED(shared != MAP_FAILED);
  for (int i = 0; i < HUGE; i += 4096) private[i] = (char)(i >> 12), shared[i] = (char)(i >> 11);
  ready();
  await_go();
  for (int i = 0; i < HUGE; i += 4096) CHECK(private[i] == (char)(i >> 12) && shared[i] == (char)(i >> 11));
  private[HUGE + 5] = 1;
  CHECK(munmap(private, 2 * HUGE) == 0 && munmap(shared, HUGE) == 0);
  return verdict();
}
