// Messages that have been sent, as far as their sender can tell, while one of the two computes.
//
//   mpi_late SECONDS [FILE]
//
// 1. Rank 0 sends a message to each other rank and calls nothing of MPI until all have made a file `got.RANK`, which they do
//    when they have it. After a minute it gives up.
// 2. The others send COUNT messages to rank 0 and end. With FILE they send MANY, of which a receiver holds a part at most, and a long
//    one whose request they free; rank 0 looks on until these have been sent. It receives them SECONDS later, with FILE so
//    long after that exists.
// Standard output: "late: all came". Exit code 0, or 2 on wrong usage, 3 where messages did not come, 4 where one was another.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 80, MANY = 2000, BYTES = 4096, LONG_BYTES = 1 << 20, LAST = MANY, LONG, PATIENCE_MS = 60000 };

static char buffer[BYTES], long_buffer[LONG_BYTES];

static void send_all(int rank, int many) {
    MPI_Request request;
    memset(buffer, rank, BYTES);
    memset(long_buffer, rank, LONG_BYTES);
    if (many) {
        MPI_Isend(long_buffer, LONG_BYTES, MPI_CHAR, 0, LONG, MPI_COMM_WORLD, &request);
        MPI_Request_free(&request);
    }
    for (int i = 0; i < (many ? MANY : COUNT); i++)
        MPI_Send(buffer, BYTES, MPI_CHAR, 0, i, MPI_COMM_WORLD);
    if (many)
        MPI_Send(buffer, 1, MPI_CHAR, 0, LAST, MPI_COMM_WORLD);
}

static int receive(char *bytes, int length, int from, int tag) {
    MPI_Recv(bytes, length, MPI_CHAR, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return bytes[0] == from && bytes[length - 1] == from;
}

int main(int count, char **arguments) {
    int rank, size, many = count == 3;
    char name[32];
    if (count != 2 && count != 3)
        return 2;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank) {
        MPI_Recv(buffer, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        snprintf(name, sizeof name, "got.%d", rank);
        fclose(fopen(name, "w"));
        send_all(rank, many);
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
    for (int from = 1; many && from < size; from++)
        if (!receive(buffer, 1, from, LAST))
            return 4;
    fprintf(stderr, "late: rank 0 computes\n");
    while (many && access(arguments[2], F_OK) != 0)
        usleep(1000);
    sleep((unsigned)atoi(arguments[1]));
    for (int from = 1; from < size; from++) {
        for (int i = 0; i < (many ? MANY : COUNT); i++)
            if (!receive(buffer, BYTES, from, i))
                return 4;
        if (many && !receive(long_buffer, LONG_BYTES, from, LONG))
            return 4;
    }
    puts("late: all came");
    MPI_Finalize();
    return 0;
}
