/* Products of numbers by constant matrices, and what follows them. Matrices are packed once, when a program is loaded.
 *
 * A packed matrix is panels of PANEL columns, the last one filled up with zeros, in which the columns of one input lie side by side. Sums of
 * a few rows by a panel stay in registers over all inputs; rows of x are read where they lie, from the second cache.
 *
 * ``products_pack``. Arguments: W [.., K, N] with any strides, the packed matrices, one for each index of the leading axes.
 *
 * ``products_matmul``. Arguments: x [rows.., K], what was packed, operands of the steps [rows.., N], the result [rows.., N]; then integers:
 * how many matrices there are, which share the rows evenly, and the steps (epilogue.h). All tensors have the same axes of rows, with any
 * strides, zero where they repeat; elements along the last axis lie side by side, or an operand repeats.
 *
 * The file is included once for each set of vector instructions. */
#include "../kernel.h"
#include "../epilogue.h"
#ifndef LANES

#define PANEL 16                                           /* columns of a panel: whole vectors of every set of instructions */
#define ROWS (LANES == 16 ? 8 : LANES == 8 ? 6 : 4)        /* of a block of registers, which with PANELS takes most that there are */
#define PANELS (LANES == 16 ? 3 : 1)
#define MOST_ROWS 8
#define MOST_PANELS 3
#define BLOCKS 8                                           /* of rows, whose sums are in the first cache while steps are applied */
#define MOST_CHUNK 192                                     /* rows that are read again for each panel */
#define LEAST_CHUNK 48                                     /* with fewer, panels are read from memory too often */
#define CHUNK (1 << 17)                                    /* numbers of x that the second cache holds beside a panel, about */
#define SET_BYTES 2048                                     /* rows so far apart share few lines of the first cache */
#define SERIAL_OPERATIONS 60000.0                          /* less than this is done before another thread has started */

static const float zeros[MOST_PANELS * PANEL] __attribute__((aligned(64)));

typedef struct Problem {
    Rows x, out;
    const float *packed;
    int64_t inputs, columns, panels;
    int64_t rows, of_matrix; /* all of them, and those of one matrix */
    Steps steps;
    int (*compute)(const struct Problem *problem, int64_t first, int64_t last, int64_t panel, int64_t end);
    int rows_at_once;
} Problem;

/* How many of the rows that are left are next: the last two blocks are about as large. */
static int64_t next_rows(int64_t left, int64_t most) { return left >= 2 * most || left == most ? most : left > most ? (left + 1) / 2 : left; }

#define KERNEL "products/products.c"
#include "../instruction_sets.h"

/* The grid of shares: each reads all rows or all columns, whichever are fewer, unless there are too few of the others. */
static int work(int task, const Environment *environment, void *data) {
    const Problem *problem = data;
    const int64_t tasks = environment->num_task, blocks = (problem->rows + problem->rows_at_once - 1) / problem->rows_at_once;
    int64_t across, down;
    if (problem->columns > problem->rows) across = least(problem->panels, tasks), down = least(tasks / across, blocks);
    else down = least(blocks, tasks), across = least(tasks / down, problem->panels);
    if (task >= across * down) return 0;
    const int64_t row = task / across, column = task % across;
    return problem->compute(
        problem, blocks * row / down * problem->rows_at_once, least(blocks * (row + 1) / down * problem->rows_at_once, problem->rows),
        problem->panels * column / across, problem->panels * (column + 1) / across);
}

EXPORT int products_pack(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    if (count != 2) return 2;
    const Tensor *weights = arguments[0].tensor;
    const int axes = weights->rank - 2;
    const int64_t inputs = weights->shape[axes], columns = weights->shape[axes + 1], step = weights->strides[axes + 1];
    const Rows rows = rows_of(weights, axes + 1);
    int64_t matrices = 1;
    for (int axis = 0; axis < axes; axis++) matrices *= weights->shape[axis];
    const int64_t needed = matrices * inputs * ((columns + PANEL - 1) / PANEL) * PANEL;
    if (arguments[1].tensor->rank != 1 || arguments[1].tensor->shape[0] != needed) return 3;
    float *to = arguments[1].tensor->data;
    for (int64_t matrix = 0; matrix < matrices; matrix++)
        for (int64_t column = 0; column < columns; column += PANEL)
            for (int64_t k = 0; k < inputs; k++, to += PANEL) {
                const float *from = (const float *)row_of(&rows, matrix * inputs + k) + column * step;
                for (int64_t i = 0; i < PANEL; i++) to[i] = column + i < columns ? from[i * step] : 0.0f;
            }
    return 0;
}

EXPORT int products_matmul(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    const int integers = integers_of(arguments, count);
    if (integers < 2 || count - integers < 3) return 2;
    const Value *codes = arguments + count - integers;
    const Tensor *x = arguments[0].tensor, *out = codes[-1].tensor;
    const int axes = out->rank - 1;
    Problem problem = {
        .x = rows_of(x, axes), .out = rows_of(out, axes), .packed = arguments[1].tensor->data, .inputs = x->shape[axes],
        .columns = out->shape[axes], .panels = (out->shape[axes] + PANEL - 1) / PANEL, .rows = 1,
    };
    for (int axis = 0; axis < axes; axis++) problem.rows *= out->shape[axis];
    if (codes->integer < 1 || problem.rows % codes->integer) return 4;
    problem.of_matrix = problem.rows / codes->integer;
    if (read_steps(&problem.steps, codes + 1, integers - 1, arguments, 2, axes) + 1 != count - integers) return 3;
    problem.compute = FOR_PROCESSOR(compute), problem.rows_at_once = FOR_PROCESSOR(rows_at_once);
    if (__TVMBackendParallelLaunch && (double)problem.rows * (double)problem.inputs * (double)problem.columns > SERIAL_OPERATIONS)
        return __TVMBackendParallelLaunch(work, &problem, 0);
    const Environment alone = {0, 1};
    return work(0, &alone, &problem);
}

#else /* ------------------------------------------------------------------ once for each set of instructions */

#define UNROLLED _Pragma("clang loop unroll(full)") for
#define VECTORS (PANEL / LANES)

static const int NAME(rows_at_once) = ROWS;

/* out[row][..] = added[..] + sum of x[row][k] * packed[k][..] over all inputs, for a few rows and panels. */
TARGETED INLINE void NAME(sums)(
    const float *const *x, int64_t inputs, const float *packed, const float *added, float *const *out, int64_t column, const int rows,
    const int panels) {
    Vector sums[MOST_ROWS][MOST_PANELS * VECTORS];
    const float *from[MOST_ROWS];
    UNROLLED (int row = 0; row < rows; row++) {
        from[row] = x[row];
        UNROLLED (int v = 0; v < panels * VECTORS; v++) sums[row][v] = LOAD(added + v * LANES);
    }
    for (int64_t k = 0; k < inputs; k++) {
        Vector columns[MOST_PANELS * VECTORS];
        UNROLLED (int v = 0; v < panels * VECTORS; v++)
            columns[v] = LOAD(packed + (v / VECTORS * inputs + k) * PANEL + v % VECTORS * LANES);
        UNROLLED (int row = 0; row < rows; row++) {
            const Vector one = NAME(all)(from[row][k]);
            UNROLLED (int v = 0; v < panels * VECTORS; v++) sums[row][v] += one * columns[v];
        }
    }
    UNROLLED (int row = 0; row < rows; row++)
        UNROLLED (int v = 0; v < panels * VECTORS; v++) STORE(out[row] + column + v * LANES, sums[row][v]);
}

#if LANES == 16
#define CASE(rows) \
    case rows: \
        if (panels == 1) NAME(sums)(x, inputs, packed, added, out, column, rows, 1); \
        else if (panels == 2) NAME(sums)(x, inputs, packed, added, out, column, rows, 2); \
        else NAME(sums)(x, inputs, packed, added, out, column, rows, 3); \
        break;
#else
#define CASE(rows) \
    case rows: NAME(sums)(x, inputs, packed, added, out, column, rows, 1); break;
#endif

/* Sums of up to ROWS rows. */
TARGETED static void NAME(block)(
    const float *const *x, int64_t inputs, const float *packed, const float *added, float *const *out, int64_t column, int64_t rows,
    int64_t panels) {
    (void)panels;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4)
#if LANES >= 8
        CASE(5) CASE(6)
#endif
#if LANES == 16
        CASE(7) CASE(8)
#endif
    }
}
#undef CASE

TARGETED INLINE void NAME(write)(const float *from, int64_t count, float *to) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) STORE(to + i, LOAD(from + i));
    for (; i < count; i++) to[i] = from[i];
}

/* Rows by panels. Steps are applied to a few blocks at a time: in the result, unless its rows or the panel do not allow that. */
TARGETED static int NAME(compute)(const Problem *problem, int64_t first, int64_t last, int64_t panel, int64_t end) {
    float sums[BLOCKS * MOST_ROWS * MOST_PANELS * PANEL] __attribute__((aligned(64)));
    const float *x[MOST_CHUNK];
    float *places[MOST_CHUNK], *held[BLOCKS * MOST_ROWS];
    const int64_t inputs = problem->inputs, fit = CHUNK / inputs, most = least(fit < LEAST_CHUNK ? LEAST_CHUNK : fit, MOST_CHUNK) / ROWS * ROWS;
    const Step *steps = problem->steps.each, *after = steps + problem->steps.count;
    const int has_bias = problem->steps.count && steps->kind == ADD && steps->repeats && steps->along;
    const int is_separate = after - steps > has_bias && (!problem->out.even || problem->out.distance * 4 % SET_BYTES == 0);
    for (int64_t line = first, lines; line < last; line += lines) {
        const int64_t left = least(last - line, problem->of_matrix - line % problem->of_matrix);
        lines = least((next_rows(left, most) + ROWS - 1) / ROWS * ROWS, left);
        for (int64_t row = 0; row < lines; row++) {
            x[row] = (const float *)row_of(&problem->x, line + row);
            places[row] = (float *)row_of(&problem->out, line + row);
        }
        const float *matrix = problem->packed + line / problem->of_matrix * problem->panels * inputs * PANEL;
        for (int64_t at = panel, count; at < end; at += count) {
            count = next_rows(end - at, PANELS);
            const int64_t column = at * PANEL, width = count * PANEL, columns = least(width, problem->columns - column);
            const int is_held = is_separate || columns < width;
            const float *added = has_bias && columns == width ? (const float *)steps->operand.data + column : zeros;
            const Step *next = steps + (added != zeros);
            if (is_held)
                for (int64_t row = 0; row < BLOCKS * ROWS; row++) held[row] = sums + row * width - column;
            for (int64_t row = 0, ready = 0, rows; row < lines; row += rows) {
                rows = next_rows(lines - row, ROWS);
                NAME(block)(
                    x + row, inputs, matrix + column * inputs, added, is_held ? held + row - ready : places + row, column, rows, count);
                const int64_t done = row + rows;
                if (done - ready + ROWS <= BLOCKS * ROWS && done < lines) continue;
                for (const Step *step = next; step < after; step++)
                    NAME(apply)(
                        step, (is_held ? held[0] : places[ready]) + column, line + ready, done - ready, column, columns, width,
                        is_held ? width : problem->out.distance);
                for (int64_t r = ready; is_held && r < done; r++) NAME(write)(held[r - ready] + column, columns, places[r] + column);
                ready = done;
            }
        }
    }
    return 0;
}
#undef UNROLLED
#undef VECTORS
#endif
