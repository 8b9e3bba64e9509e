// Seeded random traffic among all ranks: every byte, size, order and count is checked.
//
//   mpi_checksums [-s SEED] [-r ROUNDS] [-t SECONDS] [-p PAUSE_US] [-u FILE]
//
// In each round every rank sends MESSAGES messages of 0 to 1 MiB to random ranks (itself included), with or without
// waiting for the match, over four ways to receive: from any source; from a given source and tag; with any tag on a
// second communicator; probed first on a third. What is sent follows from the seed alone, so each receiver knows how
// many messages it gets from whom. A message carries sender, receiver, way and a sequence number per (sender,
// receiver, way); the receiver checks that number (MPI's non-overtaking rule), the size and every byte.
// Receives are tied to their round by tag or by source, so no rank can starve another by running ahead; a reduction
// every 16 rounds bounds by how much.
//
// Standard output: one last line "checksums digest=…", the same in every run with equal SEED, ROUNDS and number of
// ranks; with -t the rounds done depend on time and only the checks count. With -u the traffic goes on after ROUNDS, checked
// as before but no part of the digest, until FILE exists. Progress goes to standard error.
// Exit code 0, or 1 on the first wrong message, 2 on wrong usage.

#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGES = 4, MAX_BYTES = 1 << 20, TAGS = 16384 };
enum way { ANY_SOURCE_WAY, DIRECTED_WAY, ANY_TAG_WAY, PROBED_WAY, WAYS };

struct header {
  uint32_t from, to, way, round;
  uint64_t sequence, body;
};

struct message {
  int to;
  enum way way;
  int synchronous;
  uint64_t body;
};

struct receive {
  unsigned char *bytes;
  int source; // MPI_ANY_SOURCE or a rank
};

static int rank, size;
static uint64_t seed = 1, digest;
static uint64_t *sent[WAYS], *received[WAYS]; // next sequence number, by peer

static uint64_t mix(uint64_t x) { // splitmix64 (Steele, Lea, Flood 2014)
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static void *get(size_t bytes) {
  void *memory = calloc(1, bytes ? bytes : 1);
  if (!memory) {
    fprintf(stderr, "mpi_checksums: rank %d: no memory\n", rank);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return memory;
}

// The plan: message `index` of `from` in `round`. A pure function, evaluated by sender and receivers alike.
static struct message plan(uint64_t round, int from, int index) {
  uint64_t r = mix(seed ^ mix(round * 131071u + (uint64_t)from * 8191u + (uint64_t)index));
  struct message m = {.to = (int)(r % (uint64_t)size)};
  r = mix(r);
  m.way = (enum way)(r % WAYS);
  m.synchronous = (r >> 8) % 4 == 0;
  // Sizes: many small, some about the thresholds of eager and rendezvous, few large.
  static const uint64_t bounds[] = {0, 1, 64, 1024, 8192, 16384, 65536, 131072, MAX_BYTES};
  const uint64_t kind = (r >> 16) % 32, largest = bounds[kind < 30 ? kind % 8 : 8];
  m.body = largest ? mix(r) % (largest + 1) : 0;
  return m;
}

static void fill(unsigned char *bytes, const struct header *h) {
  memcpy(bytes, h, sizeof *h);
  uint64_t state = mix(seed + h->sequence * 7919u + h->from * 104729u + h->to * 1299709u + h->way);
  for (uint64_t i = 0; i < h->body; i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    memcpy(bytes + sizeof *h + i, &state, h->body - i < 8 ? h->body - i : 8);
  }
}

static void wrong(const char *what, const struct header *h, uint64_t got, uint64_t want) {
  fprintf(stderr,
          "mpi_checksums: rank %d got a wrong message: %s is %" PRIu64 ", expected %" PRIu64
          " (from %u to %u, way %u, round %u, sequence %" PRIu64 ", body %" PRIu64 ")\n",
          rank, what, got, want, h->from, h->to, h->way, h->round, h->sequence, h->body);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// Checks a received message against what its sender must have sent, and stirs it into the digest (a sum: the order in
// which sources are heard is not determined).
static void verify(const unsigned char *bytes, const MPI_Status *status, enum way way) {
  struct header h;
  int count;
  MPI_Get_count(status, MPI_BYTE, &count);
  memcpy(&h, bytes, sizeof h);
  if ((size_t)count < sizeof h) wrong("the length", &h, (uint64_t)count, sizeof h);
  if (h.from != (uint32_t)status->MPI_SOURCE) wrong("the sender", &h, h.from, (uint64_t)status->MPI_SOURCE);
  if (h.to != (uint32_t)rank) wrong("the receiver", &h, h.to, (uint64_t)rank);
  if (h.way != (uint32_t)way) wrong("the way", &h, h.way, way);
  if ((uint64_t)count != sizeof h + h.body) wrong("the length", &h, (uint64_t)count, sizeof h + h.body);
  const uint64_t next = received[way][h.from]++;
  if (h.sequence != next) wrong("the sequence number", &h, h.sequence, next);
  uint64_t state = mix(seed + h.sequence * 7919u + h.from * 104729u + h.to * 1299709u + h.way);
  for (uint64_t i = 0; i < h.body; i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    if (memcmp(bytes + sizeof h + i, &state, h.body - i < 8 ? h.body - i : 8) != 0) wrong("a byte at or after", &h, i, h.body);
  }
  digest += mix(state ^ mix(h.sequence ^ (uint64_t)h.from << 40 ^ (uint64_t)h.to << 20 ^ h.way));
}

// At most 32767, the least MPI_TAG_UB that MPI allows. The other two ways have communicators of their own.
static int tag_of(uint64_t round, enum way way) { return (int)(round % TAGS) + (way == DIRECTED_WAY ? TAGS : 0); }

static void play(uint64_t round, MPI_Comm second, MPI_Comm third) {
  MPI_Request *requests = get(sizeof *requests * (size_t)(MESSAGES * size + MESSAGES));
  MPI_Status *statuses = get(sizeof *statuses * (size_t)(MESSAGES * size + MESSAGES));
  struct receive *receives = get(sizeof *receives * (size_t)(MESSAGES * size));
  enum way *ways = get(sizeof *ways * (size_t)(MESSAGES * size));
  unsigned char *bodies[MESSAGES];
  int posted = 0, probed = 0;
  for (int from = 0; from < size; from++) {
    for (int index = 0; index < MESSAGES; index++) {
      const struct message m = plan(round, from, index);
      if (m.to != rank) continue;
      if (m.way == PROBED_WAY) {
        probed++;
        continue;
      }
      struct receive *r = &receives[posted];
      r->bytes = get(sizeof(struct header) + MAX_BYTES);
      r->source = m.way == ANY_SOURCE_WAY ? MPI_ANY_SOURCE : from;
      ways[posted] = m.way;
      MPI_Irecv(r->bytes, (int)sizeof(struct header) + MAX_BYTES, MPI_BYTE, r->source, m.way == ANY_TAG_WAY ? MPI_ANY_TAG : tag_of(round, m.way),
                m.way == ANY_TAG_WAY ? second : MPI_COMM_WORLD, &requests[posted]);
      posted++;
    }
  }
  for (int index = 0; index < MESSAGES; index++) {
    const struct message m = plan(round, rank, index);
    const struct header h = {(uint32_t)rank, (uint32_t)m.to, m.way, (uint32_t)round, sent[m.way][m.to]++, m.body};
    bodies[index] = get(sizeof h + m.body);
    fill(bodies[index], &h);
    const MPI_Comm comm = m.way == ANY_TAG_WAY ? second : m.way == PROBED_WAY ? third : MPI_COMM_WORLD;
    int (*const send)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *) = m.synchronous ? MPI_Issend : MPI_Isend;
    send(bodies[index], (int)(sizeof h + m.body), MPI_BYTE, m.to, tag_of(round, m.way), comm, &requests[posted + index]);
  }
  for (; probed > 0; probed--) {
    MPI_Status status;
    int count;
    MPI_Probe(MPI_ANY_SOURCE, tag_of(round, PROBED_WAY), third, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    unsigned char *bytes = get((size_t)count + sizeof(struct header));
    MPI_Recv(bytes, count, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, third, &status);
    verify(bytes, &status, PROBED_WAY);
    free(bytes);
  }
  MPI_Waitall(posted + MESSAGES, requests, statuses);
  // In the order of posting, which is the order in which one sender's messages must have matched.
  for (int i = 0; i < posted; i++) {
    verify(receives[i].bytes, &statuses[i], ways[i]);
    free(receives[i].bytes);
  }
  for (int index = 0; index < MESSAGES; index++) free(bodies[index]);
  free(ways);
  free(receives);
  free(statuses);
  free(requests);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  uint64_t rounds = 500, pause_us = 0;
  double seconds = 0;
  const char *until = NULL;
  for (int option; (option = getopt(argc, argv, "s:r:t:p:u:")) != -1;) {
    switch (option) {
      case 's': seed = strtoull(optarg, NULL, 10); break;
      case 'r': rounds = strtoull(optarg, NULL, 10); break;
      case 't': seconds = strtod(optarg, NULL); break;
      case 'p': pause_us = strtoull(optarg, NULL, 10); break;
      case 'u': until = optarg; break;
      default: MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm second, third;
  MPI_Comm_dup(MPI_COMM_WORLD, &second);
  MPI_Comm_dup(MPI_COMM_WORLD, &third);
  for (int way = 0; way < WAYS; way++) {
    sent[way] = get(sizeof *sent[way] * (size_t)size);
    received[way] = get(sizeof *received[way] * (size_t)size);
  }
  const double start = MPI_Wtime();
  uint64_t round = 0, total = 0;
  for (int go = 1; go;) {
    play(round++, second, third);
    if (round % 16 == 0 || (seconds == 0 && round == rounds)) {
      if (seconds > 0 || round <= rounds) MPI_Allreduce(&digest, &total, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
      go = seconds > 0 ? MPI_Wtime() - start < seconds : round < rounds || (until && access(until, F_OK) != 0);
      MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
      if (rank == 0) fprintf(stderr, "mpi_checksums: round %" PRIu64 ", digest so far %016" PRIx64 "\n", round, total);
    }
    if (pause_us) usleep((useconds_t)pause_us);
  }
  if (rank == 0) printf("checksums digest=%016" PRIx64 " ranks=%d rounds=%" PRIu64 " seed=%" PRIu64 "\n", total, size, seconds > 0 ? round : rounds, seed);
  for (int way = 0; way < WAYS; way++) {
    free(sent[way]);
    free(received[way]);
  }
  MPI_Comm_free(&second);
  MPI_Comm_free(&third);
  MPI_Finalize();
  return 0;
}
