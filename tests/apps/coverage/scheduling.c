// Each thread's processors, nice value, policy, I/O priority and timer slack; the process's own limits and name.
#include "coverage.h"
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static volatile int prepared;
static int first, last;

static int io_priority(int set) {
  if (set) return (int)syscall(SYS_ioprio_set, 1, 0, 3 << 13);
  return (int)syscall(SYS_ioprio_get, 1, 0);
}

static void *thread(void *argument) {
  long me = (long)argument;
  pid_t id = syscall(SYS_gettid);
  cpu_set_t one, now;
  char name[16], kept[16];
  struct sched_param none = {0};
  CPU_ZERO(&one);
  CPU_SET(me % 2 ? first : last, &one);
  if (me < 4) NEED(!sched_setaffinity(0, sizeof one, &one));
  NEED(!setpriority(PRIO_PROCESS, id, 2 + (int)me));
  if (me == 5) NEED(!sched_setscheduler(0, SCHED_BATCH, &none));
  if (me == 6) NEED(!sched_setscheduler(0, SCHED_IDLE, &none));
  if (me == 7) NEED(!io_priority(1));
  snprintf(name, sizeof name, "thread %ld", me);
  NEED(!prctl(PR_SET_NAME, name) && !prctl(PR_SET_TIMERSLACK, 1000 * (me + 1)));
  __atomic_add_fetch(&prepared, 1, __ATOMIC_SEQ_CST);
  await_go();
  CHECK(!sched_getaffinity(0, sizeof now, &now));
  if (me < 4) CHECK(CPU_EQUAL(&one, &now));
  else CHECK(CPU_COUNT(&now) > 1 || first == last);
  CHECK(getpriority(PRIO_PROCESS, id) == 2 + me);
  CHECK(sched_getscheduler(0) == (me == 5 ? SCHED_BATCH : me == 6 ? SCHED_IDLE : SCHED_OTHER));
  if (me == 7) CHECK(io_priority(0) == 3 << 13);
  CHECK(!prctl(PR_GET_NAME, kept) && !strcmp(name, kept) && prctl(PR_GET_TIMERSLACK) == 1000 * (me + 1));
  return NULL;
}

int main(void) {
  pthread_t threads[8];
  cpu_set_t all;
  struct rlimit limit;
  NEED(!sched_getaffinity(0, sizeof all, &all));
  for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) if (CPU_ISSET(cpu, &all)) first = cpu;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) if (CPU_ISSET(cpu, &all)) last = cpu;
  for (long i = 0; i < 8; i++) NEED(!pthread_create(&threads[i], NULL, thread, (void *)i));
  NEED(!getrlimit(RLIMIT_NOFILE, &limit));
  limit.rlim_cur = 333;
  NEED(!setrlimit(RLIMIT_NOFILE, &limit) && !prctl(PR_SET_NAME, "first of all"));
  while (prepared < 8) usleep(1000);
  pid_t id = getpid(), parent = getppid(), group = getpgrp(), session = getsid(0);
  ready();
  await_go();
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  CHECK(!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur == 333);
  char name[16];
  CHECK(!prctl(PR_GET_NAME, name) && !strcmp(name, "first of all"));
  CHECK(getpid() == id && getppid() == parent && getpgrp() == group && getsid(0) == session && syscall(SYS_gettid) == id);
  CHECK(getpriority(PRIO_PROCESS, 0) == 0);
  return verdict();
}
