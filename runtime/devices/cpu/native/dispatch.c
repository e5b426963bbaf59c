/* Run a table of kernels with one call from Python, and give generated kernels the vendor library's thread pool.
 *
 * Links against nothing but the C library: the vendor library's and OpenMP's functions are passed in as pointers.
 * The structures mirror those in runtime/devices/cpu/dispatcher.py. */
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define MAX_RANK 12

enum { STEP_LIBRARY = 0, STEP_KERNEL = 1, STEP_COPY = 2, STEP_NOTHING = 3, STEP_SEQUENCE = 4, STEP_SPLIT = 5 };
enum { PATCH_POINTER = 0, PATCH_MEMORY = 1 };

/* How runs from a step on went lately. */
typedef struct {
    int64_t mean_ns[2]; /* with the team, alone; 0: never timed */
    int64_t next_trial_ns, interval_ns;
    int32_t delays;
    int32_t was_calm; /* the last run was with the team, and no worker was late */
    int32_t fresh;    /* so many runs after a pause are with the team */
    int64_t end_ns;   /* of the last run */
} Pace;

typedef struct {
    int32_t kind;
    int32_t count;
    void *function; /* library: the primitive; kernel: its C function */
    void *arguments; /* sequence: the steps that it is made of */
    int32_t runs_alone; /* its regions' members were run one after another, or (-1) wait for each other; 0: not known */
    Pace pace;
} Step;

typedef struct {
    int32_t type_index;
    uint32_t zero;
    void *pointer;
} Value;

typedef int (*Execute)(const void *primitive, void *stream, int count, const void *arguments);
typedef int (*SetHandle)(void *memory, void *pointer);
typedef int (*Kernel)(void *self, const Value *arguments, int32_t count, Value *result);

/* A strided copy; sizes in elements, strides in bytes. */
typedef struct {
    int32_t rank;
    int32_t element_bytes;
    int64_t shape[MAX_RANK];
    int64_t source_strides[MAX_RANK];
    int64_t target_strides[MAX_RANK];
    char *source;
    char *target;
} Copy;

/* Numbers as sums of two bfloat16, which are written into TERMS blocks: the lower one into the first or the second, the higher one into the
 * others.
 * Sizes and strides in elements; the last axis is innermost in the target. */
enum { TERMS = 3 };
typedef struct {
    int32_t rank;
    int32_t lower; /* the block of the lower ones: the first or the second */
    int64_t shape[MAX_RANK];
    int64_t source_strides[MAX_RANK];
    int64_t target_strides[MAX_RANK];
    int64_t block; /* from one block of the target to the next */
    const float *source;
    uint16_t *target;
} Split;

/* Where the address of a model input or output has to be written before a run. */
typedef struct {
    int32_t kind;
    int32_t area;
    int64_t offset;
    void *target;
} Patch;

typedef struct {
    Execute execute;
    SetHandle set_handle;
    void *stream;
    Step *steps;
    Patch *patches;
    int32_t step_count;
    int32_t patch_count;
    int32_t threads;
    int32_t keeps_subnormals;
    int32_t failed_step;
} Program;

/* Raised whenever a structure above or a function below changes. */
EXPORT int einsat_interface(void) { return 9; }

/* ------------------------------------------------------------------ threads */

typedef int (*ParallelBody)(int task, const void *environment, void *data);

typedef struct {
    void *sync_handle;
    int32_t num_task;
} Environment;

/* What one thread is to run of a kernel, chunk by chunk; whoever is through with its own takes from others'. */
typedef struct {
    _Alignas(64) int32_t next;
    int32_t end;
} Share;

enum { CHUNKS = 4 }; /* chunks for each thread: the generator divides loops into as many */

typedef struct {
    ParallelBody body;
    void *data;
    Environment environment;
    int32_t status;
    int32_t share_count;
    Share *shares;
} Launch;

static struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    void (*barrier)(void);
    int (*thread)(void);
    int (*team)(void);
    int (*most)(void);
    int (*inside)(void);
    void (*set_most)(int);
    void (*run)(int);
    int (*shared)(void);
    int (*late)(void);
} openmp;

EXPORT void einsat_openmp(void **functions) { memcpy(&openmp, functions, sizeof openmp); }

static void launch_member(void *argument) {
    Launch *launch = argument;
    int own = openmp.thread();
    for (int i = 0; i < launch->share_count; i++) {
        Share *share = launch->shares + (own + i) % launch->share_count;
        while (__atomic_load_n(&share->next, __ATOMIC_RELAXED) < share->end) {
            int task = __atomic_fetch_add(&share->next, 1, __ATOMIC_RELAXED);
            int status = task < share->end ? launch->body(task, &launch->environment, launch->data) : 0;
            if (status) __atomic_store_n(&launch->status, status, __ATOMIC_RELAXED);
        }
    }
}

EXPORT int einsat_parallel_launch(ParallelBody body, void *data, int tasks) {
    int most = openmp.inside() ? 1 : openmp.most();
    int count = tasks > 0 ? tasks : most == 1 ? 1 : CHUNKS * most;
    int threads = most < count ? most : count;
    Share shares[threads];
    Launch launch = {body, data, {0, count}, 0, threads, shares};
    if (threads == 1) {
        for (int task = 0; task < count; task++) {
            int status = body(task, &launch.environment, data);
            if (status) return status;
        }
        return 0;
    }
    for (int64_t i = 0; i < threads; i++) shares[i] = (Share){(int32_t)(count * i / threads), (int32_t)(count * (i + 1) / threads)};
    openmp.parallel(launch_member, &launch, (unsigned)threads, 0);
    return launch.status;
}

/* ------------------------------------------------------------------ steps */

static void copy_axis(const Copy *copy, int axis, const char *source, char *target) {
    int64_t count = copy->shape[axis], from = copy->source_strides[axis], to = copy->target_strides[axis];
    if (axis < copy->rank - 1) {
        for (int64_t i = 0; i < count; i++) copy_axis(copy, axis + 1, source + i * from, target + i * to);
        return;
    }
    int width = copy->element_bytes;
    if (from == width && to == width) {
        memcpy(target, source, (size_t)(count * width));
        return;
    }
#define COPY_LOOP(type) \
    for (int64_t i = 0; i < count; i++) *(type *)(target + i * to) = *(const type *)(source + i * from)
    switch (width) {
        case 1: COPY_LOOP(uint8_t); break;
        case 2: COPY_LOOP(uint16_t); break;
        case 4: COPY_LOOP(uint32_t); break;
        case 8: COPY_LOOP(uint64_t); break;
        default:
            for (int64_t i = 0; i < count; i++) memcpy(target + i * to, source + i * from, (size_t)width);
    }
}

enum { EXPONENT = 0x7f800000, SERIAL_SPLIT = 1 << 14 /* fewer numbers are split before another thread has started */ };

/* The nearest bfloat16, given and returned by the bits of a float. What would round to infinity loses its last bits instead. */
INLINE uint32_t nearest_half(uint32_t bits) {
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    uint32_t cut = (bits & 0xffff0000u) | ((bits & 0x7fffffff) > EXPONENT ? 0x400000 : 0);
    return (rounded & EXPONENT) == EXPONENT || (bits & EXPONENT) == EXPONENT ? cut : rounded;
}

/* x = higher + lower, but for 2^-16 of it. What is no finite number is zero in all blocks but the last one: beside zeros in the other
 * operand's blocks it would become NaN. */
INLINE void split_number(float number, uint16_t *higher, uint16_t *lower, uint16_t *last) {
    union { float number; uint32_t bits; } x = {number}, high = {.bits = nearest_half(x.bits)}, low = {x.number - high.number};
    const int is_finite = (high.bits & EXPONENT) != EXPONENT;
    *last = (uint16_t)(high.bits >> 16);
    *higher = is_finite ? (uint16_t)(high.bits >> 16) : 0;
    *lower = is_finite ? (uint16_t)(nearest_half(low.bits) >> 16) : 0;
}

INLINE void split_row(
    int64_t count, const float *restrict source, uint16_t *restrict higher, uint16_t *restrict lower, uint16_t *restrict last) {
    for (int64_t i = 0; i < count; i++) split_number(source[i], higher + i, lower + i, last + i);
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vl"))) static void split_avx512(
    int64_t count, const float *source, uint16_t *higher, uint16_t *lower, uint16_t *last) {
    split_row(count, source, higher, lower, last);
}

/* Asked once: virtual machines take 10 us to answer. */
static int has_avx512(void) {
    static int known = -1;
    unsigned a, b, c, d, low, high;
    if (__atomic_load_n(&known, __ATOMIC_RELAXED) < 0) {
        int has = __get_cpuid(1, &a, &b, &c, &d) && c >> 27 & 1; /* xgetbv */
        if (has) {
            __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
            has = (low & 0xe6) == 0xe6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 16 & b >> 30 & b >> 31 & 1; /* f, bw, vl */
        }
        __atomic_store_n(&known, has, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(&known, __ATOMIC_RELAXED);
}
#endif

static void split_side_by_side(int64_t count, const float *source, uint16_t *higher, uint16_t *lower, uint16_t *last) {
#if defined(__x86_64__)
    if (has_avx512()) {
        split_avx512(count, source, higher, lower, last);
        return;
    }
#endif
    split_row(count, source, higher, lower, last);
}

static int split_share(int task, const void *environment, void *data) {
    const Split *split = data;
    const int last = split->rank - 1, tasks = ((const Environment *)environment)->num_task;
    int64_t rows = 1;
    for (int axis = 0; axis < last; axis++) rows *= split->shape[axis];
    for (int64_t row = rows * task / tasks; row < rows * (task + 1) / tasks; row++) {
        const float *source = split->source;
        uint16_t *target = split->target;
        for (int64_t axis = last - 1, rest = row; axis >= 0; rest /= split->shape[axis--]) {
            source += rest % split->shape[axis] * split->source_strides[axis];
            target += rest % split->shape[axis] * split->target_strides[axis];
        }
        uint16_t *lower = target + split->lower * split->block, *higher = target + (split->lower == 0) * split->block;
        uint16_t *last_block = target + (TERMS - 1) * split->block;
        const int64_t count = split->shape[last], step = split->source_strides[last], apart = split->target_strides[last];
        if (step == 1 && apart == 1) {
            split_side_by_side(count, source, higher, lower, last_block);
            continue;
        }
        for (int64_t i = 0; i < count; i++, source += step, higher += apart, lower += apart, last_block += apart)
            split_number(*source, higher, lower, last_block);
    }
    return 0;
}

EXPORT int einsat_split(Split *split) {
    int64_t count = 1;
    for (int axis = 0; axis < split->rank; axis++) count *= split->shape[axis];
    return einsat_parallel_launch(split_share, split, count < SERIAL_SPLIT ? 1 : 0);
}

static int run_step(const Program *program, const Step *step) {
    switch (step->kind) {
        case STEP_LIBRARY: return program->execute(step->function, program->stream, step->count, step->arguments);
        case STEP_KERNEL: {
            Value result = {0, 0, 0};
            return ((Kernel)step->function)(0, step->arguments, step->count, &result);
        }
        case STEP_COPY: {
            const Copy *copy = step->arguments;
            copy_axis(copy, 0, copy->source, copy->target);
            return 0;
        }
        case STEP_SEQUENCE: {
            const Step *part = step->arguments, *end = part + step->count;
            for (; part < end; part++) {
                int status = run_step(program, part);
                if (status) return status;
            }
            return 0;
        }
        case STEP_SPLIT: return einsat_split(step->arguments);
        default: return 0;
    }
}

static int run_steps(Program *program, int first, int last) {
    for (int i = first; i < last; i++) {
        int status = run_step(program, program->steps + i);
        if (status) {
            program->failed_step = i;
            return status;
        }
    }
    return 0;
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* ------------------------------------------------------------------ signals */

/* Some of the vendor library's matrix kernels keep data where the stack pointer should be (x64:gemm:jit): a signal that is
 * delivered then writes its frame over the heap. So none is until the run is over; the pool's threads get none at all. */
static void block_signals(sigset_t *before) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t blocked;
    sigfillset(&blocked);
    for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
    sigprocmask(SIG_BLOCK, &blocked, before);
}

static int calls_library(const Program *program) {
    for (int i = 0; i < program->step_count; i++)
        if (program->steps[i].kind == STEP_LIBRARY || program->steps[i].kind == STEP_SEQUENCE) return 1;
    return 0;
}

/* ------------------------------------------------------------------ subnormal numbers */

/* Arithmetic on numbers below 2^-126 takes a hundred times as long on most processors. These bits have them count as zero. */
#if defined(__x86_64__)
enum { FLUSH = 0x8040 }; /* MXCSR: results to zero, operands are zero */
static uint64_t read_control(void) { return __builtin_ia32_stmxcsr(); }
static void write_control(uint64_t control) { __builtin_ia32_ldmxcsr((unsigned)control); }
#elif defined(__aarch64__)
enum { FLUSH = 1 << 24 }; /* FPCR.FZ */
static uint64_t read_control(void) {
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}
static void write_control(uint64_t control) { __asm__ volatile("msr fpcr, %0" : : "r"(control)); }
#else
enum { FLUSH = 0 };
static uint64_t read_control(void) { return 0; }
static void write_control(uint64_t control) { (void)control; }
#endif

/* Have this thread keep subnormal numbers or not; return the state to give to ``einsat_restore``. The pool's threads follow. */
EXPORT uint64_t einsat_subnormals(int32_t keeps) {
    uint64_t control = read_control(), changed = keeps ? control & ~(uint64_t)FLUSH : control | FLUSH;
    if (changed != control) write_control(changed);
    return control;
}

EXPORT void einsat_restore(uint64_t control) { write_control(control); }

typedef struct {
    int most;
    int blocked;
    uint64_t control;
    sigset_t signals;
} Before;

/* The number of threads belongs to the calling thread's OpenMP state, which others in this process may rely on. */
static void enter(const Program *program, Before *before) {
    before->most = openmp.most();
    if (before->most != program->threads) openmp.set_most(program->threads);
    before->control = einsat_subnormals(program->keeps_subnormals);
    before->blocked = calls_library(program);
    if (before->blocked) block_signals(&before->signals);
}

static int leave(const Program *program, const Before *before, int status) {
    if (before->most != program->threads) openmp.set_most(before->most);
    einsat_restore(before->control);
    if (before->blocked) sigprocmask(SIG_SETMASK, &before->signals, 0);
    return status;
}

EXPORT void einsat_bind(Program *program, char **areas) {
    for (int i = 0; i < program->patch_count; i++) {
        const Patch *patch = program->patches + i;
        char *pointer = areas[patch->area] + patch->offset;
        if (patch->kind == PATCH_MEMORY)
            program->set_handle(patch->target, pointer);
        else
            *(void **)patch->target = pointer;
    }
}

/* ------------------------------------------------------------------ beside other work */

/* Where other processes take a core, a team waits at the end of every kernel for the thread that does not get to run. One thread
 * then is often faster, and leaves the rest of the machine alone. Which it is, is measured: while workers come late, now and then
 * a run is done the other way. A thread alone runs all members of a team, so every result is the same, bit for bit. */
enum { WITH_TEAM, HELD, ALONE }; /* as openmp.c has them */
enum {
    LATE_REGIONS = 2,   /* A run with so many late regions is delayed: one may be chance. */
    A_DELAY = 2,        /* A delayed run adds so much to `delays`; one that is not takes one away. */
    BUSY_DELAYS = 6,    /* From here on other work is taken to be there: three delayed runs with little between them. */
    MOST_DELAYS = 12,   /* No more are counted, so that a dozen calm runs suffice to forget them. */
    MEAN_RUNS = 4,      /* A mean rests on about so many runs. */
    FRESH_RUNS = 2,     /* After a pause: the first wakes workers and finds what others left in the caches, the second is a trial. */
};
static const int64_t PAUSE_NS = 10000000; /* What was known of the machine before a longer pause may not hold any more. */
static const int64_t FIRST_TRIAL_NS = 50000000;   /* The first trial is a few runs of most models away. */
static const int64_t LAST_TRIAL_NS = 3000000000;  /* Their distance doubles up to this: of runs of 30 ms, one in a hundred. */

static int is_busy(const Pace *pace) { return pace->delays >= BUSY_DELAYS; }

static int runs_alone(Pace *pace, int64_t now) {
    if (pace->end_ns && now - pace->end_ns > PAUSE_NS) pace->fresh = FRESH_RUNS, pace->interval_ns = pace->mean_ns[0] = 0;
    if (pace->fresh) return 0;
    if (!is_busy(pace)) {
        pace->interval_ns = 0;
        return 0;
    }
    if (!pace->interval_ns) pace->interval_ns = FIRST_TRIAL_NS, pace->next_trial_ns = now + FIRST_TRIAL_NS;
    if (pace->was_calm) return 0;
    int alone = pace->mean_ns[1] <= pace->mean_ns[0]; /* Other work changes the team's time: what one thread took holds until a trial. */
    if (now < pace->next_trial_ns) return alone;
    pace->interval_ns = 2 * pace->interval_ns < LAST_TRIAL_NS ? 2 * pace->interval_ns : LAST_TRIAL_NS;
    pace->next_trial_ns = now + pace->interval_ns;
    return !alone;
}

static void note_run(Pace *pace, int alone, int64_t time_ns, int late) {
    if (pace->fresh && pace->fresh-- == FRESH_RUNS) return;
    int64_t *mean_ns = &pace->mean_ns[alone];
    *mean_ns += *mean_ns ? (time_ns - *mean_ns) / MEAN_RUNS : time_ns;
    pace->was_calm = !alone && late < LATE_REGIONS;
    if (alone) return;
    int delays = pace->delays + (pace->was_calm ? -1 : A_DELAY);
    pace->delays = delays < 0 ? 0 : delays > MOST_DELAYS ? MOST_DELAYS : delays;
}

/* Run steps on the calling thread. Return 0 where one of them was seen for the first time, so that times say nothing. */
static int run_alone(Program *program, int first, int last, int *status) {
    int is_usual = 1;
    for (int i = first; i < last && !*status; i++) {
        Step *step = program->steps + i;
        if (step->runs_alone > 0) openmp.run(ALONE);
        else openmp.run(step->runs_alone ? WITH_TEAM : HELD);
        int shared = openmp.shared();
        *status = run_steps(program, i, i + 1);
        if (!step->runs_alone) step->runs_alone = openmp.shared() == shared ? 1 : -1, is_usual = 0;
    }
    openmp.run(WITH_TEAM);
    return is_usual;
}

EXPORT int einsat_run(Program *program, int first, int last) {
    Before before;
    enter(program, &before);
    if (program->threads == 1 || openmp.inside() || first >= last) return leave(program, &before, run_steps(program, first, last));
    Pace *pace = &program->steps[first].pace;
    int status = 0, late = openmp.late(), is_usual = 1;
    int64_t start_ns = now_ns();
    int alone = runs_alone(pace, start_ns);
    if (alone) is_usual = run_alone(program, first, last, &status);
    else status = run_steps(program, first, last);
    pace->end_ns = now_ns();
    if (is_usual) note_run(pace, alone, pace->end_ns - start_ns, openmp.late() - late);
    return leave(program, &before, status);
}

typedef struct {
    const char *start;
    int64_t share_bytes;
} Filler;

static void read_share(void *argument) {
    const Filler *filler = argument;
    const char *start = filler->start + filler->share_bytes * openmp.thread();
    uint64_t sum = 0;
    for (int64_t i = 0; i < filler->share_bytes; i += 64) sum += *(const volatile uint64_t *)(start + i);
    (void)sum;
}

/* Every thread reads: with a barrier, none can do it for another. */
static void read_filler(void *argument) {
    openmp.barrier();
    read_share(argument);
}

typedef struct {
    char *start;
    int64_t share_bytes;
    int64_t time_ns;
} Passing;

enum { LINE_BYTES = 64 };

static void write_lines(char *start, int64_t size_bytes) {
    for (int64_t i = 0; i < size_bytes; i += LINE_BYTES) *(volatile char *)(start + i) = (char)i;
}

static void pass_lines(void *argument) {
    Passing *passing = argument;
    int thread = openmp.thread(), next = (thread + 1) % openmp.team();
    char *own = passing->start + passing->share_bytes * thread;
    write_lines(own, passing->share_bytes);
    openmp.barrier();
    Filler other = {passing->start + passing->share_bytes * (next - thread), passing->share_bytes};
    read_share(&other);
    openmp.barrier();
    int64_t start = now_ns();
    write_lines(own, passing->share_bytes);
    openmp.barrier();
    if (thread == 0) passing->time_ns = now_ns() - start;
}

/* Nanoseconds that every thread takes to write its share of memory anew after the next thread has read it. */
EXPORT int64_t einsat_pass(char *start, int64_t share_bytes, int32_t threads) {
    Passing passing = {start, share_bytes, 0};
    openmp.parallel(pass_lines, &passing, (unsigned)threads, 0);
    return passing.time_ns;
}

/* Write a stretch of memory back and drop its lines from every cache. Where no instruction for that is known it returns 0. */
EXPORT int einsat_flush(const char *start, int64_t size_bytes) {
#if defined(__x86_64__)
    for (int64_t i = 0; i < size_bytes; i += 64) __asm__ volatile("clflush %0" : : "m"(start[i]));
    __asm__ volatile("mfence" : : : "memory");
    return 1;
#elif defined(__aarch64__)
    for (int64_t i = 0; i < size_bytes; i += 64) __asm__ volatile("dc civac, %0" : : "r"(start + i) : "memory");
    __asm__ volatile("dsb sy" : : : "memory");
    return 1;
#else
    (void)start, (void)size_bytes;
    return 0;
#endif
}

/* With a filler (its share of bytes for every thread) each run finds its operands outside the cores' own caches, as a
 * kernel does whose operands other kernels wrote. Without (null), what fits into them stays there from run to run. */
EXPORT int einsat_time(Program *program, int64_t count, int64_t *times_ns, const char *filler, int64_t share_bytes) {
    int status = 0;
    Before before;
    enter(program, &before);
    Filler reading = {filler, share_bytes};
    for (int64_t i = 0; i < count && !status; i++) {
        if (filler) openmp.parallel(read_filler, &reading, (unsigned)program->threads, 0);
        int64_t start = now_ns();
        status = run_steps(program, 0, program->step_count);
        times_ns[i] = now_ns() - start;
    }
    return leave(program, &before, status);
}

/* One time a step and run: times_ns[run * step_count + step]. */
EXPORT int einsat_profile(Program *program, int64_t count, int64_t *times_ns) {
    int status = 0;
    Before before;
    enter(program, &before);
    for (int64_t i = 0; i < count && !status; i++)
        for (int step = 0; step < program->step_count && !status; step++) {
            int64_t start = now_ns();
            status = run_steps(program, step, step + 1);
            *times_ns++ = now_ns() - start;
        }
    return leave(program, &before, status);
}
