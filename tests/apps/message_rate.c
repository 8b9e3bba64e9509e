/* Messages per second from rank 0 to rank 1: windows of nonblocking sends, each answered by one empty message.
 *
 *   message_rate [BYTES [WINDOW [WINDOWS]]]      default 8 64 2000; two ranks
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void window(int rank, char *memory, int bytes, int count, MPI_Request *requests)
{
    if (rank == 0) {
        for (int i = 0; i < count; i++)
            MPI_Isend(memory + (long)i * bytes, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[i]);
        MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
        MPI_Recv(NULL, 0, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        for (int i = 0; i < count; i++)
            MPI_Irecv(memory + (long)i * bytes, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[i]);
        MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
        MPI_Send(NULL, 0, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    int rank, size;
    int bytes = argc > 1 ? atoi(argv[1]) : 8;
    int count = argc > 2 ? atoi(argv[2]) : 64;
    int windows = argc > 3 ? atoi(argv[3]) : 2000;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 2 || bytes < 0 || count < 1 || windows < 1)
        MPI_Abort(MPI_COMM_WORLD, 2);
    char *memory = calloc((size_t)count * bytes + 1, 1);
    MPI_Request *requests = malloc((size_t)count * sizeof *requests);
    if (!memory || !requests)
        MPI_Abort(MPI_COMM_WORLD, 3);
    for (int i = 0; i < windows / 10 + 1; i++)
        window(rank, memory, bytes, count, requests);
    double start = MPI_Wtime();
    for (int i = 0; i < windows; i++)
        window(rank, memory, bytes, count, requests);
    double time = MPI_Wtime() - start;
    if (rank == 0)
        printf("%d bytes: %.0f messages/s\n", bytes, (double)count * windows / time);
    MPI_Finalize();
    free(requests);
    free(memory);
    return 0;
}
