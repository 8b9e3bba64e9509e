/* Lists network interfaces all the time: every other moment a netlink socket is open. With "hold" one stays open. */
#include <ifaddrs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <linux/netlink.h>

static void *list(void *unused)
{
    for (;;) {
        struct ifaddrs *found;
        if (getifaddrs(&found))
            abort();
        freeifaddrs(found);
        usleep(100);
    }
    return unused;
}

int main(int count, char **arguments)
{
    if (count > 1 && !strcmp(arguments[1], "hold")) {
        struct sockaddr_nl address = { .nl_family = AF_NETLINK };
        int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
        if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address))
            abort();
    } else {
        pthread_t thread;
        if (pthread_create(&thread, NULL, list, NULL))
            abort();
    }
    puts("ready");
    fflush(stdout);
    for (int at = 1;; at++) {
        usleep(20000);
        printf("tick %d\n", at);
        fflush(stdout);
    }
}
