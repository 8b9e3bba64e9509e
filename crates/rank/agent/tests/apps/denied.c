/* denied TICKS: has files open, some of them memory, that their own modes deny to it by now. Each is what it was, and so is its mode.
 * Ends after so many ticks, or when there is a file `end`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
    /* A memfd whose seals cannot be added to, opened twice for writing. */
    char path[64];
    int memory = memfd_create("memory", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    int second = open(path, O_RDWR);
    CHECK(memory >= 0 && second >= 0 && fcntl(second, F_GET_SEALS) == F_SEAL_SEAL && !fchmod(memory, 0));
    int gone = open("gone", O_CREAT | O_EXCL | O_RDWR, 0400), closed = open("closed", O_CREAT | O_EXCL | O_RDWR, 0200);
    CHECK(gone >= 0 && !unlink("gone") && closed >= 0 && !unlink("closed"));
    for (int i = 1; i <= ticks && access("end", F_OK); i++) {
        int there = 0;
        CHECK(mode(made) == 0444 && mode(none) == 0 && mode(place) == 0300);
        CHECK(mode(memory) == 0 && mode(second) == 0 && mode(gone) == 0400 && mode(closed) == 0200);
        CHECK(fcntl(memory, F_GET_SEALS) == F_SEAL_SEAL && pwrite(memory, &i, sizeof i, 0) == sizeof i);
        CHECK(pread(second, &there, sizeof there, 0) == sizeof there && there == i && pwrite(second, "x", 1, 100) == 1);
        for (int *file = (int[]){gone, closed, -1}; *file >= 0; file++) {
            CHECK(pread(*file, &there, sizeof there, 0) == (i == 1 ? 0 : sizeof there) && (i == 1 || there == i - 1));
            CHECK(pwrite(*file, &i, sizeof i, 0) == sizeof i);
        }
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
