/* LSTM, GRU and RNN: the fold along time over products of the inputs with their weights, which are computed before it.
 *
 * Arguments: products [t, b, d * G * H], weights [d, panel, H, G, UNITS], the initial states [d, b, H], then the initial cells [d, b, H]
 * (LSTM) or what is added before a GRU's reset gate scales [d, H], the result [t, d, b, H]; then integers: kind, direction, whether the
 * last cells stand behind the last states. Weights lie side by side, and so does the last axis of all others.
 *
 * A panel computes all gates of its units in registers, and then the units. Every other step takes the panels from the last to the
 * first, so that it finds in the caches what the step before read last. Threads take directions and rows of the batch of their own;
 * where these are too few and a step is long, they share its panels.
 *
 * The file is included once for each set of vector instructions. */
#include "../kernel.h"
#ifndef LANES
#include <sched.h>

#define UNITS 16                   /* units of one panel */
#define MOST_ROWS 6                /* rows of the batch in one block of registers, at most */
#define ROWS (LANES == 16 ? 6 : 2) /* that the registers hold */
#define MOST_SHARES 32             /* threads that share a step, at most */
#define SERIAL_OPERATIONS 100000.0 /* less than this is done before another thread has started */
#define STEP_OPERATIONS 30000.0    /* of one step, from which on threads share it: two of them meet in a third of its time */
#define SHARED_OPERATIONS 2e6      /* of all steps that are shared: calling a thread that does not come costs a twentieth of them */
#define PATIENT_PAUSES 32          /* before a panel is taken from a thread that is there: its weights are in that thread's cache */
#define SPINNING_PAUSES 4096       /* before the processor is offered to others, as the thread that is waited for may need it */

enum { LSTM, GRU, GRU_LINEAR, RNN_TANH, RNN_RELU };
enum { FORWARD, REVERSE, BIDIRECTIONAL };

/* The panels that a thread computes in every stage, one step or a phase of it. Whoever waits for them takes those that nobody has begun,
 * so that a thread which does not run keeps nobody waiting for more than the panel that it is in. */
typedef struct {
    _Alignas(64) int64_t begun; /* panels, of all stages together */
    int is_attended;            /* whether its own thread began the last one */
    _Alignas(64) int64_t done;  /* panels, likewise */
} Share;

typedef struct Problem {
    const Tensor *products, *weights, *hidden, *other, *out;
    int kind, direction, is_shared;
    int64_t steps, directions, batch, units, panels, gates, width; /* width: units with what fills the last panel */
    float *states[2], *cells, *resets;                             /* [d][b][width]; the states of even and of odd steps */
    Share *shares;
    void (*compute)(const struct Problem *problem, int64_t step, int phase, int64_t direction, int64_t panel, int64_t row, int64_t last);
} Problem;

static int64_t time_of(const Problem *problem, int64_t step, int64_t direction) {
    return problem->direction == REVERSE || direction == 1 ? problem->steps - 1 - step : step;
}

#define KERNEL "recurrence/recurrence.c"
#include "../instruction_sets.h"

static int phases(const Problem *problem) { return problem->kind == GRU ? 2 : 1; }

static int64_t forth_and_back(int64_t position, int64_t count, int64_t step) { return step & 1 ? count - 1 - position : position; }

/* All steps of some rows of one direction: nobody else needs them. */
static void fold_rows(const Problem *problem, int64_t task, int64_t tasks, int64_t threads) {
    const int64_t wanted = (threads + problem->directions - 1) / problem->directions;
    const int64_t groups = wanted < problem->batch ? wanted : problem->batch, items = problem->directions * groups;
    for (int64_t item = items * task / tasks; item < items * (task + 1) / tasks; item++) {
        const int64_t group = item % groups, first = problem->batch * group / groups, last = problem->batch * (group + 1) / groups;
        for (int64_t step = 0; step < problem->steps; step++)
            for (int phase = 0; phase < phases(problem); phase++)
                for (int64_t i = 0; i < problem->panels; i++)
                    problem->compute(problem, step, phase, item / groups, forth_and_back(i, problem->panels, step), first, last);
    }
}

static void pause_for(int pauses) {
    if (pauses % SPINNING_PAUSES == SPINNING_PAUSES - 1) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Compute the next panel of a share that nobody has begun in a stage; return 0 where there is none. */
static int take_panel(const Problem *problem, int64_t number, int64_t shares, int64_t stage, int is_attended) {
    const int64_t items = problem->directions * problem->panels, first = items * number / shares, size = items * (number + 1) / shares - first;
    Share *share = problem->shares + number;
    int64_t next = __atomic_load_n(&share->begun, __ATOMIC_RELAXED);
    do {
        if (next >= (stage + 1) * size) return 0;
    } while (!__atomic_compare_exchange_n(&share->begun, &next, next + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    __atomic_store_n(&share->is_attended, is_attended, __ATOMIC_RELAXED);
    const int64_t step = stage / phases(problem), item = first + forth_and_back(next - stage * size, size, step);
    problem->compute(problem, step, (int)(stage % phases(problem)), item / problem->panels, item % problem->panels, 0, problem->batch);
    __atomic_fetch_add(&share->done, 1, __ATOMIC_RELEASE);
    return 1;
}

/* All steps, of each of them one thread's share and what others have not begun. A thread may come at any time, or never. */
static void fold_share(const Problem *problem, int64_t own, int64_t shares) {
    const int64_t items = problem->directions * problem->panels, stages = problem->steps * phases(problem);
    for (int64_t stage = 0; stage < stages; stage++) {
        while (take_panel(problem, own, shares, stage, 1)) continue;
        for (int64_t i = 0; i < shares; i++) {
            const int64_t number = (own + i) % shares, size = items * (number + 1) / shares - items * number / shares;
            const Share *share = problem->shares + number;
            for (int pauses = 0; __atomic_load_n(&share->done, __ATOMIC_ACQUIRE) < (stage + 1) * size; pauses++) {
                const int is_ours = pauses >= PATIENT_PAUSES || !__atomic_load_n(&share->is_attended, __ATOMIC_RELAXED);
                if (!is_ours || !take_panel(problem, number, shares, stage, 0)) pause_for(pauses);
            }
        }
    }
}

static int work(int task, const Environment *environment, void *data) {
    const Problem *problem = data;
    const int64_t tasks = environment->num_task, threads = (tasks + TASKS_PER_THREAD - 1) / TASKS_PER_THREAD;
    if (!problem->is_shared || threads <= problem->directions) fold_rows(problem, task, tasks, threads);
    else if (task % TASKS_PER_THREAD == 0 && task / TASKS_PER_THREAD < MOST_SHARES)
        fold_share(problem, task / TASKS_PER_THREAD, threads < MOST_SHARES ? threads : MOST_SHARES);
    return 0;
}

static int fold(Problem *problem) {
    const double step_operations =
        2.0 * (double)problem->directions * (double)problem->batch * (double)problem->gates * (double)problem->units * (double)problem->units;
    Share shares[MOST_SHARES];
    problem->is_shared = step_operations >= STEP_OPERATIONS && step_operations * (double)problem->steps >= SHARED_OPERATIONS;
    if (problem->is_shared) memset(problem->shares = shares, 0, sizeof shares);
    const int is_divisible = problem->is_shared || problem->directions * problem->batch > 1;
    if (__TVMBackendParallelLaunch && is_divisible && step_operations * (double)problem->steps > SERIAL_OPERATIONS)
        return __TVMBackendParallelLaunch(work, problem, 0);
    const Environment alone = {0, 1};
    return work(0, &alone, problem);
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
    problem.compute = FOR_PROCESSOR(compute);
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

/* The first numbers of a vector, zero behind them. */
TARGETED INLINE Vector NAME(some)(const float *pointer, int64_t count) {
    if (count >= LANES) return LOAD(pointer);
    Vector result = NAME(all)(0.0f);
    memcpy(&result, pointer, (size_t)count * sizeof(float));
    return result;
}

/* sums[r][g] = sum over i of states[r][i] * weights[i][first + g]: gates of LANES units for a few rows. Where these are few sums, each
 * is computed in parts, as one addition to it waits for the one before. */
TARGETED INLINE void NAME(gates_of)(const float *weights, int64_t units, const float *states, int64_t pitch, Vector sums[MOST_ROWS][4],
                                    const int all, const int first, const int gates, const int rows) {
    const int split = rows * gates < 4 ? 4 : rows * gates < 8 ? 2 : 1;
    Vector parts[2 * MOST_ROWS][4];
    for (int r = 0; r < rows * split; r++)
        for (int g = 0; g < gates; g++) parts[r][g] = NAME(all)(0.0f);
    weights += first * UNITS;
    int64_t i = 0;
    for (; i + split <= units; i += split)
        for (int part = 0; part < split; part++) {
            Vector read[4];
            for (int g = 0; g < gates; g++) read[g] = LOAD(weights + ((i + part) * all + g) * UNITS);
            for (int r = 0; r < rows; r++) {
                const Vector state = NAME(all)(states[r * pitch + i + part]);
                for (int g = 0; g < gates; g++) parts[r * split + part][g] += state * read[g];
            }
        }
    for (; i < units; i++)
        for (int r = 0; r < rows; r++)
            for (int g = 0; g < gates; g++) parts[r * split][g] += NAME(all)(states[r * pitch + i]) * LOAD(weights + (i * all + g) * UNITS);
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < gates; g++) {
            for (int part = 1; part < split; part++) parts[r * split][g] += parts[r * split + part][g];
            sums[r][g] = parts[r * split][g];
        }
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
#endif
