/* What the runtime's files share. */
#ifndef MEND_CC_INTERNAL_H
#define MEND_CC_INTERNAL_H
#include "mend_cc.h"

/* Longest name, bytes with its end. */
enum { MEND_CC_NAME = 160 };

/* What one place in the source has allocated at a time. */
struct block {
    struct block *next;
    void *address;
    size_t bytes;
    int site, number; /* the how manieth of its place, for life: a restart finds it by that, whatever was freed meanwhile */
    struct part *part; /* owned: what mend_cc_parts.c knows of it, or NULL */
};

/* A checkpoint that lacks one of the program's variables must not count: ends the program where `done` tells of an error. */
void mend_cc_must(int done, const char *name);
struct block *mend_cc_blocks(void);
/* Other variables of a safe point are about to be named. */
void mend_cc_parts_named(int point);
/* They are named: where the safe point is reached for the first time, what its blocks are as is noted. */
void mend_cc_parts_noted(void);
/* Whether blocks may be saved in part: which ones that are each checkpoint finds anew. */
int mend_cc_parts_move(void);
/* Registers a block that is saved in part, or was; 0: it isn't. */
int mend_cc_part(const char *name, struct block *block, int type, size_t size);
/* Bytes that a block had which was saved in part, or 0. */
size_t mend_cc_part_bytes(const char *name);
/* A state is restored: blocks get what was saved of them. */
void mend_cc_parts_back(void);
/* The block has another address or size, or is gone. */
void mend_cc_part_ends(struct block *block);
/* Whether mend_cc_start has been called. */
int mend_cc_has_started(void);
/* The memory; ends the program if there is none. */
void *mend_cc_need(void *memory);
/* The safe point is reached: what is written from now on goes to the files again. */
void mend_cc_files_back(void);
/* Ends the job. The newest checkpoint stays. */
void mend_cc_stop(const char *format, ...);
#endif
