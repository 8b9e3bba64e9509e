/* Probes, matched probes, wildcards of source and tag, order of messages; cancelled receives; MPI_Waitany and friends. */
#include "check.h"

enum { EACH = 30, LONGEST = 90000 };

static int length_of(int from, int to, int number) {
    unsigned mixed = (unsigned)(from * 7919 + to * 104729 + number * 1299709);
    return number % 5 == 4 ? (int)(mixed % LONGEST) : (int)(mixed % 700);
}

/* Everybody sends EACH messages to everybody; receivers take them by wildcard in four ways, and check that those of one
 * sender come in order. */
static void wildcards(void) {
    MPI_Request *requests = allocate(size * EACH * sizeof *requests);
    unsigned char **out = allocate(size * EACH * sizeof *out), *in = allocate(LONGEST);
    int *next = calloc(size, sizeof *next), active = 0;
    for (int number = 0; number < EACH; number++) {
        for (int to = 0; to < size; to++) {
            int length = length_of(rank, to, number);
            out[active] = allocate(length);
            fill(out[active], length, rank, to, number);
            MPI_Isend(out[active], length, MPI_BYTE, to, number, MPI_COMM_WORLD, &requests[active]);
            active++;
        }
    }
    for (int taken = 0; taken < size * EACH; taken++) {
        MPI_Status status;
        MPI_Message message;
        int length, flag = 0, from, number;
        switch (taken % 4) {
        case 0:
            MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &length);
            MPI_Recv(in, length, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, &status);
            break;
        case 1:
            MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
            MPI_Get_count(&status, MPI_BYTE, &length);
            MPI_Mrecv(in, length, MPI_BYTE, &message, &status);
            require(message == MPI_MESSAGE_NULL, "a received message is not null");
            break;
        case 2:
            while (!flag) MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &message, &status);
            MPI_Get_count(&status, MPI_BYTE, &length);
            MPI_Request request;
            MPI_Imrecv(in, length, MPI_BYTE, &message, &request);
            MPI_Wait(&request, &status);
            break;
        default:
            MPI_Recv(in, LONGEST, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        }
        from = status.MPI_SOURCE;
        number = status.MPI_TAG;
        require(number == next[from], "message %d of rank %d came when %d was next", number, from, next[from]);
        next[from]++;
        MPI_Get_count(&status, MPI_BYTE, &length);
        require(length == length_of(from, rank, number), "message %d of rank %d has %d bytes", number, from, length);
        verify(in, length, from, rank, number, "a wildcard receive");
    }
    MPI_Waitall(active, requests, MPI_STATUSES_IGNORE);
    while (active > 0) free(out[--active]);
    free(requests);
    free(out);
    free(in);
    free(next);
}

/* A claimed message does not disappear, whatever is received meanwhile; nor does it come twice. */
static void claimed(void) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, flag;
    unsigned char *out[3], *in = allocate(LONGEST);
    MPI_Request requests[3];
    MPI_Message first, second;
    MPI_Status status;
    for (int i = 0; i < 3; i++) {
        out[i] = allocate(LONGEST);
        fill(out[i], LONGEST, rank, right, i);
        MPI_Isend(out[i], i == 1 ? LONGEST : 20, MPI_BYTE, right, 6, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Mprobe(left, 6, MPI_COMM_WORLD, &first, &status);
    MPI_Mprobe(left, MPI_ANY_TAG, MPI_COMM_WORLD, &second, &status);
    verify_status(&status, left, 6, LONGEST, "the second matched probe");
    MPI_Recv(in, LONGEST, MPI_BYTE, left, 6, MPI_COMM_WORLD, &status);
    verify(in, 20, left, rank, 2, "a receive past claimed messages");
    MPI_Mrecv(in, LONGEST, MPI_BYTE, &second, &status);
    verify(in, LONGEST, left, rank, 1, "the second claimed message");
    MPI_Mrecv(in, LONGEST, MPI_BYTE, &first, &status);
    verify(in, 20, left, rank, 0, "the first claimed message");
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Iprobe(MPI_ANY_SOURCE, 6, MPI_COMM_WORLD, &flag, &status);
    require(!flag, "a probe finds what was received");
    MPI_Mprobe(MPI_PROC_NULL, 0, MPI_COMM_WORLD, &first, &status);
    require(first == MPI_MESSAGE_NO_PROC, "a matched probe of nobody");
    MPI_Mrecv(in, 1, MPI_BYTE, &first, &status);
    for (int i = 0; i < 3; i++) free(out[i]);
    free(in);
}

/* A cancelled receive takes nothing; one that has its message is not cancelled. */
static void cancelled(void) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, word = rank, got = -1, flag;
    MPI_Request receive, persistent;
    MPI_Status status;
    MPI_Irecv(&got, 1, MPI_INT, left, 11, MPI_COMM_WORLD, &receive);
    MPI_Cancel(&receive);
    MPI_Wait(&receive, &status);
    MPI_Test_cancelled(&status, &flag);
    require(flag, "a receive that nothing matched was not cancelled");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Sendrecv(&word, 1, MPI_INT, right, 11, &got, 1, MPI_INT, left, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    require(got == left, "after a cancelled receive came %d", got);
    MPI_Recv_init(&got, 1, MPI_INT, MPI_ANY_SOURCE, 12, MPI_COMM_WORLD, &persistent);
    for (int time = 0; time < 3; time++) {
        MPI_Start(&persistent);
        MPI_Cancel(&persistent);
        MPI_Wait(&persistent, &status);
        MPI_Test_cancelled(&status, &flag);
        require(flag, "a persistent receive was not cancelled");
    }
    MPI_Request_free(&persistent);
    /* Every other receive is cancelled; the messages go to the others, in order. */
    enum { COUNT = 20 };
    MPI_Request requests[COUNT];
    int words[COUNT];
    for (int i = 0; i < COUNT; i++) MPI_Irecv(&words[i], 1, MPI_INT, left, 13, MPI_COMM_WORLD, &requests[i]);
    for (int i = 0; i < COUNT; i += 2) MPI_Cancel(&requests[i]);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < COUNT / 2; i++) MPI_Send(&i, 1, MPI_INT, right, 13, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++) {
        MPI_Wait(&requests[i], &status);
        MPI_Test_cancelled(&status, &flag);
        require(flag == (i % 2 == 0), "receive %d of %d: cancelled is %d", i, COUNT, flag);
        require(flag || words[i] == i / 2, "receive %d got %d", i, words[i]);
    }
}

static void completions(void) {
    enum { COUNT = 12 };
    MPI_Request requests[COUNT], sends[COUNT];
    int right = (rank + 1) % size, left = (rank + size - 1) % size, in[COUNT], out[COUNT], indices[COUNT], done, seen = 0, flag;
    for (int i = 0; i < COUNT; i++) MPI_Irecv(&in[i], 1, MPI_INT, left, 20 + i, MPI_COMM_WORLD, &requests[i]);
    MPI_Testall(COUNT, requests, &flag, MPI_STATUSES_IGNORE);
    require(!flag, "receives are over before any send");
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = COUNT - 1; i >= 0; i--) {
        out[i] = rank * 100 + i;
        MPI_Isend(&out[i], 1, MPI_INT, right, 20 + i, MPI_COMM_WORLD, &sends[i]);
    }
    MPI_Waitany(COUNT, requests, &indices[0], MPI_STATUS_IGNORE);
    require(in[indices[0]] == left * 100 + indices[0], "MPI_Waitany");
    for (seen = 1; seen < COUNT; seen += done) {
        MPI_Waitsome(COUNT, requests, &done, indices, MPI_STATUSES_IGNORE);
        for (int i = 0; i < done; i++) require(in[indices[i]] == left * 100 + indices[i], "MPI_Waitsome: receive %d", indices[i]);
    }
    MPI_Waitsome(COUNT, requests, &done, indices, MPI_STATUSES_IGNORE);
    require(done == MPI_UNDEFINED, "MPI_Waitsome of nothing");
    MPI_Waitall(COUNT, sends, MPI_STATUSES_IGNORE);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    for (int round = 0; again(round); round++) {
        wildcards();
        MPI_Barrier(MPI_COMM_WORLD);
        claimed();
        cancelled();
        completions();
    }
    return finish();
}
