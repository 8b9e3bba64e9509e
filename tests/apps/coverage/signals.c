// Signals that are pending, with everything that was sent with them and in their order; masks, handlers, alternate
// stacks of many threads, one of them inside its handler; interval timers.
#include "coverage.h"
#include <sys/time.h>

enum { THREADS = 5 };
static volatile int inside, leave, prepared, sent, ticks, virtual_ticks;
static volatile sig_atomic_t order[64], count;
static pthread_t threads[THREADS];
static char stacks[THREADS][65536];
static __thread int me;
static __thread volatile int taken[8], taken_count;

static void collect(int signal, siginfo_t *info, void *context) {
  (void)context;
  CHECK(info->si_signo == signal && info->si_code == SI_QUEUE && info->si_pid == getpid() && info->si_uid == getuid());
  order[count++] = info->si_value.sival_int;
}

static void on_own(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)context;
  char here;
  CHECK(&here >= stacks[me] && &here < stacks[me] + sizeof stacks[me]);
  taken[taken_count++] = info->si_value.sival_int;
}

static void on_inside(int signal) {
  sigset_t now;
  (void)signal;
  inside = 1;
  while (!leave) usleep(1000);
  pthread_sigmask(SIG_SETMASK, NULL, &now);
  CHECK(sigismember(&now, SIGUSR1) && sigismember(&now, SIGHUP));
}

static void on_tick(int signal) { signal == SIGALRM ? ticks++ : virtual_ticks++; }

static void *thread(void *argument) {
  me = (int)(long)argument;
  stack_t stack = {.ss_sp = stacks[me], .ss_size = sizeof stacks[me]}, now;
  sigset_t set, before;
  sigaltstack(&stack, NULL);
  pthread_sigmask(SIG_SETMASK, NULL, &set);
  sigaddset(&set, SIGRTMIN + 6 + me);
  if (me == 0) sigdelset(&set, SIGUSR1);
  pthread_sigmask(SIG_SETMASK, &set, NULL);
  __atomic_add_fetch(&prepared, 1, __ATOMIC_SEQ_CST);
  if (me == 0) pthread_kill(pthread_self(), SIGUSR1);
  while (!sent) usleep(1000);
  await_go();
  leave = 1;
  pthread_sigmask(SIG_SETMASK, NULL, &before);
  CHECK(!memcmp(&before, &set, 8));
  sigaltstack(NULL, &now);
  CHECK(now.ss_sp == stacks[me] && now.ss_size == sizeof stacks[me]);
  // Three were sent to this thread alone.
  CHECK(taken_count == 0);
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN + 5);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  CHECK(taken_count == 3);
  for (int i = 0; i < 3; i++) CHECK(taken[i] == me * 10 + i);
  return NULL;
}

int main(void) {
  struct sigaction action = {.sa_sigaction = collect, .sa_flags = SA_SIGINFO};
  sigset_t set, pending;
  NEED(!sigaction(SIGRTMIN + 1, &action, NULL) && !sigaction(SIGRTMIN + 2, &action, NULL) && !sigaction(SIGUSR2, &action, NULL));
  action.sa_sigaction = on_own, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  NEED(!sigaction(SIGRTMIN + 5, &action, NULL));
  struct sigaction nested = {.sa_handler = on_inside};
  sigaddset(&nested.sa_mask, SIGHUP);
  NEED(!sigaction(SIGUSR1, &nested, NULL));
  struct sigaction tick = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
  NEED(!sigaction(SIGALRM, &tick, NULL) && !sigaction(SIGVTALRM, &tick, NULL));
  signal(SIGPIPE, SIG_IGN);
  sigemptyset(&set);
  for (int signal = SIGRTMIN + 1; signal <= SIGRTMIN + 5; signal++) sigaddset(&set, signal);
  sigaddset(&set, SIGUSR2), sigaddset(&set, SIGUSR1), sigaddset(&set, SIGURG), sigaddset(&set, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  for (long i = 0; i < THREADS; i++) NEED(!pthread_create(&threads[i], NULL, thread, (void *)i));
  while (prepared < THREADS || !inside) usleep(1000);
  for (int i = 0; i < 4; i++) {
    NEED(!sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = 200 + i}));
    NEED(!sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 100 + i}));
  }
  NEED(!sigqueue(getpid(), SIGUSR2, (union sigval){.sival_int = 7}) && !kill(getpid(), SIGURG));
  for (int i = 0; i < THREADS; i++)
    for (int k = 0; k < 3; k++) NEED(!pthread_sigqueue(threads[i], SIGRTMIN + 5, (union sigval){.sival_int = i * 10 + k}));
  // The same signal for the process and for this thread: both stay, each where it was.
  NEED(!pthread_sigqueue(pthread_self(), SIGRTMIN + 1, (union sigval){.sival_int = 99}));
  struct itimerval every = {{0, 20000}, {0, 20000}}, far = {{0, 0}, {100000, 0}}, now;
  NEED(!setitimer(ITIMER_REAL, &every, NULL) && !setitimer(ITIMER_PROF, &far, NULL));
  usleep(50000);
  sent = 1;
  ready();
  await_go();
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);

  sigpending(&pending);
  CHECK(sigismember(&pending, SIGURG) && sigismember(&pending, SIGRTMIN + 1) && sigismember(&pending, SIGUSR2));
  CHECK(!sigismember(&pending, SIGHUP) && sigismember(&pending, SIGALRM));
  struct sigaction kept;
  sigaction(SIGPIPE, NULL, &kept);
  CHECK(kept.sa_handler == SIG_IGN);
  sigaction(SIGRTMIN + 5, NULL, &kept);
  CHECK(kept.sa_sigaction == on_own && (kept.sa_flags & (SA_SIGINFO | SA_ONSTACK)) == (SA_SIGINFO | SA_ONSTACK));
  getitimer(ITIMER_REAL, &now);
  CHECK(now.it_interval.tv_usec == 20000);
  getitimer(ITIMER_PROF, &now);
  CHECK(now.it_value.tv_sec > 90000 && now.it_value.tv_sec <= 100000);
  // One at a time, so that handlers don't nest.
  int expected[] = {7, 99, 100, 101, 102, 103, 200, 201, 202, 203};
  for (int i = 0; i < 3; i++) {
    int number[] = {SIGUSR2, SIGRTMIN + 1, SIGRTMIN + 2};
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number[i]);
    sigset_t others = set;
    sigdelset(&others, number[i]);
    pthread_sigmask(SIG_SETMASK, &others, NULL);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
  }
  CHECK(count == 10);
  for (int i = 0; i < count && i < 10; i++)
    if (order[i] != expected[i]) printf("LOST the signal with value %d (it was %d)\n", expected[i], (int)order[i]), failures++;
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
  for (int before = ticks, tries = 0; ticks < before + 3 && tries < 5000; tries++) usleep(1000);
  CHECK(ticks >= 3);
  return verdict();
}
