/* The part of libmend-app that knows MPI: compile this file with your mpicc. It has four parts.
 *
 *   what is open      windows, files, requests and communicators that a move can't take along: told by MPI's profiling interface
 *   communicators     those that are made again when ranks move
 *   moves             new processes, and messages between a rank's old and new process
 *   the transport     messages between ranks
 *
 * It needs no thread support of MPI: only the program's own thread comes here. The first part is left out by -DMEND_APP_NO_WATCH, for programs that have another tool
 * in MPI's profiling interface: ranks move then only where the setting nothing_open says that they can.
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
#define LIST(...) __VA_ARGS__
/* N: what counts are; D: what displacements are; s: the end of the name, as all of MPI 4's with large counts have it. */
#define SENDS(name, s, N) MAKES_REQUEST(name##s, (const void *b, N n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *request), (b, n, t, to, tag, c, request))
#define RECEIVES(name, s, N) MAKES_REQUEST(name##s, (void *b, N n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *request), (b, n, t, from, tag, c, request))
#define MESSAGES(s, N)      \
    SENDS(Isend, s, N)      \
    SENDS(Ibsend, s, N)     \
    SENDS(Issend, s, N)     \
    SENDS(Irsend, s, N)     \
    SENDS(Send_init, s, N)  \
    SENDS(Bsend_init, s, N) \
    SENDS(Ssend_init, s, N) \
    SENDS(Rsend_init, s, N) \
    RECEIVES(Irecv, s, N)   \
    RECEIVES(Recv_init, s, N) \
    MAKES_REQUEST(Imrecv##s, (void *b, N n, MPI_Datatype t, MPI_Message *message, MPI_Request *request), (b, n, t, message, request))
#define EXCHANGES(s, N)                                                                                                                                       \
    MAKES_REQUEST(Isendrecv##s,                                                                                                                               \
                  (const void *b, N n, MPI_Datatype t, int to, int tag, void *r, N m, MPI_Datatype u, int from, int other, MPI_Comm c, MPI_Request *request), \
                  (b, n, t, to, tag, r, m, u, from, other, c, request))                                                                                       \
    MAKES_REQUEST(Isendrecv_replace##s, (void *b, N n, MPI_Datatype t, int to, int tag, int from, int other, MPI_Comm c, MPI_Request *request),               \
                  (b, n, t, to, tag, from, other, c, request))

/* A collective begins as Ibcast, or is persistent as Bcast_init. */
#define IMMEDIATE(lower, Upper, s, parameters, arguments) MAKES_REQUEST(I##lower##s, (LIST parameters, MPI_Comm c, MPI_Request *request), (LIST arguments, c, request))
#define PERSISTENT(lower, Upper, s, parameters, arguments) \
    MAKES_REQUEST(Upper##_init##s, (LIST parameters, MPI_Comm c, MPI_Info i, MPI_Request *request), (LIST arguments, c, i, request))
#define TO_EACH(IS, lower, Upper, s, N) IS(lower, Upper, s, (const void *b, N n, MPI_Datatype t, void *r, N m, MPI_Datatype u), (b, n, t, r, m, u))
#define TO_EACH_V(IS, lower, Upper, s, N, D) \
    IS(lower, Upper, s, (const void *b, N n, MPI_Datatype t, void *r, const N m[], const D d[], MPI_Datatype u), (b, n, t, r, m, d, u))
#define ALL_TO_ALL_V(IS, lower, Upper, s, N, D) \
    IS(lower, Upper, s, (const void *b, const N n[], const D e[], MPI_Datatype t, void *r, const N m[], const D d[], MPI_Datatype u), (b, n, e, t, r, m, d, u))
#define ALL_TO_ALL_W(IS, lower, Upper, s, N, D)                                                                                                         \
    IS(lower, Upper, s, (const void *b, const N n[], const D e[], const MPI_Datatype t[], void *r, const N m[], const D d[], const MPI_Datatype u[]), \
       (b, n, e, t, r, m, d, u))
#define REDUCES(IS, lower, Upper, s, N) IS(lower, Upper, s, (const void *b, void *r, N n, MPI_Datatype t, MPI_Op o), (b, r, n, t, o))
#define COLLECTIVES(IS, s, N, D)                                                                                                                    \
    IS(bcast, Bcast, s, (void *b, N n, MPI_Datatype t, int root), (b, n, t, root))                                                                  \
    IS(reduce, Reduce, s, (const void *b, void *r, N n, MPI_Datatype t, MPI_Op o, int root), (b, r, n, t, o, root))                                 \
    REDUCES(IS, allreduce, Allreduce, s, N)                                                                                                         \
    REDUCES(IS, scan, Scan, s, N)                                                                                                                   \
    REDUCES(IS, exscan, Exscan, s, N)                                                                                                               \
    REDUCES(IS, reduce_scatter_block, Reduce_scatter_block, s, N)                                                                                   \
    IS(reduce_scatter, Reduce_scatter, s, (const void *b, void *r, const N n[], MPI_Datatype t, MPI_Op o), (b, r, n, t, o))                         \
    IS(gather, Gather, s, (const void *b, N n, MPI_Datatype t, void *r, N m, MPI_Datatype u, int root), (b, n, t, r, m, u, root))                   \
    IS(scatter, Scatter, s, (const void *b, N n, MPI_Datatype t, void *r, N m, MPI_Datatype u, int root), (b, n, t, r, m, u, root))                 \
    IS(gatherv, Gatherv, s, (const void *b, N n, MPI_Datatype t, void *r, const N m[], const D d[], MPI_Datatype u, int root), (b, n, t, r, m, d, u, root)) \
    IS(scatterv, Scatterv, s, (const void *b, const N n[], const D d[], MPI_Datatype t, void *r, N m, MPI_Datatype u, int root), (b, n, d, t, r, m, u, root)) \
    TO_EACH(IS, allgather, Allgather, s, N)                                                                                                         \
    TO_EACH(IS, alltoall, Alltoall, s, N)                                                                                                           \
    TO_EACH(IS, neighbor_allgather, Neighbor_allgather, s, N)                                                                                       \
    TO_EACH(IS, neighbor_alltoall, Neighbor_alltoall, s, N)                                                                                         \
    TO_EACH_V(IS, allgatherv, Allgatherv, s, N, D)                                                                                                  \
    TO_EACH_V(IS, neighbor_allgatherv, Neighbor_allgatherv, s, N, D)                                                                                \
    ALL_TO_ALL_V(IS, alltoallv, Alltoallv, s, N, D)                                                                                                 \
    ALL_TO_ALL_V(IS, neighbor_alltoallv, Neighbor_alltoallv, s, N, D)                                                                               \
    ALL_TO_ALL_W(IS, alltoallw, Alltoallw, s, N, D)                                                                                                 \
    ALL_TO_ALL_W(IS, neighbor_alltoallw, Neighbor_alltoallw, s, N, MPI_Aint)
MESSAGES(, int)
COLLECTIVES(IMMEDIATE, , int, int)
MAKES_REQUEST(Ibarrier, (MPI_Comm c, MPI_Request *request), (c, request))
MAKES_REQUEST(Grequest_start, (MPI_Grequest_query_function *query, MPI_Grequest_free_function *gone, MPI_Grequest_cancel_function *cancel, void *state, MPI_Request *request),
              (query, gone, cancel, state, request))
#if MPI_VERSION >= 4
MESSAGES(_c, MPI_Count)
EXCHANGES(, int)
EXCHANGES(_c, MPI_Count)
COLLECTIVES(IMMEDIATE, _c, MPI_Count, MPI_Aint)
COLLECTIVES(PERSISTENT, , int, int)
COLLECTIVES(PERSISTENT, _c, MPI_Count, MPI_Aint)
MAKES_REQUEST(Barrier_init, (MPI_Comm c, MPI_Info i, MPI_Request *request), (c, i, request))
MAKES_REQUEST(Psend_init, (const void *b, int parts, MPI_Count n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Info i, MPI_Request *request), (b, parts, n, t, to, tag, c, i, request))
MAKES_REQUEST(Precv_init, (void *b, int parts, MPI_Count n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Info i, MPI_Request *request), (b, parts, n, t, from, tag, c, i, request))
#endif
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
MAKES_REQUEST(Buffer_iflush, (MPI_Request *request), (request))
MAKES_REQUEST(Comm_iflush_buffer, (MPI_Comm c, MPI_Request *request), (c, request))
MAKES_REQUEST(Session_iflush_buffer, (MPI_Session session, MPI_Request *request), (session, request))
#endif

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
#if MPI_VERSION >= 4
MAKES(open_windows, Win_create_c, WIN, (void *b, MPI_Aint n, MPI_Aint unit, MPI_Info i, MPI_Comm c, MPI_Win *made), (b, n, unit, i, c, made))
MAKES(open_windows, Win_allocate_c, WIN, (MPI_Aint n, MPI_Aint unit, MPI_Info i, MPI_Comm c, void *b, MPI_Win *made), (n, unit, i, c, b, made))
MAKES(open_windows, Win_allocate_shared_c, WIN, (MPI_Aint n, MPI_Aint unit, MPI_Info i, MPI_Comm c, void *b, MPI_Win *made), (n, unit, i, c, b, made))
#endif
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
#define DUPLICATES(name, parameters, arguments)                                                       \
    int MPI_##name parameters {                                                                       \
        int done = PMPI_##name arguments;                                                             \
        if (done == MPI_SUCCESS && *made != MPI_COMM_NULL)                                            \
            open_add(&open_communicators, handle_bits(made, sizeof *made), "MPI_" #name);             \
        return request_made(done, request, "MPI_" #name);                                             \
    }
DUPLICATES(Comm_idup, (MPI_Comm c, MPI_Comm *made, MPI_Request *request), (c, made, request))
#if MPI_VERSION >= 4
DUPLICATES(Comm_idup_with_info, (MPI_Comm c, MPI_Info i, MPI_Comm *made, MPI_Request *request), (c, i, made, request))
MAKES(open_communicators, Comm_create_from_group, COMM, (MPI_Group g, const char *tag, MPI_Info i, MPI_Errhandler e, MPI_Comm *made), (g, tag, i, e, made))
MAKES(open_communicators, Intercomm_create_from_groups, COMM,
      (MPI_Group g, int leader, MPI_Group h, int other, const char *tag, MPI_Info i, MPI_Errhandler e, MPI_Comm *made), (g, leader, h, other, tag, i, e, made))
#endif
ENDS(open_communicators, Comm_free, MPI_Comm)
ENDS(open_communicators, Comm_disconnect, MPI_Comm)

/* Where MPI was started past these, as by Open MPI's Fortran, the program's other calls go past them, too. */
static int calls_are_seen;

int MPI_Init(int *argc, char ***argv) {
    calls_are_seen = 1;
    return PMPI_Init(argc, argv);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    calls_are_seen = 1;
    return PMPI_Init_thread(argc, argv, required, provided);
}

#if MPI_VERSION >= 4
int MPI_Session_init(MPI_Info i, MPI_Errhandler e, MPI_Session *made) {
    calls_are_seen = 1;
    return PMPI_Session_init(i, e, made);
}
#endif

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
static const int calls_are_seen = 0;

static const char *what_is_open(void) {
    return NULL;
}
#endif
