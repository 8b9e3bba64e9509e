/* line_floor COUNT: what it costs to hand 8 bytes from one processor to another, without MPI: nanoseconds of half a round trip,
 * each the median of 7 rounds of COUNT.
 *
 * one line     both ways the same line, which the other side watches: the floor of any message
 * ring, marks  a new line of a ring each time; the other side watches the line that comes next
 * ring, head   a new line of a ring each time, and its number in a line of its own, which the other side watches */
#define _GNU_SOURCE
#include "floor.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { ROUNDS = 7, LINES = 440, WAYS = 3 };

struct line {
    _Alignas(64) atomic_ulong mark;
    unsigned long value;
};

struct way {
    struct line head, lines[LINES];
};

/* The message of this number, from 1. */
static void give(int kind, struct way *way, unsigned long number) {
    struct line *line = kind == 0 ? &way->head : &way->lines[number % LINES];
    line->value = number;
    if (kind == 1) atomic_store_explicit(&way->lines[(number + 1) % LINES].mark, 0, memory_order_relaxed);
    atomic_store_explicit(kind == 2 ? &way->head.mark : &line->mark, number, memory_order_release);
}

static void take(int kind, struct way *way, unsigned long number) {
    struct line *line = kind == 0 ? &way->head : &way->lines[number % LINES];
    atomic_ulong *mark = kind == 2 ? &way->head.mark : &line->mark;
    while (atomic_load_explicit(mark, memory_order_acquire) != number) {}
    if (line->value != number) exit(1);
}

int main(int count, char **arguments) {
    long times = count > 1 ? strtol(arguments[1], NULL, 10) : 0;
    if (times < 1) return 2;
    struct way *ways = mmap(NULL, 2 * sizeof *ways, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ways == MAP_FAILED) return 1;
    pid_t other = fork();
    if (other < 0) return 1;
    if (other == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    stay(other == 0);
    static const char *names[WAYS] = {"one line", "ring, marks", "ring, head"};
    unsigned long number = 0;
    for (int kind = 0; kind < WAYS; kind++) {
        double rounds[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            double start = nanoseconds();
            for (long i = 0; i < times; i++) {
                number++;
                if (other) give(kind, &ways[0], number);
                take(kind, &ways[other ? 1 : 0], number);
                if (!other) give(kind, &ways[1], number);
            }
            rounds[round] = (nanoseconds() - start) / (2 * times);
        }
        if (other) printf("%-12s %.1f\n", names[kind], median(rounds, ROUNDS));
        fflush(stdout);
    }
    if (other) waitpid(other, NULL, 0);
    return 0;
}
