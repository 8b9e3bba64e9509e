/* Time of MPI_Sendrecv between 2 ranks by where the buffers lie, 16 KiB to 4 MiB. Per line: name, bytes, microseconds.
 *
 *   alike      both begin a cache line
 *   shifted    what is received begins 32 bytes further on in its cache line than what is sent: a copy takes longer then
 *
 * IMB's and most programs' buffers lie as their allocator has put them, which may differ between two MPI libraries. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORTEST = 1 << 14, LONGEST = 1 << 22, SHIFT = 32, ROUNDS = 5 };

static double exchange(char *out, char *in, int bytes, int count, int other) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < count; i++)
        MPI_Sendrecv(out, bytes, MPI_BYTE, other, 1, in, bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return (MPI_Wtime() - start) / count * 1e6;
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

int main(int argc, char **argv) {
    int rank, size;
    char *out, *in;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 2 || posix_memalign((void **)&out, 4096, LONGEST) || posix_memalign((void **)&in, 4096, LONGEST + SHIFT))
        MPI_Abort(MPI_COMM_WORLD, 2);
    memset(out, rank + 1, LONGEST);
    memset(in, 9, LONGEST + SHIFT);
    for (int bytes = SHORTEST; bytes <= LONGEST; bytes *= 2) {
        int count = bytes < 1 << 19 ? 1000 : 100;
        for (int shift = 0; shift <= SHIFT; shift += SHIFT) {
            double rounds[ROUNDS];
            exchange(out, in + shift, bytes, count, 1 - rank);
            for (int round = 0; round < ROUNDS; round++) rounds[round] = exchange(out, in + shift, bytes, count, 1 - rank);
            if (in[shift] != 2 - rank || in[shift + bytes - 1] != 2 - rank) MPI_Abort(MPI_COMM_WORLD, 3);
            qsort(rounds, ROUNDS, sizeof *rounds, ascending);
            if (rank == 0) printf("%s %d %.3f\n", shift ? "shifted" : "alike", bytes, rounds[ROUNDS / 2]);
        }
    }
    MPI_Finalize();
    free(out);
    free(in);
    return 0;
}
