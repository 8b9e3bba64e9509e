/* Threads sleep, each by another call, for twice as long as an interval timer lasts: when they wake it has run out. Ends after so many ticks, or when there is a file `end`. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 4, KINDS = 5 };
static volatile int awake, early;

static void on_alarm(int signal) { (void)signal; }

static void *sleeper(void *arg) {
    struct timespec whole = {SECONDS, 0}, left;
    struct timeval interval = {SECONDS, 0};
    struct itimerval timer;
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    switch ((long)arg) {
        case 0: poll(NULL, 0, SECONDS * 1000); break;
        case 1: nanosleep(&whole, NULL); break;
        case 2: clock_nanosleep(CLOCK_MONOTONIC, 0, &whole, &left); break;
        case 3: ppoll(NULL, 0, &whole, NULL); break;
        default: select(0, NULL, NULL, NULL, &interval);
    }
    getitimer(ITIMER_REAL, &timer);
    if (timer.it_value.tv_sec || timer.it_value.tv_usec) __sync_fetch_and_add(&early, 1);
    __sync_fetch_and_add(&awake, 1);
    /* A process goes back to threads that it still has. */
    for (;;) pause();
    return arg;
}

int main(int argc, char **argv) {
    int ticks = argc > 1 ? atoi(argv[1]) : 400, told = 0;
    pthread_t threads[KINDS];
    signal(SIGALRM, on_alarm);
    struct itimerval timer = {{0, 0}, {SECONDS / 2, 0}};
    setitimer(ITIMER_REAL, &timer, NULL);
    for (long kind = 0; kind < KINDS; kind++)
        if (pthread_create(&threads[kind], NULL, sleeper, (void *)kind)) return 1;
    for (int i = 1; i <= ticks && access("end", F_OK); i++) {
        usleep(30000);
        if (awake == KINDS && !told++) puts(early ? "LOST: threads woke early" : "awake");
        printf("tick %d\n", i);
        fflush(stdout);
    }
    if (early) return 1;
    puts("OK");
    return 0;
}
