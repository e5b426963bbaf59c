/* Products x W with what follows them, a few rows by a few vectors of columns at once: sums stay in registers, and what follows is
 * computed while they are in the first cache. So is a convolution of each channel of the result on its own, which then reads no memory.
 *
 * ``product``. Arguments: x [rows.., K], factors of its elements [rows.., K] (only with ``scaled``), W [K, N], operands of the steps
 * [rows.., N], the result [rows.., N]; then integers: ``scaled``, and for each step its kind and the bits of two numbers. All tensors but
 * W have the same axes of rows, with any strides, zero where they repeat; elements along the last axis lie side by side, or an operand
 * repeats.
 *
 * ``product_and_windows``. Arguments: x [n, h, w, K], W [K, N], operands of the product's steps [n, h, w, N], taps [N, 1, th, tw], operands
 * of the steps after the convolution [n, h', w', N], the result [n, h', w', N]; then integers: strides, paddings before, dilations, how many
 * steps the product has, and all steps.
 *
 * The file is included once for each set of vector instructions. */
#include "../kernel.h"
#ifndef LANES
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define VECTORS 2                        /* columns of a block of registers, in vectors */
#define ROWS (LANES == 16 ? 12 : 6)      /* its rows: it takes most of the registers there are */
#define MOST_ROWS 12
#define MOST_LANES 16
#define MOST_STEPS 8
#define MOST_TAPS 16
#define MOST_AXES 8
#define CHUNK_BYTES (1 << 18)            /* of rows of x that are read again for each block of columns */
#define LEAST_ROWS 24                    /* rows of a share: with fewer, reading W takes longer than computing */
#define PIXELS (LANES == 16 ? 8 : 4)     /* positions of a window whose sums are in registers at once */
#define MOST_PIXELS 8
#define AHEAD 48                         /* rows of W that are asked for before they are read */
#define TWICE 8                          /* rows of which one at most may be computed twice */
#define SERIAL_OPERATIONS 200000.0       /* less than this is done before another thread has started */

enum { ADD, SUBTRACT, MULTIPLY, RELU, CLIP, LOGISTIC, SWISH, HARD_LOGISTIC, HARD_SWISH };

/* The place of each row of a tensor; without ``even``, rows have no common distance. */
typedef struct {
    const Tensor *tensor;
    float *data;
    int axes, even;
    int64_t distance;
} Rows;

typedef struct {
    int kind;
    float first, second;
    Rows operand;
    int64_t along; /* the operand's distance between columns, 0 or 1 */
} Step;

/* A convolution of each channel on its own, of an image of ``height`` rows of ``width`` positions. */
typedef struct {
    const Tensor *taps, *out;
    int64_t height, width, strides[2], before[2], dilations[2];
} Windows;

typedef struct Problem {
    Rows x, factors, out;
    const float *weights;
    int scaled, step_count;
    Step steps[MOST_STEPS];
    int64_t rows, inputs, columns, pitch, across; /* from a row of W to the next, and from a column */
    int (*compute)(const struct Problem *problem, int64_t first, int64_t last, int64_t column, int64_t end);
    int lanes;
    Windows windows;
    int later_count;
    Step later[MOST_STEPS]; /* after the convolution */
} Problem;

static Rows rows_of(const Tensor *tensor, int axes) {
    Rows rows = {.tensor = tensor, .data = tensor->data, .axes = axes, .even = 1};
    int64_t next = -1;
    for (int axis = axes - 1; axis >= 0; axis--) {
        if (tensor->shape[axis] == 1) continue;
        if (next < 0) rows.distance = tensor->strides[axis];
        else if (tensor->strides[axis] != next) rows.even = 0;
        next = tensor->strides[axis] * tensor->shape[axis];
    }
    return rows;
}

static float *row_of(const Rows *rows, int64_t row) {
    if (rows->even) return rows->data + row * rows->distance;
    int64_t offset = 0;
    for (int axis = rows->axes - 1; axis >= 0; axis--) {
        offset += row % rows->tensor->shape[axis] * rows->tensor->strides[axis];
        row /= rows->tensor->shape[axis];
    }
    return rows->data + offset;
}

/* Rows of the product that windows of one row look at, and their positions with padding. */
static int64_t slots_of(const Windows *windows) { return (windows->taps->shape[2] - 1) * windows->dilations[0] + 1; }

static int64_t length_of(const Windows *windows) {
    const int64_t read = (windows->out->shape[2] - 1) * windows->strides[1] + (windows->taps->shape[3] - 1) * windows->dilations[1] + 1;
    const int64_t made = windows->before[1] + windows->width;
    return read > made ? read : made;
}

#define KERNEL "products/products.c"
#include "../instruction_sets.h"

/* The grid of shares: of rows, unless that leaves too few to each, or rather of columns where W is larger than x. */
static int work(int task, const Environment *environment, void *data) {
    const Problem *problem = data;
    const int64_t tasks = environment->num_task, vectors = (problem->columns + problem->lanes - 1) / problem->lanes;
    int64_t across = 1, down;
    if (problem->columns > problem->rows) across = vectors < tasks ? vectors : tasks;
    else
        while (across * 2 <= tasks && across * 2 <= vectors && problem->rows * across < LEAST_ROWS * tasks) across *= 2;
    down = tasks / across;
    if (down > problem->rows) down = problem->rows;
    if (task >= across * down) return 0;
    const int by_columns = problem->columns > problem->rows;
    const int64_t row = by_columns ? task % down : task / across, column = by_columns ? task / down : task % across;
    const int64_t end = vectors * (column + 1) / across * problem->lanes;
    return problem->compute(
        problem, problem->rows * row / down, problem->rows * (row + 1) / down, vectors * column / across * problem->lanes,
        end < problem->columns ? end : problem->columns);
}

/* Read steps and their operands, from argument ``at`` on; return the argument after these. */
static int read_steps(Step *steps, int count, const Value *codes, const Value *arguments, int at, int axes) {
    for (int step = 0; step < count; step++) {
        Step *one = steps + step;
        const uint32_t bits[2] = {(uint32_t)codes[3 * step + 1].integer, (uint32_t)codes[3 * step + 2].integer};
        one->kind = (int)codes[3 * step].integer;
        memcpy(&one->first, bits, 4), memcpy(&one->second, bits + 1, 4);
        if (one->kind <= MULTIPLY) {
            const Tensor *operand = arguments[at++].tensor;
            one->operand = rows_of(operand, axes);
            one->along = operand->strides[axes];
        }
    }
    return at;
}

static void read_weights(Problem *problem, const Tensor *weights) {
    problem->weights = weights->data, problem->pitch = weights->strides[0];
    problem->across = weights->shape[1] > 1 ? weights->strides[1] : 1;
    problem->inputs = weights->shape[0], problem->columns = weights->shape[1];
#if defined(__x86_64__)
    problem->lanes = instructions() == AVX512 ? 16 : instructions() == AVX2 ? 8 : 4;
#else
    problem->lanes = 4;
#endif
}

static int run(int (*body)(int, const Environment *, void *), Problem *problem) {
    const double operations = (double)problem->rows * (double)problem->columns * (double)problem->inputs;
    if (__TVMBackendParallelLaunch && operations > SERIAL_OPERATIONS) return __TVMBackendParallelLaunch(body, problem, 0);
    const Environment alone = {0, 1};
    return body(0, &alone, problem);
}

static int integers_of(const Value *arguments, int count) {
    int integers = 0;
    while (integers < count && arguments[count - 1 - integers].type == 1) integers++;
    return integers;
}

EXPORT int product(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    const int integers = integers_of(arguments, count);
    if (integers < 1 || integers % 3 != 1 || integers / 3 > MOST_STEPS) return 2;
    const Value *codes = arguments + count - integers;
    Problem problem = {.scaled = (int)codes->integer, .step_count = integers / 3};
    const Tensor *out = codes[-1].tensor;
    const int axes = out->rank - 1;
    problem.x = rows_of(arguments[0].tensor, axes);
    if (problem.scaled) problem.factors = rows_of(arguments[1].tensor, axes);
    problem.out = rows_of(out, axes);
    read_weights(&problem, arguments[1 + problem.scaled].tensor);
    if (read_steps(problem.steps, problem.step_count, codes + 1, arguments, 2 + problem.scaled, axes) + 1 != count - integers) return 3;
    problem.rows = 1;
    for (int axis = 0; axis < axes; axis++) problem.rows *= out->shape[axis];
    problem.compute = FOR_PROCESSOR(compute);
    return run(work, &problem);
}

/* Shares are parts of the result's rows of positions where few rows of the product are then computed twice, else of channels. */
static int work_on_windows(int task, const Environment *environment, void *data) {
    const Problem *problem = data;
    const Windows *windows = &problem->windows;
    const int64_t tasks = environment->num_task, images = windows->out->shape[0], height = windows->out->shape[1];
    const int64_t vectors = (problem->columns + problem->lanes - 1) / problem->lanes, threads = (tasks + TASKS_PER_THREAD - 1) / TASKS_PER_THREAD;
    const int64_t twice = (windows->taps->shape[2] - 1) * windows->dilations[0] + 1 - windows->strides[0];
    const int64_t down = images < threads && height >= threads && twice * (threads - 1) * TWICE <= windows->height ? threads : 1;
    const int64_t parts = images * down, share = tasks / parts, across = share < 1 ? 1 : share < vectors ? share : vectors;
    for (int64_t unit = parts * across * task / tasks; unit < parts * across * (task + 1) / tasks; unit++) {
        const int64_t image = unit / across / down, part = unit / across % down, column = unit % across;
        const int64_t first = image * height + height * part / down, last = image * height + height * (part + 1) / down;
        const int64_t end = vectors * (column + 1) / across * problem->lanes;
        const int status = problem->compute(
            problem, first, last, vectors * column / across * problem->lanes, end < problem->columns ? end : problem->columns);
        if (status) return status;
    }
    return 0;
}

EXPORT int product_and_windows(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    const int integers = integers_of(arguments, count), steps = (integers - 7) / 3;
    if (integers < 7 || integers % 3 != 1) return 2;
    const Value *codes = arguments + count - integers;
    Problem problem = {.step_count = (int)codes[6].integer};
    problem.later_count = steps - problem.step_count;
    if (problem.step_count > MOST_STEPS || problem.later_count < 0 || problem.later_count > MOST_STEPS) return 2;
    Windows *windows = &problem.windows;
    windows->out = codes[-1].tensor;
    const Tensor *x = arguments[0].tensor;
    windows->height = x->shape[1], windows->width = x->shape[2];
    for (int axis = 0; axis < 2; axis++)
        windows->strides[axis] = codes[axis].integer, windows->before[axis] = codes[2 + axis].integer, windows->dilations[axis] = codes[4 + axis].integer;
    problem.x = rows_of(x, 3), problem.out = rows_of(windows->out, 3);
    read_weights(&problem, arguments[1].tensor);
    int at = read_steps(problem.steps, problem.step_count, codes + 7, arguments, 2, 3);
    windows->taps = arguments[at++].tensor;
    at = read_steps(problem.later, problem.later_count, codes + 7 + 3 * problem.step_count, arguments, at, 3);
    if (at + 1 != count - integers) return 3;
    problem.rows = x->shape[0] * x->shape[1] * x->shape[2];
    problem.compute = FOR_PROCESSOR(compute_windows);
    return run(work_on_windows, &problem);
}

#else /* ------------------------------------------------------------------ once for each set of instructions */

#define UNROLLED _Pragma("clang loop unroll(full)") for

TARGETED INLINE Vector NAME(between)(Vector x, float low, float high) {
    const Vector least = NAME(all)(low), most = NAME(all)(high), above = NAME(where)((Bits)(x < least), least, x);
    return NAME(where)((Bits)(above > most), most, above);
}

/* Numbers of which there may be less than a vector. */
TARGETED INLINE Vector NAME(part)(const float *from, int64_t count) {
    if (count >= LANES) return LOAD(from);
    Vector result = NAME(all)(0.0f);
    for (int64_t i = 0; i < count; i++) result[i] = from[i];
    return result;
}

/* Where sums begin and end: what is added to each row, and bounds of the result. */
typedef struct {
    Vector first[VECTORS];
    float low, high;
} NAME(Ends);
#define Ends NAME(Ends)

/* Take the first steps where sums begin and end with them; return how many these are. */
TARGETED static int NAME(ends_of)(const Step *steps, int count, Ends *ends, int64_t column, int64_t end) {
    int taken = 0;
    *ends = (Ends){.low = -__builtin_inff(), .high = __builtin_inff()};
    if (taken < count && steps[taken].kind == ADD && steps[taken].operand.even && !steps[taken].operand.distance && steps[taken].along) {
        for (int v = 0; v < VECTORS && column + v * LANES < end; v++)
            ends->first[v] = NAME(part)(steps[taken].operand.data + column + v * LANES, end - column - v * LANES);
        taken++;
    }
    if (taken < count && steps[taken].kind == CLIP) ends->low = steps[taken].first, ends->high = steps[taken].second, taken++;
    else if (taken < count && steps[taken].kind == RELU && steps[taken].first == 0.0f) ends->low = 0.0f, taken++;
    return taken;
}

/* Rows of x by vectors of W's columns. */
TARGETED INLINE void NAME(sums)(
    const float *x, int64_t distance, const float *weights, int64_t pitch, int64_t inputs, const Ends *ends, float *out,
    int64_t out_distance, const int rows, const int vectors) {
    Vector sums[MOST_ROWS][VECTORS];
    UNROLLED (int row = 0; row < rows; row++)
        UNROLLED (int v = 0; v < vectors; v++) sums[row][v] = ends->first[v];
    for (int64_t k = 0; k < inputs; k++) {
        Vector columns[VECTORS];
        UNROLLED (int v = 0; v < vectors; v++) columns[v] = LOAD(weights + k * pitch + v * LANES);
        UNROLLED (int row = 0; row < rows; row++) {
            const Vector element = NAME(all)(x[row * distance + k]);
            UNROLLED (int v = 0; v < vectors; v++) sums[row][v] += element * columns[v];
        }
    }
    UNROLLED (int row = 0; row < rows; row++)
        UNROLLED (int v = 0; v < vectors; v++)
            STORE(out + row * out_distance + v * LANES, NAME(between)(sums[row][v], ends->low, ends->high));
}

#define CASE(rows) \
    case rows: \
        if (vectors == 1) NAME(sums)(x, distance, weights, pitch, inputs, ends, out, out_distance, rows, 1); \
        else NAME(sums)(x, distance, weights, pitch, inputs, ends, out, out_distance, rows, 2); \
        break;

TARGETED static void NAME(block)(
    const float *x, int64_t distance, const float *weights, int64_t pitch, int64_t inputs, const Ends *ends, float *out,
    int64_t out_distance, int64_t rows, int64_t vectors) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if LANES == 16
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}
#undef CASE

TARGETED INLINE void NAME(write)(float *to, const float *from, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) STORE(to + i, LOAD(from + i));
    if (i < count) memcpy(to + i, from + i, (size_t)(count - i) * sizeof(float));
}

/* 1 / (1 + e^-ax), by 2^n 2^f with |f| <= 1/2; for |ax| > 87 it is 0 or 1 to the last bit that a sum with 1 keeps. */
TARGETED INLINE Vector NAME(logistic)(Vector x, float a) {
    const Vector magic = NAME(all)(12582912.0f), factor = NAME(all)(-1.44269502f * a), rest_of_factor = NAME(all)(-1.92596299e-8f * a);
    x = NAME(between)(x, -87.0f / __builtin_fabsf(a), 87.0f / __builtin_fabsf(a));
    const Vector shifted = x * factor + magic, whole = shifted - magic, rest = x * rest_of_factor + (x * factor - whole);
    Vector sum = rest * 1.54035304e-4f + 1.33335581e-3f;
    sum = sum * rest + 9.61812911e-3f;
    sum = sum * rest + 5.55041087e-2f;
    sum = sum * rest + 2.40226507e-1f;
    sum = sum * rest + 6.93147181e-1f;
    sum = sum * rest + 1.0f;
    const Vector divisor = (Vector)((Bits)sum + ((Bits)shifted << 23)) + 1.0f;
#if LANES == 16 /* a quotient takes as long as all of the rest */
    const Vector guess = (Vector)_mm512_rcp14_ps((__m512)divisor);
    return guess + guess * (1.0f - divisor * guess);
#else
    return 1.0f / divisor;
#endif
}

#define EACH(expression) \
    for (int64_t i = 0; i < count; i += LANES) { \
        const Vector x = LOAD(block + i); \
        STORE(block + i, expression); \
    } \
    break;
#define WITH(expression) \
    for (int64_t row = 0; row < rows; row++) { \
        const float *from = row_of(&step->operand, first + row) + column * step->along; \
        for (int64_t i = 0; i < width; i += LANES) { \
            const Vector x = LOAD(block + row * width + i), y = step->along ? NAME(part)(from + i, columns - i) : NAME(all)(*from); \
            STORE(block + row * width + i, expression); \
        } \
    } \
    break;

/* One step for a block of results, ``width`` numbers a row, of which ``columns`` are real. */
TARGETED static void NAME(apply)(
    const Step *step, float *block, int64_t first, int64_t rows, int64_t column, int64_t columns, int64_t width) {
    const int64_t count = rows * width;
    const float a = step->first, b = step->second;
    switch (step->kind) {
        case ADD: WITH(x + y)
        case SUBTRACT: WITH(x - y)
        case MULTIPLY: WITH(x * y)
        case RELU: EACH(NAME(where)((Bits)(x < 0.0f), x * a, x))
        case CLIP: EACH(NAME(between)(x, a, b))
        case LOGISTIC: EACH(NAME(logistic)(x, 1.0f))
        case SWISH: EACH(x * NAME(logistic)(x, a))
        case HARD_LOGISTIC: EACH(NAME(between)(x * a + b, 0.0f, 1.0f))
        case HARD_SWISH: EACH(x * NAME(between)(x * a + b, 0.0f, 1.0f))
    }
}
#undef EACH
#undef WITH

/* Numbers that lie ``across`` apart, side by side and filled up with zeros to ``width``. */
TARGETED INLINE void NAME(row_of_weights)(const float *from, int64_t across, int64_t count, int64_t width, float *to) {
    for (int64_t i = 0; i < width; i += LANES) {
        Vector part = NAME(all)(0.0f);
        if (across == 1) part = NAME(part)(from + i, count - i);
        else
            for (int64_t lane = 0; lane < LANES && i + lane < count; lane++) part[lane] = from[(i + lane) * across];
        STORE(to + i, part);
    }
}

/* Columns of W, those beside the last filled up with zeros. */
TARGETED static void NAME(pack)(const Problem *problem, int64_t column, int64_t end, int64_t width, float *panel) {
    const float *weights = problem->weights + column * problem->across;
    for (int64_t k = 0; k < problem->inputs; k++, weights += problem->pitch) {
        for (int64_t i = 0; i < width; i += LANES)
            __builtin_prefetch(weights + AHEAD * problem->pitch + i * problem->across); /* rows lie too far apart for the processor to guess */
        NAME(row_of_weights)(weights, problem->across, end - column, width, panel + k * width);
    }
}

/* Some columns of some rows: ``x`` is where the first of the rows lies, ``panel`` is memory for the columns of W. */
TARGETED static void NAME(columns)(
    const Problem *problem, const float *x, int64_t distance, int64_t first, int64_t last, int64_t column, int64_t end, float *panel) {
    const int64_t vectors = (end - column + LANES - 1) / LANES, width = vectors * LANES, inputs = problem->inputs;
    const int is_whole = end - column == width, blocks = (int)((last - first + ROWS - 1) / ROWS);
    const float *weights = problem->weights + column;
    int64_t pitch = problem->pitch;
    if (!is_whole || blocks > 1 || problem->across != 1) NAME(pack)(problem, column, end, width, panel), weights = panel, pitch = width;
    Ends ends;
    const Step *after = problem->steps + problem->step_count, *step = problem->steps + NAME(ends_of)(problem->steps, problem->step_count, &ends, column, end);
    const int direct = is_whole && step == after && problem->out.even;
    float block[MOST_ROWS * VECTORS * LANES] __attribute__((aligned(64)));
    for (int64_t part = 0; part < blocks; part++) {
        const int64_t row = first + (last - first) * part / blocks, rows = first + (last - first) * (part + 1) / blocks - row;
        const float *from = x + (row - first) * distance;
        if (direct) {
            NAME(block)(from, distance, weights, pitch, inputs, &ends, row_of(&problem->out, row) + column, problem->out.distance, rows, vectors);
            continue;
        }
        NAME(block)(from, distance, weights, pitch, inputs, &ends, block, width, rows, vectors);
        for (const Step *each = step; each < after; each++) NAME(apply)(each, block, row, rows, column, end - column, width);
        for (int64_t r = 0; r < rows; r++) NAME(write)(row_of(&problem->out, row + r) + column, block + r * width, end - column);
    }
}

TARGETED static int NAME(compute)(const Problem *problem, int64_t first, int64_t last, int64_t column, int64_t end) {
    const int64_t inputs = problem->inputs, panel_size = inputs * VECTORS * LANES;
    const int is_copied = problem->scaled || !problem->x.even;
    int64_t chunk = CHUNK_BYTES / (int64_t)sizeof(float) / inputs;
    chunk = chunk < ROWS ? ROWS : chunk;
    float *memory = 0;
    if (posix_memalign((void **)&memory, 64, (size_t)(panel_size + (is_copied ? chunk * inputs : 0)) * sizeof(float))) return 4;
    float *copy = memory + panel_size;
    for (int64_t row = first; row < last; row += chunk) {
        const int64_t below = row + chunk < last ? row + chunk : last;
        for (int64_t r = row; is_copied && r < below; r++) {
            const float *from = row_of(&problem->x, r), *factors = problem->scaled ? row_of(&problem->factors, r) : 0;
            float *to = copy + (r - row) * inputs;
            if (factors)
                for (int64_t k = 0; k < inputs; k++) to[k] = from[k] * factors[k];
            else memcpy(to, from, (size_t)inputs * sizeof(float));
        }
        const float *x = is_copied ? copy : row_of(&problem->x, row);
        for (int64_t at = column; at < end; at += VECTORS * LANES)
            NAME(columns)(problem, x, is_copied ? inputs : problem->x.distance, row, below, at, at + VECTORS * LANES < end ? at + VECTORS * LANES : end, memory);
    }
    free(memory);
    return 0;
}

/* Windows over a few positions of rows that lie side by side. Where they are ``wide`` positions ``stride`` apart, each position is read
 * once; 0 and 0 stand for any. */
TARGETED INLINE void NAME(taps)(
    const Windows *windows, const float *const *rows, int64_t at, const float *taps, const Ends *ends, float *out, int64_t out_distance,
    const int pixels, const int vectors, const int wide, const int stride) {
    const int width = vectors * LANES;
    const int64_t high = windows->taps->shape[2], count = windows->taps->shape[3], distance = windows->strides[1] * width;
    Vector sums[MOST_PIXELS][VECTORS];
    UNROLLED (int pixel = 0; pixel < pixels; pixel++)
        UNROLLED (int v = 0; v < vectors; v++) sums[pixel][v] = ends->first[v];
    for (int64_t i = 0; i < high; i++) {
        const float *from = rows[i] + at * distance;
        if (wide) {
            UNROLLED (int place = 0; place < (pixels - 1) * stride + wide; place++)
                UNROLLED (int v = 0; v < vectors; v++) {
                    const Vector number = LOAD(from + place * width + v * LANES);
                    UNROLLED (int j = 0; j < wide; j++)
                        if (place >= j && (place - j) % stride == 0 && (place - j) / stride < pixels)
                            sums[(place - j) / stride][v] += number * LOAD(taps + j * width + v * LANES);
                }
            taps += wide * width;
        } else
            for (int64_t j = 0; j < count; j++, from += windows->dilations[1] * width, taps += width)
                UNROLLED (int pixel = 0; pixel < pixels; pixel++)
                    UNROLLED (int v = 0; v < vectors; v++)
                        sums[pixel][v] += LOAD(from + pixel * distance + v * LANES) * LOAD(taps + v * LANES);
    }
    UNROLLED (int pixel = 0; pixel < pixels; pixel++)
        UNROLLED (int v = 0; v < vectors; v++)
            STORE(out + pixel * out_distance + v * LANES, NAME(between)(sums[pixel][v], ends->low, ends->high));
}

#define CASE(count) \
    case count: NAME(taps)(windows, rows, at, taps, ends, out + at * out_distance, out_distance, count, vectors, wide, stride); break;

/* One row of windows; ``rows`` are those of the product that it looks at. */
TARGETED INLINE void NAME(windows_of)(
    const Windows *windows, const float *const *rows, const float *taps, const Ends *ends, float *out, int64_t out_distance, const int vectors,
    const int wide, const int stride) {
    const int64_t count = windows->out->shape[2], blocks = (count + PIXELS - 1) / PIXELS;
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t at = count * block / blocks;
        switch (count * (block + 1) / blocks - at) {
            CASE(1) CASE(2) CASE(3) CASE(4)
#if LANES == 16
            CASE(5) CASE(6) CASE(7) CASE(8)
#endif
        }
    }
}
#undef CASE

TARGETED static void NAME(row_of_windows)(
    const Windows *windows, const float *const *rows, const float *taps, const Ends *ends, float *out, int64_t out_distance, int64_t width) {
    const int64_t wide = windows->dilations[1] == 1 ? windows->taps->shape[3] : 0, stride = windows->strides[1];
#define CASE(vectors, wide, stride) NAME(windows_of)(windows, rows, taps, ends, out, out_distance, vectors, wide, stride)
    if (width == LANES) CASE(1, 0, 0);
    else if (wide == 3 && stride == 1) CASE(2, 3, 1);
    else if (wide == 3 && stride == 2) CASE(2, 3, 2);
    else if (wide == 5 && stride == 1) CASE(2, 5, 1);
    else if (wide == 5 && stride == 2) CASE(2, 5, 2);
    else CASE(2, 0, 0);
#undef CASE
}

/* Some channels of some rows of the result. Rows of the product are kept as long as windows look at them. */
TARGETED static void NAME(channels)(
    const Problem *problem, int64_t first, int64_t last, int64_t column, int64_t end, float *panel, float *taps, float *ring, float *result) {
    const Windows *windows = &problem->windows;
    const int64_t vectors = (end - column + LANES - 1) / LANES, width = vectors * LANES, slots = slots_of(windows), length = length_of(windows);
    const int64_t high = windows->taps->shape[2], wide = windows->taps->shape[3], outputs = windows->out->shape[2];
    Ends ends, ends_of_windows;
    const Step *after = problem->steps + problem->step_count, *end_of_later = problem->later + problem->later_count;
    const Step *step = problem->steps + NAME(ends_of)(problem->steps, problem->step_count, &ends, column, end);
    const Step *later = problem->later + NAME(ends_of)(problem->later, problem->later_count, &ends_of_windows, column, end);
    const int direct = end - column == width && later == end_of_later && problem->out.even;
    NAME(pack)(problem, column, end, width, panel);
    const int64_t *steps = windows->taps->strides;
    for (int64_t i = 0; i < high; i++)
        for (int64_t j = 0; j < wide; j++)
            NAME(row_of_weights)(
                (const float *)windows->taps->data + column * steps[0] + i * steps[2] + j * steps[3], windows->taps->shape[0] > 1 ? steps[0] : 1,
                end - column, width, taps + (i * wide + j) * width);
    memset(ring, 0, (size_t)(slots * length * width) * sizeof(float)); /* padding beside the rows stays */
    const int64_t height = windows->out->shape[1], image = first / height;
    int64_t ready = first % height * windows->strides[0] - windows->before[0];
    for (int64_t row = first; row < last; row++) {
        const int64_t above = row % height * windows->strides[0] - windows->before[0];
        if (ready < above) ready = above;
        for (; ready <= above + (high - 1) * windows->dilations[0]; ready++) {
            float *slot = ring + (ready + windows->before[0]) % slots * length * width + windows->before[1] * width;
            if (ready < 0 || ready >= windows->height) {
                memset(slot, 0, (size_t)(windows->width * width) * sizeof(float));
                continue;
            }
            const int64_t place = (image * windows->height + ready) * windows->width, blocks = (windows->width + ROWS - 1) / ROWS;
            const int64_t distance = problem->x.even ? problem->x.distance : problem->x.tensor->strides[2];
            const float *x = row_of(&problem->x, place);
            for (int64_t block = 0; block < blocks; block++) {
                const int64_t at = windows->width * block / blocks, count = windows->width * (block + 1) / blocks - at;
                NAME(block)(x + at * distance, distance, panel, width, problem->inputs, &ends, slot + at * width, width, count, vectors);
            }
            for (const Step *each = step; each < after; each++)
                NAME(apply)(each, slot, place, windows->width, column, end - column, width);
        }
        const float *rows[MOST_TAPS];
        for (int64_t i = 0; i < high; i++) rows[i] = ring + (above + windows->before[0] + i * windows->dilations[0]) % slots * length * width;
        if (direct) {
            NAME(row_of_windows)(windows, rows, taps, &ends_of_windows, row_of(&problem->out, row * outputs) + column, problem->out.distance, width);
            continue;
        }
        NAME(row_of_windows)(windows, rows, taps, &ends_of_windows, result, width, width);
        for (const Step *each = later; each < end_of_later; each++)
            NAME(apply)(each, result, row * outputs, outputs, column, end - column, width);
        for (int64_t position = 0; position < outputs; position++)
            NAME(write)(row_of(&problem->out, row * outputs + position) + column, result + position * width, end - column);
    }
}

TARGETED static int NAME(compute_windows)(const Problem *problem, int64_t first, int64_t last, int64_t column, int64_t end) {
    const Windows *windows = &problem->windows;
    const int64_t width = VECTORS * LANES, panel = problem->inputs * width, taps = windows->taps->shape[2] * windows->taps->shape[3] * width;
    const int64_t ring = slots_of(windows) * length_of(windows) * width, result = windows->out->shape[2] * width;
    float *memory = 0;
    if (posix_memalign((void **)&memory, 64, (size_t)(panel + taps + ring + result) * sizeof(float))) return 4;
    for (int64_t at = column; at < end; at += width)
        NAME(channels)(
            problem, first, last, at, at + width < end ? at + width : end, memory, memory + panel, memory + panel + taps,
            memory + panel + taps + ring);
    free(memory);
    return 0;
}
#undef UNROLLED
#undef Ends
#endif
