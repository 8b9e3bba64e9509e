/* What every program of this directory stands on.
 *
 *   PROGRAM [-u FILE]
 *
 * A program tells its story once (with any number of ranks), or with -u again and again until FILE exists, so that
 * whoever disturbs the job decides when it ends. Everything received is compared with what must have been sent; the
 * first difference is named on standard error and ends the job with exit code 1. Standard output: one last line, "right".
 */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

static int rank, size;
static const char *program = "?", *until;

/* Ends the job unless `good`. The message says what was wrong. */
UNUSED __attribute__((format(printf, 2, 3))) static void require(int good, const char *format, ...) {
    if (good) return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: rank %d of %d: WRONG: ", program, rank, size);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Starts MPI with at least this thread level. */
UNUSED static void begin(int count, char **arguments, int level) {
    int provided;
    program = strrchr(arguments[0], '/') ? strrchr(arguments[0], '/') + 1 : arguments[0];
    MPI_Init_thread(&count, &arguments, level, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    require(provided >= level, "thread level %d instead of %d", provided, level);
    for (int option; (option = getopt(count, arguments, "u:")) != -1;) {
        require(option == 'u', "usage: %s [-u FILE]", program);
        until = optarg;
    }
}

/* Whether the story is told (once more); the same answer on all ranks. */
UNUSED static int again(int round) {
    int more = round == 0;
    if (until && rank == 0) more = access(until, F_OK) != 0 || round == 0;
    MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return more;
}

UNUSED static int finish(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("%s: right with %d ranks\n", program, size);
    return MPI_Finalize();
}

/* A byte that depends on sender, receiver, number of the message and place in it. */
UNUSED static unsigned char expected_byte(int from, int to, int number, size_t at) {
    return (unsigned char)(from * 37 + to * 101 + number * 13 + at + (at >> 8) * 7);
}

UNUSED static void fill(void *buffer, size_t length, int from, int to, int number) {
    for (size_t i = 0; i < length; i++) ((unsigned char *)buffer)[i] = expected_byte(from, to, number, i);
}

UNUSED static void verify(const void *buffer, size_t length, int from, int to, int number, const char *what) {
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = ((const unsigned char *)buffer)[i];
        if (byte != expected_byte(from, to, number, i))
            require(0, "%s: message %d from %d, byte %zu of %zu is %d instead of %d", what, number, from, i, length, byte,
                    expected_byte(from, to, number, i));
    }
}

UNUSED static void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    require(memory != NULL, "no memory for %zu bytes", bytes);
    return memory;
}

UNUSED static int error_class(int code) {
    int class;
    MPI_Error_class(code, &class);
    return class;
}

/* Requires of a status who sent, with which tag, and how many bytes. */
UNUSED static void verify_status(const MPI_Status *status, int source, int tag, int bytes, const char *what) {
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    require(status->MPI_SOURCE == source, "%s: source %d instead of %d", what, status->MPI_SOURCE, source);
    require(status->MPI_TAG == tag, "%s: tag %d instead of %d", what, status->MPI_TAG, tag);
    require(count == bytes, "%s: %d bytes instead of %d", what, count, bytes);
}

#endif
