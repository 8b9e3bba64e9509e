/* The start of libmend-app in an MPI program. Compile mend_app_mpi.c with your mpicc: it is the one part that knows MPI. */
#ifndef MEND_APP_MPI_H
#define MEND_APP_MPI_H

#include <mpi.h>

#include "mend_app.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As mend_app_init(), by all ranks of `comm` together, after MPI_Init. The communicator is duplicated. */
int mend_app_init_mpi(MPI_Comm comm, const char *program, const char *configuration);
/* The same for a Fortran handle. */
int mend_app_init_mpi_f(MPI_Fint comm, const char *program, const char *configuration);

#ifdef __cplusplus
}
#endif
#endif
