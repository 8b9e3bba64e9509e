/* Threads whose calls only a handler of their own may interrupt. Signals come to the process from outside: SIGWINCH, which nobody notices, and SIGUSR1.
 * With `reads` as the second argument they wait in calls that the kernel makes again after a handler with SA_RESTART, which theirs hasn't. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_int stop, failures, handled;
static __thread volatile int handled_here;
#define CHECK(x) do { if (!(x)) { printf("LOST %s:%d %s (errno %d)\n", __FILE__, __LINE__, #x, errno); failures++; } } while (0)

static void handler(int signal) { (void)signal; handled_here++; handled++; }

static void wait_once(int *seen) {
    int result = poll(NULL, 0, 20);
    CHECK(result == 0 || (errno == EINTR && handled_here > *seen));
    *seen = handled_here;
}

static void *waiter(void *arg) {
    int seen = 0;
    while (!stop) wait_once(&seen);
    return arg;
}

static void *waiter_for_a_post(void *arg) {
    sem_t never;
    sem_init(&never, 0, 0);
    while (!stop) {
        int seen = handled_here, result = sem_wait(&never);
        CHECK(result == -1 && errno == EINTR && handled_here > seen);
    }
    return arg;
}

static void reads(void) {
    pthread_t thread;
    int ends[2];
    char byte;
    pthread_create(&thread, NULL, waiter_for_a_post, NULL);
    CHECK(pipe(ends) == 0);
    puts("tick 3");
    for (fflush(stdout);; fflush(stdout)) {
        int seen = handled_here;
        ssize_t result = read(ends[0], &byte, 1);
        CHECK(result == -1 && errno == EINTR && handled_here > seen);
        printf("handled %d\n", (int)handled);
    }
}

int main(int argc, char **argv) {
    int ticks = argc > 1 ? atoi(argv[1]) : 40, seen = 0;
    pthread_t threads[4];
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, NULL);
    if (argc > 2) reads();
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, waiter, NULL);
    for (int i = 1; i <= ticks && access("end", F_OK); i++) {
        wait_once(&seen);
        printf("tick %d\n", i);
        if (handled) printf("handled %d\n", (int)handled);
        fflush(stdout);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    if (failures) return 1;
    puts("OK");
    return 0;
}
