/* May write only small files: an image does not fit. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct rlimit limit = {300000, 300000};
    char *memory = malloc(4 << 20);
    memset(memory, 7, 4 << 20);
    signal(SIGXFSZ, SIG_DFL);
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 1; i <= atoi(argv[1]) && access("end", F_OK); i++) {
        usleep(20000);
        if (memory[i * 1000] != 7) return 1;
        printf("tick %d\n", i);
        fflush(stdout);
    }
    puts("OK");
    return 0;
}
