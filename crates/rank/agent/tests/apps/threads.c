/* threads TICKS [steady]: with `steady` no thread ends before the last tick.
 *
 * Many threads: mutex, condition variable, TLS, timed waits, ids, names, robust mutex, thread creation and end under way. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORKERS 6
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, robust;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static __thread int tls_zero;
static __thread long tls_value = 41;
static atomic_int stop, failures;
static atomic_long rounds[WORKERS];
static long turn;

#define CHECK(x) do { if (!(x)) { printf("LOST %s:%d %s (errno %d)\n", __FILE__, __LINE__, #x, errno); failures++; } } while (0)

static void *worker(void *arg) {
    int me = (int)(long)arg;
    char name[16], now[16];
    snprintf(name, sizeof name, "worker-%d", me);
    prctl(PR_SET_NAME, name);
    pid_t tid = syscall(SYS_gettid);
    tls_value += me;
    while (!stop) {
        pthread_mutex_lock(&mutex);
        while (turn % WORKERS != me && !stop) pthread_cond_wait(&cond, &mutex);
        turn++;
        pthread_cond_broadcast(&cond);
        pthread_mutex_unlock(&mutex);
        tls_zero++;
        rounds[me]++;
        CHECK(tls_zero == rounds[me]);
        CHECK(tls_value == 41 + me);
        CHECK(syscall(SYS_gettid) == tid);
        prctl(PR_GET_NAME, now);
        CHECK(!strcmp(name, now));
        errno = me;
        struct timespec t = {0, 100000};
        nanosleep(&t, NULL);
    }
    return NULL;
}

static void *timed(void *arg) {
    pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&own);
    while (!stop) {
        struct timespec t, before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 20000000;
        if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
        int r = pthread_cond_timedwait(&never, &own, &t);
        CHECK(r == ETIMEDOUT);
        clock_gettime(CLOCK_MONOTONIC, &after);
        CHECK(after.tv_sec > before.tv_sec || (after.tv_sec == before.tv_sec && after.tv_nsec >= before.tv_nsec));
        /* Sleeps that nothing of the program's interrupts must not fail. */
        struct timespec s = {0, 15000000};
        CHECK(nanosleep(&s, &s) == 0);
        /* Nor do they leave a request changed, but by what passes before one is seen to sleep. */
        CHECK(s.tv_nsec > 10000000);
        CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, 10000000}, NULL) == 0);
    }
    return arg;
}

static void *brief(void *arg) { return arg; }

static void *starter(void *arg) {
    while (!stop) {
        pthread_t t;
        void *result;
        CHECK(pthread_create(&t, NULL, brief, &stop) == 0);
        CHECK(pthread_join(t, &result) == 0 && result == &stop);
        usleep(500);
    }
    return arg;
}

static void *idler(void *arg) {
    while (!stop) usleep(10000);
    return arg;
}

static void *holder(void *arg) {
    pthread_mutex_lock(&robust);
    while (!stop) usleep(10000);
    return arg; /* ends while holding: the kernel must tell the next owner */
}

int main(int argc, char **argv) {
    int ticks = argc > 1 ? atoi(argv[1]) : 60;
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attr);
    pthread_t threads[WORKERS], t1, t2, t3;
    pthread_create(&t3, NULL, holder, NULL);
    for (long i = 0; i < WORKERS; i++) pthread_create(&threads[i], NULL, worker, (void *)i);
    pthread_create(&t1, NULL, timed, NULL);
    /* A rank does not go back in place to an image with a thread that has ended since. */
    pthread_create(&t2, NULL, argc > 2 ? idler : starter, NULL);
    for (int i = 1; i <= ticks && access("end", F_OK); i++) {
        long before[WORKERS];
        for (int w = 0; w < WORKERS; w++) before[w] = rounds[w];
        usleep(30000);
        for (int w = 0, tries = 0; w < WORKERS; w++)
            while (rounds[w] == before[w] && tries++ < 5000) usleep(1000);
        for (int w = 0; w < WORKERS; w++) CHECK(rounds[w] > before[w]);
        printf("tick %d\n", i);
        fflush(stdout);
    }
    stop = 1;
    pthread_cond_broadcast(&cond);
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    pthread_join(t1, NULL), pthread_join(t2, NULL), pthread_join(t3, NULL);
    CHECK(pthread_mutex_lock(&robust) == EOWNERDEAD);
    if (failures) return 1;
    puts("OK");
    return 0;
}
