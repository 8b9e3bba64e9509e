/* Reads a file in every rank, through an open file and through a mapping, half of it before and half of it after a file `go` is there.
 *
 *     mpi_input FILE [PASSES]
 *
 * Rank 0 prints `open` when all ranks have read the first half, and in the end a checksum (FNV-1a) of what they read, if all read the same.
 * With PASSES the file is read so many times more from its beginning, and must be the same.
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE 65536

static uint64_t sum_of(uint64_t sum, const unsigned char *bytes, size_t length)
{
    for (size_t at = 0; at < length; at++)
        sum = (sum ^ bytes[at]) * 1099511628211u;
    return sum;
}

static void failed(const char *what)
{
    perror(what);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

/* Reads up to `until`, and compares with what is mapped. */
static uint64_t read_until(int file, const unsigned char *mapped, off_t *at, off_t until, uint64_t sum)
{
    static unsigned char piece[PIECE];
    while (*at < until) {
        size_t wanted = until - *at < PIECE ? (size_t)(until - *at) : PIECE;
        ssize_t got = read(file, piece, wanted);
        if (got <= 0)
            failed("read");
        if (memcmp(piece, mapped + *at, (size_t)got) != 0) {
            fprintf(stderr, "the mapping differs at %lld\n", (long long)*at);
            MPI_Abort(MPI_COMM_WORLD, 4);
        }
        sum = sum_of(sum, piece, (size_t)got);
        *at += got;
    }
    return sum;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int file = open(argv[1], O_RDONLY);
    struct stat found;
    if (file < 0 || fstat(file, &found) != 0)
        failed(argv[1]);
    const unsigned char *mapped = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED)
        failed("mmap");
    off_t at = 0;
    uint64_t sum = read_until(file, mapped, &at, found.st_size / 2, 14695981039346656037u);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("open\n");
        fflush(stdout);
    }
    int go = 0;
    while (!go) {
        if (rank == 0)
            go = access("go", F_OK) == 0;
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
        usleep(5000);
    }
    sum = read_until(file, mapped, &at, found.st_size, sum);
    for (int pass = 0; argc > 2 && pass < atoi(argv[2]); pass++) {
        if (lseek(file, 0, SEEK_SET) != 0)
            failed("lseek");
        at = 0;
        uint64_t again = read_until(file, mapped, &at, found.st_size, 14695981039346656037u);
        if (again != sum)
            MPI_Abort(MPI_COMM_WORLD, 5);
    }
    uint64_t least, most;
    MPI_Allreduce(&sum, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&sum, &most, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0)
        printf(least == most ? "input %016llx\n" : "ranks read different bytes\n", (unsigned long long)sum);
    MPI_Finalize();
    return least == most ? 0 : 6;
}
