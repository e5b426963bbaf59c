/* g(softmax(f(q k^T))) v for blocks of query rows: a block's scores stay in a core's caches and are never stored.
 *
 * Arguments: q [batch.., m, d], k [batch.., n, d], v [batch.., n, e], operands of f and g [batch.., m, n], the value that replaces
 * rows that are not numbers (only with ``guarded``), the result [batch.., m, e], then integers: ``guarded``, how many steps f has,
 * one code a step of f, one a step of g.
 * All tensors have the same axes of the batch and any strides, zero where they repeat; columns of v and of the result lie side by side.
 *
 * ``attention_bf16`` rounds the operands of both products to bfloat16, to the nearest, and adds up in float32: q, k and v, and what the
 * second product reads of g. Two more integers, before the codes, say how many steps, the first ones, scale q, and how many k after
 * these: one number each, before rounding. Where the processor has tiles, these multiply; elsewhere numbers of float32 are multiplied.
 *
 * The file is included once for each set of vector instructions. */
#include "../kernel.h"
#include "../tiles.h"
#ifndef LANES
#include <math.h>

#define Flags NAME(Flags)
#define ROWS 6         /* rows of one block of registers */
#define VECTORS (LANES == 16 ? 4 : 2) /* of its columns */
#define BLOCK_ROWS 24  /* rows whose scores are held at once */
#define TILED_ROWS 32  /* the same where tiles are multiplied: two of them */
#define CHUNK_KEYS 128 /* rows of v that stay in the first cache while they are added up */
#define MOST_STEPS 8
#define SERIAL_OPERATIONS 200000.0 /* less than this is done before another thread has started */
#define LEAST_SHARE 48             /* rows for which packing k and v again is worth it */

enum { ADD, MULTIPLY, SUBTRACT, SUBTRACT_FROM, DIVIDE, KEEP_WHERE, REPLACE_WHERE };

/* One step of f or g; the addresses are those of the matrix of the batch that is computed. */
typedef struct {
    int kind;
    const Tensor *condition, *operand;
    const uint8_t *conditions;
    const float *operands;
} Step;

typedef struct {
    const Tensor *q, *k, *v, *out, *replacement;
    Step steps[MOST_STEPS];
    int before, step_count, axes; /* before: steps of f; axes: those of the batch */
    int rounds;                   /* whether operands are rounded to bfloat16 */
    int of_queries, of_keys;      /* the first steps, of f: they scale q, and then k */
    int64_t batch, m, n, d, e, rows_at_once;
    void (*compute)(const void *problem, int64_t batch, int64_t first, int64_t last, float *memory);
    int64_t (*memory_size)(const void *problem);
} Problem;

static int64_t offset_of(const Tensor *tensor, const Tensor *shaped, int axes, int64_t batch) {
    int64_t offset = 0;
    for (int axis = axes - 1; axis >= 0; axis--) {
        offset += batch % shaped->shape[axis] * tensor->strides[axis];
        batch /= shaped->shape[axis];
    }
    return offset;
}

/* Find a matrix of the batch in the operands of all steps. */
static void find_operands(const Problem *problem, int64_t batch, Step *steps) {
    for (int step = 0; step < problem->step_count; step++) {
        Step *one = steps + step;
        *one = problem->steps[step];
        one->operands = (const float *)one->operand->data + offset_of(one->operand, problem->out, problem->axes, batch);
        if (one->condition)
            one->conditions = (const uint8_t *)one->condition->data + offset_of(one->condition, problem->out, problem->axes, batch);
    }
}

/* A number after a step that multiplies by one number, or divides. */
static float scaled(float number, const Step *by) {
    const float value = *(const float *)by->operand->data;
    return by->kind == MULTIPLY ? number * value : number / value;
}

/* What steps make of 1, each of which scales by one number. */
static float factor_of(const Problem *problem, int first, int count) {
    float factor = 1.0f;
    for (int step = first; step < first + count; step++) factor = scaled(factor, problem->steps + step);
    return factor;
}

/* Take steps, behind those of q and k, whose operands repeat everywhere and only multiply the products as one factor; return the first that
 * is not taken. */
static int leading_factor(const Problem *problem, float *factor) {
    int taken = problem->of_queries + problem->of_keys;
    for (*factor = 1.0f; taken < problem->before; taken++) {
        const Step *one = problem->steps + taken;
        if (one->kind != MULTIPLY && one->kind != DIVIDE) break;
        for (int axis = 0; axis < problem->axes + 2; axis++)
            if (one->operand->strides[axis]) return taken;
        const float product = scaled(*factor, one);
        if (!(__builtin_fabsf(product) > 1e-18f && __builtin_fabsf(product) < 1e18f)) break; /* it could overflow where no score does */
        *factor = product;
    }
    return taken;
}

static int64_t padded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

#define KERNEL "attention/attention.c"
#include "../instruction_sets.h"

/* Return into how many parts the rows of each matrix are divided, so that no thread waits long for another. */
static int64_t parts_of(const Problem *problem, int threads) {
    int64_t best = 1;
    double least = 1e9;
    for (int64_t parts = 1; parts <= 4 * threads; parts++) {
        int64_t rows = padded((problem->m + parts - 1) / parts, problem->rows_at_once), real = (problem->m + rows - 1) / rows;
        if (parts > 1 && rows < LEAST_SHARE) break;
        int64_t shares = real * problem->batch, rounds = (shares + threads - 1) / threads;
        double time = (double)rounds * (double)(rows + 12); /* packing takes as long as a few rows */
        if (time < least) least = time, best = parts;
    }
    return best;
}

static int work(int task, const Environment *environment, void *data) {
    Problem *problem = data;
    int64_t tasks = environment->num_task, parts = parts_of(problem, (int)((tasks + TASKS_PER_THREAD - 1) / TASKS_PER_THREAD));
    int64_t rows = padded((problem->m + parts - 1) / parts, problem->rows_at_once);
    parts = (problem->m + rows - 1) / rows;
    int64_t shares = parts * problem->batch, end = shares * (task + 1) / tasks;
    float *memory = 0;
    for (int64_t share = shares * task / tasks; share < end; share++) {
        int64_t first = share % parts * rows, last = first + rows < problem->m ? first + rows : problem->m;
        if (!memory && posix_memalign((void **)&memory, 64, (size_t)problem->memory_size(problem) * sizeof(float))) return 4;
        problem->compute(problem, share / parts, first, last, memory);
    }
    free(memory);
    return 0;
}

static int attend(const Value *arguments, int32_t count, int rounds) {
    int integers = 0;
    while (integers < count && arguments[count - 1 - integers].type == 1) integers++;
    const int leading = rounds ? 4 : 2; /* integers before the codes */
    if (integers < leading || integers - leading > MOST_STEPS) return 2;
    const Value *codes = arguments + count - integers;
    int at = 3, guarded = (int)codes[0].integer;
    Problem problem = {.q = arguments[0].tensor, .k = arguments[1].tensor, .v = arguments[2].tensor, .step_count = integers - leading};
    problem.before = (int)codes[1].integer;
    if (rounds) problem.of_queries = (int)codes[2].integer, problem.of_keys = (int)codes[3].integer;
    if (problem.of_queries + problem.of_keys > problem.before || problem.before > problem.step_count) return 2;
    codes += leading;
    for (int step = 0; step < problem.step_count; step++) {
        Step *one = problem.steps + step;
        one->kind = (int)codes[step].integer;
        if (one->kind >= KEEP_WHERE) one->condition = arguments[at++].tensor;
        one->operand = arguments[at++].tensor;
    }
    if (guarded) problem.replacement = arguments[at++].tensor;
    problem.out = arguments[at++].tensor;
    if (at != count - integers) return 3;
    int rank = problem.out->rank;
    problem.axes = rank - 2;
    problem.batch = 1;
    for (int axis = 0; axis < problem.axes; axis++) problem.batch *= problem.out->shape[axis];
    problem.m = problem.q->shape[rank - 2], problem.d = problem.q->shape[rank - 1];
    problem.n = problem.v->shape[rank - 2], problem.e = problem.v->shape[rank - 1];
    problem.compute = FOR_PROCESSOR(compute), problem.memory_size = FOR_PROCESSOR(memory_size);
    problem.rounds = rounds, problem.rows_at_once = ROWS;
#if defined(__x86_64__)
    if (rounds && multiplies_tiles()) {
        problem.compute = compute_tiles_avx512, problem.memory_size = memory_size_of_tiles_avx512, problem.rows_at_once = TILED_ROWS;
    }
#endif
    double operations = (double)problem.batch * (double)problem.m * (double)problem.n * (double)(problem.d + problem.e + 16);
    if (__TVMBackendParallelLaunch && operations > SERIAL_OPERATIONS) return __TVMBackendParallelLaunch(work, &problem, 0);
    Environment alone = {0, 1};
    return work(0, &alone, &problem);
}

EXPORT int attention(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    return attend(arguments, count, 0);
}

EXPORT int attention_bf16(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    return attend(arguments, count, 1);
}

#else /* ------------------------------------------------------------------ once for each set of instructions */

/* Transpose LANES x LANES numbers: rows `step` apart become rows of `pitch`. */
TARGETED INLINE void NAME(transpose)(const float *source, int64_t step, float *target, int64_t pitch) {
    Vector rows[LANES], next[LANES];
    for (int i = 0; i < LANES; i++) rows[i] = LOAD(source + i * step);
    for (int width = 1; width < LANES; width *= 2) {
        for (int i = 0; i < LANES / 2; i++) {
            Vector a = rows[i], b = rows[i + LANES / 2];
#if LANES == 16
            next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            next[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif LANES == 8
            next[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            next[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
            next[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
            next[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
        }
        for (int i = 0; i < LANES; i++) rows[i] = next[i];
    }
    for (int i = 0; i < LANES; i++) STORE(target + i * pitch, rows[i]);
}

/* Pack k into panels of VECTORS * LANES keys: packed[panel][d][key]; keys beyond the last are zero. */
TARGETED static void NAME(pack_keys)(const float *k, int64_t step, int64_t inner, int64_t n, int64_t d, float *packed) {
    const int64_t width = VECTORS * LANES;
    for (int64_t j = 0; j < n; j += LANES) {
        float *target = packed + j / width * width * d + j % width;
        int64_t count = n - j < LANES ? n - j : LANES, done = 0;
        if (count < LANES)
            for (int64_t c = 0; c < d; c++) STORE(target + c * width, NAME(all)(0.0f));
        else if (inner == 1)
            for (; done + LANES <= d; done += LANES) NAME(transpose)(k + j * step + done, step, target + done * width, width);
        for (int64_t i = 0; i < count; i++)
            for (int64_t c = done; c < d; c++) target[c * width + i] = k[(j + i) * step + c * inner];
    }
}

/* scores[r][..] = factor * (q[r] . k) for one panel */
TARGETED INLINE void NAME(panel)(const float *const *q, int64_t inner, const float *packed, int64_t d, float factor, float *scores,
                                 int64_t pitch, const int rows, const int vectors) {
    Vector sums[ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = NAME(all)(0.0f);
    for (int64_t c = 0; c < d; c++) {
        Vector keys[VECTORS];
        for (int v = 0; v < vectors; v++) keys[v] = LOAD(packed + c * VECTORS * LANES + v * LANES);
        for (int r = 0; r < rows; r++) {
            Vector one = NAME(all)(q[r][c * inner]);
            for (int v = 0; v < vectors; v++) sums[r][v] += one * keys[v];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) STORE(scores + r * pitch + v * LANES, sums[r][v] * factor);
}

/* out[r][..] += sum of p[r][j] * v[j][..] over keys j, for a few vectors of columns */
TARGETED INLINE void NAME(columns)(const float *p, int64_t pitch, const float *values, int64_t step, int64_t keys, float *out,
                                   int64_t out_pitch, const int rows, const int vectors) {
    Vector sums[ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = LOAD(out + r * out_pitch + v * LANES);
    for (int64_t j = 0; j < keys; j++) {
        Vector row[VECTORS];
        for (int v = 0; v < vectors; v++) row[v] = LOAD(values + j * step + v * LANES);
        for (int r = 0; r < rows; r++) {
            Vector one = NAME(all)(p[r * pitch + j]);
            for (int v = 0; v < vectors; v++) sums[r][v] += one * row[v];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) STORE(out + r * out_pitch + v * LANES, sums[r][v]);
}

#define BY_VECTORS(function, count, rows, ...) \
    switch (count) { \
        case 1: NAME(function)(__VA_ARGS__, rows, 1); break; \
        case 2: NAME(function)(__VA_ARGS__, rows, 2); break; \
        case 3: NAME(function)(__VA_ARGS__, rows, VECTORS < 3 ? VECTORS : 3); break; \
        default: NAME(function)(__VA_ARGS__, rows, VECTORS); \
    }
#define BY_ROWS(function, count, rows, ...) \
    switch (rows) { \
        case 1: BY_VECTORS(function, count, 1, __VA_ARGS__) break; \
        case 2: BY_VECTORS(function, count, 2, __VA_ARGS__) break; \
        case 3: BY_VECTORS(function, count, 3, __VA_ARGS__) break; \
        case 4: BY_VECTORS(function, count, 4, __VA_ARGS__) break; \
        case 5: BY_VECTORS(function, count, 5, __VA_ARGS__) break; \
        default: BY_VECTORS(function, count, ROWS, __VA_ARGS__) \
    }

TARGETED static void NAME(panel_of)(const float *const *q, int64_t inner, const float *packed, int64_t d, float factor,
                                    float *scores, int64_t pitch, int rows, int vectors) {
    BY_ROWS(panel, vectors, rows, q, inner, packed, d, factor, scores, pitch)
}

TARGETED static void NAME(columns_of)(const float *p, int64_t pitch, const float *values, int64_t step, int64_t keys, float *out,
                                      int64_t out_pitch, int rows, int vectors) {
    BY_ROWS(columns, vectors, rows, p, pitch, values, step, keys, out, out_pitch)
}

typedef uint8_t Flags __attribute__((vector_size(LANES), aligned(1), may_alias));

#define EACH(expression) \
    do { \
        if (step == 0) { \
            const float a = *operand; \
            for (; j < n; j++) { const float s = row[j]; row[j] = (expression); } \
        } else if (step == 1) { \
            for (; j < n; j++) { const float s = row[j], a = operand[j]; row[j] = (expression); } \
        } else { \
            for (; j < n; j++) { const float s = row[j], a = operand[j * step]; row[j] = (expression); } \
        } \
    } while (0)

/* Apply one step to a row of scores or probabilities. */
TARGETED static void NAME(apply)(const Step *one, int axes, int64_t n, int64_t i, float *restrict row) {
    const int64_t step = one->operand->strides[axes + 1], skip = one->condition ? one->condition->strides[axes + 1] : 0;
    const float *operand = one->operands + i * one->operand->strides[axes];
    const uint8_t *condition = one->condition ? one->conditions + i * one->condition->strides[axes] : 0;
    int64_t j = 0;
    for (; skip == 1 && (step == 0 || step == 1) && j + LANES <= n; j += LANES) {
        const Bits is_true = __builtin_convertvector(*(const Flags *)(condition + j), Bits) != 0;
        const Vector s = LOAD(row + j), a = step ? LOAD(operand + j) : NAME(all)(*operand);
        STORE(row + j, one->kind == KEEP_WHERE ? NAME(where)(is_true, s, a) : NAME(where)(is_true, a, s));
    }
    switch (one->kind) {
        case ADD: EACH(s + a); break;
        case MULTIPLY: EACH(s * a); break;
        case SUBTRACT: EACH(s - a); break;
        case SUBTRACT_FROM: EACH(a - s); break;
        case DIVIDE: EACH(s / a); break;
        case KEEP_WHERE: EACH(condition[j * skip] ? s : a); break;
        default: EACH(condition[j * skip] ? a : s);
    }
}
#undef EACH

/* The largest of a vector, or the sum, by halves. */
TARGETED INLINE float NAME(across)(Vector x, const int largest) {
#define HALVE(...) \
    do { \
        Vector other = __builtin_shufflevector(x, x, __VA_ARGS__); \
        if (largest) x = NAME(where)((Bits)(x > other), x, other); \
        else x += other; \
    } while (0)
#if LANES == 16
    HALVE(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    HALVE(4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    HALVE(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    HALVE(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif LANES == 8
    HALVE(4, 5, 6, 7, 0, 1, 2, 3);
    HALVE(2, 3, 0, 1, 6, 7, 4, 5);
    HALVE(1, 0, 3, 2, 5, 4, 7, 6);
#else
    HALVE(2, 3, 0, 1);
    HALVE(1, 0, 3, 2);
#endif
#undef HALVE
    return x[0];
}

/* Replace a row by exp(row - max); return the sum. A row of which some are no numbers becomes no numbers. */
TARGETED static float NAME(powers)(float *row, int64_t width) {
    Vector most = LOAD(row), sum = NAME(all)(0.0f);
    for (int64_t j = LANES; j < width; j += LANES) {
        Vector next = LOAD(row + j);
        most = NAME(where)((Bits)(next > most), next, most);
    }
    float largest = NAME(across)(most, 1);
    for (int64_t j = 0; j < width; j += LANES) {
        Vector value = NAME(power)(LOAD(row + j) - largest);
        STORE(row + j, value);
        sum += value;
    }
    return NAME(across)(sum, 0);
}

/* Scale numbers and round them to bfloat16; there are whole vectors of them. */
TARGETED static void NAME(round)(float *numbers, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i += LANES) STORE(numbers + i, (Vector)NAME(nearest)(LOAD(numbers + i) * factor));
}

/* Copy numbers that lie `inner` apart, scaled and rounded, and fill up the last vector with zeros. */
TARGETED static void NAME(copy_rounded)(const float *from, int64_t inner, int64_t count, float *to, float factor) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i * inner];
    for (int64_t i = count; i < padded(count, LANES); i++) to[i] = 0.0f;
    NAME(round)(to, padded(count, LANES), factor);
}

/* Numbers of memory that a matrix of the batch needs: packed keys, values in rows, scores, sums and rounded queries of a block of rows. */
static int64_t NAME(memory_size)(const void *data) {
    const Problem *problem = data;
    const int64_t pitch = padded(problem->n, VECTORS * LANES), wide = padded(problem->e, LANES);
    const int64_t rounded = problem->rounds ? padded(problem->d, LANES) : 0;
    return pitch * problem->d + problem->n * wide + BLOCK_ROWS * (pitch + wide + rounded);
}

/* Make g(softmax(f(..))) of the scores of one row, of which the steps that were taken are done; the row has whole vectors. */
TARGETED static void NAME(probabilities)(const Problem *problem, const Step *steps, int taken, int64_t i, float *row) {
    const int64_t n = problem->n, width = padded(n, LANES);
    for (int step = taken; step < problem->before; step++) NAME(apply)(steps + step, problem->axes, n, i, row);
    for (int64_t j = n; j < width; j++) row[j] = -INFINITY;
    float sum = NAME(powers)(row, width);
    if (problem->replacement && sum != sum) {
        const float value = *(const float *)problem->replacement->data;
        for (int64_t j = 0; j < n; j++) row[j] = value;
    } else {
        const float scale = 1.0f / sum;
        for (int64_t j = 0; j < width; j += LANES) STORE(row + j, LOAD(row + j) * scale);
    }
    for (int step = problem->before; step < problem->step_count; step++) NAME(apply)(steps + step, problem->axes, n, i, row);
}

/* Write rows of the result. */
TARGETED static void NAME(write)(const Problem *problem, int64_t batch, int64_t first, int64_t rows, const float *sums, int64_t pitch) {
    const Tensor *out = problem->out;
    float *target = (float *)out->data + offset_of(out, out, problem->axes, batch);
    const int64_t inner = out->strides[problem->axes + 1];
    for (int64_t r = 0; r < rows; r++) {
        float *to = target + (first + r) * out->strides[problem->axes];
        if (inner == 1)
            for (int64_t c = 0; c < problem->e; c++) to[c] = sums[r * pitch + c];
        else
            for (int64_t c = 0; c < problem->e; c++) to[c * inner] = sums[r * pitch + c];
    }
}

TARGETED static void NAME(compute)(const void *data, int64_t batch, int64_t first, int64_t last, float *memory) {
    const Problem *problem = data;
    const int axes = problem->axes;
    const int64_t n = problem->n, d = problem->d, e = problem->e, panel_keys = VECTORS * LANES;
    const int64_t pitch = padded(n, panel_keys), wide = padded(e, LANES);
    float *keys = memory, *values = keys + pitch * d, *scores = values + n * wide, *sums = scores + BLOCK_ROWS * pitch;
    float *rounded = sums + BLOCK_ROWS * wide;

    const Tensor *q = problem->q, *k = problem->k, *v = problem->v, *out = problem->out;
    NAME(pack_keys)((const float *)k->data + offset_of(k, out, axes, batch), k->strides[axes], k->strides[axes + 1], n, d, keys);
    const float *from = (const float *)v->data + offset_of(v, out, axes, batch);
    for (int64_t j = 0; j < n; j++) {
        const float *source = from + j * v->strides[axes];
        int64_t c = 0;
        for (; v->strides[axes + 1] == 1 && c + LANES <= e; c += LANES) STORE(values + j * wide + c, LOAD(source + c));
        for (; c < e; c++) values[j * wide + c] = source[c * v->strides[axes + 1]];
        for (; c < wide; c++) values[j * wide + c] = 0.0f;
    }
    const float of_queries = factor_of(problem, 0, problem->of_queries);
    const float of_keys = factor_of(problem, problem->of_queries, problem->of_keys);
    if (problem->rounds) NAME(round)(keys, pitch * d, of_keys), NAME(round)(values, n * wide, 1.0f);

    Step steps[MOST_STEPS];
    find_operands(problem, batch, steps);
    float factor;
    const int taken = leading_factor(problem, &factor);

    const float *queries = (const float *)q->data + offset_of(q, out, axes, batch);
    for (int64_t i = first; i < last; i += BLOCK_ROWS) {
        const int rows = (int)(last - i < BLOCK_ROWS ? last - i : BLOCK_ROWS);
        const float *pointers[BLOCK_ROWS];
        int64_t inner = q->strides[axes + 1];
        for (int r = 0; r < rows; r++) pointers[r] = queries + (i + r) * q->strides[axes];
        for (int r = 0; r < rows && problem->rounds; r++) {
            float *to = rounded + r * padded(d, LANES);
            NAME(copy_rounded)(pointers[r], inner, d, to, of_queries);
            pointers[r] = to;
        }
        if (problem->rounds) inner = 1;
        for (int64_t j = 0; j < n; j += panel_keys) {
            const int vectors = (int)(padded(n - j < panel_keys ? n - j : panel_keys, LANES) / LANES);
            for (int r = 0; r < rows; r += ROWS)
                NAME(panel_of)(pointers + r, inner, keys + j * d, d, factor, scores + r * pitch + j, pitch,
                               rows - r < ROWS ? rows - r : ROWS, vectors);
        }
        for (int r = 0; r < rows; r++) {
            NAME(probabilities)(problem, steps, taken, i + r, scores + r * pitch);
            if (problem->rounds) NAME(round)(scores + r * pitch, padded(n, LANES), 1.0f);
        }
        memset(sums, 0, (size_t)(rows * wide) * sizeof(float));
        for (int64_t j = 0; j < n; j += CHUNK_KEYS) {
            const int64_t count = n - j < CHUNK_KEYS ? n - j : CHUNK_KEYS;
            for (int r = 0; r < rows; r += ROWS)
                for (int64_t c = 0; c < wide; c += VECTORS * LANES) {
                    const int64_t left = (wide - c) / LANES;
                    NAME(columns_of)(scores + r * pitch + j, pitch, values + j * wide + c, wide, count, sums + r * wide + c, wide,
                                     rows - r < ROWS ? rows - r : ROWS, (int)(left < VECTORS ? left : VECTORS));
                }
        }
        NAME(write)(problem, batch, i, rows, sums, wide);
    }
}

#if LANES == 16
/* Write up to 32 numbers that lie `inner` apart, scaled, as a row of a tile, filled up with zeros. */
TARGETED INLINE void NAME(put_line)(const float *from, int64_t inner, int64_t count, float factor, char *to) {
    for (int half = 0; half < 2; half++, from += LANES * inner, count -= LANES, to += 2 * LANES) {
        Vector x = NAME(all)(0.0f);
        if (count >= LANES && inner == 1) x = LOAD(from);
        else
            for (int i = 0; i < LANES && i < count; i++) x[i] = from[i * inner];
        Halfwords nearest;
        NARROW(nearest, x * factor);
        *(Halfwords *)to = nearest;
    }
}

/* Pack k as tiles of columns: one panel of keys after the other; what is beyond the last key or number is zero. */
TARGETED static void NAME(pack_key_tiles)(
    const float *k, int64_t step, int64_t inner, int64_t n, int64_t d, float factor, char *packed) {
    float lines[PANEL * TILE_ROWS] __attribute__((aligned(LINE_BYTES)));
    for (int64_t j = 0; j < n; j += PANEL)
        for (int64_t c = 0; c < d; c += 2 * TILE_ROWS, packed += TILE_BYTES) {
            for (int64_t i = 0; i < PANEL; i++)
                NAME(put_line)(k + (j + i) * step + c * inner, inner, j + i < n ? d - c : 0, factor, (char *)(lines + i * TILE_ROWS));
            NAME(transpose)(lines, TILE_ROWS, (float *)packed, PANEL);
        }
}

/* Pack v as tiles of columns: one panel of its columns after the other. */
TARGETED static void NAME(pack_value_tiles)(const float *v, int64_t step, int64_t inner, int64_t n, int64_t e, char *packed) {
    for (int64_t c = 0; c < e; c += PANEL)
        for (int64_t j = 0; j < padded(n, 2 * TILE_ROWS); j += 2, packed += LINE_BYTES) {
            char halves[2][LINE_BYTES];
            for (int64_t i = 0; i < 2; i++)
                NAME(put_line)(v + (j + i) * step + c * inner, inner, j + i >= n ? 0 : e - c < PANEL ? e - c : PANEL, 1.0f, halves[i]);
            const Bits first = __builtin_convertvector(*(const Halfwords *)halves[0], Bits);
            const Bits second = __builtin_convertvector(*(const Halfwords *)halves[1], Bits);
            STORE((float *)packed, (Vector)(first | second << 16));
        }
}

/* Numbers of memory that a matrix of the batch needs: tiles of keys and values, and of a block of rows tiles of queries and of
 * probabilities, scores, and sums. */
static int64_t NAME(memory_size_of_tiles)(const void *data) {
    const Problem *problem = data;
    const int64_t inputs = padded(problem->d, 2 * TILE_ROWS), keys = padded(problem->n, 2 * TILE_ROWS), wide = padded(problem->e, PANEL);
    return (padded(problem->n, PANEL) * inputs + wide * keys + TILED_ROWS * (inputs + keys)) / 2 + TILED_ROWS * (keys + wide);
}

/* sums = x * columns, for all panels of these and up to 32 rows. */
TARGETED static void NAME(by_panels)(const Run *operands, const char *columns, float *sums, int64_t panels, int has_rows) {
    Run run = *operands;
    for (int64_t panel = 0; panel < panels; panel += 2) {
        run.packed = columns + panel * run.panel_bytes;
        NAME(sums_of_tiles)(&run, sums + panel * PANEL, has_rows, panel + 1 < panels, 1);
    }
}

TARGETED static void NAME(compute_tiles)(const void *data, int64_t batch, int64_t first, int64_t last, float *memory) {
    const Problem *problem = data;
    const int axes = problem->axes;
    const int64_t n = problem->n, d = problem->d, pitch = padded(n, 2 * TILE_ROWS), wide = padded(problem->e, PANEL);
    const int64_t input_tiles = padded(d, 2 * TILE_ROWS) / (2 * TILE_ROWS), key_tiles = pitch / (2 * TILE_ROWS);
    char *keys = (char *)memory, *values = keys + padded(n, PANEL) / PANEL * input_tiles * TILE_BYTES;
    char *rounded = values + wide / PANEL * key_tiles * TILE_BYTES, *weights = rounded + input_tiles * TILED_ROWS * LINE_BYTES;
    float *scores = (float *)(weights + key_tiles * TILED_ROWS * LINE_BYTES), *sums = scores + TILED_ROWS * pitch;

    const Tensor *q = problem->q, *k = problem->k, *v = problem->v, *out = problem->out;
    const float *queries = (const float *)q->data + offset_of(q, out, axes, batch);
    const float of_queries = factor_of(problem, 0, problem->of_queries);
    const float of_keys = factor_of(problem, problem->of_queries, problem->of_keys);
    NAME(pack_key_tiles)(
        (const float *)k->data + offset_of(k, out, axes, batch), k->strides[axes], k->strides[axes + 1], n, d, of_keys, keys);
    NAME(pack_value_tiles)(
        (const float *)v->data + offset_of(v, out, axes, batch), v->strides[axes], v->strides[axes + 1], n, problem->e, values);

    Step steps[MOST_STEPS];
    find_operands(problem, batch, steps);
    float factor;
    const int taken = leading_factor(problem, &factor);

    const Run of_scores = {.x = rounded, .x_bytes = TILED_ROWS * LINE_BYTES, .panel_bytes = input_tiles * TILE_BYTES,
                           .steps = input_tiles, .distance = pitch * 4};
    const Run of_sums = {.x = weights, .x_bytes = TILED_ROWS * LINE_BYTES, .panel_bytes = key_tiles * TILE_BYTES,
                         .steps = key_tiles, .distance = wide * 4};
    int64_t shaped = 0;
    for (int64_t i = first, rows; i < last; i += rows) {
        rows = last - i < TILED_ROWS ? last - i : TILED_ROWS;
        if (rows != shaped) NAME(shape_tiles)(shaped = rows);
        for (int64_t tile = 0; tile < input_tiles; tile++)
            for (int64_t r = 0; r < rows; r++)
                NAME(put_line)(
                    queries + (i + r) * q->strides[axes] + 2 * TILE_ROWS * tile * q->strides[axes + 1], q->strides[axes + 1],
                    d - 2 * TILE_ROWS * tile, of_queries, rounded + (tile * TILED_ROWS + r) * LINE_BYTES);
        NAME(by_panels)(&of_scores, keys, scores, (n + PANEL - 1) / PANEL, rows > TILE_ROWS);
        for (int64_t r = 0; r < rows; r++) {
            float *row = scores + r * pitch;
            for (int64_t j = 0; j < n && factor != 1.0f; j += LANES) STORE(row + j, LOAD(row + j) * factor);
            NAME(probabilities)(problem, steps, taken, i + r, row);
            for (int64_t tile = 0; tile < key_tiles; tile++)
                NAME(put_line)(
                    row + 2 * TILE_ROWS * tile, 1, n - 2 * TILE_ROWS * tile, 1.0f, weights + (tile * TILED_ROWS + r) * LINE_BYTES);
        }
        NAME(by_panels)(&of_sums, values, sums, wide / PANEL, rows > TILE_ROWS);
        NAME(write)(problem, batch, i, rows, sums, wide);
    }
    __asm__ volatile("tilerelease");
}
#endif
#endif
