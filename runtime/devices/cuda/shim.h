// CUDA on one thread of a processor, to check what kernels compute and how they meet: nothing here says anything about time.
//
// The threads of a block are fibers, run one after another, each until it waits; in ascending and descending order a warp runs ahead of the
// others as far as the next barrier, in random order all warps go side by side. Threads of a kernel in which nothing waits are calls, one
// after another, of one fiber. Blocks run one after another. Shared memory is
// full of NaN before each block. Operands end where a page begins that may not be touched. What a device would not forgive is an
// error: threads that wait at different barriers, or leave while others wait; lanes that a shuffle names and that do not take
// part; a block of more than 1024 threads; an access outside of an operand; a write to what is only read.
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__) || defined(EINSAT_UCONTEXT)
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900

struct einsat_uint3 { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static einsat_uint3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

static inline int min(int a, int b) { return a < b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline float __int_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }

enum { EINSAT_MOST_THREADS = 1024, EINSAT_STACK_BYTES = 64 * 1024, EINSAT_MOST_OPERANDS = 256, EINSAT_MOST_SHARED_BYTES = 48 * 1024 };
enum einsat_state { EINSAT_READY, EINSAT_AT_BARRIER, EINSAT_AT_SHUFFLE, EINSAT_DONE };

struct einsat_thread {
  einsat_state state;
  int line;          // where it waits
  unsigned mask;     // of the shuffle it waits at
  int source;        // the lane whose value it asks for
  uint64_t value;    // what it gives, then what it gets
};

typedef void (*einsat_kernel)(void **);
static einsat_thread einsat_threads[EINSAT_MOST_THREADS];
static einsat_uint3 einsat_places[EINSAT_MOST_THREADS];  // of threads in their block
static int einsat_current, einsat_count;
static char *einsat_stacks, *einsat_message;
static size_t einsat_page_bytes;  // asked once a launch
static size_t einsat_page() { return einsat_page_bytes; }
static char *einsat_stack(int thread) {  // after a page that may not be touched
  return einsat_stacks + (size_t)thread * (EINSAT_STACK_BYTES + einsat_page()) + einsat_page();
}
// Where a stack begins: not at the same place of every page, or all of them would share a few lines of the processor's first cache.
static char *einsat_stack_top(int thread) { return einsat_stack(thread) + EINSAT_STACK_BYTES - (size_t)(thread % 16) * 256; }
static size_t einsat_message_bytes;
static bool einsat_failed;
static sigjmp_buf einsat_escape;  // out of a block that cannot go on
static einsat_kernel einsat_running;
static void **einsat_arguments;
static const unsigned *einsat_uninterrupted;  // the order of threads of which none waits; null where some may

static void einsat_fail(const char *format, long a = 0, long b = 0, long c = 0) {
  if (!einsat_failed) snprintf(einsat_message, einsat_message_bytes, format, a, b, c);
  einsat_failed = true;
}

// Switches between the scheduler and a thread.
#if defined(__x86_64__) && !defined(EINSAT_UCONTEXT)
// Inlined, and left by a jump: a processor foresees that all threads go on at one place, and where calls return to.
static inline __attribute__((always_inline)) void einsat_switch(void **from, void *to) {
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n"  // what lies there is the function's own
      "pushq %%rbp\n"
      "pushq %%rbx\n"
      "leaq 1f(%%rip), %%rax\n"
      "pushq %%rax\n"
      "movq %%rsp, (%0)\n"
      "movq %1, %%rsp\n"
      "popq %%rax\n"
      "jmpq *%%rax\n"
      "1:\n"
      "popq %%rbx\n"
      "popq %%rbp\n"
      "leaq 128(%%rsp), %%rsp\n"
      : "+D"(from), "+S"(to)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
        "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
static void *einsat_scheduler, *einsat_contexts[EINSAT_MOST_THREADS];
static void einsat_body();
static void einsat_prepare(int thread) {
  uintptr_t *top = (uintptr_t *)einsat_stack_top(thread);
  top[-2] = (uintptr_t)einsat_body;  // where the first switch goes to; the stack is then 8 bytes off 16, as after a call
  einsat_contexts[thread] = top - 2;
}
static void einsat_resume(int thread) { einsat_switch(&einsat_scheduler, einsat_contexts[thread]); }
static void einsat_wait() { einsat_switch(&einsat_contexts[einsat_current], einsat_scheduler); }
#else
static ucontext_t einsat_scheduler, einsat_contexts[EINSAT_MOST_THREADS];
static void einsat_body();
static void einsat_prepare(int thread) {
  getcontext(&einsat_contexts[thread]);
  einsat_contexts[thread].uc_stack.ss_sp = einsat_stack(thread);
  einsat_contexts[thread].uc_stack.ss_size = EINSAT_STACK_BYTES;
  einsat_contexts[thread].uc_link = nullptr;
  makecontext(&einsat_contexts[thread], einsat_body, 0);
}
static void einsat_resume(int thread) { swapcontext(&einsat_scheduler, &einsat_contexts[thread]); }
static void einsat_wait() { swapcontext(&einsat_contexts[einsat_current], &einsat_scheduler); }
#endif

static void einsat_body() {
  if (einsat_uninterrupted) {
    for (int k = 0; k < einsat_count; ++k) {
      threadIdx = einsat_places[einsat_uninterrupted[k]];
      einsat_running(einsat_arguments);
    }
  } else {
    einsat_running(einsat_arguments);
  }
  einsat_threads[einsat_current].state = EINSAT_DONE;
  einsat_wait();
}

static void einsat_refuse_uninterrupted(int line) {
  if (!einsat_uninterrupted) return;
  einsat_fail("line %ld: a thread waits in a function that stands before another kernel", line);
  siglongjmp(einsat_escape, 1);
}

__attribute__((noinline)) static void einsat_barrier(int line) {
  einsat_refuse_uninterrupted(line);
  einsat_thread &self = einsat_threads[einsat_current];
  self.state = EINSAT_AT_BARRIER;
  self.line = line;
  einsat_wait();
}

__attribute__((noinline)) static uint64_t einsat_exchange(int line, unsigned mask, uint64_t value, int source) {
  einsat_refuse_uninterrupted(line);
  einsat_thread &self = einsat_threads[einsat_current];
  self = {EINSAT_AT_SHUFFLE, line, mask, source, value};
  einsat_wait();
  return self.value;
}

template <typename T> static T einsat_shuffle(int line, unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = einsat_exchange(line, mask, bits, source);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

static int einsat_lane() { return einsat_current % 32; }
#define __syncthreads() einsat_barrier(__LINE__)
#define __syncwarp(...) ((void)einsat_exchange(__LINE__, 0xffffffffu, 0, einsat_lane()))
#define __shfl_sync(mask, value, source) einsat_shuffle(__LINE__, mask, value, (source) & 31)
#define __shfl_xor_sync(mask, value, bits) einsat_shuffle(__LINE__, mask, value, einsat_lane() ^ (bits))
#define __shfl_up_sync(mask, value, by) einsat_shuffle(__LINE__, mask, value, einsat_lane() - (int)(by) < 0 ? einsat_lane() : einsat_lane() - (int)(by))
#define __shfl_down_sync(mask, value, by) einsat_shuffle(__LINE__, mask, value, einsat_lane() + (int)(by) > 31 ? einsat_lane() : einsat_lane() + (int)(by))

// Tensor cores: numbers of 16 bits in pairs, a product of 16 x 16 and 16 x 8 that a warp computes together. Sums are rounded to nearest.
#define EINSAT_TENSOR_CORES
static unsigned einsat_to_f16(float value) {
  unsigned sign = signbit(value) ? 0x8000u : 0;
  float size = fabsf(value);
  if (value != value) return 0x7fff;
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < 6.103515625e-05f) return sign | (unsigned)rintf(ldexpf(size, 24));
  int exponent;
  frexpf(size, &exponent);
  return sign | (((unsigned)(exponent + 14) << 10) + (unsigned)rintf(ldexpf(size, 11 - exponent)) - 1024);
}
static float einsat_from_f16(unsigned bits) {
  unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexpf((float)(1024 + fraction), (int)exponent - 25) : ldexpf((float)fraction, -24);
  return bits & 0x8000 ? -size : size;
}
static unsigned einsat_to_bf16(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static float einsat_from_bf16(unsigned bits) { return __int_as_float((bits & 0xffff) << 16); }
static unsigned einsat_pair_f16(float low, float high) { return einsat_to_f16(low) | einsat_to_f16(high) << 16; }
static unsigned einsat_pair_bf16(float low, float high) { return einsat_to_bf16(low) | einsat_to_bf16(high) << 16; }
static unsigned einsat_given[EINSAT_MOST_THREADS][6];
static void einsat_multiply(int line, float (*number)(unsigned), float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  int lane = einsat_lane(), row = lane / 4, column = lane % 4 * 2;
  unsigned (*warp)[6] = einsat_given + einsat_current / 32 * 32;
  memcpy(warp[lane], a, sizeof a);
  memcpy(warp[lane] + 4, b, sizeof b);
  einsat_exchange(line, 0xffffffffu, 0, lane);
  for (int h = 0; h < 4; ++h) {
    int m = row + h / 2 * 8, n = column + h % 2;
    for (int k = 0; k < 16; ++k) {  // where the parts of a word of 16 bits lie: PTX's tables of m16n8k16
      unsigned left = warp[m % 8 * 4 + k % 8 / 2][m / 8 + k / 8 * 2], right = warp[n * 4 + k % 8 / 2][4 + k / 8];
      c[h] += number(left >> k % 2 * 16) * number(right >> k % 2 * 16);
    }
  }
  einsat_exchange(line, 0xffffffffu, 0, lane);
}
#define einsat_mma_f16(c, a, b) einsat_multiply(__LINE__, einsat_from_f16, c, a, b)
#define einsat_mma_bf16(c, a, b) einsat_multiply(__LINE__, einsat_from_bf16, c, a, b)

// Lets the lanes of a warp go on that wait for each other; returns whether some did.
static bool einsat_exchanged(int first) {
  bool any = false;
  int lanes = einsat_count - first < 32 ? einsat_count - first : 32;
  for (int lane = 0; lane < lanes; ++lane) {
    einsat_thread &self = einsat_threads[first + lane];
    if (self.state != EINSAT_AT_SHUFFLE) continue;
    unsigned mask = lanes == 32 ? self.mask : self.mask & ((1u << lanes) - 1);
    if (!(mask >> lane & 1)) return einsat_fail("line %ld: lane %ld shuffles and is not in the mask", self.line, lane), false;
    bool here = true;
    for (int other = 0; other < lanes; ++other) {
      einsat_thread &peer = einsat_threads[first + other];
      if (mask >> other & 1) here = here && peer.state == EINSAT_AT_SHUFFLE && peer.line == self.line && peer.mask == self.mask;
    }
    if (!here) continue;
    uint64_t given[32];
    for (int other = 0; other < lanes; ++other) given[other] = einsat_threads[first + other].value;
    for (int other = 0; other < lanes; ++other) {
      if (!(mask >> other & 1)) continue;
      einsat_thread &peer = einsat_threads[first + other];
      if (peer.source >= lanes || !(mask >> peer.source & 1))
        return einsat_fail("line %ld: lane %ld asks for the value of lane %ld, which takes no part", peer.line, other, peer.source), false;
      peer.value = given[peer.source];
      peer.state = EINSAT_READY;
    }
    any = true;
  }
  return any;
}

static uint64_t einsat_random_state;
static unsigned einsat_random() {
  einsat_random_state = einsat_random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned)(einsat_random_state >> 33);
}

static void einsat_shuffled(unsigned *order, unsigned count) {
  for (unsigned k = count; k > 1; --k) {
    unsigned other = einsat_random() % k, kept = order[k - 1];
    order[k - 1] = order[other];
    order[other] = kept;
  }
}

enum { EINSAT_ASCENDING, EINSAT_DESCENDING, EINSAT_RANDOM };

static void einsat_ordered(unsigned *order, unsigned count, int kind) {
  for (unsigned k = 0; k < count; ++k) order[k] = kind == EINSAT_DESCENDING ? count - 1 - k : k;
  if (kind == EINSAT_RANDOM) einsat_shuffled(order, count);
}

// Runs threads that may go on, each until it waits.
static void einsat_run_threads(const unsigned *order, int first, int last) {
  for (int k = first; k < last && !einsat_failed; ++k) {
    einsat_current = (int)order[k];
    if (einsat_threads[einsat_current].state != EINSAT_READY) continue;
    threadIdx = einsat_places[einsat_current];
    einsat_resume(einsat_current);
  }
}

static void einsat_run_block(int order_kind, bool waits) {
  unsigned order[EINSAT_MOST_THREADS];
  if (!waits) {
    einsat_ordered(order, einsat_count, order_kind);
    einsat_uninterrupted = order, einsat_current = 0;
    einsat_prepare(0);
    einsat_resume(0);
    return;
  }
  for (int k = 0; k < einsat_count; ++k) {
    einsat_threads[k].state = EINSAT_READY;
    einsat_prepare(k);
  }
  einsat_ordered(order, einsat_count, order_kind);
  for (;;) {
    if (order_kind == EINSAT_RANDOM) einsat_shuffled(order, einsat_count);
    bool any = false;
    if (order_kind == EINSAT_RANDOM) {  // all warps side by side
      einsat_run_threads(order, 0, einsat_count);
      for (int first = 0; first < einsat_count && !einsat_failed; first += 32) any = einsat_exchanged(first) || any;
    } else {  // a warp runs ahead of the next one, as far as the block's next barrier
      for (int k = 0; k < einsat_count && !einsat_failed;) {
        int first = (int)order[k] / 32 * 32, last = k;
        while (last < einsat_count && (int)order[last] / 32 * 32 == first) ++last;
        do einsat_run_threads(order, k, last);
        while (!einsat_failed && einsat_exchanged(first));
        k = last;
      }
    }
    if (einsat_failed) return;
    if (any) continue;
    int done = 0, waiting = -1;
    for (int k = 0; k < einsat_count; ++k) {
      einsat_thread &thread = einsat_threads[k];
      if (thread.state == EINSAT_AT_SHUFFLE)
        return einsat_fail("line %ld: thread %ld shuffles with lanes that take no part", thread.line, k);
      if (thread.state == EINSAT_DONE) ++done;
      else if (waiting < 0) waiting = k;
      else if (einsat_threads[waiting].line != thread.line)
        return einsat_fail("thread %ld waits at the barrier of line %ld, another one elsewhere", waiting, einsat_threads[waiting].line);
    }
    if (done == einsat_count) return;
    if (done) return einsat_fail("line %ld: thread %ld waits at a barrier, %ld others are gone", einsat_threads[waiting].line, waiting, done);
    for (int k = 0; k < einsat_count; ++k) einsat_threads[k].state = EINSAT_READY;
  }
}

// Operands, each with memory before and after it that may not be touched: of addresses alone, so much costs nothing.
static const size_t einsat_fence_bytes = (size_t)64 << 20;
struct einsat_operand { char *pages, *data; size_t bytes, page_bytes; bool is_written; };
static einsat_operand einsat_operands[EINSAT_MOST_OPERANDS];
static int einsat_operand_count;

static void einsat_fault(int, siginfo_t *info, void *) {
  char *address = (char *)info->si_addr;
  for (int k = 0; k < einsat_operand_count; ++k) {
    einsat_operand &one = einsat_operands[k];
    if (address < one.pages || address >= one.pages + one.page_bytes) continue;
    if (address >= one.data && address < one.data + one.bytes) einsat_fail("parameter %ld is written, and is only to be read", k);
    else einsat_fail("an access at byte %ld of parameter %ld, which has %ld bytes", address - one.data, k, one.bytes);
    siglongjmp(einsat_escape, 1);
  }
  einsat_fail("an access to memory that belongs to no parameter, or more than %ld bytes of a thread's own", EINSAT_STACK_BYTES);
  siglongjmp(einsat_escape, 1);
}

static size_t einsat_inside(const einsat_operand &one) { return one.page_bytes - 2 * einsat_fence_bytes; }

static bool einsat_place(einsat_operand &one, const void *content) {
  size_t page = einsat_page(), inside = (one.bytes + 15 + page) / page * page;
  one.page_bytes = inside + 2 * einsat_fence_bytes;
  one.pages = (char *)mmap(nullptr, one.page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (one.pages == MAP_FAILED) return false;
  char *first = one.pages + einsat_fence_bytes;
  if (mprotect(first, inside, PROT_READ | PROT_WRITE)) return munmap(one.pages, one.page_bytes), false;
  memset(first, 0xff, inside);
  one.data = (char *)((uintptr_t)(first + inside - one.bytes) & ~(uintptr_t)15);
  memcpy(one.data, content, one.bytes);
  if (!one.is_written) mprotect(first, inside, PROT_READ);
  return true;
}

static bool einsat_untouched(const einsat_operand &one) {
  char *first = one.pages + einsat_fence_bytes;
  for (char *at = first; at < first + einsat_inside(one); ++at) {
    if (at == one.data && one.bytes) at += one.bytes - 1;
    else if ((unsigned char)*at != 0xff) return false;
  }
  return true;
}

static void einsat_run_grid(const unsigned *grid, int order_kind, char *shared, size_t shared_bytes, bool waits) {
  size_t blocks = (size_t)grid[0] * grid[1] * grid[2];
  unsigned *order = (unsigned *)malloc(blocks * sizeof(unsigned));
  einsat_ordered(order, (unsigned)blocks, order_kind);
  if (sigsetjmp(einsat_escape, 1) == 0) {
    for (size_t k = 0; k < blocks && !einsat_failed; ++k) {
      blockIdx = {order[k] % grid[0], order[k] / grid[0] % grid[1], order[k] / grid[0] / grid[1]};
      if (shared_bytes) memset(shared, 0xff, shared_bytes);
      einsat_run_block(order_kind, waits);
    }
  }
  einsat_uninterrupted = nullptr;
  free(order);
}

// Runs a kernel on copies of its operands; `content` of those that are written is replaced. Operands with equal `content` are one.
// `waits`: whether a thread may wait for others.
extern "C" int einsat_launch(einsat_kernel kernel, int waits, char *shared, size_t shared_bytes, const unsigned *grid, const unsigned *block,
                             int count, void **content, const size_t *bytes, const unsigned char *is_written, int order_kind,
                             uint64_t seed, char *message, size_t message_bytes) {
  einsat_page_bytes = (size_t)sysconf(_SC_PAGESIZE);
  einsat_message = message, einsat_message_bytes = message_bytes, einsat_failed = false;
  einsat_running = kernel, einsat_uninterrupted = nullptr, einsat_random_state = seed * 2654435761u + 1;
  einsat_count = (int)(block[0] * block[1] * block[2]);
  if (einsat_count < 1 || einsat_count > EINSAT_MOST_THREADS) return einsat_fail("a block of %ld threads", einsat_count), 1;
  if (shared_bytes > EINSAT_MOST_SHARED_BYTES) return einsat_fail("%ld bytes of shared memory", (long)shared_bytes), 1;
  if (grid[1] > 65535 || grid[2] > 65535 || block[2] > 64) return einsat_fail("a launch beyond the limits along y or z"), 1;
  if (count > EINSAT_MOST_OPERANDS) return einsat_fail("%ld operands", count), 1;
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
  for (unsigned k = 0; k < (unsigned)einsat_count; ++k) einsat_places[k] = {k % block[0], k / block[0] % block[1], k / block[0] / block[1]};
  // A process may have only so many mappings, two a thread here: stacks of a launch are returned when it ends.
  size_t stack_bytes = (size_t)einsat_count * (EINSAT_STACK_BYTES + einsat_page());
  void *stacks = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) return einsat_fail("no memory for stacks"), 1;
  einsat_stacks = (char *)stacks;
  for (int k = 0; k < einsat_count; ++k) mprotect(einsat_stack(k) - einsat_page(), einsat_page(), PROT_NONE);
  void *arguments[EINSAT_MOST_OPERANDS];
  einsat_operand_count = 0;
  for (int k = 0; k < count; ++k) {
    einsat_operand &one = einsat_operands[k];
    one = {nullptr, nullptr, bytes[k], 0, is_written[k] != 0};
    int same = 0;
    while (same < k && content[same] != content[k]) ++same;
    einsat_operand_count = k + 1;
    if (same < k) arguments[k] = arguments[same];
    else if (!einsat_place(one, content[k])) einsat_fail("no memory for parameter %ld", k);
    else arguments[k] = one.data;
  }
  einsat_arguments = arguments;
  static char handler_stack[64 * 1024];
  stack_t stack = {}, stack_before;
  stack.ss_sp = handler_stack, stack.ss_size = sizeof handler_stack;
  struct sigaction action = {}, segment_before, bus_before;
  action.sa_sigaction = einsat_fault, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaltstack(&stack, &stack_before);
  sigaction(SIGSEGV, &action, &segment_before);
  sigaction(SIGBUS, &action, &bus_before);
  if (!einsat_failed) einsat_run_grid(grid, order_kind, shared, shared_bytes, waits != 0);
  sigaction(SIGSEGV, &segment_before, nullptr);
  sigaction(SIGBUS, &bus_before, nullptr);
  sigaltstack(&stack_before, nullptr);
  for (int k = 0; k < einsat_operand_count; ++k) {
    einsat_operand &one = einsat_operands[k];
    if (!one.data) continue;
    if (!einsat_failed && !einsat_untouched(one)) einsat_fail("parameter %ld is written beside its %ld bytes", k, (long)one.bytes);
    if (one.is_written) memcpy(content[k], one.data, one.bytes);
    munmap(one.pages, one.page_bytes);
  }
  munmap(stacks, stack_bytes);
  return einsat_failed;
}
