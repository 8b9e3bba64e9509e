/* Reads standard input line by line and repeats it, the second line when there is a file `go`; ends at end of file. */
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
        while (access("go", F_OK)) usleep(10000);
    }
    puts("OK");
    return 0;
}
