// POSIX timers of all kinds, with gaps between their numbers; timerfds, one of them on the time of day.
#include "coverage.h"
#include <sys/timerfd.h>
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static volatile int signals, thread_calls, told;
static volatile pid_t told_thread;
static volatile int told_value, code, number = -1;
static timer_t periodic;

static void on_signal(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)context;
  signals++, code = info->si_code, number = info->si_timerid;
  told_value = info->si_value.sival_int;
}

static void on_told(int signal) {
  (void)signal;
  told++, told_thread = syscall(SYS_gettid);
}

static void in_thread(union sigval value) {
  if (value.sival_int == 77) thread_calls++;
}

static volatile pid_t target;

static void *sleeper(void *argument) {
  target = syscall(SYS_gettid);
  await_go();
  for (int tries = 0; told < 2 && tries < 5000; tries++) usleep(1000);
  return argument;
}

static void await_more(volatile int *count, const char *what) {
  int before = *count;
  for (int tries = 0; *count < before + 2 && tries < 5000; tries++) usleep(1000);
  if (*count < before + 2) printf("LOST %s\n", what), failures++;
}

int main(void) {
  struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
  struct sigaction simple = {.sa_handler = on_told, .sa_flags = SA_RESTART};
  struct itimerspec every = {{0, 15000000}, {0, 15000000}}, far = {{5, 250}, {100000, 0}}, now;
  timer_t dropped[5], once, by_thread, to_thread, silent, processor, idle;
  pthread_t thread;
  NEED(!sigaction(SIGRTMIN + 4, &action, NULL) && !sigaction(SIGRTMIN + 7, &simple, NULL));
  NEED(!pthread_create(&thread, NULL, sleeper, NULL));
  while (!target) usleep(1000);
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 4, .sigev_value.sival_int = 4711};
  for (int i = 0; i < 5; i++) NEED(!timer_create(CLOCK_MONOTONIC, &event, &dropped[i]));
  NEED(!timer_create(CLOCK_MONOTONIC, &event, &periodic) && !timer_settime(periodic, 0, &every, NULL));
  for (int i = 0; i < 5; i++) NEED(!timer_delete(dropped[i]));
  NEED(!timer_create(CLOCK_REALTIME, &event, &once) && !timer_settime(once, 0, &far, NULL));
  NEED(!timer_create(CLOCK_BOOTTIME, &event, &idle));
  event.sigev_notify = SIGEV_THREAD, event.sigev_notify_function = in_thread, event.sigev_value.sival_int = 77;
  NEED(!timer_create(CLOCK_MONOTONIC, &event, &by_thread) && !timer_settime(by_thread, 0, &every, NULL));
  struct sigevent directed = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 7};
  directed.sigev_notify_thread_id = target;
  NEED(!timer_create(CLOCK_MONOTONIC, &directed, &to_thread) && !timer_settime(to_thread, 0, &every, NULL));
  struct sigevent none = {.sigev_notify = SIGEV_NONE};
  NEED(!timer_create(CLOCK_MONOTONIC, &none, &silent) && !timer_settime(silent, 0, &far, NULL));
  NEED(!timer_create(CLOCK_PROCESS_CPUTIME_ID, &none, &processor) && !timer_settime(processor, 0, &far, NULL));

  int running = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), day = timerfd_create(CLOCK_REALTIME, 0), unread = timerfd_create(CLOCK_MONOTONIC, 0);
  struct timespec today;
  clock_gettime(CLOCK_REALTIME, &today);
  struct itimerspec absolute = {{0, 0}, {today.tv_sec + 100000, 0}}, soon = {{0, 0}, {0, 1000000}};
  NEED(!timerfd_settime(running, 0, &every, NULL) && !timerfd_settime(day, TFD_TIMER_ABSTIME, &absolute, NULL));
  NEED(!timerfd_settime(unread, 0, &soon, NULL));
  // Periodic, not read since it ran out: how often that was, and when it does next.
  int overdue = timerfd_create(CLOCK_REALTIME, 0);
  struct itimerspec long_ago = {{1000, 0}, {today.tv_sec - 2500, 0}};
  NEED(!timerfd_settime(overdue, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &long_ago, NULL));
  usleep(50000);
  ready();
  await_go();

  await_more(&signals, "the periodic timer's signal");
  CHECK(code == SI_TIMER && told_value == 4711);
  await_more(&thread_calls, "the timer that calls a function in a thread");
  pthread_join(thread, NULL);
  CHECK(told >= 2 && told_thread == target);
  CHECK(timer_gettime(once, &now) == 0 && now.it_value.tv_sec > 90000 && now.it_value.tv_sec <= 100000);
  CHECK(now.it_interval.tv_sec == 5 && now.it_interval.tv_nsec == 250);
  CHECK(timer_gettime(silent, &now) == 0 && now.it_value.tv_sec > 90000);
  CHECK(timer_gettime(processor, &now) == 0 && now.it_value.tv_sec > 90000);
  CHECK(timer_gettime(idle, &now) == 0 && now.it_value.tv_sec == 0 && now.it_value.tv_nsec == 0);
  timer_t all[] = {periodic, once, by_thread, to_thread, silent, processor, idle};
  for (unsigned i = 0; i < sizeof all / sizeof *all; i++) CHECK(timer_delete(all[i]) == 0);
  CHECK(timer_gettime(periodic, &now) == -1);
  uint64_t times;
  for (int i = 0; i < 3; i++) {
    int tries = 0;
    while (read(running, &times, 8) != 8 && tries++ < 5000) usleep(1000);
    CHECK(tries < 5000 && times >= 1);
  }
  CHECK(timerfd_gettime(running, &now) == 0 && now.it_interval.tv_nsec == 15000000);
  // The time of day went on while the program did not.
  struct timespec after;
  clock_gettime(CLOCK_REALTIME, &today);
  CHECK(timerfd_gettime(day, &now) == 0 && now.it_value.tv_sec <= absolute.it_value.tv_sec - today.tv_sec);
  clock_gettime(CLOCK_REALTIME, &after);
  CHECK(now.it_value.tv_sec >= absolute.it_value.tv_sec - after.tv_sec - 1);
  CHECK(read(unread, &times, 8) == 8 && times == 1);
  CHECK(timerfd_gettime(overdue, &now) == 0 && now.it_interval.tv_sec == 1000);
  CHECK(llabs(today.tv_sec + now.it_value.tv_sec - (long_ago.it_value.tv_sec + 3000)) <= 2);
  CHECK(read(overdue, &times, 8) == 8 && times == 3);
  char info[64];
  snprintf(info, sizeof info, "/proc/self/fdinfo/%d", overdue);
  CHECK(proc_number(info, "settime flags:", 8) == (TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET));
  return verdict();
}
