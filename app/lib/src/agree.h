/* How the ranks of a job choose one call for a checkpoint, and whether it counts: a pure state machine, without MPI, clock or files.
 *
 * Each rank counts its calls of mend_app_checkpoint(). A request reaches the ranks one by one, so each sees it at another
 * call. Nobody may wait before all have seen it: a rank that waits for a peer that hasn't may be what that peer waits for.
 *
 *   rank                                   root (beside rank 0)
 *    | JOIN k        "seen, left call k"      |
 *    |--------------------------------------->|  remembers the furthest call that anyone has left
 *    | LEFT k        (each call, until ...)   |
 *    |--------------------------------------->|
 *    |                             FRONTIER f |  all have joined: now nobody passes the frontier unseen
 *    |<---------------------------------------|
 *    | HOLD k        (k > f: waits)           |
 *    |--------------------------------------->|  FRONTIER k' if somebody had left k' before it knew: the rank goes on
 *    |                                 TAKE k |  all hold at the same call and place
 *    |<---------------------------------------|
 *    | OUTCOME       (written and durable)    |
 *    |--------------------------------------->|  all whole: the manifest is published
 *    |                          DONE | CANCEL |
 *    |<---------------------------------------|
 *
 * A rank waits only at a call that nobody has left, as far as it knows, and goes on when it learns otherwise. Assumptions:
 * messages between two ranks arrive, in order; calls come in step (to reach its call k+1 a rank needs at most what others send
 * before they leave call k). Then nobody waits for ever, and the chosen call is the one after the furthest that was left.
 * Without the second assumption a rank's wait ends by its own timeout: WITHDRAW. It doesn't know then whether the
 * others take the checkpoint. They may, but it doesn't count, since this rank's OUTCOME is missing.
 *
 * Scheduled checkpoints (every N calls, or where the program says so) need no choice: each rank enters with OUTCOME.
 *
 * A move of ranks (move.c) is agreed upon in the same way. JOIN tells what is asked for, TAKE what is done; where both are asked for the move is first.
 * OUTCOME tells that the rank can move or stay, DONE that the move begins. Nobody leaves the call before DONE or CANCEL.
 */
#ifndef MEND_APP_AGREE_H
#define MEND_APP_AGREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum agree_kind { AGREE_JOIN = 1, AGREE_LEFT, AGREE_HOLD, AGREE_WITHDRAW, AGREE_OUTCOME, AGREE_FINISHED, AGREE_FRONTIER, AGREE_TAKE, AGREE_DONE, AGREE_CANCEL, AGREE_BYE };

/* Why an attempt doesn't lead to a checkpoint. */
enum agree_reason { AGREE_NO_REASON, AGREE_TIMEOUT, AGREE_ENDED, AGREE_PLACES, AGREE_CALLS, AGREE_REFUSED, AGREE_REPLICAS, AGREE_PUBLISH };

/* One message. `attempt` counts the attempts that have ended before. */
struct agree_message {
    uint32_t kind, attempt;
    uint32_t rank;      /* who sent it; in CANCEL: whom the reason is about */
    uint32_t reason;    /* agree_reason */
    uint64_t call;      /* JOIN, LEFT, HOLD, OUTCOME: of the sender; FRONTIER, TAKE: for all; CANCEL: that of the checkpoint, or 0 */
    uint64_t where;     /* HOLD, OUTCOME: hash of the context stack */
    uint64_t bytes;     /* OUTCOME: bytes in the rank's file */
    uint64_t replicas;  /* OUTCOME: hash of the replicated variables */
    uint64_t digest[2]; /* OUTCOME: hash of the rank's file table; HOLD: none */
    uint64_t needs;     /* OUTCOME: how many numbers back the oldest checkpoint is that the rank's file links to */
    uint32_t scheduled; /* OUTCOME: no agreement went before */
    uint32_t purpose;   /* JOIN, TAKE: agree_purpose */
    double asked;       /* CANCEL: when what is cancelled was asked for, as rank 0 knows it; nothing to the agreement */
};

enum agree_purpose { AGREE_CHECKPOINT, AGREE_MOVE };

#define AGREE_ROOT (-1)
#define AGREE_ALL (-2)
#define AGREE_OUT 16

/* Messages to be sent, in order. No event makes more than AGREE_OUT. */
struct agree_out {
    int count;
    int to[AGREE_OUT];
    struct agree_message message[AGREE_OUT];
};

enum agree_state { AGREE_IDLE, AGREE_JOINED, AGREE_HOLDING, AGREE_TAKING, AGREE_WITHDRAWN };

/* One rank's part. */
struct agree_rank {
    uint32_t rank, attempt;
    uint32_t state;       /* agree_state */
    uint32_t all_joined;  /* FRONTIER was heard in this attempt */
    uint32_t scheduled;   /* TAKING without agreement */
    uint32_t reported;    /* OUTCOME was sent */
    uint32_t purpose;     /* TAKING: agree_purpose */
    uint32_t unused;
    uint64_t call;        /* HOLDING, TAKING: at which call */
    uint64_t frontier;    /* furthest call that somebody has left, as far as known; 0: none */
    struct agree_message outcome;
};

/* What a rank does at a call, or after a message. */
enum agree_answer { AGREE_GO, AGREE_HOLD_ON, AGREE_TAKE_NOW, AGREE_WAS_DONE, AGREE_WAS_CANCELLED, AGREE_ALL_FINISHED };

void agree_rank_start(struct agree_rank *a, uint32_t rank);
/* The rank arrives at its call number `call` (from 1 up). GO, HOLD_ON or TAKE_NOW. `purpose`: what was requested. `scheduled`: only when no checkpoint is being taken. */
enum agree_answer agree_call(struct agree_rank *a, uint64_t call, uint64_t where, bool requested, enum agree_purpose purpose, bool scheduled, struct agree_out *out);
/* A message from the root. HOLD_ON: goes on holding. */
enum agree_answer agree_hear(struct agree_rank *a, const struct agree_message *m, struct agree_out *out);
/* Its patience has ended, while JOINED or HOLDING: it goes on. */
void agree_withdraw(struct agree_rank *a, struct agree_out *out);
/* Its file is written (`reason` 0) or can't be, while TAKING. `outcome` brings bytes, replicas, digest, where, needs, reason. */
void agree_report(struct agree_rank *a, const struct agree_message *outcome, struct agree_out *out);
/* It calls no more; not while TAKING. */
void agree_finish(struct agree_rank *a, struct agree_out *out);

struct agree_member {
    uint64_t hold, where, bytes, replicas, digest[2], needs;
    uint8_t joined, reported, finished, reason;
};

struct agree_root {
    uint32_t size, attempt;
    uint32_t scheduled;
    uint32_t announced; /* FRONTIER was sent in this attempt */
    uint32_t purpose;   /* what JOINs asked for */
    uint32_t unused;
    uint64_t frontier;
    uint64_t taking; /* call of the checkpoint that is being taken, or 0 */
    struct agree_member members[];
};

size_t agree_root_size(uint32_t size);
void agree_root_start(struct agree_root *r, uint32_t size);
/* A rank's message. True: all files are whole, the manifest is to be published, then agree_published(). */
bool agree_root_hear(struct agree_root *r, const struct agree_message *m, struct agree_out *out);
void agree_published(struct agree_root *r, bool ok, struct agree_out *out);

#endif
