// Real-time signals come out in the order in which they were sent, through sigwaitinfo and signalfd.
#include "coverage.h"
#include <sys/signalfd.h>

int main(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN + 1);
  sigaddset(&set, SIGRTMIN + 2);
  sigprocmask(SIG_BLOCK, &set, NULL);
  sigdelset(&set, SIGRTMIN + 1);
  int descriptor = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  NEED(descriptor >= 0);
  for (int i = 0; i < 20; i++) NEED(!sigqueue(getpid(), SIGRTMIN + 1 + i % 2, (union sigval){.sival_ptr = (void *)(0x123400000000 + i)}));
  ready();
  await_go();
  sigaddset(&set, SIGRTMIN + 1), sigdelset(&set, SIGRTMIN + 2);
  struct timespec now = {0, 0};
  struct signalfd_siginfo read_info;
  siginfo_t info;
  for (int i = 0; i < 20; i += 2) {
    CHECK(sigtimedwait(&set, &info, &now) == SIGRTMIN + 1 && info.si_value.sival_ptr == (void *)(0x123400000000 + i));
    CHECK(read(descriptor, &read_info, sizeof read_info) == sizeof read_info && read_info.ssi_ptr == (uint64_t)(0x123400000001 + i));
    CHECK(read_info.ssi_code == SI_QUEUE && (pid_t)read_info.ssi_pid == getpid());
  }
  CHECK(sigtimedwait(&set, &info, &now) == -1 && read(descriptor, &read_info, sizeof read_info) == -1);
  return verdict();
}
