/* Reads standard input line by line, slowly, and repeats it; ends at end of file. */
#include <stdio.h>
#include <unistd.h>

int main(void) {
    char line[256];
    setvbuf(stdin, NULL, _IONBF, 0);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        printf("got %s", line);
        fflush(stdout);
        usleep(300000);
    }
    puts("OK");
    return 0;
}
