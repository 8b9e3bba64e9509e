/* assert() as an expression, for the analysis alone: the C library's may hold a statement. */
#include_next <assert.h>
#ifndef NDEBUG
#undef assert
#define assert(condition) ((condition) ? (void)0 : __assert_fail(#condition, __FILE__, __LINE__, __func__))
#endif
