/* Handlers on an alternate stack, masks, pending signals, an interval timer, a saved context to jump back to. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t alarms, users, inside, on_alternate;
static char *alternate;
static size_t size = 65536;
static int failures;
#define CHECK(x) do { if (!(x)) { printf("LOST %s:%d %s (errno %d)\n", __FILE__, __LINE__, #x, errno); failures++; } } while (0)

static void on_alarm(int s) { (void)s; alarms++; }
static void on_user(int s, siginfo_t *info, void *context) {
    (void)s, (void)info, (void)context;
    char local;
    on_alternate = &local >= alternate && &local < alternate + size;
    inside = 1;
    /* Long enough to be parked inside a handler. */
    for (int i = 0; i < 8; i++) usleep(5000);
    inside = 0;
    users++;
}

/* A timer that tells a thread that has ended. */
static timer_t forgotten;
static void *forgetful(void *arg) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
    event._sigev_un._tid = syscall(SYS_gettid);
    struct itimerspec late = {{0, 0}, {100000, 0}};
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &forgotten) == 0 && timer_settime(forgotten, 0, &late, NULL) == 0);
    return arg;
}

static sigjmp_buf back;
static void on_fault(int s) { (void)s; siglongjmp(back, 1); }

int main(int argc, char **argv) {
    int ticks = argc > 1 ? atoi(argv[1]) : 40;
    alternate = malloc(size);
    stack_t stack = {.ss_sp = alternate, .ss_size = size};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    action.sa_handler = on_fault;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
    struct sigaction user = {.sa_sigaction = on_user, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGUSR1, &user, NULL);
    signal(SIGHUP, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    CHECK(raise(SIGUSR2) == 0); /* stays pending */
    CHECK(kill(getpid(), SIGUSR2) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, forgetful, NULL) == 0 && pthread_join(thread, NULL) == 0);
    struct itimerval every = {{0, 7000}, {0, 7000}};
    setitimer(ITIMER_REAL, &every, NULL);
    for (int i = 1; i <= ticks && access("end", F_OK); i++) {
        int before = alarms, count = users;
        raise(SIGUSR1);
        CHECK(users == count + 1 && on_alternate && !inside);
        for (int tries = 0; alarms == before && tries < 1000; tries++) usleep(1000);
        CHECK(alarms > before);
        sigset_t now;
        sigprocmask(SIG_SETMASK, NULL, &now);
        CHECK(sigismember(&now, SIGUSR2) && !sigismember(&now, SIGUSR1));
        sigpending(&now);
        CHECK(sigismember(&now, SIGUSR2));
        stack_t known;
        sigaltstack(NULL, &known);
        CHECK(known.ss_sp == alternate && known.ss_size == size);
        if (sigsetjmp(back, 1) == 0) { *(volatile int *)16 = 1; CHECK(0); }
        kill(getpid(), SIGHUP);
        struct itimerspec left;
        CHECK(timer_gettime(forgotten, &left) == 0 && left.it_value.tv_sec > 10000);
        struct sigaction kept;
        sigaction(SIGALRM, NULL, &kept);
        CHECK(kept.sa_handler == on_alarm && kept.sa_flags & SA_RESTART);
        printf("tick %d\n", i);
        fflush(stdout);
    }
    if (failures) return 1;
    puts("OK");
    return 0;
}
