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

/* The ranks' communicator. A program whose ranks shall be able to move uses this one and those below in place of MPI_COMM_WORLD and what it makes of it, and asks for it
 * anew after MEND_APP_MOVED. In a process that arrives it holds all ranks. */
MPI_Comm mend_app_world(void);
MPI_Fint mend_app_world_f(void);

/* As MPI_Comm_dup, MPI_Comm_split and MPI_Cart_create (without reordering), by all ranks of `comm`, which is mend_app_world() or was made here. When ranks move, the
 * communicator is made again, and *made has its new handle: `made` must stay where it is until mend_app_comm_free(). In a process that arrives the call gives what was made
 * again, by its name, and awaits nobody. Attributes, error handlers and names that MPI has of it aren't kept. */
int mend_app_comm_dup(const char *name, MPI_Comm comm, MPI_Comm *made);
int mend_app_comm_split(const char *name, MPI_Comm comm, int color, int key, MPI_Comm *made);
int mend_app_cart_create(const char *name, MPI_Comm comm, int dimensions, const int *extents, const int *periods, MPI_Comm *made);
int mend_app_comm_free(MPI_Comm *made);
/* The same for Fortran handles. */
int mend_app_comm_dup_f(const char *name, MPI_Fint comm, MPI_Fint *made);
int mend_app_comm_split_f(const char *name, MPI_Fint comm, int color, int key, MPI_Fint *made);
int mend_app_cart_create_f(const char *name, MPI_Fint comm, int dimensions, const int *extents, const int *periods, MPI_Fint *made);
int mend_app_comm_free_f(MPI_Fint *made);

#ifdef __cplusplus
}
#endif
#endif
