// Relative timeouts end when they would have ended without a save. Nothing is measured: a thread that sleeps until an
// absolute time, half as long again, must find all others awake, or about to be.
#include "coverage.h"
#include <linux/futex.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum { SECONDS = 6, KINDS = 12 };
static const char *names[KINDS] = {"poll",  "ppoll",        "select",  "pselect",      "epoll_wait", "nanosleep",
                                   "usleep", "nanosleep left", "clock_nanosleep", "futex", "sigtimedwait", "alarm"};
static volatile int awake[KINDS], rung, word;

static void on_alarm(int signal) { (void)signal, rung = 1; }

static void *sleeper(void *argument) {
  long which = (long)argument;
  struct timespec whole = {SECONDS, 0}, left = {0, 0};
  struct timeval interval = {SECONDS, 0};
  sigset_t signals;
  struct epoll_event happened;
  switch (which) {
    case 0: CHECK(poll(NULL, 0, SECONDS * 1000) == 0); break;
    case 1: CHECK(ppoll(NULL, 0, &whole, NULL) == 0); break;
    case 2: CHECK(select(0, NULL, NULL, NULL, &interval) == 0); break;
    case 3: CHECK(pselect(0, NULL, NULL, NULL, &whole, NULL) == 0); break;
    case 4: CHECK(epoll_wait(epoll_create1(0), &happened, 1, SECONDS * 1000) == 0); break;
    case 5: CHECK(nanosleep(&whole, NULL) == 0 && whole.tv_sec == SECONDS); break;
    case 6: CHECK(usleep(SECONDS * 1000000) == 0); break;
    case 7: CHECK(nanosleep(&whole, &left) == 0); break;
    case 8: CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, &whole, NULL) == 0); break;
    case 9: CHECK(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &whole, NULL, 0) == -1 && errno == ETIMEDOUT); break;
    case 10:
      sigemptyset(&signals);
      sigaddset(&signals, SIGUSR2);
      CHECK(sigtimedwait(&signals, NULL, &whole) == -1 && errno == EAGAIN);
      break;
    case 11:
      while (!rung) usleep(10000);
  }
  awake[which] = 1;
  return NULL;
}

int main(void) {
  pthread_t threads[KINDS];
  struct timespec later;
  signal(SIGALRM, on_alarm);
  clock_gettime(CLOCK_MONOTONIC, &later);
  alarm(SECONDS);
  for (long i = 0; i < KINDS; i++) NEED(!pthread_create(&threads[i], NULL, sleeper, (void *)i));
  // Saved so late that what starts anew is noticed.
  usleep(SECONDS * 600000);
  ready();
  later.tv_sec += SECONDS * 3 / 2;
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &later, NULL) != 0) {}
  // After a standstill all wake at once, in any order. One that began anew, after 3.6 s, sleeps until 9.6 s at least: by then it is too late.
  for (int looks = 0; looks < 300; looks++) {
    int all = 0;
    for (int i = 0; i < KINDS; i++) all += awake[i];
    if (all == KINDS) break;
    usleep(1000);
  }
  for (int i = 0; i < KINDS; i++)
    if (!awake[i]) printf("LOST %s still waits: its timeout started anew\n", names[i]), failures++;
  await_go();
  return failures ? 1 : verdict();
}
