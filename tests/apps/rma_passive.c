/* One-sided operations on a target that computes: rank 1 exposes memory and makes no call of MPI until it finds there what rank 0
 * writes last. Rank 0 writes and reads blocks of all lengths and flushes; each flush would wait for ever for a target that must
 * take part. -u FILE: until FILE exists (see conformance/check.h). Prints "computing" when rank 1 has left MPI.
 *
 *   mend run -n 2 rma_passive [-u FILE]
 */
#include "conformance/check.h"

enum { WORDS = 400000, ROUNDS = 200, ACQUAINTED = 4 };

static int64_t word(int round, int at) { return (int64_t)round * 1000003 + at; }

/* Writes a block and reads it back in pieces. */
static void tell(MPI_Win window, int round, int64_t *block, int64_t *back) {
    int64_t draw = (int64_t)round * 104729;
    int count = 1 + (int)(draw % (round % 3 ? 3000 : WORDS - 1)), half = count / 2;
    for (int i = 0; i < count; i++) block[i] = word(round, i);
    MPI_Put(block, count, MPI_INT64_T, 1, 1, count, MPI_INT64_T, window);
    MPI_Win_flush(1, window);
    MPI_Get(back, half, MPI_INT64_T, 1, 1, half, MPI_INT64_T, window);
    MPI_Get(back + half, count - half, MPI_INT64_T, 1, 1 + half, count - half, MPI_INT64_T, window);
    MPI_Win_flush(1, window);
    for (int i = 0; i < count; i++) require(back[i] == block[i], "word %d of round %d came back as %lld", i, round, (long long)back[i]);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    require(size == 2, "it takes two");
    int64_t *memory = calloc(1 + WORDS, 8), *back = calloc(WORDS, 8), *block = calloc(WORDS, 8), flag;
    MPI_Win window;
    MPI_Win_create(memory, (MPI_Aint)(1 + WORDS) * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_lock_all(0, window);
    /* The first operations may need the target. */
    for (int round = 0; rank == 0 && round < ACQUAINTED; round++) tell(window, round, block, back);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("computing\n");
        fflush(stdout);
        int round = ACQUAINTED;
        do tell(window, round, block, back);
        while (++round < ROUNDS || (until && access(until, F_OK) != 0));
        for (int i = 0; i < WORDS; i++) block[i] = word(round, i);
        MPI_Put(block, WORDS, MPI_INT64_T, 1, 1, WORDS, MPI_INT64_T, window);
        MPI_Win_flush(1, window);
        flag = round;
        MPI_Put(&flag, 1, MPI_INT64_T, 1, 0, 1, MPI_INT64_T, window);
        MPI_Win_flush(1, window);
    } else {
        while (!(flag = __atomic_load_n(memory, __ATOMIC_ACQUIRE))) {}
        for (int i = 0; i < WORDS; i++) require(memory[1 + i] == word((int)flag, i), "word %d is %lld", i, (long long)memory[1 + i]);
    }
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    free(memory);
    free(back);
    free(block);
    return finish();
}
