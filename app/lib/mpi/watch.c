/* The part of libmend-app that knows MPI: compile this file with your mpicc. It has four parts.
 *
 *   what is open      windows, files, requests and communicators that a move can't take along: told by MPI's profiling interface
 *   communicators     those that are made again when ranks move
 *   moves             new processes, and messages between a rank's old and new process
 *   the transport     messages between ranks
 *
 * It needs no thread support of MPI: only the program's own thread comes here. The first part is left out by -DMEND_APP_NO_WATCH, for programs that have another tool
 * in MPI's profiling interface.
 */
#include "mend_app_mpi.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Where MPI's functions have other names by a macro, another tool wants to see the program's calls alone. */
#if defined MPI_Isend && !defined MEND_APP_NO_WATCH
#define MEND_APP_NO_WATCH
#endif

/* ---- what is open ---- */

#ifndef MEND_APP_NO_WATCH
struct open_object {
    struct open_object *next;
    uint64_t handle;
    const char *made_by; /* a function of MPI */
    char name[64];
};
enum { BUCKETS = 256 };
/* Requests are many and short-lived; the others few. */
static struct open_object *open_requests[BUCKETS], *open_windows, *open_files, *open_communicators;
static volatile char open_lock;

static uint64_t handle_bits(const void *handle, size_t size) {
    uint64_t bits = 0;
    memcpy(&bits, handle, size < sizeof bits ? size : sizeof bits);
    return bits;
}

/* Programs may call MPI from several threads. */
static void lock_open(void) {
    while (__atomic_test_and_set(&open_lock, __ATOMIC_ACQUIRE))
        ;
}

static void unlock_open(void) {
    __atomic_clear(&open_lock, __ATOMIC_RELEASE);
}

static struct open_object **bucket(uint64_t request) {
    return &open_requests[(request * 0x9e3779b97f4a7c15u) >> 56];
}

static void open_add(struct open_object **list, uint64_t handle, const char *made_by) {
    struct open_object *o = calloc(1, sizeof *o);
    if (!o)
        return;
    o->handle = handle;
    o->made_by = made_by;
    lock_open();
    o->next = *list;
    *list = o;
    unlock_open();
}

static void open_remove(struct open_object **list, uint64_t handle) {
    struct open_object *gone = NULL;
    lock_open();
    for (struct open_object **at = list; *at && !gone; at = &(*at)->next)
        if ((*at)->handle == handle) {
            gone = *at;
            *at = gone->next;
            break;
        }
    unlock_open();
    free(gone);
}

static int request_made(int done, const MPI_Request *request, const char *made_by) {
    if (done == MPI_SUCCESS && *request != MPI_REQUEST_NULL) {
        uint64_t bits = handle_bits(request, sizeof *request);
        open_add(bucket(bits), bits, made_by);
    }
    return done;
}

#define MAKES_REQUEST(name, parameters, arguments)          \
    int MPI_##name parameters {                             \
        return request_made(PMPI_##name arguments, request, "MPI_" #name); \
    }
#define SENDS(name)                                                                                                             \
    MAKES_REQUEST(name, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *request), (b, n, t, to, tag, c, request))
SENDS(Isend)
SENDS(Ibsend)
SENDS(Issend)
SENDS(Irsend)
SENDS(Send_init)
SENDS(Bsend_init)
SENDS(Ssend_init)
SENDS(Rsend_init)
MAKES_REQUEST(Irecv, (void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *request), (b, n, t, from, tag, c, request))
MAKES_REQUEST(Recv_init, (void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *request), (b, n, t, from, tag, c, request))
MAKES_REQUEST(Ibarrier, (MPI_Comm c, MPI_Request *request), (c, request))
MAKES_REQUEST(Ibcast, (void *b, int n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request *request), (b, n, t, root, c, request))
MAKES_REQUEST(Ireduce, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, int root, MPI_Comm c, MPI_Request *request), (s, r, n, t, o, root, c, request))
MAKES_REQUEST(Iallreduce, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *request), (s, r, n, t, o, c, request))
MAKES_REQUEST(Iallgather, (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *request), (s, n, t, r, m, u, c, request))
MAKES_REQUEST(Ialltoall, (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *request), (s, n, t, r, m, u, c, request))
MAKES_REQUEST(Igather, (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, int root, MPI_Comm c, MPI_Request *request), (s, n, t, r, m, u, root, c, request))
MAKES_REQUEST(Iscatter, (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, int root, MPI_Comm c, MPI_Request *request), (s, n, t, r, m, u, root, c, request))
MAKES_REQUEST(Iallgatherv, (const void *s, int n, MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, MPI_Comm c, MPI_Request *request), (s, n, t, r, m, d, u, c, request))
MAKES_REQUEST(Ialltoallv,
              (const void *s, const int n[], const int e[], MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, MPI_Comm c, MPI_Request *request),
              (s, n, e, t, r, m, d, u, c, request))
MAKES_REQUEST(Igatherv, (const void *s, int n, MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, int root, MPI_Comm c, MPI_Request *request),
              (s, n, t, r, m, d, u, root, c, request))
MAKES_REQUEST(Iscatterv, (const void *s, const int n[], const int d[], MPI_Datatype t, void *r, int m, MPI_Datatype u, int root, MPI_Comm c, MPI_Request *request),
              (s, n, d, t, r, m, u, root, c, request))
MAKES_REQUEST(Ialltoallw,
              (const void *s, const int n[], const int e[], const MPI_Datatype t[], void *r, const int m[], const int d[], const MPI_Datatype u[], MPI_Comm c, MPI_Request *request),
              (s, n, e, t, r, m, d, u, c, request))
MAKES_REQUEST(Ineighbor_allgather, (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *request), (s, n, t, r, m, u, c, request))
MAKES_REQUEST(Ineighbor_alltoall, (const void *s, int n, MPI_Datatype t, void *r, int m, MPI_Datatype u, MPI_Comm c, MPI_Request *request), (s, n, t, r, m, u, c, request))
MAKES_REQUEST(Ineighbor_allgatherv, (const void *s, int n, MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, MPI_Comm c, MPI_Request *request),
              (s, n, t, r, m, d, u, c, request))
MAKES_REQUEST(Ineighbor_alltoallv,
              (const void *s, const int n[], const int e[], MPI_Datatype t, void *r, const int m[], const int d[], MPI_Datatype u, MPI_Comm c, MPI_Request *request),
              (s, n, e, t, r, m, d, u, c, request))
MAKES_REQUEST(Ineighbor_alltoallw,
              (const void *s, const int n[], const MPI_Aint e[], const MPI_Datatype t[], void *r, const int m[], const MPI_Aint d[], const MPI_Datatype u[], MPI_Comm c,
               MPI_Request *request),
              (s, n, e, t, r, m, d, u, c, request))
MAKES_REQUEST(Grequest_start, (MPI_Grequest_query_function *query, MPI_Grequest_free_function *gone, MPI_Grequest_cancel_function *cancel, void *state, MPI_Request *request),
              (query, gone, cancel, state, request))
MAKES_REQUEST(Imrecv, (void *b, int n, MPI_Datatype t, MPI_Message *message, MPI_Request *request), (b, n, t, message, request))
MAKES_REQUEST(Iexscan, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *request), (s, r, n, t, o, c, request))
MAKES_REQUEST(Ireduce_scatter, (const void *s, void *r, const int n[], MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *request), (s, r, n, t, o, c, request))
MAKES_REQUEST(Ireduce_scatter_block, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *request), (s, r, n, t, o, c, request))
MAKES_REQUEST(Iscan, (const void *s, void *r, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c, MPI_Request *request), (s, r, n, t, o, c, request))

/* What was complete is MPI_REQUEST_NULL afterwards. */
static int completes_one(MPI_Request *request, uint64_t before, int done) {
    if (*request == MPI_REQUEST_NULL)
        open_remove(bucket(before), before);
    return done;
}

int MPI_Wait(MPI_Request *request, MPI_Status *status) {
    uint64_t before = handle_bits(request, sizeof *request);
    return completes_one(request, before, PMPI_Wait(request, status));
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
    uint64_t before = handle_bits(request, sizeof *request);
    return completes_one(request, before, PMPI_Test(request, flag, status));
}

int MPI_Request_free(MPI_Request *request) {
    uint64_t before = handle_bits(request, sizeof *request);
    return completes_one(request, before, PMPI_Request_free(request));
}

#define COMPLETES(name, parameters, arguments)                                        \
    int MPI_##name parameters {                                                       \
        MPI_Request few[16], *before = count > 16 ? malloc((size_t)count * sizeof *before) : few; \
        if (before && count > 0)                                                      \
            memcpy(before, requests, (size_t)count * sizeof *before);                 \
        int done = PMPI_##name arguments;                                             \
        for (int i = 0; before && i < count; i++)                                     \
            if (before[i] != MPI_REQUEST_NULL)                                        \
                completes_one(&requests[i], handle_bits(&before[i], sizeof before[i]), 0); \
        if (before != few)                                                            \
            free(before);                                                             \
        return done;                                                                  \
    }
COMPLETES(Waitall, (int count, MPI_Request requests[], MPI_Status *s), (count, requests, s))
COMPLETES(Waitany, (int count, MPI_Request requests[], int *which, MPI_Status *s), (count, requests, which, s))
COMPLETES(Waitsome, (int count, MPI_Request requests[], int *some, int which[], MPI_Status s[]), (count, requests, some, which, s))
COMPLETES(Testall, (int count, MPI_Request requests[], int *flag, MPI_Status s[]), (count, requests, flag, s))
COMPLETES(Testany, (int count, MPI_Request requests[], int *which, int *flag, MPI_Status *s), (count, requests, which, flag, s))
COMPLETES(Testsome, (int count, MPI_Request requests[], int *some, int which[], MPI_Status s[]), (count, requests, some, which, s))

#define MAKES(list, name, type, parameters, arguments)                        \
    int MPI_##name parameters {                                               \
        int done = PMPI_##name arguments;                                     \
        if (done == MPI_SUCCESS && *made != MPI_##type##_NULL)                \
            open_add(&list, handle_bits(made, sizeof *made), "MPI_" #name);   \
        return done;                                                          \
    }
#define ENDS(list, name, Type)                                \
    int MPI_##name(Type *made) {                              \
        open_remove(&list, handle_bits(made, sizeof *made));  \
        return PMPI_##name(made);                             \
    }
MAKES(open_windows, Win_create, WIN, (void *b, MPI_Aint n, int unit, MPI_Info i, MPI_Comm c, MPI_Win *made), (b, n, unit, i, c, made))
MAKES(open_windows, Win_allocate, WIN, (MPI_Aint n, int unit, MPI_Info i, MPI_Comm c, void *b, MPI_Win *made), (n, unit, i, c, b, made))
MAKES(open_windows, Win_allocate_shared, WIN, (MPI_Aint n, int unit, MPI_Info i, MPI_Comm c, void *b, MPI_Win *made), (n, unit, i, c, b, made))
MAKES(open_windows, Win_create_dynamic, WIN, (MPI_Info i, MPI_Comm c, MPI_Win *made), (i, c, made))
ENDS(open_windows, Win_free, MPI_Win)
MAKES(open_files, File_open, FILE, (MPI_Comm c, const char *name, int mode, MPI_Info i, MPI_File *made), (c, name, mode, i, made))
ENDS(open_files, File_close, MPI_File)
MAKES(open_communicators, Comm_dup, COMM, (MPI_Comm c, MPI_Comm *made), (c, made))
MAKES(open_communicators, Comm_split, COMM, (MPI_Comm c, int color, int key, MPI_Comm *made), (c, color, key, made))
MAKES(open_communicators, Comm_split_type, COMM, (MPI_Comm c, int type, int key, MPI_Info i, MPI_Comm *made), (c, type, key, i, made))
MAKES(open_communicators, Comm_create, COMM, (MPI_Comm c, MPI_Group g, MPI_Comm *made), (c, g, made))
MAKES(open_communicators, Comm_create_group, COMM, (MPI_Comm c, MPI_Group g, int tag, MPI_Comm *made), (c, g, tag, made))
MAKES(open_communicators, Cart_create, COMM, (MPI_Comm c, int n, const int d[], const int p[], int r, MPI_Comm *made), (c, n, d, p, r, made))
MAKES(open_communicators, Cart_sub, COMM, (MPI_Comm c, const int remain[], MPI_Comm *made), (c, remain, made))
MAKES(open_communicators, Dist_graph_create_adjacent, COMM,
      (MPI_Comm c, int n, const int s[], const int w[], int m, const int d[], const int v[], MPI_Info i, int r, MPI_Comm *made), (c, n, s, w, m, d, v, i, r, made))
MAKES(open_communicators, Dist_graph_create, COMM,
      (MPI_Comm c, int n, const int s[], const int g[], const int d[], const int w[], MPI_Info i, int r, MPI_Comm *made), (c, n, s, g, d, w, i, r, made))
MAKES(open_communicators, Graph_create, COMM, (MPI_Comm c, int n, const int x[], const int e[], int r, MPI_Comm *made), (c, n, x, e, r, made))
MAKES(open_communicators, Comm_dup_with_info, COMM, (MPI_Comm c, MPI_Info i, MPI_Comm *made), (c, i, made))
MAKES(open_communicators, Intercomm_create, COMM, (MPI_Comm c, int leader, MPI_Comm peer, int remote, int tag, MPI_Comm *made), (c, leader, peer, remote, tag, made))
MAKES(open_communicators, Intercomm_merge, COMM, (MPI_Comm c, int high, MPI_Comm *made), (c, high, made))
MAKES(open_communicators, Comm_spawn, COMM,
      (const char *command, char *words[], int n, MPI_Info i, int root, MPI_Comm c, MPI_Comm *made, int errors[]), (command, words, n, i, root, c, made, errors))
MAKES(open_communicators, Comm_accept, COMM, (const char *port, MPI_Info i, int root, MPI_Comm c, MPI_Comm *made), (port, i, root, c, made))
MAKES(open_communicators, Comm_connect, COMM, (const char *port, MPI_Info i, int root, MPI_Comm c, MPI_Comm *made), (port, i, root, c, made))
MAKES(open_communicators, Comm_spawn_multiple, COMM,
      (int count, char *commands[], char **words[], const int n[], const MPI_Info i[], int root, MPI_Comm c, MPI_Comm *made, int errors[]),
      (count, commands, words, n, i, root, c, made, errors))
MAKES(open_communicators, Comm_join, COMM, (int fd, MPI_Comm *made), (fd, made))

/* The request is there at once; the communicator counts from then on, too. */
int MPI_Comm_idup(MPI_Comm c, MPI_Comm *made, MPI_Request *request) {
    int done = PMPI_Comm_idup(c, made, request);
    if (done == MPI_SUCCESS && *made != MPI_COMM_NULL)
        open_add(&open_communicators, handle_bits(made, sizeof *made), "MPI_Comm_idup");
    return request_made(done, request, "MPI_Comm_idup");
}
ENDS(open_communicators, Comm_free, MPI_Comm)
ENDS(open_communicators, Comm_disconnect, MPI_Comm)

static const char *what_is_open(void) {
    static char text[256];
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length = 0;
    if (open_windows) {
        MPI_Win window;
        memcpy(&window, &open_windows->handle, sizeof window);
        PMPI_Win_get_name(window, name, &length);
        snprintf(text, sizeof text, "window `%.100s` of %s is open: free it before the safe point", name, open_windows->made_by);
        return text;
    }
    if (open_files) {
        snprintf(text, sizeof text, "a file of %s is open: close it before the safe point", open_files->made_by);
        return text;
    }
    if (open_communicators) {
        MPI_Comm comm;
        memcpy(&comm, &open_communicators->handle, sizeof comm);
        PMPI_Comm_get_name(comm, name, &length);
        snprintf(text, sizeof text, "communicator `%.100s` is of %s: make it with mend_app_comm_split, mend_app_comm_dup or mend_app_cart_create, or free it before the safe point", name,
                 open_communicators->made_by);
        return text;
    }
    for (int i = 0; i < BUCKETS; i++)
        if (open_requests[i]) {
            snprintf(text, sizeof text, "a request of %s is open: wait for its end before the safe point, and free it if it is persistent", open_requests[i]->made_by);
            return text;
        }
    return NULL;
}
#else
static const char *what_is_open(void) {
    return NULL;
}
#endif
