// A rank that looks for messages seldom: it computes, calls MPI_Test once, and computes again.
//
//   mpi_seldom [-p PAUSE] [-r ROUNDS] [-u FILE]
//
// In each round every other rank sends a message to rank 0, and waits for its answer. Rank 0 computes for PAUSE milliseconds
// between two calls of MPI, of which each looks once. Nobody sends anything else, so each channel's first message is one that it
// meets so. Then rank 0 says so on standard error, and computes, without a call of MPI, until FILE exists; without -u it goes on at
// once. ROUNDS such rounds follow, one if it isn't said.
// Standard output: one last line "seldom sum=…", the same for equal ROUNDS and number of ranks.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int rank, size;
static double pause_time = 0.05;

static void compute(void) {
  static volatile double sink;
  double end = MPI_Wtime() + pause_time;
  while (MPI_Wtime() < end) sink += 1;
}

static void seldom(MPI_Request *request) {
  for (int done = 0; !done;) {
    compute();
    MPI_Test(request, &done, MPI_STATUS_IGNORE);
  }
}

static long exchange(int round) {
  long sum = 0;
  if (rank != 0) {
    long body = rank * 1000L + round;
    MPI_Send(&body, 1, MPI_LONG, 0, 1, MPI_COMM_WORLD);
    MPI_Recv(&sum, 1, MPI_LONG, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return sum;
  }
  for (int other = 1; other < size; other++) {
    long body;
    MPI_Request request;
    MPI_Irecv(&body, 1, MPI_LONG, other, 1, MPI_COMM_WORLD, &request);
    seldom(&request);
    sum += body;
  }
  for (int other = 1; other < size; other++) {
    MPI_Request request;
    MPI_Issend(&sum, 1, MPI_LONG, other, 2, MPI_COMM_WORLD, &request);
    seldom(&request);
  }
  return sum;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rounds = 1;
  const char *until = NULL;
  for (int option; (option = getopt(argc, argv, "p:r:u:")) != -1;) {
    switch (option) {
      case 'p': pause_time = atof(optarg) / 1000; break;
      case 'r': rounds = atoi(optarg); break;
      case 'u': until = optarg; break;
      default: MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  long sum = exchange(0);
  if (rank == 0) {
    fprintf(stderr, "mpi_seldom: rank 0 has heard of all\n");
    while (until && access(until, F_OK) != 0) compute();
  }
  for (int round = 1; round <= rounds; round++) sum += exchange(round);
  if (rank == 0) printf("seldom sum=%ld\n", sum);
  MPI_Finalize();
  return 0;
}
