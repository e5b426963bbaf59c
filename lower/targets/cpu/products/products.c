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
 * ``products_pack_bf16`` and ``products_matmul_bf16`` round both operands to bfloat16, to the nearest, of two the even one, and add up in
 * float32. All tensors but sums may lie in bfloat16. Two inputs of a column share 32 bits of a panel, the first one the lower half, and
 * columns are filled up with zeros to whole tiles. Rows of x are rounded once for all panels. Where the processor has no instructions for
 * bfloat16, halves are widened in registers.
 *
 * ``products_pack_bf16x3`` and ``products_matmul_bf16x3`` take every number for the sum of two of bfloat16, the nearest one and the one
 * nearest to what that leaves, and add up three of the four products, without the least. A packed column has the former of all inputs, then
 * the latter. Without tiles, numbers of x are not rounded at all.
 *
 * The file is included once for each set of vector instructions. */
#include "../kernel.h"
#include "../tiles.h"
#include "../epilogue.h"
#ifndef LANES

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
#define TILE_STEPS 32                                      /* tiles of a column that are added up before the next column's are */
#define TILE_CHUNK (1 << 20)                               /* bytes of rounded rows that the second cache holds beside a few panels */
#define TILE_SUMS (1 << 18)                                /* bytes of sums that it holds besides, where columns have more tiles */
#define SERIAL_ROUNDED (1 << 14)                           /* fewer numbers are rounded before another thread has started */

static const float zeros[MOST_PANELS * PANEL] __attribute__((aligned(64)));

/* How sums are computed: of float32, of bfloat16 that is widened, or by instructions for pairs of it. */
enum { SINGLE, WIDENED, DOTS };

typedef struct Problem {
    Rows x, out;
    const char *packed;
    unsigned char *infinite; /* whether a row of x has numbers that are not finite; 0 where that does not matter */
    /* The rows of x in bfloat16, or as float32 rounded to it; 0 where rows are read where they lie. For tiles, 32 inputs of all rows lie
     * before the next 32, and all higher parts before the lower ones. */
    char *rounded;
    int64_t inputs, columns, panels;
    int64_t depth; /* 32-bit numbers of a packed column, in all its parts */
    int64_t used;  /* of these, up to the last that is not filled up */
    int parts;     /* numbers of bfloat16 that a number is the sum of; 0: it is one of float32 */
    int64_t rows, of_matrix; /* all of them, and those of one matrix */
    Steps steps;
    int (*compute)(const struct Problem *problem, int64_t first, int64_t last, int64_t panel, int64_t end);
    void (*round)(const struct Problem *problem, int64_t first, int64_t last);
    int rows_at_once, rounded_bytes; /* of a number */
} Problem;

/* How many of the rows that are left are next: the last two blocks are about as large. */
static int64_t next_rows(int64_t left, int64_t most) { return left >= 2 * most || left == most ? most : left > most ? (left + 1) / 2 : left; }

static const char *rounded_row(const Problem *problem, int64_t row) {
    return problem->rounded + row * 2 * problem->depth * problem->rounded_bytes;
}

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

static int round_share(int task, const Environment *environment, void *data) {
    const Problem *problem = data;
    problem->round(problem, problem->rows * task / environment->num_task, problem->rows * (task + 1) / environment->num_task);
    return 0;
}

/* The bits of a number of W in float32. */
static uint32_t bits_of(const char *from, int size) {
    uint32_t bits = 0;
    memcpy((char *)&bits + 4 - size, from, (size_t)size);
    return bits;
}

/* The 32-bit numbers of a column's part. */
static int64_t part_depth(int64_t inputs, int parts) {
    return parts ? (inputs + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS) * TILE_ROWS : inputs;
}

/* A part of a number of W, by its bits: the nearest bfloat16, or the one nearest to what that leaves of a finite one. */
static uint32_t part_of(uint32_t bits, int part) {
    union { uint32_t bits; float number; } x = {bits}, high = {(uint32_t)half_of(bits) << 16};
    if (!part) return high.bits >> 16;
    x.number -= high.number;
    return (high.bits & 0x7f800000) == 0x7f800000 ? 0 : half_of(x.bits);
}

static int pack(const Value *arguments, int32_t count, int parts) {
    if (count != 2) return 2;
    const Tensor *weights = arguments[0].tensor;
    const int axes = weights->rank - 2;
    const int64_t inputs = weights->shape[axes], columns = weights->shape[axes + 1];
    const int64_t depth = part_depth(inputs, parts);
    const Rows rows = rows_of(weights, axes + 1);
    const int64_t step = weights->strides[axes + 1] * rows.size;
    int64_t matrices = 1;
    for (int axis = 0; axis < axes; axis++) matrices *= weights->shape[axis];
    const int64_t needed = matrices * (parts ? parts : 1) * depth * ((columns + PANEL - 1) / PANEL) * PANEL;
    const Tensor *packed = arguments[1].tensor;
    if (packed->rank != 1 || packed->shape[0] * packed->bits != needed * 32) return 3;
    uint32_t *to = packed->data;
    for (int64_t matrix = 0; matrix < matrices; matrix++)
        for (int64_t column = 0; column < columns; column += PANEL)
            for (int part = 0; part < (parts ? parts : 1); part++)
                for (int64_t k = 0; k < depth; k++, to += PANEL) {
                    memset(to, 0, PANEL * sizeof *to);
                    for (int64_t half = 0; half < (parts ? 2 : 1); half++) {
                        const int64_t input = parts ? 2 * k + half : k;
                        if (input >= inputs) break;
                        const char *from = row_of(&rows, matrix * inputs + input) + column * step;
                        for (int64_t i = 0; i < least(PANEL, columns - column); i++) {
                            const uint32_t bits = bits_of(from + i * step, rows.size);
                            to[i] |= parts ? part_of(bits, part) << 16 * half : bits;
                        }
                    }
                }
    return 0;
}

static int multiply(const Value *arguments, int32_t count, int parts) {
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
    problem.parts = parts, problem.depth = (parts ? parts : 1) * part_depth(problem.inputs, parts);
    problem.used = parts == 1 ? (problem.inputs + 1) / 2 : problem.depth;
    problem.compute = FOR_PROCESSOR(compute), problem.rows_at_once = FOR_PROCESSOR(rows_at_once);
    const int is_parallel =
        __TVMBackendParallelLaunch && (double)problem.rows * (double)problem.inputs * (double)problem.columns > SERIAL_OPERATIONS;
    const Environment alone = {0, 1};
    if (parts) {
        problem.compute = FOR_PROCESSOR(compute_widened), problem.round = FOR_PROCESSOR(round), problem.rounded_bytes = 4;
        int is_rounded = 0;
#if defined(__x86_64__)
        if (multiplies_tiles()) {
            problem.compute = compute_tiles_avx512, problem.round = round_tiles_avx512;
            problem.rounded_bytes = 2, problem.rows_at_once = 2 * TILE_ROWS;
        } else if (parts == 1 && multiplies_halves()) {
            problem.compute = compute_dots_avx512, problem.round = round_halves_avx512, problem.rounded_bytes = 2;
            is_rounded = problem.x.size == 2 && problem.inputs % 2 == 0;
        }
#endif
        if (!is_rounded) {
            const size_t bytes = (size_t)(problem.rows * 2 * problem.depth * problem.rounded_bytes);
            problem.rounded = aligned_alloc(LINE_BYTES, (bytes + (size_t)problem.rows + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
            if (!problem.rounded) return 5;
            if (parts == 2) problem.infinite = (unsigned char *)problem.rounded + bytes;
            if (is_parallel && problem.rows * problem.inputs > SERIAL_ROUNDED) __TVMBackendParallelLaunch(round_share, &problem, 0);
            else round_share(0, &alone, &problem);
        }
    }
    const int status = is_parallel ? __TVMBackendParallelLaunch(work, &problem, 0) : work(0, &alone, &problem);
    free(problem.rounded);
    return status;
}

EXPORT int products_pack(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    return pack(arguments, count, 0);
}

EXPORT int products_pack_bf16(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    return pack(arguments, count, 1);
}

EXPORT int products_pack_bf16x3(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    return pack(arguments, count, 2);
}

EXPORT int products_matmul(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    return multiply(arguments, count, 0);
}

EXPORT int products_matmul_bf16(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    return multiply(arguments, count, 1);
}

EXPORT int products_matmul_bf16x3(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    return multiply(arguments, count, 2);
}

#else /* ------------------------------------------------------------------ once for each set of instructions */

#define UNROLLED _Pragma("clang loop unroll(full)") for
#define VECTORS (PANEL / LANES)

static const int NAME(rows_at_once) = ROWS;

/* Write the first of some numbers in bfloat16, the nearest; with instructions for it, subnormal ones are zero. */
TARGETED INLINE void NAME(put_halves)(char *to, Vector x, int64_t count, const int kind) {
    Halfwords halves;
    if (kind == DOTS) NARROW(halves, x);
    else halves = __builtin_convertvector(NAME(nearest)(x) >> 16, Halfwords);
    if (count >= LANES) *(Halfwords *)to = halves;
    else
        for (int64_t i = 0; i < count; i++) memcpy(to + 2 * i, (const char *)&halves + 2 * i, 2);
}

TARGETED INLINE void NAME(put)(char *to, Vector x, int64_t count) {
    if (count >= LANES) STORE((float *)to, x);
    else
        for (int64_t i = 0; i < count; i++) memcpy(to + 4 * i, (const char *)&x + 4 * i, 4);
}

/* Round rows. As float32, both parts of a finite number are all of it. */
TARGETED INLINE void NAME(round_rows)(const Problem *problem, int64_t first, int64_t last, const int kind) {
    const int64_t inputs = problem->inputs, rounded = 2 * problem->used / problem->parts;
    for (int64_t row = first; row < last; row++) {
        const char *from = row_of(&problem->x, row);
        char *to = (char *)rounded_row(problem, row);
        for (int64_t k = 0; k < rounded; k += LANES) {
            const Vector x = k < inputs ? NAME(numbers)(&problem->x, from + k * problem->x.size, inputs - k) : NAME(all)(0.0f);
            const Vector nearest = (Vector)NAME(nearest)(x);
            if (kind == DOTS) NAME(put_halves)(to + 2 * k, x, rounded - k, kind);
            else {
                NAME(put)(to + 4 * k, problem->parts == 1 ? nearest : x, rounded - k);
                if (problem->parts == 1) continue;
                const Bits is_finite = (Bits)(x - x == 0.0f); /* beside a lower part of zero, others would become NaN */
                NAME(put)(to + 4 * (rounded + k), (Vector)(is_finite & (Bits)x), rounded - k);
            }
        }
    }
}

/* Rows of x rounded to bfloat16, as float32. */
TARGETED static void NAME(round)(const Problem *problem, int64_t first, int64_t last) { NAME(round_rows)(problem, first, last, WIDENED); }

#if LANES == 16
TARGETED static void NAME(round_halves)(const Problem *problem, int64_t first, int64_t last) {
    NAME(round_rows)(problem, first, last, DOTS);
}

/* Rows as tiles. Of numbers in two parts, the second one is the nearest to what the first one leaves, where that is finite. */
TARGETED static void NAME(round_tiles)(const Problem *problem, int64_t first, int64_t last) {
    const int64_t inputs = problem->inputs, step_bytes = problem->rows * TILE_ROWS * 4, size = problem->x.size;
    const int64_t part_bytes = problem->depth / problem->parts / TILE_ROWS * step_bytes;
    for (int64_t row = first, rows; row < last; row += rows) {
        const char *from[TILE_ROWS];
        char *to = problem->rounded + row * TILE_ROWS * 4;
        rows = least(last - row, TILE_ROWS);
        Bits infinite[TILE_ROWS];
        for (int64_t r = 0; r < rows; r++) from[r] = row_of(&problem->x, row + r), infinite[r] = NAME(every)(0);
        for (int64_t k = 0; k < inputs; k += 2 * LANES, to += step_bytes)
            for (int64_t r = 0; r < rows; r++)
                for (int half = 0; half < 2; half++) {
                    const int64_t input = k + half * LANES;
                    Vector x = NAME(all)(0.0f);
                    if (input < inputs) x = NAME(numbers)(&problem->x, from[r] + input * size, inputs - input);
                    Halfwords nearest, left;
                    NARROW(nearest, x);
                    *(Halfwords *)(to + r * TILE_ROWS * 4 + half * 2 * LANES) = nearest;
                    if (problem->parts == 1) continue;
                    const Vector wide = (Vector)(__builtin_convertvector(nearest, Bits) << 16);
                    const Bits is_finite = (Bits)(wide - wide == 0.0f);
                    infinite[r] |= ~is_finite;
                    NARROW(left, (Vector)(is_finite & (Bits)(x - wide)));
                    *(Halfwords *)(to + part_bytes + r * TILE_ROWS * 4 + half * 2 * LANES) = left;
                }
        for (int64_t r = 0; r < rows && problem->infinite; r++) {
            problem->infinite[row + r] = 0;
            for (int lane = 0; lane < LANES; lane++) problem->infinite[row + r] |= infinite[r][lane] != 0;
        }
    }
}
#endif

/* out[row][..] = added[..] + sum of x[row][k] * packed[k][..] over all inputs, for a few rows and panels. */
TARGETED INLINE void NAME(sums)(
    const char *const *x, int64_t used, int64_t depth, const char *packed, const float *added, float *const *out, int64_t column,
    const int rows, const int panels, const int kind) {
    Vector sums[MOST_ROWS][MOST_PANELS * VECTORS];
    const float *from[MOST_ROWS];
    UNROLLED (int row = 0; row < rows; row++) {
        from[row] = (const float *)x[row];
        UNROLLED (int v = 0; v < panels * VECTORS; v++) sums[row][v] = LOAD(added + v * LANES);
    }
    for (int64_t k = 0; k < used; k++) {
        Vector columns[MOST_PANELS * VECTORS];
        UNROLLED (int v = 0; v < panels * VECTORS; v++)
            columns[v] = LOAD((const float *)packed + (v / VECTORS * depth + k) * PANEL + v % VECTORS * LANES);
        if (kind != WIDENED) {
            UNROLLED (int row = 0; row < rows; row++) {
                const Vector one = NAME(all)(from[row][k]);
                UNROLLED (int v = 0; v < panels * VECTORS; v++)
                    if (kind == SINGLE) sums[row][v] += one * columns[v];
                    else DOT(sums[row][v], one, columns[v]);
            }
            continue;
        }
        UNROLLED (int half = 0; half < 2; half++) {
            Vector wide[MOST_PANELS * VECTORS];
            UNROLLED (int v = 0; v < panels * VECTORS; v++)
                wide[v] = (Vector)(half ? (Bits)columns[v] & (int32_t)0xffff0000u : (Bits)columns[v] << 16);
            UNROLLED (int row = 0; row < rows; row++) {
                const Vector one = NAME(all)(from[row][2 * k + half]);
                UNROLLED (int v = 0; v < panels * VECTORS; v++) sums[row][v] += one * wide[v];
            }
        }
    }
    UNROLLED (int row = 0; row < rows; row++)
        UNROLLED (int v = 0; v < panels * VECTORS; v++) STORE(out[row] + column + v * LANES, sums[row][v]);
}

#if LANES == 16
#define CASE(rows) \
    case rows: \
        if (panels == 1) NAME(sums)(x, used, depth, packed, added, out, column, rows, 1, kind); \
        else if (panels == 2) NAME(sums)(x, used, depth, packed, added, out, column, rows, 2, kind); \
        else NAME(sums)(x, used, depth, packed, added, out, column, rows, 3, kind); \
        break;
#else
#define CASE(rows) \
    case rows: NAME(sums)(x, used, depth, packed, added, out, column, rows, 1, kind); break;
#endif

/* Sums of up to ROWS rows. */
TARGETED INLINE void NAME(block)(
    const char *const *x, int64_t used, int64_t depth, const char *packed, const float *added, float *const *out, int64_t column,
    int64_t rows, int64_t panels, const int kind) {
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

/* Write results, in float32 or bfloat16. */
TARGETED INLINE void NAME(write)(const float *from, int64_t count, char *to, int size, const int kind) {
    for (int64_t i = 0; i < count; i += LANES) {
        const Vector x = LOAD(from + i); /* of a panel, which is whole */
        if (size == 2) NAME(put_halves)(to + 2 * i, x, count - i, kind);
        else NAME(put)(to + 4 * i, x, count - i);
    }
}

/* Rows by panels. Steps are applied to a few blocks at a time: in the result, unless its rows or the panel do not allow that. */
TARGETED INLINE int NAME(compute_by)(const Problem *problem, int64_t first, int64_t last, int64_t panel, int64_t end, const int kind) {
    float sums[BLOCKS * MOST_ROWS * MOST_PANELS * PANEL] __attribute__((aligned(64)));
    const char *x[MOST_CHUNK];
    float *places[MOST_CHUNK], *held[BLOCKS * MOST_ROWS];
    const int64_t depth = problem->depth, fit = CHUNK / depth, most = least(fit < LEAST_CHUNK ? LEAST_CHUNK : fit, MOST_CHUNK) / ROWS * ROWS;
    const Step *steps = problem->steps.each, *after = steps + problem->steps.count;
    const int has_bias = problem->steps.count && steps->kind == ADD && steps->repeats && steps->along && steps->operand.size == 4;
    const int is_separate =
        problem->out.size != 4 || (after - steps > has_bias && (!problem->out.even || problem->out.distance * 4 % SET_BYTES == 0));
    for (int64_t line = first, lines; line < last; line += lines) {
        const int64_t left = least(last - line, problem->of_matrix - line % problem->of_matrix);
        lines = least((next_rows(left, most) + ROWS - 1) / ROWS * ROWS, left);
        for (int64_t row = 0; row < lines; row++) {
            x[row] = kind != SINGLE && problem->rounded ? rounded_row(problem, line + row) : row_of(&problem->x, line + row);
            places[row] = (float *)row_of(&problem->out, line + row);
        }
        const char *matrix = problem->packed + line / problem->of_matrix * problem->panels * depth * PANEL * 4;
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
                    x + row, problem->used, depth, matrix + column * depth * 4, added, is_held ? held + row - ready : places + row, column,
                    rows, count, kind);
                const int64_t done = row + rows;
                if (done - ready + ROWS <= BLOCKS * ROWS && done < lines) continue;
                for (const Step *step = next; step < after; step++)
                    NAME(apply)(
                        step, (is_held ? held[0] : places[ready]) + column, line + ready, done - ready, column, columns, width,
                        is_held ? width : problem->out.distance);
                for (int64_t r = ready; is_held && r < done; r++)
                    NAME(write)(held[r - ready] + column, columns, (char *)places[r] + column * problem->out.size, problem->out.size, kind);
                ready = done;
            }
        }
    }
    return 0;
}

TARGETED static int NAME(compute)(const Problem *problem, int64_t first, int64_t last, int64_t panel, int64_t end) {
    return NAME(compute_by)(problem, first, last, panel, end, SINGLE);
}

TARGETED static int NAME(compute_widened)(const Problem *problem, int64_t first, int64_t last, int64_t panel, int64_t end) {
    return NAME(compute_by)(problem, first, last, panel, end, WIDENED);
}

#if LANES == 16
TARGETED static int NAME(compute_dots)(const Problem *problem, int64_t first, int64_t last, int64_t panel, int64_t end) {
    return NAME(compute_by)(problem, first, last, panel, end, DOTS);
}

/* The sums of a row by panels, number by number: tiles make NaN of infinity beside a lower part of zero. */
TARGETED static void NAME(infinite_sums)(const Problem *problem, int64_t row, const char *packed, float *sums, int64_t width) {
    const int64_t part = problem->depth / 2 * PANEL * 2; /* numbers of bfloat16 */
    const char *x = row_of(&problem->x, row);
    for (int64_t column = 0; column < width; column++) {
        const uint16_t *w = (const uint16_t *)(packed + column / PANEL * problem->depth * PANEL * 4) + column % PANEL * 2;
        sums[column] = 0;
        for (int64_t k = 0; k < problem->inputs; k++) {
            const int64_t at = k / 2 * PANEL * 2 + k % 2;
            const union { uint32_t bits; float number; } high = {(uint32_t)w[at] << 16}, low = {(uint32_t)w[part + at] << 16};
            sums[column] += ((const float *)x)[k] * (high.number + low.number);
        }
    }
}

/* Apply the steps to sums of a few rows and panels, and write them. */
TARGETED static void NAME(finish_tiles)(
    const Problem *problem, const char *packed, float *sums, int64_t line, int64_t rows, int64_t column, int64_t width) {
    const Step *steps = problem->steps.each, *after = steps + problem->steps.count;
    const int64_t columns = least(width, problem->columns - column);
    for (int64_t r = 0; r < rows && problem->infinite; r++)
        if (problem->infinite[line + r]) NAME(infinite_sums)(problem, line + r, packed, sums + r * width, width);
    for (const Step *step = steps; step < after; step++) NAME(apply)(step, sums, line, rows, column, columns, width, width);
    for (int64_t r = 0; r < rows; r++, sums += width)
        NAME(write)(sums, columns, row_of(&problem->out, line + r) + column * problem->out.size, problem->out.size, DOTS);
}

/* Rows by panels, as tiles, blocked for the second cache: where all inputs of the rows do not fit, TILE_STEPS tiles of inputs are multiplied
 * for all rows and a group of panels, and the sums are kept, before the next ones. */
TARGETED static int NAME(compute_tiles)(const Problem *problem, int64_t first, int64_t last, int64_t panel, int64_t end) {
    enum { BLOCK = 2 * TILE_ROWS, PAIR = 2 };
    const int64_t depth = problem->depth, all = depth / problem->parts / TILE_ROWS;
    const int64_t most = (last - first) * depth * 4 > TILE_CHUNK ? least(all, TILE_STEPS) : all;
    const int64_t fit = TILE_CHUNK / (most * problem->parts * TILE_ROWS * 4) / BLOCK * BLOCK, chunk = fit < BLOCK ? BLOCK : fit;
    if (first >= last || panel >= end) return 0;
    float held[BLOCK * PAIR * PANEL] __attribute__((aligned(64))), *kept = 0;
    int64_t group = end - panel; /* panels */
    if (most < all) {
        const int64_t blocks = (least(chunk, last - first) + BLOCK - 1) / BLOCK, pairs = TILE_SUMS / (blocks * (int64_t)sizeof held);
        group = least(group, PAIR * (pairs ? pairs : 1));
        kept = aligned_alloc(LINE_BYTES, (size_t)(blocks * ((group + 1) / PAIR)) * sizeof held);
        if (!kept) return 5;
    }
    Run run = {.x_bytes = problem->rows * TILE_ROWS * 4, .panel_bytes = depth * PANEL * 4};
    run.x_part_bytes = all * run.x_bytes;
    int64_t shaped = 0;
    for (int64_t line = first, lines; line < last; line += lines) {
        lines = least(least(last - line, problem->of_matrix - line % problem->of_matrix), chunk);
        const char *matrix = problem->packed + line / problem->of_matrix * problem->panels * run.panel_bytes;
        const int64_t blocks = (lines + BLOCK - 1) / BLOCK;
        for (int64_t start = panel, stop; start < end; start = stop) {
            stop = least(start + group, end);
            for (int64_t done = 0; done < all; done += run.steps) {
                run.steps = least(most, all - done), run.adds = done > 0;
                for (int64_t at = start, count; at < stop; at += count) {
                    count = least(stop - at, PAIR);
                    run.packed = matrix + at * run.panel_bytes + done * TILE_BYTES, run.distance = count * PANEL * 4;
                    run.ahead.from = at + 2 * count <= problem->panels ? run.packed + count * run.panel_bytes : 0;
                    for (int64_t row = 0, rows, block = 0; row < lines; row += rows, block++) {
                        rows = least(lines - row, BLOCK);
                        if (rows != shaped) NAME(shape_tiles)(shaped = rows);
                        float *sums = kept ? kept + ((at - start) / PAIR * blocks + block) * BLOCK * PAIR * PANEL : held;
                        run.ahead.first = (int)(block * TILE_ROWS / blocks), run.ahead.last = (int)((block + 1) * TILE_ROWS / blocks);
                        run.x = problem->rounded + (done * problem->rows + line + row) * TILE_ROWS * 4;
                        NAME(sums_of_tiles)(&run, sums, rows > TILE_ROWS, count > 1, problem->parts);
                        if (done + run.steps == all)
                            NAME(finish_tiles)(
                                problem, matrix + at * run.panel_bytes, sums, line + row, rows, at * PANEL, count * PANEL);
                    }
                }
            }
        }
    }
    __asm__ volatile("tilerelease");
    free(kept);
    return 0;
}
#endif
#undef UNROLLED
#undef VECTORS
#endif
