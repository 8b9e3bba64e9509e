/* denied TICKS: has files open that their own modes deny to it by now. Each is what it was, and so is its mode.
 * Ends after so many ticks, or when there is a file `end`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failures;
#define CHECK(x) do { if (!(x)) { printf("LOST %s:%d %s (errno %d)\n", __FILE__, __LINE__, #x, errno); failures++; } } while (0)

static int mode(int fd) {
    struct stat stat;
    CHECK(!fstat(fd, &stat));
    return stat.st_mode & 07777;
}

int main(int argc, char **argv) {
    int ticks = argc > 1 ? atoi(argv[1]) : 40;
    umask(0);
    int made = open("made", O_CREAT | O_EXCL | O_WRONLY | O_APPEND, 0444);
    int none = open("none", O_CREAT | O_EXCL | O_RDWR, 0600);
    int twin = open("none", O_RDONLY);
    CHECK(made >= 0 && none >= 0 && twin >= 0 && !fchmod(none, 0));
    CHECK(!mkdir("place", 0700));
    int place = open("place", O_RDONLY | O_DIRECTORY);
    CHECK(place >= 0 && !fchmod(place, 0300));
    for (int i = 1; i <= ticks && access("end", F_OK); i++) {
        int there = 0;
        CHECK(mode(made) == 0444 && mode(none) == 0 && mode(place) == 0300);
        CHECK(write(made, "x", 1) == 1 && lseek(made, 0, SEEK_END) == i);
        CHECK(pwrite(none, &i, sizeof i, 0) == sizeof i);
        CHECK(pread(twin, &there, sizeof there, 0) == sizeof there && there == i);
        usleep(20000);
        printf("tick %d\n", i);
        fflush(stdout);
    }
    if (failures) return 1;
    puts("OK");
    return 0;
}
