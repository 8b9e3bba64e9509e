/* What it costs to look for messages: MPI_Test and MPI_Iprobe in a computation to which none comes, beside the computation alone, in
 * microseconds per call; and a message there and back that is probed for first, one way.
 *
 *   mpi_polls    with at least two ranks; all of them compute
 *
 * One line each: NAME UNITS MICROSECONDS, of a computation so many thirds of a microsecond long. */
#include <mpi.h>
#include <stdio.h>

enum { TOTAL = 40000, EXCHANGES = 5000, TIMES = 5 };

static int rank, size;

/* About a third of a microsecond. */
static void compute(int units) {
    static volatile double result = 1;
    double value = result;
    for (int step = 0; step < units * 128; step++) value = value * 1.0000001 + 1e-9;
    result = value > 2 ? 1 : value;
}

enum { NOTHING, TEST, PROBE };

/* Microseconds of a computation in chunks, with or without a look after each. */
static double computed(int units, int look) {
    int body, found, count = TOTAL / units;
    MPI_Request request;
    MPI_Irecv(&body, 1, MPI_INT, (rank + 1) % size, 1, MPI_COMM_WORLD, &request);
    double begin = MPI_Wtime();
    for (int number = 0; number < count; number++) {
        compute(units);
        if (look == TEST) MPI_Test(&request, &found, MPI_STATUS_IGNORE);
        if (look == PROBE) MPI_Iprobe((rank + 1) % size, 2, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    }
    double took = MPI_Wtime() - begin;
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return took * 1e6 / count;
}

static double exchanged(void) {
    int body = 0;
    MPI_Status status;
    double begin = MPI_Wtime();
    for (int number = 0; number < EXCHANGES && rank < 2; number++) {
        if (rank == 0) MPI_Send(&body, 1, MPI_INT, 1, 3, MPI_COMM_WORLD);
        MPI_Probe(1 - rank, 3, MPI_COMM_WORLD, &status);
        MPI_Recv(&body, 1, MPI_INT, 1 - rank, 3, MPI_COMM_WORLD, &status);
        if (rank == 1) MPI_Send(&body, 1, MPI_INT, 0, 3, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - begin) * 1e6 / EXCHANGES / 2;
}

static void tell(const char *name, int units, double value) {
    if (rank == 0) printf("%s %d %.3f\n", name, units, value);
}

int main(int count, char **arguments) {
    static const int units[] = {3, 30, 150};
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (unsigned chunk = 0; chunk < sizeof units / sizeof *units; chunk++) {
        /* The least of some: others may have been in the way. */
        double least[3] = {1e9, 1e9, 1e9};
        for (int time = 0; time < TIMES; time++)
            for (int look = NOTHING; look <= PROBE; look++) {
                MPI_Barrier(MPI_COMM_WORLD);
                double took = computed(units[chunk], look);
                if (took < least[look]) least[look] = took;
            }
        tell("compute", units[chunk], least[NOTHING]);
        tell("test", units[chunk], least[TEST]);
        tell("iprobe", units[chunk], least[PROBE]);
    }
    double least = 1e9;
    for (int time = 0; time < TIMES; time++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double took = exchanged();
        if (took < least) least = took;
    }
    tell("probe", 0, least);
    return MPI_Finalize();
}
