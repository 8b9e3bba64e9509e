// OpenMP: a pool of threads in the middle of parallel loops, tasks and reductions.
#include "coverage.h"
#include <omp.h>

enum { N = 1 << 16, TEAM = 6 };
static double field[N], next_field[N];
static int threadprivate_value;
#pragma omp threadprivate(threadprivate_value)

static long fibonacci(int n) {
  long a, b;
  if (n < 2) return n;
  if (n < 12) return fibonacci(n - 1) + fibonacci(n - 2);
#pragma omp task shared(a)
  a = fibonacci(n - 1);
#pragma omp task shared(b)
  b = fibonacci(n - 2);
#pragma omp taskwait
  return a + b;
}

int main(void) {
  int team_ids[TEAM] = {0}, said = 0;
  omp_set_dynamic(0);
  omp_set_num_threads(TEAM);
  for (int i = 0; i < N; i++) field[i] = i % 97;
  double sum = 0, expected = 0;
  for (int i = 0; i < N; i++) expected += field[i];
#pragma omp parallel
  {
    threadprivate_value = omp_get_thread_num() * 11 + 1;
    team_ids[omp_get_thread_num()] = (int)syscall(SYS_gettid);
  }
  for (long round = 0;; round++) {
#pragma omp parallel for schedule(dynamic, 512)
    for (int i = 0; i < N; i++) next_field[i] = 0.5 * field[(i + 1) % N] + 0.5 * field[(i + N - 1) % N];
    sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < N; i++) sum += field[i] = next_field[i];
    CHECK(sum > expected - 1e-3 && sum < expected + 1e-3);
    if (round > 20 && !said) said = 1, ready();
    if (said && access("go", F_OK) == 0) break;
  }
  long result = 0;
#pragma omp parallel
  {
    CHECK(threadprivate_value == omp_get_thread_num() * 11 + 1 && team_ids[omp_get_thread_num()] == (int)syscall(SYS_gettid));
#pragma omp single
    result = fibonacci(24);
  }
  CHECK(result == 46368 && omp_get_max_threads() == TEAM);
  return verdict();
}
