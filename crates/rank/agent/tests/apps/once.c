/* once: timers that ring once each, every few milliseconds, while very many signals wait. None is lost, and none rings twice. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define TIMERS 300
#define APART_MS 5
#define WAITING 400
static volatile int rung[TIMERS], alarms;
static int failures;
#define CHECK(x) do { if (!(x)) { printf("LOST %s:%d %s (errno %d)\n", __FILE__, __LINE__, #x, errno); failures++; } } while (0)

static void on_ring(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    rung[info->si_value.sival_int]++;
}

static void on_alarm(int signal) { (void)signal; alarms++; }

static int all_rang(void) {
    for (int i = 0; i < TIMERS; i++)
        if (!rung[i]) return 0;
    return 1;
}

static void pause_ms(int ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

int main(void) {
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGRTMIN + 1);
    CHECK(!sigprocmask(SIG_BLOCK, &held, NULL));
    for (int i = 0; i < WAITING; i++) CHECK(!sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = i}));
    struct sigaction ring = {.sa_sigaction = on_ring, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigaction alarm = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(!sigaction(SIGRTMIN + 2, &ring, NULL) && !sigaction(SIGALRM, &alarm, NULL));
    for (int i = 0; i < TIMERS; i++) {
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 2, .sigev_value.sival_int = i};
        struct itimerspec once = {{0, 0}, {(i + 1) * APART_MS / 1000, (i + 1) * APART_MS % 1000 * 1000000L + 1}};
        CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer) && !timer_settime(timer, 0, &once, NULL));
    }
    struct itimerval once = {{0, 0}, {0, TIMERS / 4 * APART_MS * 1000}};
    CHECK(!setitimer(ITIMER_REAL, &once, NULL));
    puts("ready");
    fflush(stdout);
    /* Time in the image may count for this sleep, and does not for the timers. */
    for (int tries = 0; tries < 6000 && (!all_rang() || !alarms); tries++) pause_ms(10);
    /* Whatever rings twice does so soon. */
    pause_ms(300);
    int missing = 0, twice = 0;
    for (int i = 0; i < TIMERS; i++) {
        missing += rung[i] == 0;
        twice += rung[i] > 1;
    }
    if (missing || twice || alarms != 1) {
        printf("LOST %d never rang, %d rang twice, %d alarms\n", missing, twice, alarms);
        failures++;
    }
    if (failures) return 1;
    puts("OK");
    return 0;
}
