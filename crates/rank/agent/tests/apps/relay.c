/* relay: threads that end all the time, each after it has started its successor. Ends when there is a file `end`. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define CHAINS 8
static atomic_int stop, lost;
static pthread_attr_t detached;

static void *link_of(void *arg) {
    pthread_t next;
    for (volatile int i = 0; i < 2000; i++) {}
    if (!stop && pthread_create(&next, &detached, link_of, arg)) lost++;
    return NULL;
}

int main(void) {
    pthread_t first;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, 65536);
    for (int i = 0; i < CHAINS; i++)
        if (pthread_create(&first, &detached, link_of, NULL)) return 1;
    for (int i = 1; access("end", F_OK); i++) {
        usleep(20000);
        printf("tick %d\n", i);
        fflush(stdout);
    }
    stop = 1;
    usleep(100000);
    if (lost) return 1;
    puts("OK");
    return 0;
}
