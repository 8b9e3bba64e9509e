// Messages that have been sent, as far as their sender can tell, while one of the two computes.
//
//   mpi_late SECONDS
//
// 1. Rank 0 sends a message to each other rank and calls nothing of MPI until all have made a file `got.RANK`, which they do
//    when they have it. After a minute it gives up.
// 2. The others send COUNT messages to rank 0 and end. Rank 0 receives them SECONDS later.
// Standard output: "late: all came". Exit code 0, or 2 on wrong usage, 3 where messages did not come, 4 where one was another.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 40, BYTES = 4096, PATIENCE_MS = 60000 };

static char buffer[BYTES];

int main(int count, char **arguments) {
    int rank, size;
    char name[32];
    if (count != 2)
        return 2;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank) {
        MPI_Recv(buffer, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        snprintf(name, sizeof name, "got.%d", rank);
        fclose(fopen(name, "w"));
        memset(buffer, rank, BYTES);
        for (int i = 0; i < COUNT; i++)
            MPI_Send(buffer, BYTES, MPI_CHAR, 0, i, MPI_COMM_WORLD);
        MPI_Finalize();
        return 0;
    }
    for (int to = 1; to < size; to++)
        MPI_Send(buffer, 1, MPI_CHAR, to, 0, MPI_COMM_WORLD);
    for (int from = 1, waited = 0; from < size; from++) {
        snprintf(name, sizeof name, "got.%d", from);
        for (; access(name, F_OK) != 0; waited++, usleep(1000))
            if (waited > PATIENCE_MS)
                return 3;
    }
    sleep((unsigned)atoi(arguments[1]));
    for (int from = 1; from < size; from++)
        for (int i = 0; i < COUNT; i++) {
            MPI_Recv(buffer, BYTES, MPI_CHAR, from, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (buffer[0] != from || buffer[BYTES - 1] != from)
                return 4;
        }
    puts("late: all came");
    MPI_Finalize();
    return 0;
}
