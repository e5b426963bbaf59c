/* The few functions of OpenMP that oneDNN and our kernels call, on a pool that nothing else in the process uses.
 *
 * One pool of threads; a region that starts while another thread's region runs waits for it; regions inside a
 * region run on one thread. Who waits spins for a while before it sleeps, since the next kernel follows soon.
 * A worker takes over the floating-point control of the thread that starts the region. A forked child begins with
 * no workers and starts its own.
 *
 * A region has as many members as it asked for, each of which one thread runs from its beginning to its end. Member i is
 * meant for worker i, but whoever is through with its own takes the next that nobody has begun: where the system keeps a
 * worker from running, the others do its work. Members may wait for each other, at a barrier or by watching memory: a member
 * that nobody has begun still has its own worker, which is in no other member, and those that were begun each have a thread. */
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
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_THREADS 1024
#define SPIN_NS 100000 /* A wait spins so long before it sleeps: longer than most steps on one thread, shorter than a turn of the system's. */
#define WAKING_NS 300000 /* A worker that was woken less than this ago is not late: waking takes up to a tenth of it on a quiet machine. */
#define ABSENT_NS 10000 /* A worker that is awake is late after this: one that gets to run begins its member within far less. */
#define LATE_NS 100000 /* A member that is waited for so long, and longer than the others worked, was kept from running. */
#define LATE_REGIONS 2 /* A region that was waited for counts as so many late ones: it took what many small ones take. */
#define HOLD_NS 50000000 /* After this, workers join a region that was to do without them: its members seem to wait for each other. */
#define HELD_SLEEP_NS 1000000 /* A worker that stays out looks again after this: it may have been called before it slept. */
#define PAUSES 32 /* The clock is read once in so many pauses, as reading it takes as long as one. */

enum { WITH_TEAM, HELD, ALONE };

typedef struct {
    _Alignas(64) atomic_int ticket; /* twice the region's number; odd: nobody has begun this worker's member of it */
    atomic_int asleep;
    int64_t woken_ns; /* since when the master wakes it, 0: it is awake */
} Worker;

static struct {
    pthread_mutex_t mutex;
    int started;
    void (*body)(void *);
    void *data;
    int team;
    unsigned region;
    uint64_t control;
    int64_t begun_ns;
    _Atomic int64_t held_until_ns;
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

/* How this thread wants its regions to be run, and how they were: how many others helped with, how many others delayed. */
static _Thread_local int manner, shared_regions, late_regions;

/* The region that this thread leads, and whether workers may join it: one that runs alone needs nothing of the pool. */
static _Thread_local struct { void (*body)(void *); void *data; bool is_open; } led;

/* Region state of the threads around this one; regions of one thread nest, the pool's does not. */
static _Thread_local struct { int number, team; bool leads; } outer[64];

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

typedef struct {
    int spins;
    int64_t since_ns;
} Wait;

/* Return whether to go on spinning. */
static bool spin(Wait *wait) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (++wait->spins % PAUSES) return true;
    if (!wait->since_ns) wait->since_ns = now_ns();
    return now_ns() - wait->since_ns < SPIN_NS;
}

/* Sleep for so long at most; 0: until woken. */
static void sleep_while(atomic_int *word, int value, int64_t most_ns) {
    struct timespec time = {most_ns / 1000000000, most_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, most_ns > 0 ? &time : 0, 0, 0);
}

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
EXPORT int einsat_pool_interface(void) { return 3; }

EXPORT int omp_get_thread_num(void) { return thread_number; }
EXPORT int omp_get_num_threads(void) { return team_size; }
EXPORT int omp_in_parallel(void) { return depth > 0 && outer[0].leads; }
EXPORT int omp_get_max_threads(void) { return most_threads ? most_threads : (most_threads = available()); }
EXPORT void omp_set_num_threads(int count) { most_threads = count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count; }

/* Have the calling thread's next regions run with the team, or on this thread: one member after another, either at once (ALONE),
 * which only regions may whose members do not wait for each other, or (HELD) with workers that join when that takes too long. */
EXPORT void einsat_pool_run(int how) { manner = how; }

/* How many of the calling thread's regions have had members that other threads ran. */
EXPORT int einsat_pool_shared(void) { return shared_regions; }

/* How many of the calling thread's regions had to do without a worker, or to wait for it, as it did not get to run. */
EXPORT int einsat_pool_late(void) { return late_regions; }

static bool begin(int number, unsigned region) {
    int open = (int)(2 * region + 1);
    return atomic_load_explicit(&pool.workers[number].ticket, memory_order_relaxed) == open
        && atomic_compare_exchange_strong(&pool.workers[number].ticket, &open, (int)(2 * region));
}

/* Wait for a region in which nobody has begun the worker's member; return its number. */
static unsigned await_region(Worker *self) {
    for (Wait wait = {0};;) {
        int ticket = atomic_load_explicit(&self->ticket, memory_order_acquire);
        int64_t held_until_ns = ticket & 1 ? atomic_load(&pool.held_until_ns) : 0, held_ns = held_until_ns ? held_until_ns - now_ns() : 0;
        if (ticket & 1 && held_ns <= 0) return (unsigned)ticket / 2;
        if (held_ns <= 0 && spin(&wait)) continue;
        atomic_store(&self->asleep, 1);
        sleep_while(&self->ticket, ticket, held_ns < HELD_SLEEP_NS ? held_ns : HELD_SLEEP_NS);
        atomic_store(&self->asleep, 0);
        wait = (Wait){0};
    }
}

/* Return the team's size. */
static int run_member(int number) {
    int team = pool.team;
    thread_number = number, team_size = team;
    if (read_control() != pool.control) write_control(pool.control);
    pool.body(pool.data);
    if (atomic_fetch_sub(&pool.remaining, 1) == 1 && atomic_load(&pool.master_asleep)) wake_all(&pool.remaining);
    return team;
}

static void *work(void *argument) {
    int own = (int)(long)argument;
    depth = 1, outer[0].leads = true;
    for (;;) {
        unsigned region = await_region(&pool.workers[own]);
        if (!begin(own, region)) continue;
        int team = run_member(own);
        for (int i = own + 1; i < own + team; i++)
            if (i % team && begin(i % team, region)) run_member(i % team);
    }
    return 0;
}

static void forget_threads(void) { /* a fork leaves the child without them */
    pthread_mutex_init(&pool.mutex, 0);
    pool.started = 0, pool.region = 0;
    atomic_store(&pool.master_asleep, 0), atomic_store(&pool.arrived, 0), atomic_store(&pool.asleep_at_barrier, 0);
    for (int i = 0; i < MOST_THREADS; i++) atomic_store(&pool.workers[i].ticket, 0), atomic_store(&pool.workers[i].asleep, 0);
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

/* Open the region that this thread leads to workers; return its size, smaller where the system gives no more threads. */
static int open_region(int wanted) {
    pthread_mutex_lock(&pool.mutex);
    int team = start_threads(wanted);
    led.is_open = true;
    pool.body = led.body, pool.data = led.data, pool.team = team, pool.control = read_control(), pool.begun_ns = now_ns(), pool.region++;
    atomic_store(&pool.held_until_ns, manner == HELD ? pool.begun_ns + HOLD_NS : 0);
    atomic_store(&pool.remaining, team - 1);
    for (int i = 1; i < team; i++) {
        Worker *worker = &pool.workers[i];
        atomic_store(&worker->ticket, (int)(2 * pool.region + 1));
        bool is_asleep = atomic_load(&worker->asleep);
        worker->woken_ns = is_asleep ? worker->woken_ns ? worker->woken_ns : pool.begun_ns : 0;
        if (is_asleep) wake_all(&worker->ticket);
    }
    return team;
}

EXPORT void GOMP_parallel_start(void (*body)(void *), void *data, unsigned threads) {
    int level = depth++;
    if (level >= 64) abort();
    int wanted = threads ? (int)threads : omp_get_max_threads();
    outer[level].number = thread_number, outer[level].team = team_size, outer[level].leads = level == 0 && wanted > 1;
    thread_number = 0, team_size = 1;
    if (!outer[level].leads) return;
    if (wanted > MOST_THREADS) wanted = MOST_THREADS;
    led.body = body, led.data = data, led.is_open = false;
    team_size = manner == ALONE ? wanted : open_region(wanted);
    if (team_size < wanted) shared_regions++; /* that nobody helped says nothing of members that there were no threads for */
}

/* Run what no worker has begun, and wait for the rest. */
static void finish_region(void) {
    int team = team_size, taken = 0;
    bool is_late = false;
    for (int i = 1; i < team; i++) {
        if (led.is_open && !begin(i, pool.region)) continue;
        thread_number = i, taken++;
        if (led.is_open && !is_late) is_late = pool.begun_ns - pool.workers[i].woken_ns > WAKING_NS && now_ns() - pool.begun_ns > ABSENT_NS;
        led.body(led.data);
    }
    if (!led.is_open) return;
    shared_regions += taken < team - 1;
    late_regions += is_late;
    int left = taken ? atomic_fetch_sub(&pool.remaining, taken) - taken : atomic_load_explicit(&pool.remaining, memory_order_acquire);
    if (!left) return;
    int64_t start_ns = now_ns();
    for (Wait wait = {0}; (left = atomic_load_explicit(&pool.remaining, memory_order_acquire));) {
        if (spin(&wait)) continue;
        atomic_store(&pool.master_asleep, 1);
        sleep_while(&pool.remaining, left, 0);
        atomic_store(&pool.master_asleep, 0);
    }
    int64_t waited_ns = now_ns() - start_ns;
    if (waited_ns > LATE_NS && waited_ns > start_ns - pool.begun_ns) late_regions += LATE_REGIONS;
}

EXPORT void GOMP_parallel_end(void) {
    int level = depth - 1;
    if (outer[level].leads) {
        finish_region();
        if (led.is_open) pthread_mutex_unlock(&pool.mutex);
    }
    depth = level, thread_number = outer[level].number, team_size = outer[level].team;
}

EXPORT void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
    (void)flags;
    GOMP_parallel_start(body, data, threads);
    body(data);
    GOMP_parallel_end();
}

/* All members are needed: let in the workers that were to stay out. */
static void need_all(void) {
    if (!led.is_open && open_region(team_size) < team_size) abort(); /* its members know how many they are */
    if (!atomic_exchange(&pool.held_until_ns, 0)) return;
    for (int i = 1; i < team_size; i++) wake_all(&pool.workers[i].ticket);
}

EXPORT void GOMP_barrier(void) {
    if (team_size < 2) return;
    if (thread_number == 0) need_all();
    int phase = atomic_load(&pool.phase); /* a region run on one thread holds the pool from here on only */
    if (atomic_fetch_add(&pool.arrived, 1) == team_size - 1) {
        atomic_store(&pool.arrived, 0);
        atomic_fetch_add(&pool.phase, 1);
        if (atomic_load(&pool.asleep_at_barrier)) wake_all(&pool.phase);
        return;
    }
    for (Wait wait = {0}; atomic_load_explicit(&pool.phase, memory_order_acquire) == phase;) {
        if (spin(&wait)) continue;
        atomic_fetch_add(&pool.asleep_at_barrier, 1);
        sleep_while(&pool.phase, phase, 0);
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
