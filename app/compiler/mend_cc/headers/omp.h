/* For the analysis alone: GCC's names the function that frees what another has allocated, in an attribute that clang doesn't know. */
#define __malloc__(...)
#include_next <omp.h>
#undef __malloc__
