/* Persistent requests of all modes, started alone and together, many times; partitioned communication. */
#include "check.h"

enum { LENGTH = 40000, TIMES = 6, PARTITIONS = 16 };

typedef int Init(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);

static void persistent(Init *init, int bytes, const char *what) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    unsigned char *out = allocate(bytes), *in = allocate(bytes);
    MPI_Request requests[2];
    MPI_Recv_init(in, bytes, MPI_BYTE, left, 3, MPI_COMM_WORLD, &requests[0]);
    init(out, bytes, MPI_BYTE, right, 3, MPI_COMM_WORLD, &requests[1]);
    for (int time = 0; time < TIMES; time++) {
        MPI_Status statuses[2];
        fill(out, bytes, rank, right, time);
        if (time % 2) {
            MPI_Start(&requests[0]);
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Start(&requests[1]);
        } else if (init == MPI_Rsend_init) {
            MPI_Start(&requests[0]);
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Startall(1, &requests[1]);
        } else {
            MPI_Startall(2, requests);
        }
        MPI_Waitall(2, requests, statuses);
        if (init == MPI_Bsend_init) MPI_Buffer_flush();
        verify_status(&statuses[0], left, 3, bytes, what);
        verify(in, bytes, left, rank, time, what);
        require(requests[0] != MPI_REQUEST_NULL, "%s: a persistent request is gone after its completion", what);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    free(out);
    free(in);
}

/* Partitions become ready one by one, in ranges and by lists, in an order that changes. */
static void partitioned(int each) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    unsigned char *out = allocate((size_t)PARTITIONS * each), *in = allocate((size_t)PARTITIONS * each);
    MPI_Request send, receive;
    MPI_Psend_init(out, PARTITIONS, each, MPI_BYTE, right, 8, MPI_COMM_WORLD, MPI_INFO_NULL, &send);
    MPI_Precv_init(in, PARTITIONS, each, MPI_BYTE, left, 8, MPI_COMM_WORLD, MPI_INFO_NULL, &receive);
    for (int time = 0; time < TIMES; time++) {
        memset(in, 0, (size_t)PARTITIONS * each);
        MPI_Start(&receive);
        MPI_Start(&send);
        fill(out, (size_t)PARTITIONS * each, rank, right, time);
        if (time % 3 == 0) {
            for (int i = 0; i < PARTITIONS; i++) MPI_Pready((i * 5 + time) % PARTITIONS, send);
        } else if (time % 3 == 1) {
            MPI_Pready_range(PARTITIONS / 2, PARTITIONS - 1, send);
            MPI_Pready_range(0, PARTITIONS / 2 - 1, send);
        } else {
            int odd[PARTITIONS / 2], even[PARTITIONS / 2];
            for (int i = 0; i < PARTITIONS / 2; i++) {
                odd[i] = 2 * i + 1;
                even[i] = 2 * i;
            }
            MPI_Pready_list(PARTITIONS / 2, odd, send);
            MPI_Pready_list(PARTITIONS / 2, even, send);
        }
        for (int i = 0; i < PARTITIONS; i++) {
            int arrived = 0;
            while (!arrived) MPI_Parrived(receive, i, &arrived);
            for (int k = 0; k < each; k++) {
                size_t at = (size_t)i * each + k;
                require(in[at] == expected_byte(left, rank, time, at), "partition %d arrived without byte %d", i, k);
            }
        }
        MPI_Wait(&receive, MPI_STATUS_IGNORE);
        MPI_Wait(&send, MPI_STATUS_IGNORE);
    }
    MPI_Request_free(&send);
    MPI_Request_free(&receive);
    free(out);
    free(in);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    for (int round = 0; again(round); round++) {
        for (int bytes = 0; bytes <= LENGTH; bytes += LENGTH / 4) {
            int room = bytes + MPI_BSEND_OVERHEAD;
            void *attached = allocate(room);
            persistent(MPI_Send_init, bytes, "MPI_Send_init");
            persistent(MPI_Ssend_init, bytes, "MPI_Ssend_init");
            persistent(MPI_Rsend_init, bytes, "MPI_Rsend_init");
            MPI_Buffer_attach(attached, room);
            persistent(MPI_Bsend_init, bytes, "MPI_Bsend_init");
            MPI_Buffer_detach(&attached, &room);
            free(attached);
        }
        partitioned(1);
        partitioned(3000);
        partitioned(100000);
    }
    return finish();
}
