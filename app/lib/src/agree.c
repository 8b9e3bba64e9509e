/* See agree.h for the protocol. */
#include "agree.h"

#include <string.h>

static void put(struct agree_out *out, int to, struct agree_message message) {
    out->to[out->count] = to;
    out->message[out->count++] = message;
}

static struct agree_message of_rank(const struct agree_rank *a, enum agree_kind kind, uint64_t call) {
    struct agree_message m = {.kind = kind, .attempt = a->attempt, .rank = a->rank, .call = call};
    return m;
}

void agree_rank_start(struct agree_rank *a, uint32_t rank) {
    memset(a, 0, sizeof *a);
    a->rank = rank;
}

static void next_attempt(struct agree_rank *a) {
    a->attempt++;
    a->state = AGREE_IDLE;
    a->all_joined = a->scheduled = a->reported = a->purpose = 0;
    a->call = a->frontier = 0;
    memset(&a->outcome, 0, sizeof a->outcome);
}

enum agree_answer agree_call(struct agree_rank *a, uint64_t call, uint64_t where, bool requested, enum agree_purpose purpose, bool scheduled, struct agree_out *out) {
    if (scheduled && a->state != AGREE_TAKING) {
        /* Every rank is here at this call: what was being agreed upon is settled by it. */
        a->state = AGREE_TAKING;
        a->scheduled = 1;
        a->purpose = AGREE_CHECKPOINT;
        a->call = call;
        return AGREE_TAKE_NOW;
    }
    switch (a->state) {
    case AGREE_IDLE:
        if (requested) {
            a->state = AGREE_JOINED;
            struct agree_message join = of_rank(a, AGREE_JOIN, call);
            join.purpose = purpose;
            put(out, AGREE_ROOT, join);
        }
        return AGREE_GO;
    case AGREE_JOINED:
        if (!a->all_joined) {
            put(out, AGREE_ROOT, of_rank(a, AGREE_LEFT, call));
            return AGREE_GO;
        }
        if (a->frontier >= call)
            return AGREE_GO;
        a->state = AGREE_HOLDING;
        a->call = call;
        struct agree_message hold = of_rank(a, AGREE_HOLD, call);
        hold.where = where;
        put(out, AGREE_ROOT, hold);
        return AGREE_HOLD_ON;
    default:
        return AGREE_GO;
    }
}

enum agree_answer agree_hear(struct agree_rank *a, const struct agree_message *m, struct agree_out *out) {
    enum agree_answer as_before = a->state == AGREE_HOLDING ? AGREE_HOLD_ON : AGREE_GO;
    if (m->kind == AGREE_BYE)
        return AGREE_ALL_FINISHED;
    if (m->attempt != a->attempt)
        return as_before;
    switch (m->kind) {
    case AGREE_FRONTIER:
        a->all_joined = 1;
        if (m->call > a->frontier)
            a->frontier = m->call;
        if (a->state == AGREE_HOLDING && a->frontier >= a->call) {
            a->state = AGREE_JOINED;
            return AGREE_GO;
        }
        return as_before;
    case AGREE_TAKE:
        if (a->state != AGREE_HOLDING || m->call != a->call)
            return as_before;
        a->state = AGREE_TAKING;
        a->purpose = m->purpose;
        return AGREE_TAKE_NOW;
    case AGREE_CANCEL:
        if (a->state == AGREE_TAKING && a->scheduled && m->call != a->call) {
            /* What was cancelled is the agreement before; this checkpoint is of the next attempt. */
            struct agree_message again = a->outcome;
            uint64_t call = a->call;
            uint32_t reported = a->reported;
            next_attempt(a);
            a->state = AGREE_TAKING;
            a->scheduled = 1;
            a->call = call;
            if (reported)
                agree_report(a, &again, out);
            return AGREE_GO;
        }
        next_attempt(a);
        return AGREE_WAS_CANCELLED;
    case AGREE_DONE:
        next_attempt(a);
        return AGREE_WAS_DONE;
    default:
        return as_before;
    }
}

void agree_withdraw(struct agree_rank *a, struct agree_out *out) {
    if (a->state != AGREE_JOINED && a->state != AGREE_HOLDING)
        return;
    struct agree_message m = of_rank(a, AGREE_WITHDRAW, a->call);
    m.reason = AGREE_TIMEOUT;
    a->state = AGREE_WITHDRAWN;
    put(out, AGREE_ROOT, m);
}

void agree_report(struct agree_rank *a, const struct agree_message *outcome, struct agree_out *out) {
    if (a->state != AGREE_TAKING)
        return;
    a->outcome = *outcome;
    a->reported = 1;
    struct agree_message m = *outcome;
    m.kind = AGREE_OUTCOME;
    m.attempt = a->attempt;
    m.rank = a->rank;
    m.call = a->call;
    m.scheduled = a->scheduled;
    put(out, AGREE_ROOT, m);
}

void agree_finish(struct agree_rank *a, struct agree_out *out) {
    put(out, AGREE_ROOT, of_rank(a, AGREE_FINISHED, 0));
}

size_t agree_root_size(uint32_t size) {
    return sizeof(struct agree_root) + size * sizeof(struct agree_member);
}

void agree_root_start(struct agree_root *r, uint32_t size) {
    memset(r, 0, agree_root_size(size));
    r->size = size;
}

static struct agree_message of_root(const struct agree_root *r, enum agree_kind kind, uint64_t call) {
    struct agree_message m = {.kind = kind, .attempt = r->attempt, .call = call};
    return m;
}

static void new_attempt(struct agree_root *r) {
    r->attempt++;
    r->scheduled = r->announced = r->purpose = 0;
    r->frontier = r->taking = 0;
    for (uint32_t i = 0; i < r->size; i++) {
        uint8_t finished = r->members[i].finished;
        memset(&r->members[i], 0, sizeof r->members[i]);
        r->members[i].finished = finished;
    }
}

static void cancel(struct agree_root *r, enum agree_reason reason, uint32_t about, struct agree_out *out) {
    struct agree_message m = of_root(r, AGREE_CANCEL, r->taking);
    m.reason = reason;
    m.rank = about;
    put(out, AGREE_ALL, m);
    new_attempt(r);
}

/* Whether all hold at one call; cancels where they do, but at different places. */
static void choose(struct agree_root *r, struct agree_out *out) {
    uint64_t call = r->members[0].hold;
    for (uint32_t i = 0; i < r->size; i++)
        if (r->members[i].hold == 0 || r->members[i].hold != call)
            return;
    if (call <= r->frontier)
        return;
    for (uint32_t i = 1; i < r->size; i++)
        if (r->members[i].where != r->members[0].where) {
            cancel(r, AGREE_PLACES, i, out);
            return;
        }
    r->taking = call;
    struct agree_message take = of_root(r, AGREE_TAKE, call);
    take.purpose = r->purpose;
    put(out, AGREE_ALL, take);
}

static void left(struct agree_root *r, uint64_t call, struct agree_out *out) {
    bool further = call > r->frontier;
    if (further)
        r->frontier = call;
    for (uint32_t i = 0; i < r->size; i++)
        if (!r->members[i].joined)
            return;
    if (further || !r->announced) {
        r->announced = 1;
        put(out, AGREE_ALL, of_root(r, AGREE_FRONTIER, r->frontier));
    }
}

/* Compared when all have reported: whoever hasn't yet must find its attempt still open. */
static bool reported(struct agree_root *r, const struct agree_message *m, struct agree_out *out) {
    if (r->taking == 0) {
        r->taking = m->call;
        r->scheduled = 1;
        r->purpose = AGREE_CHECKPOINT;
    }
    struct agree_member *member = &r->members[m->rank];
    member->reported = 1;
    member->hold = m->call;
    member->where = m->where;
    member->bytes = m->bytes;
    member->replicas = m->replicas;
    member->digest[0] = m->digest[0];
    member->digest[1] = m->digest[1];
    member->needs = m->needs;
    member->reason = (uint8_t)m->reason;
    for (uint32_t i = 0; i < r->size; i++)
        if (!r->members[i].reported) {
            /* A rank that has ended will not report. */
            if (r->members[i].finished)
                cancel(r, AGREE_ENDED, i, out);
            return false;
        }
    for (uint32_t i = 0; i < r->size; i++) {
        const struct agree_member *first = &r->members[0], *each = &r->members[i];
        enum agree_reason reason = each->reason ? (enum agree_reason)each->reason
                                   : each->hold != r->taking ? AGREE_CALLS
                                   : each->where != first->where ? AGREE_PLACES
                                   : each->replicas != first->replicas ? AGREE_REPLICAS
                                                                       : AGREE_NO_REASON;
        if (reason != AGREE_NO_REASON) {
            cancel(r, reason, i, out);
            return false;
        }
    }
    return true;
}

static void finished(struct agree_root *r, uint32_t rank, struct agree_out *out) {
    r->members[rank].finished = 1;
    bool under_way = r->taking != 0, all = true;
    for (uint32_t i = 0; i < r->size; i++) {
        under_way |= r->members[i].joined != 0;
        all &= r->members[i].finished != 0;
    }
    if (under_way && !r->members[rank].reported)
        cancel(r, AGREE_ENDED, rank, out);
    if (all)
        put(out, AGREE_ALL, of_root(r, AGREE_BYE, 0));
}

bool agree_root_hear(struct agree_root *r, const struct agree_message *m, struct agree_out *out) {
    if (m->rank >= r->size)
        return false;
    if (m->kind == AGREE_FINISHED) {
        finished(r, m->rank, out);
        return false;
    }
    if (m->attempt != r->attempt)
        return false;
    switch (m->kind) {
    case AGREE_JOIN:
        r->members[m->rank].joined = 1;
        if (m->purpose == AGREE_MOVE && r->taking == 0)
            r->purpose = AGREE_MOVE;
        for (uint32_t i = 0; i < r->size; i++)
            if (r->members[i].finished && r->taking == 0) {
                cancel(r, AGREE_ENDED, i, out);
                return false;
            }
        left(r, m->call, out);
        return false;
    case AGREE_LEFT:
        left(r, m->call, out);
        return false;
    case AGREE_HOLD:
        r->members[m->rank].hold = m->call;
        r->members[m->rank].where = m->where;
        if (r->taking == 0)
            choose(r, out);
        return false;
    case AGREE_WITHDRAW:
        /* It takes part in a scheduled checkpoint all the same. */
        if (!r->scheduled)
            cancel(r, AGREE_TIMEOUT, m->rank, out);
        return false;
    case AGREE_OUTCOME:
        return reported(r, m, out);
    default:
        return false;
    }
}

void agree_published(struct agree_root *r, bool ok, struct agree_out *out) {
    if (!ok) {
        cancel(r, AGREE_PUBLISH, 0, out);
        return;
    }
    put(out, AGREE_ALL, of_root(r, AGREE_DONE, r->taking));
    new_attempt(r);
}
