/* MPI_THREAD_MULTIPLE: threads of every rank send, receive, probe, reduce and write windows at the same time, each with its
 * own tags or communicator; matched probes of one communicator by several threads. */
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, TIMES = 60, LONGEST = 60000 };

static MPI_Comm comms[THREADS];
static MPI_Win window;
static int64_t *memory, tickets;

static int length_of(int thread, int time) { return time % 10 == 9 ? LONGEST - thread : (time * 37 + thread) % 3000; }

/* A ring of its own in a common communicator, told apart by tags. */
static void ring(int thread, unsigned char *out, unsigned char *in) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int time = 0; time < TIMES; time++) {
        int length = length_of(thread, time);
        MPI_Status status;
        fill(out, length, rank, thread, time);
        MPI_Sendrecv(out, length, MPI_BYTE, right, 100 + thread, in, LONGEST, MPI_BYTE, left, 100 + thread, MPI_COMM_WORLD, &status);
        verify_status(&status, left, 100 + thread, length, "a thread's ring");
        verify(in, length, left, thread, time, "a thread's ring");
    }
}

/* Collectives of its own communicator. */
static void reductions(int thread) {
    for (int time = 0; time < TIMES; time++) {
        int64_t mine = (int64_t)rank * time + thread, sum;
        MPI_Request request;
        MPI_Iallreduce(&mine, &sum, 1, MPI_INT64_T, MPI_SUM, comms[thread], &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        int64_t wanted = (int64_t)size * (size - 1) / 2 * time + (int64_t)size * thread;
        require(sum == wanted, "thread %d's sum is %lld instead of %lld", thread, (long long)sum, (long long)wanted);
        if (time % 20 == 0) MPI_Barrier(comms[thread]);
    }
}

/* All threads of all ranks send to all ranks with one tag, and all take what comes, by matched probe: each message is
 * taken once, by somebody. */
static void anybody(int thread, unsigned char *out, unsigned char *in, int64_t *taken) {
    MPI_Request *sends = allocate(size * sizeof *sends);
    fill(out, 200, rank, 9, thread);
    for (int to = 0; to < size; to++) MPI_Isend(out, 100 + thread, MPI_BYTE, to, 77, MPI_COMM_WORLD, &sends[to]);
    for (int i = 0; i < size; i++) {
        MPI_Message message;
        MPI_Status status;
        int length;
        MPI_Mprobe(MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &message, &status);
        MPI_Get_count(&status, MPI_BYTE, &length);
        MPI_Mrecv(in, length, MPI_BYTE, &message, &status);
        verify(in, length, status.MPI_SOURCE, 9, length - 100, "a message for any thread");
        *taken += (int64_t)status.MPI_SOURCE * 1000 + length;
    }
    MPI_Waitall(size, sends, MPI_STATUSES_IGNORE);
    free(sends);
}

/* Tickets from rank 0, puts into the right neighbour's part of this thread. */
static void one_sided(int thread) {
    int right = (rank + 1) % size;
    for (int time = 0; time < TIMES / 4; time++) {
        int64_t one = 1, ticket, value = (int64_t)rank * 1000 + time, seen;
        MPI_Fetch_and_op(&one, &ticket, MPI_INT64_T, 0, 0, MPI_SUM, window);
        MPI_Put(&value, 1, MPI_INT64_T, right, 1 + thread, 1, MPI_INT64_T, window);
        MPI_Win_flush_all(window);
        MPI_Get(&seen, 1, MPI_INT64_T, right, 1 + thread, 1, MPI_INT64_T, window);
        MPI_Win_flush(right, window);
        require(seen == value, "thread %d put %lld and got %lld", thread, (long long)value, (long long)seen);
        require(ticket >= 0 && ticket < tickets, "ticket %lld", (long long)ticket);
    }
}

static int64_t taken[THREADS];

static void *thread_story(void *argument) {
    int thread = (int)(intptr_t)argument;
    unsigned char *out = allocate(LONGEST), *in = allocate(LONGEST);
    for (int part = 0; part < 4; part++) {
        switch ((part + thread) % 4) {
        case 0: ring(thread, out, in); break;
        case 1: reductions(thread); break;
        case 2: anybody(thread, out, in, &taken[thread]); break;
        default: one_sided(thread);
        }
        /* The wheel turns only when all ranks' threads of this number are done: their partners are in the same part. */
        MPI_Barrier(comms[thread]);
    }
    free(out);
    free(in);
    return NULL;
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_MULTIPLE);
    for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    MPI_Win_allocate((THREADS + 1) * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    tickets = (int64_t)size * THREADS * (TIMES / 4);
    for (int round = 0; again(round); round++) {
        pthread_t threads[THREADS];
        memset(memory, 0, (THREADS + 1) * 8);
        memset(taken, 0, sizeof taken);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock_all(0, window);
        for (int i = 0; i < THREADS; i++) require(pthread_create(&threads[i], NULL, thread_story, (void *)(intptr_t)i) == 0, "no thread");
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        MPI_Win_unlock_all(window);
        MPI_Barrier(MPI_COMM_WORLD);
        int64_t sum = 0, wanted = 0;
        for (int i = 0; i < THREADS; i++) {
            sum += taken[i];
            for (int from = 0; from < size; from++) wanted += (int64_t)from * 1000 + 100 + i;
        }
        require(sum == wanted, "messages for any thread: a sum of %lld instead of %lld", (long long)sum, (long long)wanted);
        require(rank != 0 || memory[0] == tickets, "%lld of %lld tickets", (long long)memory[0], (long long)tickets);
    }
    MPI_Win_free(&window);
    for (int i = 0; i < THREADS; i++) MPI_Comm_free(&comms[i]);
    return finish();
}
