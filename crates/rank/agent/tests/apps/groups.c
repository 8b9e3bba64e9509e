/* groups TICKS: the C library has every thread of the process change its group, and waits for the last of them.
 * Ends after so many ticks, or when there is a file `end`. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int failures;
#define CHECK(x) do { if (!(x)) { printf("LOST %s:%d %s (errno %d)\n", __FILE__, __LINE__, #x, errno); failures++; } } while (0)

static void *idle(void *arg) { for (;;) pause(); return arg; }

int main(int argc, char **argv) {
    int ticks = argc > 1 ? atoi(argv[1]) : 40;
    gid_t group = getegid();
    pthread_t thread;
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&thread, NULL, idle, NULL));
    for (int i = 1; i <= ticks && access("end", F_OK); i++) {
        /* Often, so that an image is taken in the middle of it. */
        for (int call = 0; call < 100; call++) CHECK(!setegid(group));
        CHECK(!seteuid(geteuid()) && getegid() == group);
        usleep(1000);
        printf("tick %d\n", i);
        fflush(stdout);
    }
    if (failures) return 1;
    puts("OK");
    return 0;
}
