/* Ping-pong of one TCP connection without anything above it: the floor for what goes over the same link.
 *
 *   socket_pingpong PORT                          answers one client
 *   socket_pingpong PORT ADDRESS SIZE REPETITIONS ...      prints for each pair: SIZE, half a round trip in microseconds, and the
 *                                                          time if both send at once (to 16 KiB, which sockets hold)
 *
 * Both ends poll, TCP_NODELAY, congestion control cubic if it can be had.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EXCHANGED = 16384 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void move(int fd, char *memory, size_t size, int out)
{
    for (size_t done = 0; done < size;) {
        ssize_t step = out ? send(fd, memory + done, size - done, MSG_DONTWAIT | MSG_NOSIGNAL)
                           : recv(fd, memory + done, size - done, MSG_DONTWAIT);
        if (step > 0)
            done += step;
        else if (step == 0 || (errno != EAGAIN && errno != EINTR))
            fail(out ? "send" : "recv");
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void rounds(int fd, char *memory, size_t size, long count, int first)
{
    for (long i = 0; i < count; i++) {
        move(fd, memory, size, first);
        move(fd, memory, size, !first);
    }
}

/* Both ends send, then both receive. */
static void exchanges(int fd, char *memory, size_t size, long count)
{
    for (long i = 0; i < count; i++) {
        move(fd, memory, size, 1);
        move(fd, memory, size, 0);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    if (argc == 2) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1))
            fail("listen");
        puts("ready");
        fflush(stdout);
        fd = accept(fd, NULL, NULL);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    } else {
        if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
            fail("address");
        if (connect(fd, (struct sockaddr *)&address, sizeof address))
            fail("connect");
    }
    if (fd < 0)
        fail("accept");
    for (int at = 3;; at += 2) {
        long plan[2] = {0, 0};
        if (argc > at + 1) {
            plan[0] = atol(argv[at]);
            plan[1] = atol(argv[at + 1]);
        }
        move(fd, (char *)plan, sizeof plan, argc > 2);
        if (plan[0] <= 0)
            break;
        char *memory = malloc(plan[0]);
        if (!memory)
            fail("malloc");
        memset(memory, 1, plan[0]);
        rounds(fd, memory, plan[0], plan[1] / 10 + 1, argc > 2);
        double start = now();
        rounds(fd, memory, plan[0], plan[1], argc > 2);
        double way = (now() - start) / plan[1] / 2;
        if (argc > 2)
            printf("%ld %.3f", plan[0], way);
        if (plan[0] <= EXCHANGED) {
            exchanges(fd, memory, plan[0], plan[1] / 10 + 1);
            start = now();
            exchanges(fd, memory, plan[0], plan[1]);
            if (argc > 2)
                printf(" %.3f", (now() - start) / plan[1]);
        }
        if (argc > 2)
            puts("");
        free(memory);
    }
    close(fd);
    return 0;
}
