/* exchange_floor BYTES COUNT...: what it costs two processes to hand each other BYTES at the same time, and one of them to hand
 * them to the other, without MPI. Per BYTES a line: bytes, and for each way microseconds one way and both ways, each the median
 * of 7 rounds of COUNT.
 *
 * ring              through shared memory as Mend's rings are: 27 KiB each way, 9 KiB at a time; both processors copy, into
 *                   the ring by `rep movsb`
 * /proc/PID/mem     the receiver reads
 * process_vm_readv  the receiver reads
 *
 * As in IMB, what is sent is not changed between two messages. */
#define _GNU_SOURCE
#include "floor.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { ROUNDS = 7, WAYS = 3, CHUNK = 9 * 1024, SLOTS = 3, PIECE = 2048 };

/* What goes from one process to the other. */
struct lane {
    _Alignas(128) atomic_ulong written;
    _Alignas(128) atomic_ulong taken;
    _Alignas(128) atomic_ulong offered;
    _Alignas(128) atomic_ulong done;
    _Alignas(4096) char slots[SLOTS][CHUNK];
};

struct self {
    struct lane *out, *in;
    unsigned long written, taken, number;
    char *from, *to, *theirs;
    pid_t other;
    int memory;
};

static size_t piece(size_t bytes, size_t at) {
    return bytes - at < PIECE ? bytes - at : PIECE;
}

/* As crates/rank/fabric/src/engine/buffers.rs does. */
static void copy_in(char *to, const char *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t left = piece(bytes, at);
        char *target = to + at;
        const char *source = from + at;
        __asm__ volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(left) : : "memory");
    }
}

/* In pieces, too: of longer ones the library makes `rep movsb`, which is slower in this direction. The compiler must not. */
static void copy_out(char *to, const char *from, size_t bytes) {
    void *(*volatile move)(void *, const void *, size_t) = memcpy;
    for (size_t at = 0; at < bytes; at += PIECE) move(to + at, from + at, piece(bytes, at));
}

static size_t part(size_t bytes, size_t at) {
    return bytes - at < CHUNK ? bytes - at : CHUNK;
}

/* Through the rings: sends `out` bytes and takes `in` bytes, as much of both at a time as there is room for. */
static void through_rings(struct self *self, size_t out, size_t in) {
    for (size_t sent = 0, got = 0; sent < out || got < in;) {
        if (sent < out && self->written - atomic_load_explicit(&self->out->taken, memory_order_acquire) < SLOTS) {
            copy_in(self->out->slots[self->written % SLOTS], self->from + sent, part(out, sent));
            sent += part(out, sent);
            atomic_store_explicit(&self->out->written, ++self->written, memory_order_release);
        }
        if (got < in && self->taken < atomic_load_explicit(&self->in->written, memory_order_acquire)) {
            copy_out(self->to + got, self->in->slots[self->taken % SLOTS], part(in, got));
            got += part(in, got);
            atomic_store_explicit(&self->in->taken, ++self->taken, memory_order_release);
        }
    }
}

static void await(atomic_ulong *word, unsigned long number) {
    while (atomic_load_explicit(word, memory_order_acquire) < number) {}
}

/* One message to the other process if `out`, one from it if `in`. */
static void message(int way, struct self *self, size_t out, size_t in) {
    self->number++;
    atomic_store_explicit(&self->out->offered, self->number, memory_order_release);
    await(&self->in->offered, self->number);
    if (way == 0) {
        through_rings(self, out, in);
    } else {
        take_memory(way == 1 ? self->memory : -1, self->other, self->to, self->theirs, in);
    }
    atomic_store_explicit(&self->out->done, self->number, memory_order_release);
    await(&self->in->done, self->number);
}

static double median_time(int way, struct self *self, size_t out, size_t in, long count) {
    double rounds[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double start = nanoseconds();
        for (long i = 0; i < count; i++) message(way, self, out, in);
        rounds[round] = (nanoseconds() - start) / 1e3 / count;
    }
    return median(rounds, ROUNDS);
}

int main(int count, char **arguments) {
    for (int at = 1; at + 1 < count; at += 2) {
        size_t bytes = strtoul(arguments[at], NULL, 10);
        long times = strtol(arguments[at + 1], NULL, 10);
        if (!bytes || times < 1) return 2;
        struct lane *lanes = mmap(NULL, 2 * sizeof *lanes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (lanes == MAP_FAILED) fail("mmap");
        stay(1);
        pid_t parent = getpid(), child = fork();
        if (child < 0) fail("fork");
        int first = child != 0;
        if (!first) prctl(PR_SET_PDEATHSIG, SIGKILL);
        stay(!first);
        struct self self = {.out = &lanes[!first], .in = &lanes[first], .other = first ? child : parent};
        /* The child reads what its parent has, and the other way round: both allow it to processes of their user. */
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        self.memory = open_memory(self.other);
        self.from = fresh(bytes, first ? 3 : 5);
        self.to = fresh(bytes, 0);
        memcpy(self.out->slots[0], &self.from, sizeof self.from);
        atomic_store_explicit(&self.out->offered, ++self.number, memory_order_release);
        await(&self.in->offered, self.number);
        memcpy(&self.theirs, self.in->slots[0], sizeof self.theirs);
        atomic_store_explicit(&self.out->done, self.number, memory_order_release);
        await(&self.in->done, self.number);
        if (first) printf("%zu", bytes);
        for (int way = 0; way < WAYS; way++) {
            for (int both = 0; both < 2; both++) {
                double time = median_time(way, &self, first || both ? bytes : 0, !first || both ? bytes : 0, times);
                if (first) printf(" %.3f", time);
            }
            if (self.to[0] != (first ? 5 : 3) || self.to[bytes - 1] != self.to[0]) return 1;
            memset(self.to, 0, bytes);
        }
        if (first) printf("\n");
        fflush(stdout);
        if (!first) return 0;
        int status;
        if (waitpid(child, &status, 0) != child || status) return 1;
        close(self.memory);
        munmap(self.from, bytes);
        munmap(self.to, bytes);
        munmap(lanes, 2 * sizeof *lanes);
    }
    return 0;
}
