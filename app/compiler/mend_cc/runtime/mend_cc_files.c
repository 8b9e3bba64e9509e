/* Files whose positions are saved, and what the runtime's parts share. Compiled by the user's mpicc. */
#include "mend_cc_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <mend_app_mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct opened {
    struct opened *next;
    FILE *stream;     /* NULL: it is closed */
    const char *name; /* a constant of the program */
    char *path;
    int number;
    int file; /* the file itself, where what the way to the safe point that is restored writes goes nowhere; -1: the stream has it */
};

static struct opened *all;

void *mend_cc_need(void *memory) {
    if (!memory) {
        fputs("mend-cc: no memory\n", stderr);
        abort();
    }
    return memory;
}

void mend_cc_stop(const char *format, ...) {
    char why[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    fprintf(stderr, "mend-cc: %s\n", why);
    fflush(NULL);
    /* Hydra's mpiexec may drop what ranks have written when one of them aborts at once. */
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    PMPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* A file of this place, with the same number in a restart. One that was closed keeps its number, and gets it again when it is opened again: another file must not be taken for it. */
static struct opened *numbered_file(const char *name, const char *path) {
    int number = 1;
    struct opened *first = NULL; /* the newest stand before it */
    for (struct opened *f = all; f; f = f->next) {
        if (strcmp(f->name, name) != 0)
            continue;
        if (!f->stream && strcmp(f->path, path) == 0)
            first = f;
        number++;
    }
    if (first)
        return first;
    struct opened *f = mend_cc_need(malloc(sizeof *f));
    *f = (struct opened){.next = all, .name = name, .path = mend_cc_need(strdup(path)), .number = number, .file = -1};
    all = f;
    return f;
}

/* What the way to the safe point writes is written already. A file at its start is empty, or begun anew. */
static void write_nowhere(struct opened *f, const char *mode) {
    struct stat status;
    if (mode[0] == 'r' || strchr(mode, '+') || ftello(f->stream) <= 0 || fstat(fileno(f->stream), &status) != 0 || !S_ISREG(status.st_mode))
        return;
    int nowhere = -1, good = 0;
    if ((f->file = fcntl(fileno(f->stream), F_DUPFD_CLOEXEC, 0)) >= 0 && (nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC)) >= 0) {
        good = dup2(nowhere, fileno(f->stream)) >= 0;
        close(nowhere);
    }
    if (!good)
        mend_cc_stop("what was written already to the file %s can't be left out, so the program ends: %s", f->path, strerror(errno));
}

void mend_cc_files_back(void) {
    for (struct opened *f = all; f; f = f->next) {
        if (!f->stream || f->file < 0)
            continue;
        if (fflush(f->stream) != 0 || dup2(f->file, fileno(f->stream)) < 0 || close(f->file) != 0)
            mend_cc_stop("the file %s can't be set to where it was, so the program ends: %s", f->path, strerror(errno));
        f->file = -1;
    }
}

FILE *mend_cc_fopen(const char *name, const char *path, const char *mode) {
    if (!mend_cc_has_started() || !path)
        return fopen(path, mode);
    struct opened *f = numbered_file(name, path);
    char numbered[2 * MEND_CC_NAME];
    if (f->number == 1)
        snprintf(numbered, sizeof numbered, "%s", name);
    else
        snprintf(numbered, sizeof numbered, "%s, open file %d", name, f->number);
    FILE *stream = mend_app_fopen(numbered, path, mode);
    if (!stream && errno == EINVAL && mend_app_restarting())
        mend_cc_stop("the file %s isn't restored, so the program ends%s. The cause stands above", path, mode[0] == 'w' ? ": to open it anew would empty it" : "");
    f->stream = stream;
    if (stream && mend_app_restarting())
        write_nowhere(f, mode);
    return stream;
}

int mend_cc_fclose(FILE *stream) {
    for (struct opened *f = all; f; f = f->next)
        if (stream && f->stream == stream) {
            if (f->file >= 0)
                close(f->file);
            f->stream = NULL;
            f->file = -1;
        }
    return mend_app_fclose(stream) == MEND_APP_OK ? 0 : EOF;
}
