/* One thread that counts in memory, on the stack and in registers, and checks that all agree. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int global;
int main(int argc, char **argv) {
    int ticks = argc > 1 ? atoi(argv[1]) : 40;
    int *heap = calloc(1, sizeof *heap);
    pid_t pid = getpid();
    int local = 0;
    double sum = 0;
    for (int i = 1; i <= ticks && access("end", F_OK); i++) {
        usleep(20000);
        global++, local++, ++*heap, sum += 0.5;
        if (global != i || local != i || *heap != i || sum != 0.5 * i || getpid() != pid) {
            printf("LOST at %d: %d %d %d %f\n", i, global, local, *heap, sum);
            return 1;
        }
        printf("tick %d\n", i);
        fflush(stdout);
    }
    puts("OK");
    return 0;
}
