/* Explores every order of events of the agreement (src/agree.c, the very code) for a few ranks, and checks in each state:
 *
 *  - a checkpoint counts only if all ranks took it at one call, and all files are whole;
 *  - where ranks iterate in step, the chosen call is the one after the furthest that anyone has left, nobody waits for ever, and
 *    nothing but an early end cancels;
 *  - out of step, with timeouts, nobody waits for ever either;
 *  - when a move begins, all ranks stand at its call and know that it is one.
 *
 *   explore RANKS CALLS MODE     MODE: letters of s (in step), t (timeouts), b (written behind), f (a file may fail),
 *                                r (ring of neighbours; else all are neighbours), p (scheduled at every third call),
 *                                u (rank 1 makes a call less), d (ranks stand at different places), m (rank 0 asks for a move, the others
 *                                for a checkpoint)
 *
 * A state is the machines, the messages under way (in order between two ranks), and where each rank's program is.
 */
#include "../src/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, QUEUE = 24 };
enum phase { RUN, AT_CALL, HOLDS, WAITS, ENDING, ENDED };

/* Of a message only what the machines look at, so that states stay small. */
struct slim {
    uint8_t kind, attempt, reason, call, where, scheduled, rank, purpose;
};
struct program {
    struct agree_rank machine;
    uint8_t phase, call, left, requested, requests, took, dumping, finish_sent;
    uint8_t to_root, from_root;
    uint8_t pad[2];
    struct slim up[QUEUE], down[QUEUE];
};
struct state {
    struct program p[RANKS];
    struct agree_root root;
    struct agree_member members[RANKS];
};

static int ranks, calls;
static bool in_step, timeouts, behind, failing, ring, scheduled, unequal, places, moving;
static unsigned long explored, published, cancelled, moved;
static struct state **table;
static size_t slots = 1 << 16;

static void die(const char *what, const struct state *s) {
    fprintf(stderr, "explore: %s\n", what);
    for (int i = 0; i < ranks; i++)
        fprintf(stderr, "  rank %d: phase %d call %d left %d state %u attempt %u up %d down %d took %d\n", i, s->p[i].phase, s->p[i].call, s->p[i].left,
                s->p[i].machine.state, s->p[i].machine.attempt, s->p[i].to_root, s->p[i].from_root, s->p[i].took);
    fprintf(stderr, "  root: attempt %u taking %lu frontier %lu\n", s->root.attempt, (unsigned long)s->root.taking, (unsigned long)s->root.frontier);
    exit(1);
}

static uint64_t hash_of(const struct state *s) {
    const unsigned char *bytes = (const unsigned char *)s;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < sizeof *s; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        h = (h ^ word) * 1099511628211u;
        h ^= h >> 29;
    }
    return h;
}

static struct state **stack;
static size_t depth, room;

static void visit(const struct state *s) {
    if (explored * 2 > slots) {
        struct state **old = table;
        size_t before = slots;
        slots *= 2;
        table = calloc(slots, sizeof *table);
        for (size_t i = 0; i < before; i++)
            if (old[i]) {
                size_t at = hash_of(old[i]) & (slots - 1);
                while (table[at])
                    at = (at + 1) & (slots - 1);
                table[at] = old[i];
            }
        free(old);
    }
    size_t at = hash_of(s) & (slots - 1);
    while (table[at]) {
        if (memcmp(table[at], s, sizeof *s) == 0)
            return;
        at = (at + 1) & (slots - 1);
    }
    table[at] = malloc(sizeof *s);
    memcpy(table[at], s, sizeof *s);
    explored++;
    if (depth == room) {
        room = room ? room * 2 : 1024;
        stack = realloc(stack, room * sizeof *stack);
    }
    stack[depth++] = table[at];
}

static struct slim slim_of(const struct agree_message *m) {
    return (struct slim){.kind = (uint8_t)m->kind, .attempt = (uint8_t)m->attempt, .reason = (uint8_t)m->reason, .call = (uint8_t)m->call, .where = (uint8_t)m->where, .scheduled = (uint8_t)m->scheduled, .rank = (uint8_t)m->rank, .purpose = (uint8_t)m->purpose};
}

static struct agree_message full_of(struct slim m) {
    return (struct agree_message){.kind = m.kind, .attempt = m.attempt, .reason = m.reason, .call = m.call, .where = m.where, .scheduled = m.scheduled, .rank = m.rank, .purpose = m.purpose};
}

static void send_all(struct state *s, struct agree_out *out);

static void took(struct state *s, int i, struct agree_out *out, bool whole) {
    struct agree_message outcome = {.reason = whole ? AGREE_NO_REASON : AGREE_REFUSED, .where = places ? (uint64_t)i : 0};
    s->p[i].dumping = 0;
    agree_report(&s->p[i].machine, &outcome, out);
}

static void answered(struct state *s, int i, enum agree_answer answer, struct agree_out *out) {
    struct program *p = &s->p[i];
    switch (answer) {
    case AGREE_GO:
        if (p->phase == HOLDS || p->phase == AT_CALL) {
            p->phase = RUN;
            p->left = p->call;
        }
        break;
    case AGREE_HOLD_ON:
        p->phase = HOLDS;
        break;
    case AGREE_TAKE_NOW:
        p->took = p->call;
        p->requested = 0;
        if (behind && p->machine.purpose == AGREE_CHECKPOINT) {
            p->dumping = 1;
            p->phase = RUN;
            p->left = p->call;
        } else {
            p->phase = WAITS;
            p->dumping = 1;
        }
        break;
    case AGREE_WAS_DONE:
    case AGREE_WAS_CANCELLED:
        if (answer == AGREE_WAS_CANCELLED) {
            p->requested = 0;
            p->dumping = 0;
        }
        p->took = 0;
        if (p->phase == HOLDS || p->phase == WAITS) {
            p->phase = RUN;
            p->left = p->call;
        }
        break;
    case AGREE_ALL_FINISHED:
        p->phase = ENDED;
        break;
    }
    (void)out;
}

static void hear(struct state *s, int i, struct slim m) {
    struct agree_out out = {0};
    struct agree_message full = full_of(m);
    enum agree_answer answer = agree_hear(&s->p[i].machine, &full, &out);
    /* Cancelled alone: a scheduled checkpoint goes on, in another attempt. */
    if (!(answer == AGREE_GO && s->p[i].phase != HOLDS))
        answered(s, i, answer, &out);
    send_all(s, &out);
}

static void root_hears(struct state *s, struct slim m) {
    struct agree_out out = {0};
    struct agree_message full = full_of(m);
    uint64_t before = s->root.taking;
    if (agree_root_hear(&s->root, &full, &out)) {
        for (int i = 0; i < ranks; i++)
            if (s->p[i].took != s->root.taking || s->p[i].dumping)
                die("a checkpoint counts that not all took", s);
        for (int i = 0; i < ranks && s->root.purpose == AGREE_MOVE; i++)
            if (s->p[i].phase != WAITS || s->p[i].call != s->root.taking || s->p[i].machine.purpose != AGREE_MOVE)
                die("a move begins where not all are", s);
        moved += s->root.purpose == AGREE_MOVE;
        published++;
        agree_published(&s->root, true, &out);
    }
    for (int n = 0; n < out.count; n++) {
        if (out.message[n].kind == AGREE_CANCEL) {
            cancelled++;
            if (in_step && !timeouts && !failing && !places && out.message[n].reason != AGREE_ENDED)
                die("cancelled without a cause", s);
        }
        if (out.message[n].kind == AGREE_TAKE && in_step) {
            int furthest = 0;
            for (int i = 0; i < ranks; i++)
                furthest = s->p[i].left > furthest ? s->p[i].left : furthest;
            if ((int)out.message[n].call != furthest + 1)
                die("the chosen call isn't the one after the furthest", s);
        }
    }
    (void)before;
    send_all(s, &out);
}

static void send_all(struct state *s, struct agree_out *out) {
    for (int n = 0; n < out->count; n++) {
        struct slim m = slim_of(&out->message[n]);
        if (out->to[n] == AGREE_ROOT) {
            if (out->message[n].rank == 0) {
                root_hears(s, m);
                continue;
            }
            struct program *p = &s->p[out->message[n].rank];
            if (p->to_root == QUEUE)
                die("too many messages", s);
            p->up[p->to_root++] = m;
        } else {
            for (int i = 1; i < ranks; i++) {
                if (s->p[i].from_root == QUEUE)
                    die("too many messages", s);
                s->p[i].down[s->p[i].from_root++] = m;
            }
            hear(s, 0, m);
        }
    }
}

static struct slim shift(struct slim *queue, uint8_t *length) {
    struct slim first = queue[0];
    memmove(queue, queue + 1, (QUEUE - 1) * sizeof *queue);
    memset(&queue[QUEUE - 1], 0, sizeof *queue);
    (*length)--;
    return first;
}

static int calls_of(int i) {
    return unequal && i == 1 ? calls - 1 : calls;
}

/* In step: to reach its next call a rank needs what its neighbours send before they leave this one. */
static bool may_arrive(const struct state *s, int i) {
    if (!in_step)
        return true;
    for (int j = 0; j < ranks; j++) {
        bool neighbour = !ring || j == (i + 1) % ranks || i == (j + 1) % ranks;
        if (j != i && neighbour && s->p[j].left < s->p[i].left && s->p[j].left < calls_of(j))
            return false;
    }
    return true;
}

static bool is_scheduled(int call) {
    return scheduled && call % 3 == 0;
}

static int explore(const struct state *s) {
    int successors = 0;
    struct state next;
#define EACH(condition) if ((condition) && (next = *s, ++successors))
    for (int i = 0; i < ranks; i++) {
        const struct program *p = &s->p[i];
        bool listens = p->phase == AT_CALL || p->phase == HOLDS || p->phase == WAITS || p->phase == ENDING;
        EACH(p->requests) {
            next.p[i].requests--;
            next.p[i].requested = 1;
            visit(&next);
        }
        EACH(p->phase == RUN && p->call < calls_of(i) && may_arrive(s, i)) {
            next.p[i].phase = AT_CALL;
            next.p[i].call++;
            visit(&next);
        }
        EACH(p->phase == RUN && p->call == calls_of(i)) {
            next.p[i].phase = ENDING;
            visit(&next);
        }
        EACH(listens && p->from_root) {
            hear(&next, i, shift(next.p[i].down, &next.p[i].from_root));
            visit(&next);
        }
        for (int j = 1; i == 0 && listens && j < ranks; j++)
            EACH(s->p[j].to_root) {
                root_hears(&next, shift(next.p[j].up, &next.p[j].to_root));
                visit(&next);
            }
        /* A scheduled call waits for the end of the checkpoint before it. */
        bool blocked = is_scheduled(p->call) && p->machine.state == AGREE_TAKING;
        EACH(p->phase == AT_CALL && !blocked) {
            struct agree_out out = {0};
            enum agree_answer answer = agree_call(&next.p[i].machine, p->call, places ? (uint64_t)i : 0, p->requested, moving && i == 0 ? AGREE_MOVE : AGREE_CHECKPOINT, is_scheduled(p->call), &out);
            answered(&next, i, answer, &out);
            send_all(&next, &out);
            visit(&next);
        }
        for (int whole = failing ? 0 : 1; whole < 2; whole++)
            EACH(p->dumping && listens) {
                struct agree_out out = {0};
                took(&next, i, &out, whole);
                send_all(&next, &out);
                visit(&next);
            }
        EACH(timeouts && (p->phase == HOLDS || (p->phase == AT_CALL && p->machine.state == AGREE_JOINED))) {
            struct agree_out out = {0};
            bool held = p->phase == HOLDS;
            agree_withdraw(&next.p[i].machine, &out);
            if (held) {
                next.p[i].phase = RUN;
                next.p[i].left = p->call;
            }
            send_all(&next, &out);
            visit(&next);
        }
        EACH(p->phase == ENDING && !p->finish_sent && !p->dumping && p->machine.state != AGREE_TAKING) {
            struct agree_out out = {0};
            next.p[i].finish_sent = 1;
            agree_finish(&next.p[i].machine, &out);
            send_all(&next, &out);
            visit(&next);
        }
    }
    return successors;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return fprintf(stderr, "usage: explore RANKS CALLS MODE\n"), 2;
    ranks = atoi(argv[1]);
    calls = atoi(argv[2]);
    if (ranks < 1 || ranks > RANKS)
        return fprintf(stderr, "explore: 1 to %d ranks\n", RANKS), 2;
    in_step = strchr(argv[3], 's'), timeouts = strchr(argv[3], 't'), behind = strchr(argv[3], 'b'), failing = strchr(argv[3], 'f');
    ring = strchr(argv[3], 'r'), scheduled = strchr(argv[3], 'p'), unequal = strchr(argv[3], 'u'), places = strchr(argv[3], 'd'), moving = strchr(argv[3], 'm');
    table = calloc(slots, sizeof *table);
    struct state start;
    memset(&start, 0, sizeof start);
    agree_root_start(&start.root, (uint32_t)ranks);
    for (int i = 0; i < ranks; i++) {
        agree_rank_start(&start.p[i].machine, (uint32_t)i);
        start.p[i].requests = 1;
    }
    visit(&start);
    while (depth) {
        const struct state *s = stack[--depth];
        bool ended = true;
        for (int i = 0; i < ranks; i++)
            ended = ended && s->p[i].phase == ENDED;
        if (explore(s) == 0 && !ended)
            die("ranks wait for ever", s);
    }
    printf("explored %lu states: %lu published, %lu cancelled\n", explored, published, cancelled);
    return (published == 0 && !places && !unequal) || (moving && moved == 0);
}
