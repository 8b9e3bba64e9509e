/* Standard, buffered, synchronous and ready sends, blocking and not, of lengths from nothing to many packets, to every
 * rank (itself included); combined send and receive; MPI_PROC_NULL; truncation; calls with large counts. */
#include "check.h"

static const int LENGTHS[] = {0, 1, 7, 64, 1000, 4095, 16383, 16384, 16385, 65536, 65537, 300001, 2000003};
enum { KINDS = sizeof LENGTHS / sizeof *LENGTHS, LONGEST = 2000003 };

typedef int Isend(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
typedef int Send(const void *, int, MPI_Datatype, int, int, MPI_Comm);

/* Every rank sends to the one `distance` to the right; receives are posted before (so that ready sends are allowed) or
 * after the sends. */
static void shifted(Isend *isend, int receive_first, const char *what) {
    unsigned char *out = allocate(LONGEST), *in = allocate(LONGEST);
    for (int distance = 0; distance < size; distance++) {
        int to = (rank + distance) % size, from = (rank + size - distance) % size;
        for (int kind = 0; kind < KINDS; kind++) {
            MPI_Request requests[2];
            MPI_Status statuses[2];
            int length = LENGTHS[kind];
            fill(out, length, rank, to, kind);
            memset(in, 0, length);
            if (receive_first) {
                MPI_Irecv(in, length, MPI_BYTE, from, kind, MPI_COMM_WORLD, &requests[0]);
                MPI_Barrier(MPI_COMM_WORLD);
                isend(out, length, MPI_BYTE, to, kind, MPI_COMM_WORLD, &requests[1]);
            } else {
                isend(out, length, MPI_BYTE, to, kind, MPI_COMM_WORLD, &requests[1]);
                MPI_Barrier(MPI_COMM_WORLD);
                MPI_Irecv(in, LONGEST, MPI_BYTE, from, kind, MPI_COMM_WORLD, &requests[0]);
            }
            MPI_Waitall(2, requests, statuses);
            /* The room of a buffered message is free when it has left, which may be after its send's end. */
            if (isend == MPI_Ibsend) MPI_Buffer_flush();
            verify_status(&statuses[0], from, kind, length, what);
            verify(in, length, from, rank, kind, what);
        }
    }
    free(out);
    free(in);
}

/* Blocking sends along a ring that one rank breaks open, so that synchronous ones do not wait in a circle. */
static void around(Send *send, const char *what) {
    unsigned char *buffer = allocate(LONGEST);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int kind = 0; kind < KINDS && size > 1; kind++) {
        MPI_Status status;
        for (int step = 0; step < 2; step++) {
            if ((step == 0) == (rank == 0)) {
                fill(buffer, LENGTHS[kind], rank, right, kind);
                send(buffer, LENGTHS[kind], MPI_BYTE, right, kind, MPI_COMM_WORLD);
                if (send == MPI_Bsend) MPI_Buffer_flush();
            } else {
                MPI_Recv(buffer, LONGEST, MPI_BYTE, left, kind, MPI_COMM_WORLD, &status);
                verify_status(&status, left, kind, LENGTHS[kind], what);
                verify(buffer, LENGTHS[kind], left, rank, kind, what);
            }
        }
    }
    free(buffer);
}

/* A synchronous send is not over before its receive has begun. */
static void synchronous(void) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, flag, word = rank, got = -1;
    MPI_Request request;
    MPI_Issend(&word, 1, MPI_INT, right, 5, MPI_COMM_WORLD, &request);
    for (int i = 0; i < 100; i++) {
        MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
        require(!flag, "a synchronous send ended without a receive");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Recv(&got, 1, MPI_INT, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    require(got == left, "a synchronous send brought %d instead of %d", got, left);
}

static void combined(void) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    unsigned char *out = allocate(300000), *in = allocate(300000);
    MPI_Status status;
    MPI_Request request;
    fill(out, 300000, rank, right, 1);
    MPI_Sendrecv(out, 300000, MPI_BYTE, right, 1, in, 300000, MPI_BYTE, left, 1, MPI_COMM_WORLD, &status);
    verify_status(&status, left, 1, 300000, "MPI_Sendrecv");
    verify(in, 300000, left, rank, 1, "MPI_Sendrecv");
    MPI_Sendrecv_replace(out, 300000, MPI_BYTE, right, 2, left, 2, MPI_COMM_WORLD, &status);
    verify(out, 300000, left, rank, 1, "MPI_Sendrecv_replace");
    fill(out, 70000, rank, right, 3);
    MPI_Isendrecv(out, 70000, MPI_BYTE, right, 3, in, 70000, MPI_BYTE, left, 3, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, &status);
    verify(in, 70000, left, rank, 3, "MPI_Isendrecv");
    MPI_Isendrecv_replace(out, 70000, MPI_BYTE, right, 4, left, 4, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, &status);
    verify(out, 70000, left, rank, 3, "MPI_Isendrecv_replace");
    fill(out, 5000, rank, right, 6);
    MPI_Irecv_c(in, 5000, MPI_BYTE, left, 6, MPI_COMM_WORLD, &request);
    MPI_Send_c(out, 5000, MPI_BYTE, right, 6, MPI_COMM_WORLD);
    MPI_Wait(&request, &status);
    verify(in, 5000, left, rank, 6, "MPI_Send_c");
    free(out);
    free(in);
}

static void nobody(void) {
    int word = 7;
    MPI_Status status;
    MPI_Send(&word, 1, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD);
    MPI_Recv(&word, 1, MPI_INT, MPI_PROC_NULL, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    require(word == 7, "a receive from nobody wrote");
    verify_status(&status, MPI_PROC_NULL, MPI_ANY_TAG, 0, "MPI_PROC_NULL");
}

/* A message longer than its receive is an error of that receive, short or long, and harms nothing else. */
static void truncated(void) {
    static unsigned char out[400000], in[400000];
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    /* A completed message of a rank to itself has forgotten its communicator in MPICH. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int length = 100; length <= 400000; length *= 20) {
        for (int unexpected = 0; unexpected < 2; unexpected++) {
            MPI_Request receive, send;
            MPI_Status status;
            memset(in, 9, sizeof in);
            fill(out, length, rank, right, length);
            if (!unexpected) MPI_Irecv(in, length / 2, MPI_BYTE, left, 9, comm, &receive);
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Isend(out, length, MPI_BYTE, right, 9, comm, &send);
            MPI_Barrier(MPI_COMM_WORLD);
            if (unexpected) MPI_Irecv(in, length / 2, MPI_BYTE, left, 9, comm, &receive);
            int code = MPI_Wait(&receive, &status);
            require(error_class(code) == MPI_ERR_TRUNCATE, "%d bytes into %d: class %d instead of MPI_ERR_TRUNCATE", length, length / 2,
                    error_class(code));
            require(in[length / 2] == 9, "%d bytes were written beyond a receive's end", length);
            MPI_Wait(&send, MPI_STATUS_IGNORE);
            fill(out, length, rank, right, 3);
            MPI_Sendrecv(out, length, MPI_BYTE, right, 9, in, length, MPI_BYTE, left, 9, comm, &status);
            verify(in, length, left, rank, 3, "after a truncation");
        }
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_free(&comm);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    int room = LONGEST + MPI_BSEND_OVERHEAD;
    char *attached = allocate(room), *detached;
    for (int round = 0; again(round); round++) {
        for (int receive_first = 0; receive_first < 2; receive_first++) {
            shifted(MPI_Isend, receive_first, "MPI_Isend");
            shifted(MPI_Issend, receive_first, "MPI_Issend");
        }
        shifted(MPI_Irsend, 1, "MPI_Irsend");
        MPI_Buffer_attach(attached, room);
        shifted(MPI_Ibsend, 0, "MPI_Ibsend");
        around(MPI_Bsend, "MPI_Bsend");
        MPI_Buffer_detach(&detached, &room);
        require(detached == attached && room == LONGEST + MPI_BSEND_OVERHEAD, "another buffer is detached");
        around(MPI_Send, "MPI_Send");
        around(MPI_Ssend, "MPI_Ssend");
        synchronous();
        combined();
        nobody();
        truncated();
    }
    free(attached);
    return finish();
}
