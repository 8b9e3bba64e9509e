/* May not make processes: its user has as many as it may have. Root has no such limit. */
#include <stdio.h>
#include <sys/resource.h>

int main(void) {
    struct rlimit none = {1, 1};
    if (setrlimit(RLIMIT_NPROC, &none)) return 2;
    puts("ready");
    fflush(stdout);
    char line[16];
    if (!fgets(line, sizeof line, stdin)) return 1;
    puts("OK");
    return 0;
}
