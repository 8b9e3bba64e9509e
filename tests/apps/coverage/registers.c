// Vector, mask, x87 and control registers of threads that never leave a loop.
#include "coverage.h"
#include <fenv.h>

static volatile int stop;

__attribute__((target("avx512f,avx512bw"))) static void *wide(void *argument) {
  char before[64], after[64];
  for (int i = 0; i < 64; i++) before[i] = (char)((long)argument * 37 + i);
  uint64_t mask = 0x123456789abcdef0ull + (long)argument, mask_after = 0;
  __asm__ volatile(
      "vmovdqu64 (%1), %%zmm3\n vmovdqu64 (%1), %%zmm31\n kmovq %2, %%k5\n"
      "1: testl $1, %4\n jz 1b\n"
      "vmovdqu64 %%zmm31, (%3)\n kmovq %%k5, %0\n vpcmpeqb %%zmm3, %%zmm31, %%k1\n kmovq %%k1, %%rax\n cmpq $-1, %%rax\n je 2f\n movb $99, (%3)\n 2:\n"
      : "=r"(mask_after)
      : "r"(before), "r"(mask), "r"(after), "m"(stop)
      : "xmm3", "rax", "k1", "k5", "cc", "memory");
  CHECK(!memcmp(before, after, 64) && mask_after == mask);
  return NULL;
}

__attribute__((target("avx2"))) static void *narrow(void *argument) {
  char before[32], after[32];
  for (int i = 0; i < 32; i++) before[i] = (char)((long)argument * 37 + i);
  __asm__ volatile("vmovdqu (%0), %%ymm3\n vmovdqa %%ymm3, %%ymm15\n 1: testl $1, %2\n jz 1b\n vmovdqu %%ymm15, (%1)\n"
                   :
                   : "r"(before), "r"(after), "m"(stop)
                   : "xmm3", "xmm15", "cc", "memory");
  CHECK(!memcmp(before, after, 32));
  return NULL;
}

static void *old(void *argument) {
  long double before = 1.0L / (3 + (long)argument), after = 0;
  fesetround(FE_DOWNWARD);
  feenableexcept(FE_DIVBYZERO);
  uint64_t kept = 0;
  // Five values on the x87 stack, one in r15.
  __asm__ volatile(
      "fldt (%1)\n fldt (%1)\n fldt (%1)\n fldt (%1)\n fldt (%1)\n movq $0x1122334455667788, %%r15\n 1: testl $1, %3\n jz 1b\n"
      "fstp %%st(0)\n fstp %%st(0)\n fstp %%st(0)\n fstp %%st(0)\n fstpt (%2)\n movq %%r15, %0\n"
      : "=r"(kept)
      : "r"(&before), "r"(&after), "m"(stop)
      : "r15", "cc", "memory", "st", "st(1)", "st(2)", "st(3)", "st(4)", "st(5)", "st(6)", "st(7)");
  CHECK(before == after && kept == 0x1122334455667788ull);
  CHECK(fegetround() == FE_DOWNWARD && fegetexcept() == FE_DIVBYZERO);
  return NULL;
}

int main(void) {
  pthread_t threads[6];
  int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"), avx2 = __builtin_cpu_supports("avx2");
  for (long i = 0; i < 6; i++)
    NEED(!pthread_create(&threads[i], NULL, i < 2 && avx512 ? wide : i < 4 && avx2 ? narrow : old, (void *)i));
  fesetround(FE_UPWARD);
  usleep(50000);
  ready();
  await_go();
  stop = 1;
  for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
  CHECK(fegetround() == FE_UPWARD);
  return verdict();
}
