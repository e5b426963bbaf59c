/* The few functions of OpenMP that oneDNN and our kernels call, on a pool that nothing else in the process uses.
 *
 * One pool of threads; a region that starts while another thread's region runs waits for it; regions inside a
 * region run on one thread. Who waits spins for a while before it sleeps, since the next kernel follows soon.
 * A worker takes over the floating-point control of the thread that starts the region. A forked child begins with
 * no workers and starts its own. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_THREADS 1024
#define SPINS 20000

typedef struct {
    _Alignas(64) atomic_int round; /* raised by the master to start the worker */
    atomic_int asleep;
} Worker;

static struct {
    pthread_mutex_t mutex;
    int started;
    void (*body)(void *);
    void *data;
    int team;
    uint64_t control;
    _Alignas(64) atomic_int remaining;
    atomic_int master_asleep;
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_int phase;
    atomic_int asleep_at_barrier;
    Worker workers[MOST_THREADS];
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local int thread_number, team_size = 1, depth, most_threads;
static _Thread_local long trip;
static _Thread_local struct { long start, end, step, chunk; } loop;

/* Region state of the threads around this one; regions of one thread nest, the pool's does not. */
static _Thread_local struct { int number, team; bool leads; } outer[64];

static void pause_briefly(int spins) {
    if (spins % 4096 == 4095) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void sleep_while(atomic_int *word, int value) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, 0, 0, 0); }

static void wake_all(atomic_int *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0); }

/* Rounding, and whether subnormal numbers count as zero; also which exceptions were seen. */
static uint64_t read_control(void) {
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr();
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
#else
    return 0;
#endif
}

static void write_control(uint64_t control) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((unsigned)control);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(control));
#else
    (void)control;
#endif
}

static int available(void) {
    const char *text = getenv("OMP_NUM_THREADS");
    if (text && atoi(text) > 0) return atoi(text) < MOST_THREADS ? atoi(text) : MOST_THREADS;
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* Raised whenever what others rely on changes: an artefact may carry an older pool. */
EXPORT int einsat_pool_interface(void) { return 1; }

EXPORT int omp_get_thread_num(void) { return thread_number; }
EXPORT int omp_get_num_threads(void) { return team_size; }
EXPORT int omp_in_parallel(void) { return depth > 0 && outer[0].leads; }
EXPORT int omp_get_max_threads(void) { return most_threads ? most_threads : (most_threads = available()); }
EXPORT void omp_set_num_threads(int count) { most_threads = count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count; }

static void *work(void *argument) {
    int number = (int)(long)argument, seen = 0;
    Worker *self = &pool.workers[number];
    for (;;) {
        for (int spins = 0; atomic_load_explicit(&self->round, memory_order_acquire) == seen; spins++) {
            if (spins < SPINS) {
                pause_briefly(spins);
                continue;
            }
            atomic_store(&self->asleep, 1);
            sleep_while(&self->round, seen);
            atomic_store(&self->asleep, 0);
        }
        seen = atomic_load_explicit(&self->round, memory_order_acquire);
        thread_number = number, team_size = pool.team, depth = 1, outer[0].leads = true;
        if (read_control() != pool.control) write_control(pool.control);
        pool.body(pool.data);
        if (atomic_fetch_sub(&pool.remaining, 1) == 1 && atomic_load(&pool.master_asleep)) wake_all(&pool.remaining);
    }
    return 0;
}

static void forget_threads(void) { /* a fork leaves the child without them */
    pthread_mutex_init(&pool.mutex, 0);
    pool.started = 0;
    atomic_store(&pool.master_asleep, 0), atomic_store(&pool.arrived, 0), atomic_store(&pool.asleep_at_barrier, 0);
    for (int i = 0; i < MOST_THREADS; i++) atomic_store(&pool.workers[i].round, 0), atomic_store(&pool.workers[i].asleep, 0);
}

/* Some of the vendor library's matrix kernels keep data where the stack pointer should be (x64:gemm:jit): a signal that is
 * delivered then writes its frame over the heap. So workers get none but those of their own faults. */
static void block_signals(sigset_t *before) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t blocked;
    sigfillset(&blocked);
    for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, before);
}

static int start_threads(int wanted) {
    static bool registered;
    if (!registered) registered = !pthread_atfork(0, 0, forget_threads);
    if (pool.started < wanted - 1) {
        sigset_t before;
        block_signals(&before); /* a new thread's mask is its creator's */
        while (pool.started < wanted - 1) {
            pthread_t thread;
            if (pthread_create(&thread, 0, work, (void *)(long)(pool.started + 1))) break;
            pthread_detach(thread);
            pool.started++;
        }
        pthread_sigmask(SIG_SETMASK, &before, 0);
    }
    return pool.started + 1 < wanted ? pool.started + 1 : wanted;
}

EXPORT void GOMP_parallel_start(void (*body)(void *), void *data, unsigned threads) {
    int level = depth++;
    if (level >= 64) abort();
    int wanted = threads ? (int)threads : omp_get_max_threads();
    outer[level].number = thread_number, outer[level].team = team_size, outer[level].leads = level == 0 && wanted > 1;
    thread_number = 0, team_size = 1;
    if (!outer[level].leads) return;
    pthread_mutex_lock(&pool.mutex);
    int team = start_threads(wanted < MOST_THREADS ? wanted : MOST_THREADS);
    pool.body = body, pool.data = data, pool.team = team_size = team, pool.control = read_control();
    atomic_store(&pool.remaining, team - 1);
    for (int i = 1; i < team; i++) {
        atomic_fetch_add(&pool.workers[i].round, 1);
        if (atomic_load(&pool.workers[i].asleep)) wake_all(&pool.workers[i].round);
    }
}

EXPORT void GOMP_parallel_end(void) {
    int level = --depth;
    if (outer[level].leads) {
        int left;
        for (int spins = 0; (left = atomic_load_explicit(&pool.remaining, memory_order_acquire)); spins++) {
            if (spins < SPINS) {
                pause_briefly(spins);
                continue;
            }
            atomic_store(&pool.master_asleep, 1);
            sleep_while(&pool.remaining, left);
            atomic_store(&pool.master_asleep, 0);
        }
        pthread_mutex_unlock(&pool.mutex);
    }
    thread_number = outer[level].number, team_size = outer[level].team;
}

EXPORT void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
    (void)flags;
    GOMP_parallel_start(body, data, threads);
    body(data);
    GOMP_parallel_end();
}

EXPORT void GOMP_barrier(void) {
    if (team_size < 2) return;
    int phase = atomic_load(&pool.phase);
    if (atomic_fetch_add(&pool.arrived, 1) == team_size - 1) {
        atomic_store(&pool.arrived, 0);
        atomic_fetch_add(&pool.phase, 1);
        if (atomic_load(&pool.asleep_at_barrier)) wake_all(&pool.phase);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&pool.phase, memory_order_acquire) == phase; spins++) {
        if (spins < SPINS) {
            pause_briefly(spins);
            continue;
        }
        atomic_fetch_add(&pool.asleep_at_barrier, 1);
        sleep_while(&pool.phase, phase);
        atomic_fetch_sub(&pool.asleep_at_barrier, 1);
    }
}

EXPORT bool GOMP_loop_static_next(long *first, long *last) {
    long count = loop.step > 0 ? (loop.end - loop.start + loop.step - 1) / loop.step : (loop.end - loop.start + loop.step + 1) / loop.step;
    long from, to;
    if (loop.chunk == 0) {
        if (trip++) return false;
        long each = count / team_size, more = count % team_size;
        from = thread_number * each + (thread_number < more ? thread_number : more);
        to = from + each + (thread_number < more);
    } else {
        from = (trip++ * team_size + thread_number) * loop.chunk;
        to = from + loop.chunk < count ? from + loop.chunk : count;
    }
    if (from >= to) return false;
    *first = loop.start + from * loop.step;
    *last = loop.start + to * loop.step;
    return true;
}

EXPORT bool GOMP_loop_static_start(long start, long end, long step, long chunk, long *first, long *last) {
    loop.start = start, loop.end = end, loop.step = step, loop.chunk = chunk, trip = 0;
    return GOMP_loop_static_next(first, last);
}

EXPORT void GOMP_loop_end_nowait(void) {}
