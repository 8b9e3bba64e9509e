/* What the runtime's files share. */
#ifndef MEND_CC_INTERNAL_H
#define MEND_CC_INTERNAL_H
#include "mend_cc.h"

/* Longest name, bytes with its end. */
enum { MEND_CC_NAME = 160 };

/* Whether mend_cc_start has been called. */
int mend_cc_has_started(void);
/* The memory; ends the program if there is none. */
void *mend_cc_need(void *memory);
/* The safe point is reached: what is written from now on goes to the files again. */
void mend_cc_files_back(void);
/* Ends the job. The newest checkpoint stays. */
void mend_cc_stop(const char *format, ...);
#endif
