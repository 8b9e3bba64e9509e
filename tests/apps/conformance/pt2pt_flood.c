/* A flood of short messages to a rank that waits for another first, which waits for the flood's end: what waits at the receiver
 * is bounded, and every message arrives, in order. Of two ranks, the receiver waits for the flood's end itself. Told again and again, a
 * flood begins when the one before was received, but for a few: the sender, which is faster, waits for nothing else. */
#include "check.h"

enum { FLOOD = 600000, END = 7 };
/* Beyond this the flood was kept as a whole: a message takes more than 100 bytes where it waits, which is 58 MiB. A rank that is restarted
 * while it waits has some MiB more than before: what it shared with others on disk is its own then. */
static const long BOUND_KIB = 30000;
/* Beyond this more than two floods stay with their sender: a message takes less than 600 bytes there. */
static const long KEPT_KIB = 700000;

/* Memory of this process in use, KiB. */
static long memory(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    require(file && fscanf(file, "%*d %ld", &pages) == 1, "no /proc/self/statm");
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void flood(void) {
    int last = size - 1, nothing = 0;
    if (rank == 0) {
        static long first;
        if (!first) first = memory();
        long grown = memory() - first;
        require(grown < KEPT_KIB, "messages that stay took %ld KiB", grown);
        for (long number = 0; number < FLOOD; number++) MPI_Send(&number, 1, MPI_LONG, 1, 0, MPI_COMM_WORLD);
        MPI_Send(&nothing, 1, MPI_INT, last, END, MPI_COMM_WORLD);
    }
    if (rank == last) {
        MPI_Recv(&nothing, 1, MPI_INT, 0, END, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (last != 1) MPI_Send(&nothing, 1, MPI_INT, 1, END, MPI_COMM_WORLD);
    }
    if (rank == 1) {
        long before = memory(), number;
        if (last != 1) {
            MPI_Recv(&nothing, 1, MPI_INT, last, END, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            long grown = memory() - before;
            require(grown < BOUND_KIB, "messages that wait took %ld KiB", grown);
        }
        for (long expected = 0; expected < FLOOD; expected++) {
            MPI_Recv(&number, 1, MPI_LONG, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            require(number == expected, "message %ld instead of %ld", number, expected);
        }
    }
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    for (int round = 0; again(round); round++)
        if (size > 1) flood();
    return finish();
}
