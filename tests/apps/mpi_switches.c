/* What the scheduler has to do with collective operations of more ranks than processors. Per line: name, bytes, microseconds of an
 * operation, how often it took the processor from a rank in it, and the part of the ranks' processor time that was the kernel's; of all ranks.
 *
 *   mpi_switches COUNT      so many operations each, a tenth of that from 16 KiB on; the root goes round, as in IMB */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { LONGEST = 1 << 16 };
static const int LENGTHS[] = {32, 1024, 16384, LONGEST};
static const char *NAMES[] = {"Reduce", "Bcast", "Alltoall"};
enum { SWITCHES, OWN, KERNEL, FIGURES };

static void used(double figures[FIGURES]) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    figures[SWITCHES] = usage.ru_nvcsw + usage.ru_nivcsw;
    figures[OWN] = usage.ru_utime.tv_sec + usage.ru_utime.tv_usec / 1e6;
    figures[KERNEL] = usage.ru_stime.tv_sec + usage.ru_stime.tv_usec / 1e6;
}

static void operate(int which, char *out, char *in, int bytes, long count, int size) {
    for (long i = 0; i < count; i++) {
        int root = i % size;
        if (which == 0)
            MPI_Reduce(out, in, bytes / sizeof(float), MPI_FLOAT, MPI_SUM, root, MPI_COMM_WORLD);
        else if (which == 1)
            MPI_Bcast(out, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
        else
            MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long most = argc > 1 ? atol(argv[1]) : 0;
    char *out = calloc(size, LONGEST), *in = calloc(size, LONGEST);
    if (most < 10 || !out || !in) MPI_Abort(MPI_COMM_WORLD, 2);
    for (int which = 0; which < 3; which++)
        for (int length = 0; length < 4; length++) {
            int bytes = LENGTHS[length];
            long count = bytes < 16384 ? most : most / 10;
            double before[FIGURES], mine[FIGURES], all[FIGURES];
            operate(which, out, in, bytes, count / 10, size);
            MPI_Barrier(MPI_COMM_WORLD);
            used(before);
            double start = MPI_Wtime();
            operate(which, out, in, bytes, count, size);
            double took = MPI_Wtime() - start;
            used(mine);
            for (int figure = 0; figure < FIGURES; figure++) mine[figure] -= before[figure];
            MPI_Reduce(mine, all, FIGURES, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
            if (rank == 0)
                printf("%s %d %.3f %.3f %.3f\n", NAMES[which], bytes, took / count * 1e6, all[SWITCHES] / count, all[KERNEL] / (all[OWN] + all[KERNEL]));
        }
    MPI_Finalize();
    free(out);
    free(in);
    return 0;
}
