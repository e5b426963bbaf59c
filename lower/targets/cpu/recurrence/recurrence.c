/* LSTM, GRU and RNN: the fold along time over products of the inputs with their weights, which are computed before it.
 *
 * Arguments: products [t, b, d * G * H], weights [d, panel, H, G, UNITS], the initial states [d, b, H], then the initial cells [d, b, H]
 * (LSTM) or what is added before a GRU's reset gate scales [d, H], the result [t, d, b, H]; then integers: kind, direction, whether the
 * last cells stand behind the last states. Weights lie side by side, and so does the last axis of all others.
 *
 * A panel computes all gates of its units in registers, and then the units. Threads share the panels of each step where that is worth
 * two of them meeting; else each takes directions and rows of the batch of its own.
 *
 * The file includes itself once for each set of vector instructions. */
#ifndef LANES
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define UNITS 16                   /* units of one panel */
#define MOST_ROWS 6                /* rows of the batch in one block of registers, at most */
#define SERIAL_OPERATIONS 100000.0 /* less than this is done before another thread has started */
#define STEP_OPERATIONS 200000.0   /* of one step, from which on threads share it */
#define TASKS_PER_THREAD 4         /* as the dispatcher divides what it launches */
#define TRIAL_STEPS 64             /* after so many it is tried again whether sharing is worth it: others may need the cores */

enum { LSTM, GRU, GRU_LINEAR, RNN_TANH, RNN_RELU };
enum { FORWARD, REVERSE, BIDIRECTIONAL };

typedef struct {
    void *data;
    int32_t device[2], rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset_bytes;
} Tensor;

typedef struct {
    int32_t type;
    uint32_t zero;
    union {
        Tensor *tensor;
        int64_t integer;
    };
} Value;

typedef struct Problem {
    const Tensor *products, *weights, *hidden, *other, *out;
    int kind, direction;
    int64_t steps, directions, batch, units, panels, gates, width; /* width: units with what fills the last panel */
    float *states[2], *cells, *resets;                             /* [d][b][width]; the states of even and of odd steps */
    int64_t step, groups;                                          /* groups: of rows of the batch */
    int phase, tasks;
    void (*compute)(const struct Problem *problem, int64_t step, int phase, int64_t direction, int64_t panel, int64_t row, int64_t last);
} Problem;

typedef struct {
    void *sync_handle;
    int32_t num_task;
} Environment;

/* Filled by whoever loads the library. */
EXPORT int (*__TVMBackendParallelLaunch)(int (*body)(int, const Environment *, void *), void *data, int tasks) = 0;

static int64_t time_of(const Problem *problem, int64_t step, int64_t direction) {
    return problem->direction == REVERSE || direction == 1 ? problem->steps - 1 - step : step;
}

#if defined(__x86_64__)
#define LANES 16
#define ROWS 6
#define NAME(name) name##_avx512
#define TARGETED __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")))
#include __FILE__
#undef LANES
#undef ROWS
#undef NAME
#undef TARGETED
#define LANES 8
#define ROWS 2
#define NAME(name) name##_avx2
#define TARGETED __attribute__((target("avx2,fma")))
#include __FILE__
#undef LANES
#undef ROWS
#undef NAME
#undef TARGETED
#endif
#define LANES 4
#define ROWS 2
#define NAME(name) name##_plain
#define TARGETED
#include __FILE__

#if defined(__x86_64__)
#include <cpuid.h>
static int has_wide_vectors(int *has_512) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1) || !(c >> 12 & 1)) return 0; /* xgetbv, fma */
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b >> 5 & 1)) return 0;
    *has_512 = (low & 0xe6) == 0xe6 && (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1); /* f, dq, bw, vl */
    return 1;
}
#endif

static void choose(Problem *problem) {
    problem->compute = compute_plain;
#if defined(__x86_64__)
    static int has_wide = -1, has_512 = 0; /* asked once: virtual machines take 10 us to answer */
    if (__atomic_load_n(&has_wide, __ATOMIC_ACQUIRE) < 0) {
        int wide = has_wide_vectors(&has_512);
        __atomic_store_n(&has_wide, wide, __ATOMIC_RELEASE);
    }
    if (__atomic_load_n(&has_wide, __ATOMIC_ACQUIRE)) problem->compute = has_512 ? compute_avx512 : compute_avx2;
#endif
}

static int phases(const Problem *problem) { return problem->kind == GRU ? 2 : 1; }

static int count_tasks(int task, const Environment *environment, void *data) {
    if (task == 0) ((Problem *)data)->tasks = environment->num_task;
    return 0;
}

/* One thread's panels of a step. */
static int share_step(int task, const Environment *environment, void *data) {
    const Problem *problem = data;
    const int64_t items = problem->directions * problem->panels, tasks = environment->num_task;
    for (int64_t item = items * task / tasks; item < items * (task + 1) / tasks; item++)
        problem->compute(problem, problem->step, problem->phase, item / problem->panels, item % problem->panels, 0, problem->batch);
    return 0;
}

/* All steps of some rows of one direction: nobody else needs them. */
static int fold_rows(int task, const Environment *environment, void *data) {
    const Problem *problem = data;
    const int64_t groups = problem->groups, items = problem->directions * groups, tasks = environment->num_task;
    for (int64_t item = items * task / tasks; item < items * (task + 1) / tasks; item++) {
        const int64_t group = item % groups, first = problem->batch * group / groups, last = problem->batch * (group + 1) / groups;
        for (int64_t step = 0; step < problem->steps; step++)
            for (int phase = 0; phase < phases(problem); phase++)
                for (int64_t panel = 0; panel < problem->panels; panel++)
                    problem->compute(problem, step, phase, item / groups, panel, first, last);
    }
    return 0;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int take_step(Problem *problem, int is_shared) {
    const Environment alone = {0, 1};
    for (problem->phase = 0; problem->phase < phases(problem); problem->phase++) {
        int status = is_shared ? __TVMBackendParallelLaunch(share_step, problem, 0) : share_step(0, &alone, problem);
        if (status) return status;
    }
    return 0;
}

/* All steps, each shared by the threads where that takes less time: two that are shared and two that are not are tried first, the second
 * of each is timed. Both ways compute the same numbers. */
static int fold_together(Problem *problem) {
    int64_t shared_ns = 0, alone_ns = 0;
    for (problem->step = 0; problem->step < problem->steps; problem->step++) {
        const int64_t trial = problem->step % TRIAL_STEPS, start_ns = now_ns();
        int status = take_step(problem, trial < 2 || (trial >= 4 && shared_ns <= alone_ns));
        if (status) return status;
        if (trial == 1) shared_ns = now_ns() - start_ns;
        if (trial == 3) alone_ns = now_ns() - start_ns;
    }
    return 0;
}

static int fold(Problem *problem) {
    const double step_operations =
        2.0 * (double)problem->directions * (double)problem->batch * (double)problem->gates * (double)problem->units * (double)problem->units;
    problem->groups = 1;
    problem->tasks = 1;
    if (__TVMBackendParallelLaunch && step_operations * (double)problem->steps > SERIAL_OPERATIONS) {
        int status = __TVMBackendParallelLaunch(count_tasks, problem, 0);
        if (status) return status;
    }
    const int64_t threads = (problem->tasks + TASKS_PER_THREAD - 1) / TASKS_PER_THREAD;
    if (threads > 1 && step_operations >= STEP_OPERATIONS && problem->directions < threads) return fold_together(problem);
    const int64_t wanted = (threads + problem->directions - 1) / problem->directions;
    problem->groups = wanted < problem->batch ? wanted : problem->batch;
    const int items = (int)(problem->directions * problem->groups);
    if (threads > 1 && items > 1) return __TVMBackendParallelLaunch(fold_rows, problem, items);
    Environment alone = {0, 1};
    return fold_rows(0, &alone, problem);
}

/* Copy states [d, b, H] to rows of whole panels, or back. */
static void move_states(const Problem *problem, const Tensor *tensor, int64_t offset, float *rows, int is_back) {
    const int64_t *strides = tensor->strides + tensor->rank - 3;
    for (int64_t d = 0; d < problem->directions; d++)
        for (int64_t b = 0; b < problem->batch; b++) {
            float *outside = (float *)tensor->data + offset + d * strides[0] + b * strides[1];
            float *inside = rows + (d * problem->batch + b) * problem->width;
            memcpy(is_back ? outside : inside, is_back ? inside : outside, (size_t)problem->units * sizeof(float));
        }
}

EXPORT int recurrence(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    if (count < 7) return 2;
    const Value *integers = arguments + count - 3;
    Problem problem = {.products = arguments[0].tensor, .weights = arguments[1].tensor, .hidden = arguments[2].tensor};
    problem.kind = (int)integers[0].integer, problem.direction = (int)integers[1].integer;
    const int keeps_cell = (int)integers[2].integer, has_other = problem.kind <= GRU_LINEAR;
    if (count != 7 + has_other) return 3;
    if (has_other) problem.other = arguments[3].tensor;
    problem.out = arguments[3 + has_other].tensor;
    problem.steps = problem.products->shape[0], problem.batch = problem.products->shape[1];
    problem.directions = problem.hidden->shape[0], problem.units = problem.hidden->shape[2];
    problem.panels = problem.weights->shape[1], problem.gates = problem.weights->shape[3];
    problem.width = problem.panels * UNITS;
    choose(&problem);
    const int64_t size = problem.directions * problem.batch * problem.width;
    float *memory = 0;
    if (posix_memalign((void **)&memory, 64, (size_t)(4 * size) * sizeof(float))) return 4;
    memset(memory, 0, (size_t)(4 * size) * sizeof(float));
    problem.states[0] = memory, problem.states[1] = memory + size, problem.cells = memory + 2 * size, problem.resets = memory + 3 * size;
    move_states(&problem, problem.hidden, 0, problem.states[0], 0);
    if (problem.kind == LSTM) move_states(&problem, problem.other, 0, problem.cells, 0);
    int status = fold(&problem);
    if (!status && keeps_cell) move_states(&problem, problem.out, problem.steps * problem.out->strides[0], problem.cells, 1);
    free(memory);
    return status;
}

#else /* ------------------------------------------------------------------ once for each set of instructions */

typedef float NAME(Vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(Bits) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define Vector NAME(Vector)
#define Bits NAME(Bits)
#define LOAD(pointer) (*(const Vector *)(pointer))
#define STORE(pointer, value) (*(Vector *)(pointer) = (value))

TARGETED INLINE Vector NAME(all)(float value) {
    Vector result;
    for (int i = 0; i < LANES; i++) result[i] = value;
    return result;
}

TARGETED INLINE Vector NAME(where)(Bits condition, Vector yes, Vector no) {
    return (Vector)((condition & (Bits)yes) | (~condition & (Bits)no));
}

/* The first numbers of a vector, zero behind them. */
TARGETED INLINE Vector NAME(some)(const float *pointer, int64_t count) {
    if (count >= LANES) return LOAD(pointer);
    Vector result = NAME(all)(0.0f);
    memcpy(&result, pointer, (size_t)count * sizeof(float));
    return result;
}

/* 1 / (1 + e^-x) to 4 ulp, from 0 at minus infinity to 1 at infinity; no number where x is none. */
TARGETED INLINE Vector NAME(logistic)(Vector x) {
    const Vector low = NAME(all)(-87.33654f), magic = NAME(all)(12582912.0f);
    Bits positive = (Bits)(x > 0.0f);
    Vector down = NAME(where)(positive, -x, x);
    Bits tiny = (Bits)(down < low);
    Vector clipped = NAME(where)(tiny, low, down);
    Vector shifted = clipped * 1.44269504f + magic, whole = shifted - magic;
    Vector rest = clipped - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    Vector sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * (rest * rest) + rest + 1.0f;
    Vector power = sum * (Vector)(((Bits)shifted << 23) + 0x3f800000); /* e^-|x| */
    power = NAME(where)(tiny, NAME(all)(0.0f), power);
    return NAME(where)(positive, NAME(all)(1.0f), power) / (power + 1.0f);
}

/* tanh x to 8 ulp by a quotient of polynomials, and no number where x is none. */
TARGETED INLINE Vector NAME(hyperbolic)(Vector x) {
    const Vector most = NAME(all)(7.99881172f), least = NAME(all)(-7.99881172f);
    x = NAME(where)((Bits)(x > most), most, x);
    x = NAME(where)((Bits)(x < least), least, x);
    Vector square = x * x;
    Vector top = square * -2.76076847742355e-16f + 2.00018790482477e-13f;
    top = top * square - 8.60467152213735e-11f;
    top = top * square + 5.12229709037114e-08f;
    top = top * square + 1.48572235717979e-05f;
    top = top * square + 6.37261928875436e-04f;
    top = top * square + 4.89352455891786e-03f;
    Vector bottom = square * 1.19825839466702e-06f + 1.18534705686654e-04f;
    bottom = bottom * square + 2.26843463243900e-03f;
    bottom = bottom * square + 4.89352518554385e-03f;
    return x * top / bottom;
}

/* sums[r][g] = sum over i of states[r][i] * weights[i][first + g]: gates of LANES units for a few rows; of one row in two halves. */
TARGETED INLINE void NAME(gates_of)(const float *weights, int64_t units, const float *states, int64_t pitch, Vector sums[MOST_ROWS][4],
                                    const int all, const int first, const int gates, const int rows) {
    const int halves = rows == 1 ? 2 : 1;
    Vector parts[2 * MOST_ROWS][4];
    for (int r = 0; r < rows * halves; r++)
        for (int g = 0; g < gates; g++) parts[r][g] = NAME(all)(0.0f);
    weights += first * UNITS;
    int64_t i = 0;
    for (; i + halves <= units; i += halves)
        for (int half = 0; half < halves; half++) {
            Vector read[4];
            for (int g = 0; g < gates; g++) read[g] = LOAD(weights + ((i + half) * all + g) * UNITS);
            for (int r = 0; r < rows; r++) {
                const Vector state = NAME(all)(states[r * pitch + i + half]);
                for (int g = 0; g < gates; g++) parts[r * halves + half][g] += state * read[g];
            }
        }
    for (; i < units; i++)
        for (int g = 0; g < gates; g++) parts[0][g] += NAME(all)(states[i]) * LOAD(weights + (i * all + g) * UNITS);
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < gates; g++) sums[r][g] = halves == 2 ? parts[0][g] + parts[1][g] : parts[r][g];
}

#define BY_ROWS(rows, ...) \
    switch (rows) { \
        case 1: NAME(gates_of)(__VA_ARGS__, 1); break; \
        case 2: NAME(gates_of)(__VA_ARGS__, 2); break; \
        case 3: NAME(gates_of)(__VA_ARGS__, ROWS < 3 ? ROWS : 3); break; \
        case 4: NAME(gates_of)(__VA_ARGS__, ROWS < 4 ? ROWS : 4); break; \
        case 5: NAME(gates_of)(__VA_ARGS__, ROWS < 5 ? ROWS : 5); break; \
        default: NAME(gates_of)(__VA_ARGS__, ROWS); \
    }

TARGETED static void NAME(compute)(const Problem *problem, int64_t step, int phase, int64_t direction, int64_t panel, int64_t row,
                                   int64_t last) {
    const int64_t units = problem->units, width = problem->width, all = problem->gates, t = time_of(problem, step, direction);
    const int64_t *in = problem->products->strides, *to = problem->out->strides;
    const float *products = (const float *)problem->products->data + t * in[0] + direction * all * units;
    float *out = (float *)problem->out->data + t * to[0] + direction * to[1];
    const float *weights = (const float *)problem->weights->data + (direction * problem->panels + panel) * units * all * UNITS;
    const int64_t base = direction * problem->batch * width;
    const float *states = problem->states[step & 1] + base;
    float *next = problem->states[(step + 1) & 1] + base, *cells = problem->cells + base, *resets = problem->resets + base;
    const int kind = problem->kind;
    for (int64_t unit = panel * UNITS; unit < (panel + 1) * UNITS && unit < units; unit += LANES) {
        const float *columns = weights + unit % UNITS;
        const int64_t left = units - unit;
        const float *bias = kind == GRU || kind == GRU_LINEAR ? (const float *)problem->other->data + direction * problem->other->strides[0] : 0;
        for (int64_t b = row; b < last; b += ROWS) {
            const int rows = (int)(last - b < ROWS ? last - b : ROWS);
            Vector sums[MOST_ROWS][4];
            const float *read = states + b * width;
            if (kind == LSTM) {
                BY_ROWS(rows, columns, units, read, width, sums, 4, 0, 4)
            } else if (kind == GRU_LINEAR) {
                BY_ROWS(rows, columns, units, read, width, sums, 3, 0, 3)
            } else if (kind == GRU && phase == 0) {
                BY_ROWS(rows, columns, units, read, width, sums, 3, 0, 2)
            } else if (kind == GRU) {
                BY_ROWS(rows, columns, units, resets + b * width, width, sums, 3, 2, 1)
            } else {
                BY_ROWS(rows, columns, units, read, width, sums, 1, 0, 1)
            }
            for (int r = 0; r < rows; r++) {
                const float *given = products + (b + r) * in[1] + unit;
                const int64_t at = (b + r) * width + unit;
                Vector state;
#define GIVEN(gate) NAME(some)(given + (gate) * units, left)
                if (kind == LSTM) {
                    const Vector input = NAME(logistic)(sums[r][0] + GIVEN(0)), forget = NAME(logistic)(sums[r][2] + GIVEN(2));
                    const Vector cell = forget * LOAD(cells + at) + input * NAME(hyperbolic)(sums[r][3] + GIVEN(3));
                    STORE(cells + at, cell);
                    state = NAME(logistic)(sums[r][1] + GIVEN(1)) * NAME(hyperbolic)(cell);
                } else if (kind == GRU && phase == 0) {
                    STORE(next + at, NAME(logistic)(sums[r][0] + GIVEN(0))); /* until the other phase, which needs it there alone */
                    STORE(resets + at, NAME(logistic)(sums[r][1] + GIVEN(1)) * LOAD(states + at));
                    continue;
                } else if (kind == GRU || kind == GRU_LINEAR) {
                    Vector update, fresh;
                    if (kind == GRU) {
                        update = LOAD(next + at);
                        fresh = NAME(hyperbolic)(sums[r][0] + GIVEN(2) + NAME(some)(bias + unit, left));
                    } else {
                        update = NAME(logistic)(sums[r][0] + GIVEN(0));
                        const Vector reset = NAME(logistic)(sums[r][1] + GIVEN(1));
                        fresh = NAME(hyperbolic)(reset * (sums[r][2] + NAME(some)(bias + unit, left)) + GIVEN(2));
                    }
                    state = (1.0f - update) * fresh + update * LOAD(states + at);
                } else {
                    state = sums[r][0] + GIVEN(0);
                    state = kind == RNN_TANH ? NAME(hyperbolic)(state) : NAME(where)((Bits)(state < 0.0f), NAME(all)(0.0f), state);
                }
#undef GIVEN
                STORE(next + at, state);
                float *written = out + (b + r) * to[2] + unit;
                if (left >= LANES) STORE(written, state);
                else memcpy(written, &state, (size_t)left * sizeof(float));
            }
        }
    }
}
#undef Vector
#undef Bits
#undef LOAD
#undef STORE
#undef BY_ROWS
#endif
