// terminal PATH: writes on a terminal of its own. When that is gone the job's standard output takes its place.
#include "coverage.h"

int main(int count, char **arguments) {
  NEED(count == 2);
  int terminal = open(arguments[1], O_RDWR | O_NOCTTY), twin = dup(terminal);
  NEED(terminal >= 0 && isatty(terminal) && write(terminal, "before\n", 7) == 7);
  ready();
  await_go();
  CHECK(write(twin, "on the terminal\n", 16) == 16 && write(STDERR_FILENO, "on standard error\n", 18) == 18);
  char line[64] = "";
  CHECK(fgets(line, sizeof line, stdin) == NULL || !strcmp(line, "typed\n"));
  return verdict();
}
