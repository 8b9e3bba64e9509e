/* A computation that looks for a message now and then, with MPI_Test or MPI_Iprobe, is not a rank that waits, and is not put to sleep.
 * Every other rank computes so, with as many ranks as there are, while those between wait for one of them. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/resource.h>

enum { POLLS = 4000, DONE = 9 };
/* Of so many polls at most one may let another process run; where a rank is put to sleep every sixteenth does, or every fourth. */
static const long SELDOM = 100;

/* How often this thread gave its processor away because it waited for something. */
static long waits(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

/* Some ten microseconds. */
static void compute(void) {
    static volatile double result = 1;
    double value = result;
    for (int step = 0; step < 4000; step++) value = value * 1.0000001 + 1e-9;
    result = value > 2 ? 1 : value;
}

static void poll_often(int probing) {
    int from = (rank + 1) % size, body = 0, found = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    if (!probing) MPI_Irecv(&body, 1, MPI_INT, from, DONE + 1, MPI_COMM_WORLD, &request);
    /* Polls, not waits: in a restored process the kernel counts anew, and what restores it waits, too. */
    long waited = 0, before = waits();
    for (int number = 0; number < POLLS; number++) {
        compute();
        if (probing)
            MPI_Iprobe(from, DONE + 1, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
        else
            MPI_Test(&request, &found, MPI_STATUS_IGNORE);
        require(!found, "a message that nobody sent");
        long now = waits();
        waited += now != before;
        before = now;
    }
    require(waited < POLLS / SELDOM, "of %d polls of %s in a computation %ld waited", POLLS, probing ? "MPI_Iprobe" : "MPI_Test", waited);
    if (!probing) {
        MPI_Cancel(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    for (int round = 0; again(round); round++) {
        int done = 0;
        if (rank % 2) {
            MPI_Recv(&done, 1, MPI_INT, rank - 1, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            continue;
        }
        poll_often(0);
        poll_often(1);
        if (rank + 1 < size) MPI_Send(&done, 1, MPI_INT, rank + 1, DONE, MPI_COMM_WORLD);
    }
    return finish();
}
