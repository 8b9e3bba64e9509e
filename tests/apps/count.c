// Counts to N, a step every PAUSE microseconds; the smallest program that is worth a checkpoint.
//
//   count N PAUSE_US [FILE [socket|child]]
//
// Prints each tenth number and, at the end, "counted N digest=…" over a table that every step changes. With FILE it
// stays in its middle until that exists. With `socket` it holds a TCP socket to itself, with `child` a child process: things
// that keep it from being saved.

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 1 << 19 };

static void hold_socket(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
      getsockname(listener, (struct sockaddr *)&address, &length) || connect(client, (struct sockaddr *)&address, length))
    exit(3);
}

int main(int count, char **arguments) {
  if (count < 3) return 2;
  long last = atol(arguments[1]), pause = atol(arguments[2]);
  pid_t child = 0;
  if (count > 4 && !strcmp(arguments[4], "socket")) hold_socket();
  if (count > 4 && !strcmp(arguments[4], "child") && !(child = fork())) {
    pause = 0;
    for (;;) sleep(3600);
  }
  uint64_t *table = calloc(WORDS, sizeof *table), digest = 0;
  for (long i = 1; i <= last; i++) {
    for (long j = 0; j < 1000; j++) table[(i * 7919 + j * 104729) % WORDS] += i ^ j;
    if (i % 10 == 0) {
      printf("%ld\n", i);
      fflush(stdout);
    }
    do usleep(pause);
    while (count > 3 && i == last / 2 && access(arguments[3], F_OK) != 0);
  }
  for (long j = 0; j < WORDS; j++) digest = digest * 31 + table[j];
  printf("counted %ld digest=%016" PRIx64 "\n", last, digest);
  if (child) kill(child, SIGKILL);
  return 0;
}
