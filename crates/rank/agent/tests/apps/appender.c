/* Appends a line per tick to a file. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    FILE *log = fopen("log", "a");
    for (int i = 1; i <= atoi(argv[1]); i++) {
        usleep(20000);
        fprintf(log, "line %d\n", i);
        fflush(log);
        printf("tick %d\n", i);
        fflush(stdout);
    }
    puts("OK");
    return 0;
}
