/* The transport of libmend-app over MPI. It needs no thread support of MPI: only the program's own thread comes here. */
#include "mend_app_mpi.h"

#include <stdlib.h>
#include <string.h>

enum { MESSAGE_TAG = 1 };

struct sending {
    struct sending *next;
    MPI_Request request;
    unsigned char bytes[];
};

struct state {
    MPI_Comm comm;
    struct sending *sending;
    MPI_Request receiving;
    unsigned char *buffer;
};

static void reap(struct state *s) {
    for (struct sending **at = &s->sending; *at;) {
        int done = 0;
        if (MPI_Test(&(*at)->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done) {
            struct sending *gone = *at;
            *at = gone->next;
            free(gone);
        } else {
            at = &(*at)->next;
        }
    }
}

static int send_message(void *state, int to, const void *bytes, size_t length) {
    struct state *s = state;
    struct sending *sending = malloc(sizeof *sending + length);
    if (!sending)
        return -1;
    memcpy(sending->bytes, bytes, length);
    if (MPI_Isend(sending->bytes, (int)length, MPI_BYTE, to, MESSAGE_TAG, s->comm, &sending->request) != MPI_SUCCESS) {
        free(sending);
        return -1;
    }
    sending->next = s->sending;
    s->sending = sending;
    reap(s);
    return 0;
}

static int receive_message(void *state, void *bytes, size_t length) {
    struct state *s = state;
    if (s->sending)
        reap(s);
    if (s->receiving == MPI_REQUEST_NULL) {
        if (!s->buffer && !(s->buffer = malloc(length)))
            return -1;
        if (MPI_Irecv(s->buffer, (int)length, MPI_BYTE, MPI_ANY_SOURCE, MESSAGE_TAG, s->comm, &s->receiving) != MPI_SUCCESS)
            return -1;
    }
    int done = 0;
    if (MPI_Test(&s->receiving, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return -1;
    if (!done)
        return 0;
    memcpy(bytes, s->buffer, length);
    return 1;
}

static int broadcast(void *state, void *bytes, size_t length) {
    return MPI_Bcast(bytes, (int)length, MPI_BYTE, 0, ((struct state *)state)->comm) == MPI_SUCCESS ? 0 : -1;
}

static int least(void *state, int64_t *value) {
    long long mine = *value, all = 0;
    if (MPI_Allreduce(&mine, &all, 1, MPI_LONG_LONG, MPI_MIN, ((struct state *)state)->comm) != MPI_SUCCESS)
        return -1;
    *value = all;
    return 0;
}

static void end(void *state) {
    struct state *s = state;
    while (s->sending)
        reap(s);
    if (s->receiving != MPI_REQUEST_NULL) {
        MPI_Cancel(&s->receiving);
        MPI_Wait(&s->receiving, MPI_STATUS_IGNORE);
    }
    MPI_Comm_free(&s->comm);
    free(s->buffer);
    free(s);
}

static void stop(void *state, int code) {
    MPI_Abort(((struct state *)state)->comm, code);
}

int mend_app_init_mpi(MPI_Comm comm, const char *program, const char *configuration) {
    struct state *s = calloc(1, sizeof *s);
    mend_app_transport transport = {.state = s, .send = send_message, .receive = receive_message, .broadcast = broadcast, .least = least, .end = end, .stop = stop};
    if (!s)
        return MEND_APP_SYSTEM;
    s->receiving = MPI_REQUEST_NULL;
    if (MPI_Comm_dup(comm, &s->comm) != MPI_SUCCESS) {
        free(s);
        return MEND_APP_SYSTEM;
    }
    MPI_Comm_rank(s->comm, &transport.rank);
    MPI_Comm_size(s->comm, &transport.size);
    int done = mend_app_init_transport(&transport, program, configuration);
    if (done < 0)
        end(s);
    return done;
}

int mend_app_init_mpi_f(MPI_Fint comm, const char *program, const char *configuration) {
    return mend_app_init_mpi(MPI_Comm_f2c(comm), program, configuration);
}
