/* Products and convolutions of bytes with exact sums, and what follows them, on processors without instructions for that.
 *
 * Bytes are widened to 16 bits, of which pairs are multiplied and added into 32 bits by one instruction that never saturates. What is
 * read many times is widened once: a few rows of x, with their padding, and a panel of columns of W. Constants of signed bytes are packed
 * once, when a program is loaded, and widened as they are read.
 *
 * ``bytes_pack``. Arguments: W [K, N] or [N, C, th, tw] of signed bytes, with any strides, and what is packed: for each vector of columns,
 * tap by tap, pairs of inputs side by side, zeros where there is none.
 *
 * ``bytes_product``. Arguments: x [rows.., K], W [K, N] or what was packed, operands of the steps [rows.., N], the result [rows.., N]; then
 * integers: how many steps are of int32, and for each step its kind and the bits of two numbers. All tensors but W have the same axes of
 * rows, with any strides, zero where they repeat; elements along the last axis lie side by side, or an operand repeats.
 *
 * ``bytes_convolution``. Arguments: x [n, h, w, C], W [N, C / groups, th, tw] or what was packed, operands of the steps [n, h', w', N], the
 * result [n, h', w', N]; then integers: strides, paddings before, dilations, groups, taps, then as above.
 *
 * ``bytes_tiles``: the same of 3 x 3 taps side by side and one group. Tiles of 2 x 2 results take 16 products in place of 36 (Winograd's
 * F(2 x 2, 3 x 3)), all in whole numbers: x is transformed in 16 bits, W times 4, and sums, which may wrap around, end as 4 times the result.
 *
 * Where every group has one channel and one column, sums are of one position's channels side by side, of two taps at a time, one below the
 * other.
 *
 * The file is included once for each set of vector instructions. */
#include "../kernel.h"
#include "../epilogue.h"
#ifndef LANES
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define VECTORS 2                        /* columns of a block of registers, in vectors */
#define ROWS (LANES == 16 ? 12 : 6)      /* its rows: it takes most of the registers there are */
#define MOST_ROWS 12
#define MOST_LANES 16
#define MOST_WIDTH (VECTORS * MOST_LANES)
#define TOGETHER 4                       /* rows whose results become bytes together */
#define BLOCKS 8                         /* of rows, whose sums are in the first cache while steps are applied */
#define CHUNK (1 << 16)                  /* widened elements of x that are read again for each panel */
#define TILES (1 << 18)                  /* transformed elements of x that are read again for each panel */
#define CHANNELS 4                       /* of windows of single channels, in vectors: half a cache line of bytes or a whole one */
#define POSITIONS 4                      /* of windows side by side, half as many of most channels */
#define HELD 48                          /* of their sums, which are in the first cache while steps are applied */
#define APART 64                         /* bytes between places of tiles, which else would share few lines of the cache */
#define AHEAD 16                         /* inputs of W that are asked for before they are read: they lie too far apart to be guessed */
#define LEAST_ROWS 24                    /* rows of a share: with fewer, reading W takes longer than computing */
#define LEAST_CHANNELS 64                /* of a share of windows: threads seldom write to the same cache line */
#define SERIAL_OPERATIONS 400000.0       /* less than this is done before another thread has started */

typedef struct Problem {
    Rows x, out;
    const char *weights;
    const char *packed; /* 0 where nothing is */
    int weights_signed, x_signed;
    int64_t inputs, taps[2];                   /* channels of a group, and taps of a window: 1 x 1 of a product */
    int64_t input_step, column_step, tap_steps[2]; /* distances in W */
    int64_t strides[2], before[2], dilations[2], groups;
    int64_t images, height, width, columns;    /* of the result; a product has one row of ``width`` positions */
    int64_t lines;                             /* what is shared: rows of a product, lines of results, or of tiles */
    int is_product, is_of_channels;
    Steps steps;
    int (*compute)(const struct Problem *problem, int64_t first, int64_t last, int64_t column, int64_t end);
    int lanes;
} Problem;

/* Positions of a line of x that one line of the result reads, with padding. */
static int64_t length_of(const Problem *problem) {
    return (problem->width - 1) * problem->strides[1] + (problem->taps[1] - 1) * problem->dilations[1] + 1;
}

/* The distance of lines of x that begin pairs of taps: all of them are a multiple of it. */
static int64_t lines_apart(const Problem *problem) {
    int64_t a = problem->strides[0], b = problem->taps[0] > 2 ? 2 * problem->dilations[0] : 0;
    while (b) {
        const int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* How many of these the pairs of taps of a window span. */
static int64_t lines_held(const Problem *problem) {
    return (problem->taps[0] - 1) / 2 * 2 * problem->dilations[0] / lines_apart(problem) + 1;
}

#define KERNEL "bytes/bytes.c"
#include "../instruction_sets.h"

/* The grid of shares: of lines, unless that leaves too little to each, or rather of columns where there are more of these, or where lines are
 * read by the windows of several. */
static int work(int task, const Environment *environment, void *data) {
    const Problem *problem = data;
    const int64_t tasks = environment->num_task, vectors = (problem->columns + problem->lanes - 1) / problem->lanes;
    const int64_t positions = problem->images * problem->height * problem->width;
    int64_t across = 1, down;
    if (problem->is_of_channels) across = least(tasks, problem->columns / LEAST_CHANNELS + 1);
    else if (problem->columns > positions) across = least(vectors, tasks);
    else
        while (across * 2 <= tasks && across * 2 <= vectors && positions * across < LEAST_ROWS * tasks) across *= 2;
    down = least(tasks / across, problem->lines);
    if (task >= across * down) return 0;
    const int64_t row = task / across, column = task % across;
    return problem->compute(
        problem, problem->lines * row / down, problem->lines * (row + 1) / down, vectors * column / across * problem->lanes,
        least(vectors * (column + 1) / across * problem->lanes, problem->columns));
}

static int run(Problem *problem, int in_tiles) {
    problem->lanes = FOR_PROCESSOR(lanes);
    problem->is_of_channels = problem->groups > 1 && problem->inputs == 1 && problem->columns == problem->groups;
    problem->lines = problem->is_product ? problem->width : problem->images * (in_tiles ? (problem->height + 1) / 2 : problem->height);
    if (in_tiles) problem->compute = FOR_PROCESSOR(compute_tiles);
    else if (problem->is_of_channels) problem->compute = FOR_PROCESSOR(compute_windows);
    else problem->compute = FOR_PROCESSOR(compute);
    const double sums = (double)(problem->images * problem->height * problem->width) * (double)problem->columns;
    if (__TVMBackendParallelLaunch && sums * (double)(problem->inputs * problem->taps[0] * problem->taps[1]) > SERIAL_OPERATIONS)
        return __TVMBackendParallelLaunch(work, problem, 0);
    const Environment alone = {0, 1};
    return work(0, &alone, problem);
}

/* What was packed, or where the elements of W lie. */
static void read_weights(Problem *problem, const Tensor *weights, int inputs_axis, int columns_axis) {
    if (weights->rank == 1) {
        problem->packed = weights->data;
        return;
    }
    problem->weights = weights->data, problem->weights_signed = weights->code == SIGNED;
    problem->input_step = weights->strides[inputs_axis], problem->column_step = weights->strides[columns_axis];
}

EXPORT int bytes_pack(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    if (count != 2) return 2;
    const Tensor *weights = arguments[0].tensor, *packed = arguments[1].tensor;
    const int64_t *shape = weights->shape, *strides = weights->strides;
    const int is_product = weights->rank == 2, columns_axis = is_product, inputs_axis = !is_product;
    const int64_t columns = shape[columns_axis], inputs = shape[inputs_axis], across = is_product ? 1 : shape[3];
    const int64_t taps = is_product ? 1 : shape[2] * across, vector = FOR_PROCESSOR(lanes);
    if (packed->rank != 1 || packed->shape[0] < (columns + vector - 1) / vector * vector * taps * ((inputs + 1) / 2) * 2) return 3;
    int8_t *to = packed->data;
    for (int64_t column = 0; column < columns; column += vector)
        for (int64_t tap = 0; tap < taps; tap++) {
            const int8_t *from = (const int8_t *)weights->data + column * strides[columns_axis];
            if (!is_product) from += tap / across * strides[2] + tap % across * strides[3];
            for (int64_t k = 0; k < inputs; k += 2)
                for (int64_t i = 0; i < vector; i++)
                    for (int64_t of = k; of < k + 2; of++)
                        *to++ = of < inputs && column + i < columns ? from[i * strides[columns_axis] + of * strides[inputs_axis]] : 0;
        }
    return 0;
}

EXPORT int bytes_product(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    const int integers = integers_of(arguments, count);
    if (integers < 1 || count - integers < 3) return 2;
    const Value *codes = arguments + count - integers;
    const Tensor *x = arguments[0].tensor, *weights = arguments[1].tensor, *out = codes[-1].tensor;
    const int axes = out->rank - 1;
    Problem problem = {
        .x = rows_of(x, axes), .out = rows_of(out, axes), .x_signed = x->code == SIGNED, .inputs = x->shape[axes], .taps = {1, 1},
        .strides = {1, 1}, .dilations = {1, 1}, .groups = 1, .images = 1, .height = 1, .width = 1, .columns = out->shape[axes],
        .is_product = 1,
    };
    read_weights(&problem, weights, 0, 1);
    for (int axis = 0; axis < axes; axis++) problem.width *= out->shape[axis];
    if (read_steps(&problem.steps, codes, integers, arguments, 2, axes) + 1 != count - integers) return 3;
    return run(&problem, 0);
}

static int convolution(const Value *arguments, int count, int in_tiles) {
    const int integers = integers_of(arguments, count);
    if (integers < 10 || count - integers < 3) return 2;
    const Value *codes = arguments + count - integers;
    const Tensor *x = arguments[0].tensor, *weights = arguments[1].tensor, *out = codes[-1].tensor;
    Problem problem = {
        .x = rows_of(x, 3), .out = rows_of(out, 3), .x_signed = x->code == SIGNED, .inputs = x->shape[3] / codes[6].integer,
        .taps = {codes[7].integer, codes[8].integer}, .groups = codes[6].integer, .images = out->shape[0], .height = out->shape[1],
        .width = out->shape[2], .columns = out->shape[3],
    };
    read_weights(&problem, weights, 1, 0);
    if (!problem.packed) problem.tap_steps[0] = weights->strides[2], problem.tap_steps[1] = weights->strides[3];
    for (int axis = 0; axis < 2; axis++) {
        problem.strides[axis] = codes[axis].integer, problem.before[axis] = codes[2 + axis].integer;
        problem.dilations[axis] = codes[4 + axis].integer;
    }
    if (read_steps(&problem.steps, codes + 9, integers - 9, arguments, 2, 3) + 1 != count - integers) return 3;
    return run(&problem, in_tiles);
}

EXPORT int bytes_convolution(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    return convolution(arguments, count, 0);
}

EXPORT int bytes_tiles(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    return convolution(arguments, count, 1);
}

#else /* ------------------------------------------------------------------ once for each set of instructions */

static const int NAME(lanes) = LANES;

#define UNROLLED _Pragma("clang loop unroll(full)") for
#define Halves NAME(Halves)
typedef int16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
#define Wide NAME(Wide)
#define WideOctets NAME(WideOctets)
#define WideOctetsU NAME(WideOctetsU)
typedef int16_t Wide __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef int8_t WideOctets __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
typedef uint8_t WideOctetsU __attribute__((vector_size(2 * LANES), aligned(1), may_alias));

/* The sum of two products of 16 bits in each 32 bits of two vectors. */
TARGETED INLINE Bits NAME(pairs)(Bits a, Bits b) {
#if LANES == 16
    return (Bits)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif LANES == 8
    return (Bits)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* One step of int32. */
TARGETED static void NAME(apply_integers)(
    const Step *step, int32_t *block, int64_t first, int64_t rows, int64_t column, int64_t columns, int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        const char *from = row_of(&step->operand, first + row);
        for (int64_t i = 0; i < width; i += LANES) {
            const Bits y = step->along ? NAME(integers)(&step->operand, from + (column + i) * step->operand.size, columns - i)
                                       : NAME(every)(NAME(integers)(&step->operand, from, 1)[0]);
            Bits *x = (Bits *)(block + row * width + i);
            *x = step->kind == SUBTRACT ? *x - y : *x + y;
        }
    }
}

/* Write rows as they are. */
TARGETED static void NAME(write)(
    const Rows *out, const int32_t *block, int64_t first, int64_t rows, int64_t column, int64_t columns, int64_t width) {
    for (int64_t row = 0; row < rows; row++, block += width) {
        int32_t *to = (int32_t *)row_of(out, first + row) + column;
        int64_t i = 0;
        for (; i + LANES <= columns; i += LANES) *(Bits *)(to + i) = *(const Bits *)(block + i);
        if (i < columns) memcpy(to + i, block + i, (size_t)(columns - i) * 4);
    }
}

/* The nearest whole numbers, of two the even one, as bytes that saturate: vectors of some rows. */
TARGETED INLINE void NAME(saturate)(const Vector *numbers, Octets *bytes, const int rows, const int is_signed) {
#if LANES == 8
    if (rows == TOGETHER) {
        const __m256 most = (__m256)NAME(all)(is_signed ? 127.0f : 255.0f);
        _Static_assert(TOGETHER == 4, "four vectors of 32 bits make one of bytes");
        __m256i sums[TOGETHER];
        UNROLLED (int row = 0; row < TOGETHER; row++) sums[row] = _mm256_cvtps_epi32(_mm256_min_ps(most, (__m256)numbers[row]));
        const __m256i low = _mm256_packs_epi32(sums[0], sums[1]), high = _mm256_packs_epi32(sums[2], sums[3]);
        const __m256i all = is_signed ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
        *(__m256i_u *)bytes = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        return;
    }
#endif
    const float low = is_signed ? -128.0f : 0.0f, high = is_signed ? 127.0f : 255.0f;
    UNROLLED (int row = 0; row < rows; row++) /* the last bits of a sum */
        bytes[row] = __builtin_convertvector((Bits)(NAME(between)(numbers[row], low, high) + 12582912.0f), Octets);
}

/* Rows of bytes in their places. */
TARGETED INLINE void NAME(write_bytes)(
    const Rows *out, const Vector *numbers, int64_t first, int64_t column, int64_t columns, const int rows) {
    Octets bytes[TOGETHER];
    if (out->tensor->code == SIGNED) NAME(saturate)(numbers, bytes, rows, 1);
    else NAME(saturate)(numbers, bytes, rows, 0);
    if (columns >= LANES) {
        UNROLLED (int row = 0; row < rows; row++) *(Octets *)(row_of(out, first + row) + column) = bytes[row];
        return;
    }
    UNROLLED (int row = 0; row < rows; row++) {
        const Octets some = bytes[row];
        memcpy(row_of(out, first + row) + column, &some, (size_t)columns);
    }
}

/* Vectors of sums of some rows as numbers, scaled and shifted; bytes in their places where nothing else follows. */
TARGETED INLINE void NAME(scale)(
    const Rows *out, int32_t *block, int64_t width, Vector factor, Vector summand, int64_t first, int64_t column, int64_t columns,
    const int rows, const int is_last) {
    Vector numbers[TOGETHER];
    UNROLLED (int row = 0; row < rows; row++) {
        const Vector scaled = __builtin_convertvector(*(const Bits *)(block + row * width), Vector) * factor;
        numbers[row] = scaled + summand;
        if (!is_last) STORE((float *)block + row * width, numbers[row]);
    }
    if (is_last) NAME(write_bytes)(out, numbers, first, column, columns, rows);
}

/* The same for all rows and columns. */
TARGETED static void NAME(scale_block)(
    const Rows *out, const Step *step, int32_t *block, int64_t first, int64_t rows, int64_t column, int64_t columns, int64_t width,
    int is_last) {
    for (int64_t i = 0; i < columns; i += LANES, block += LANES) {
        const Vector factor = NAME(operand)(step, 0, column + i, columns - i), summand = NAME(operand)(step + 1, 0, column + i, columns - i);
        int64_t row = 0;
#define SCALE(count, is_last) \
    NAME(scale)(out, block + row * width, width, factor, summand, first + row, column + i, columns - i, count, is_last)
        for (; is_last && row + TOGETHER <= rows; row += TOGETHER) SCALE(TOGETHER, 1);
        for (; is_last && row < rows; row++) SCALE(1, 1);
        for (; !is_last && row < rows; row++) SCALE(1, 0);
#undef SCALE
    }
}

/* Rows and columns of numbers as bytes in their places. */
TARGETED static void NAME(write_block_of_bytes)(
    const Rows *out, const float *block, int64_t first, int64_t rows, int64_t column, int64_t columns, int64_t width) {
    for (int64_t i = 0; i < columns; i += LANES, block += LANES) {
        Vector numbers[TOGETHER];
        int64_t row = 0;
        for (; row + TOGETHER <= rows; row += TOGETHER) {
            UNROLLED (int r = 0; r < TOGETHER; r++) numbers[r] = LOAD(block + (row + r) * width);
            NAME(write_bytes)(out, numbers, first + row, column + i, columns - i, TOGETHER);
        }
        for (; row < rows; row++) {
            numbers[0] = LOAD(block + row * width);
            NAME(write_bytes)(out, numbers, first + row, column + i, columns - i, 1);
        }
    }
}

/* All steps for some rows of sums, and the results in their places. What becomes a byte is mostly scaled and shifted alone: in registers. */
TARGETED static void NAME(finish)(
    const Problem *problem, int32_t *block, int64_t first, int64_t rows, int64_t column, int64_t columns, int64_t width) {
    const Step *step = problem->steps.each, *end = step + problem->steps.count;
    const Rows *out = &problem->out;
    const int is_byte = out->size == 1, is_int32 = !is_byte && out->tensor->code != FLOAT;
    for (const Step *last = step + problem->steps.of_integers; step < last; step++)
        NAME(apply_integers)(step, block, first, rows, column, columns, width);
    if (is_int32) {
        NAME(write)(out, block, first, rows, column, columns, width);
        return;
    }
    if (end - step >= 2 && step->kind == MULTIPLY && step[1].kind == ADD && step->repeats && step[1].repeats) {
        const int is_last = is_byte && end - step == 2;
        NAME(scale_block)(out, step, block, first, rows, column, columns, width, is_last);
        if (is_last) return;
        step += 2;
    } else
        for (int64_t i = 0; i < rows * width; i += LANES)
            STORE((float *)block + i, __builtin_convertvector(*(const Bits *)(block + i), Vector));
    for (; step < end; step++) NAME(apply)(step, (float *)block, first, rows, column, columns, width, width);
    if (is_byte) NAME(write_block_of_bytes)(out, (const float *)block, first, rows, column, columns, width);
    else NAME(write)(out, block, first, rows, column, columns, width);
}

/* Rows of x by a panel: ``runs`` times ``pairs`` of elements that lie side by side in both. A panel is widened, its vectors side by side, or
 * packed bytes, its vectors ``apart``. */
TARGETED INLINE void NAME(sums)(
    const int16_t *const *x, const int64_t *offsets, int64_t runs, int64_t pairs, const char *panel, int64_t apart, int32_t *out,
    const int rows, const int vectors, const int is_packed) {
    Bits sums[MOST_ROWS][VECTORS];
    UNROLLED (int row = 0; row < rows; row++)
        UNROLLED (int v = 0; v < vectors; v++) sums[row][v] = NAME(every)(0);
    for (int64_t run = 0; run < runs; run++) {
        const int16_t *from[MOST_ROWS];
        UNROLLED (int row = 0; row < rows; row++) from[row] = x[row] + offsets[run];
        for (int64_t pair = 0; pair < pairs; pair++, panel += is_packed ? LANES * 2 : vectors * LANES * 4) {
            Bits columns[VECTORS];
            UNROLLED (int v = 0; v < vectors; v++)
                columns[v] = is_packed ? (Bits)__builtin_convertvector(*(const WideOctets *)(panel + v * apart), Wide)
                                       : *(const Bits *)(panel + v * LANES * 4);
            UNROLLED (int row = 0; row < rows; row++) {
                int32_t two;
                memcpy(&two, from[row] + 2 * pair, 4);
                const Bits elements = NAME(every)(two);
                UNROLLED (int v = 0; v < vectors; v++) sums[row][v] += NAME(pairs)(elements, columns[v]);
            }
        }
    }
    UNROLLED (int row = 0; row < rows; row++)
        UNROLLED (int v = 0; v < vectors; v++) *(Bits *)(out + (row * vectors + v) * LANES) = sums[row][v];
}

#define CASE(rows) \
    case rows: \
        if (apart && vectors == 1) NAME(sums)(x, offsets, runs, pairs, panel, apart, out, rows, 1, 1); \
        else if (apart) NAME(sums)(x, offsets, runs, pairs, panel, apart, out, rows, 2, 1); \
        else if (vectors == 1) NAME(sums)(x, offsets, runs, pairs, panel, 0, out, rows, 1, 0); \
        else NAME(sums)(x, offsets, runs, pairs, panel, 0, out, rows, 2, 0); \
        break;

/* ``apart``: bytes between the vectors of a packed panel, 0 of a widened one. */
TARGETED static void NAME(block)(
    const int16_t *const *x, const int64_t *offsets, int64_t runs, int64_t pairs, const void *at, int64_t apart, int32_t *out, int64_t rows,
    int64_t vectors) {
    const char *panel = at;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if LANES == 16
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}
#undef CASE

/* One input of some columns, in vectors. */
TARGETED INLINE void NAME(row_of_weights)(const Problem *problem, const char *from, int64_t columns, int64_t vectors, Bits *to) {
    for (int64_t v = 0; v < vectors; v++) {
        if (problem->column_step == 1 && columns - v * LANES >= LANES) {
            to[v] = NAME(widened)(from + v * LANES, problem->weights_signed);
            continue;
        }
        to[v] = NAME(every)(0);
        for (int64_t lane = 0; lane < LANES && v * LANES + lane < columns; lane++) {
            const char *element = from + (v * LANES + lane) * problem->column_step;
            to[v][lane] = problem->weights_signed ? *(const int8_t *)element : *(const uint8_t *)element;
        }
    }
}

/* Widen some columns of W, inputs in pairs: of a run, which is as many taps side by side as ``joined``. */
TARGETED static void NAME(pack)(const Problem *problem, int64_t column, int64_t columns, int64_t vectors, int64_t joined, int16_t *panel) {
    const char *weights = problem->weights + column * problem->column_step;
    Bits parts[2][VECTORS], *to = (Bits *)panel;
    for (int64_t i = 0; i < problem->taps[0]; i++)
        for (int64_t j = 0; j < problem->taps[1]; j += joined) {
            int odd = 0;
            for (int64_t tap = j; tap < j + joined; tap++) {
                const char *from = weights + i * problem->tap_steps[0] + tap * problem->tap_steps[1];
                for (int64_t k = 0; k < problem->inputs; k++, from += problem->input_step, odd ^= 1) {
                    __builtin_prefetch(from + AHEAD * problem->input_step);
                    NAME(row_of_weights)(problem, from, columns, vectors, parts[odd]);
                    if (odd)
                        for (int64_t v = 0; v < vectors; v++) *to++ = (parts[0][v] & 0xffff) | parts[1][v] << 16;
                }
            }
            if (odd)
                for (int64_t v = 0; v < vectors; v++) *to++ = parts[0][v] & 0xffff;
        }
}

TARGETED INLINE void NAME(widen)(const Problem *problem, const char *from, int64_t count, int16_t *to) {
    int64_t i = 0;
    if (problem->x_signed) {
        for (; i + LANES <= count; i += LANES) *(Halves *)(to + i) = __builtin_convertvector(*(const Octets *)(from + i), Halves);
        for (; i < count; i++) to[i] = ((const int8_t *)from)[i];
    } else {
        for (; i + LANES <= count; i += LANES) *(Halves *)(to + i) = __builtin_convertvector(*(const OctetsU *)(from + i), Halves);
        for (; i < count; i++) to[i] = ((const uint8_t *)from)[i];
    }
}

/* Widen what ``count`` lines of the result from ``line`` on read, with zeros beside it. */
TARGETED static void NAME(widen_lines)(const Problem *problem, int64_t line, int64_t count, int64_t pitch, int16_t *copy) {
    if (problem->is_product) {
        for (int64_t row = 0; row < count; row++) {
            NAME(widen)(problem, row_of(&problem->x, line + row), problem->inputs, copy + row * pitch);
            if (pitch > problem->inputs) copy[row * pitch + problem->inputs] = 0;
        }
        return;
    }
    const Tensor *x = problem->x.tensor;
    const int64_t image = line / problem->height, channels = x->shape[3], dense = x->strides[2] == channels;
    const int64_t top = line % problem->height * problem->strides[0] - problem->before[0];
    const int64_t bottom = top + (count - 1) * problem->strides[0] + (problem->taps[0] - 1) * problem->dilations[0] + 1;
    const int64_t start = problem->before[1], length = pitch / channels;
    const int64_t width = x->shape[2] < length - start ? x->shape[2] : length - start;
    for (int64_t y = top; y < bottom; y++, copy += pitch) {
        if (y < 0 || y >= x->shape[1] || width <= 0) {
            memset(copy, 0, (size_t)pitch * 2);
            continue;
        }
        const char *from = (const char *)x->data + image * x->strides[0] + y * x->strides[1];
        memset(copy, 0, (size_t)(start * channels) * 2);
        if (dense) NAME(widen)(problem, from, width * channels, copy + start * channels);
        else
            for (int64_t at = 0; at < width; at++)
                NAME(widen)(problem, from + at * x->strides[2], channels, copy + (start + at) * channels);
        memset(copy + (start + width) * channels, 0, (size_t)(pitch - (start + width) * channels) * 2);
    }
}

/* Some columns, all of one group, of some lines whose operands are widened in ``copy``. */
TARGETED static void NAME(columns)(
    const Problem *problem, int64_t line, int64_t lines, int64_t column, int64_t end, int64_t pitch, int64_t joined, const int64_t *offsets,
    int64_t runs, const int16_t *copy, int16_t *panel) {
    const int64_t vectors = (end - column + LANES - 1) / LANES, width = vectors * LANES, pairs = (problem->inputs * joined + 1) / 2;
    const int64_t positions = problem->is_product ? lines : lines * problem->width, channels = problem->inputs * problem->groups;
    const int64_t first = problem->is_product ? line : line * problem->width;
    const int16_t *group = copy + column / (problem->columns / problem->groups) * problem->inputs;
    int32_t block[BLOCKS * MOST_ROWS * MOST_WIDTH] __attribute__((aligned(64)));
    const int64_t blocks = (positions + ROWS - 1) / ROWS, apart = problem->packed ? runs * pairs * 2 * LANES : 0;
    const void *weights = panel;
    if (problem->packed) weights = problem->packed + column / LANES * apart;
    else NAME(pack)(problem, column, end - column, vectors, joined, panel);
    int64_t ready = 0, x = 0, y = 0;
    for (int64_t part = 0, at = 0, rows; part < blocks; part++, at += rows) {
        const int16_t *from[MOST_ROWS];
        rows = positions * (part + 1) / blocks - at;
        for (int64_t row = 0; row < rows; row++) {
            from[row] = group + y * problem->strides[0] * pitch + x * problem->strides[1] * channels;
            if (problem->is_product || ++x == problem->width) x = 0, y++;
        }
        NAME(block)(from, offsets, runs, pairs, weights, apart, block + (at - ready) * width, rows, vectors);
        if ((part + 1) % BLOCKS == 0 || part + 1 == blocks) {
            NAME(finish)(problem, block, first + ready, at + rows - ready, column, end - column, width);
            ready = at + rows;
        }
    }
}

TARGETED static int NAME(compute)(const Problem *problem, int64_t first, int64_t last, int64_t column, int64_t end) {
    const int64_t channels = problem->inputs * problem->groups, of_group = problem->columns / problem->groups;
    const int64_t pitch = problem->is_product ? (problem->inputs + 1) / 2 * 2 : length_of(problem) * channels;
    const int64_t joined = problem->groups == 1 && problem->dilations[1] == 1 ? problem->taps[1] : 1;
    const int64_t runs = problem->taps[0] * (problem->taps[1] / joined), pairs = (problem->inputs * joined + 1) / 2;
    const int64_t more = problem->is_product ? 0 : (problem->taps[0] - 1) * problem->dilations[0] + 1 - problem->strides[0];
    const int64_t step = problem->is_product ? 1 : problem->strides[0];
    const int64_t weights = runs * pairs * 2 * problem->columns, positions = problem->is_product ? 1 : problem->width;
    int64_t chunk = (CHUNK / pitch - more) / step;
    if (problem->packed && weights <= CHUNK) chunk = least(chunk, (BLOCKS * ROWS + positions - 1) / positions);
    chunk = least(chunk < 1 ? 1 : chunk, last - first);
    if (problem->is_product && chunk < ROWS) chunk = least(ROWS, last - first);
    const int64_t held = (chunk * step + (more > 0 ? more : 0)) * pitch + 2; /* a pair may begin at the last element */
    const int64_t panel_size = problem->packed ? 0 : runs * pairs * 2 * VECTORS * LANES;
    char *memory = 0;
    if (posix_memalign((void **)&memory, 64, (size_t)((panel_size + held) * 2 + runs * 8 + 64))) return 4;
    int16_t *panel = (int16_t *)memory, *copy = panel + panel_size;
    int64_t *offsets = (int64_t *)(memory + ((panel_size + held) * 2 + 7) / 8 * 8);
    for (int64_t run = 0; run < runs; run++) {
        const int64_t i = run / (problem->taps[1] / joined), j = run % (problem->taps[1] / joined);
        offsets[run] = i * problem->dilations[0] * pitch + j * problem->dilations[1] * channels;
    }
    for (int64_t line = first, lines; line < last; line += lines) {
        lines = least(chunk, last - line);
        if (!problem->is_product) lines = least(lines, problem->height - line % problem->height); /* of one image */
        NAME(widen_lines)(problem, line, lines, pitch, copy);
        for (int64_t at = column; at < end;) {
            const int64_t group_end = (at / of_group + 1) * of_group, next = least(least(at + VECTORS * LANES, group_end), end);
            NAME(columns)(problem, line, lines, at, next, pitch, joined, offsets, runs, copy, panel);
            at = next;
        }
    }
    free(memory);
    return 0;
}
/* Some channels of a line of x, with its padding, each beside the same channel of the line ``below`` that is the next in a window. A line
 * that is outside is 0, and counts as zeros. */
TARGETED static void NAME(pair_lines)(
    const Problem *problem, const char *line, const char *below, int64_t length, int64_t channels, Bits *to, const int vectors) {
    const Tensor *x = problem->x.tensor;
    const int64_t start = least(problem->before[1], length), end = least(start + x->shape[2], length);
    char rest[2][CHANNELS * LANES] = {{0}};
    for (int64_t at = 0; at < start * vectors; at++) to[at] = NAME(every)(0);
    for (int64_t at = end * vectors; at < length * vectors; at++) to[at] = NAME(every)(0);
    for (int64_t at = start; at < end; at++) {
        const int64_t offset = (at - start) * x->strides[2];
        const char *from[2] = {line ? line + offset : rest[0], below ? below + offset : rest[1]};
        if (channels < vectors * LANES)
            for (int i = 0; i < 2; i++) memmove(rest[i], from[i], (size_t)channels), from[i] = rest[i];
        UNROLLED (int v = 0; v < vectors; v++)
            to[at * vectors + v] = (NAME(widened)(from[0] + v * LANES, problem->x_signed) & 0xffff) |
                                   NAME(widened)(from[1] + v * LANES, problem->x_signed) << 16;
    }
}

/* Sums of some positions side by side, ``step`` vectors apart: of windows of ``down`` pairs of taps, each in a line of its own, by ``across``. */
TARGETED INLINE void NAME(windows)(
    const Bits *const *lines, int64_t at, const Bits *taps, int64_t down, int64_t across, int64_t beside, int64_t step, Bits *out,
    const int positions, const int vectors) {
    Bits sums[POSITIONS][CHANNELS];
    UNROLLED (int p = 0; p < positions; p++)
        UNROLLED (int v = 0; v < vectors; v++) sums[p][v] = NAME(every)(0);
    for (int64_t i = 0; i < down; i++)
        for (int64_t j = 0; j < across; j++, taps += vectors) {
            const Bits *from = lines[i] + at * step + j * beside;
            UNROLLED (int p = 0; p < positions; p++)
                UNROLLED (int v = 0; v < vectors; v++) sums[p][v] += NAME(pairs)(from[p * step + v], taps[v]);
        }
    UNROLLED (int p = 0; p < positions; p++)
        UNROLLED (int v = 0; v < vectors; v++) out[p * vectors + v] = sums[p][v];
}

/* Some channels, at most CHANNELS vectors, of some lines of one image. ``copy`` holds as many lines of x as a window: the next one takes the
 * place of the first. */
TARGETED INLINE void NAME(channels)(
    const Problem *problem, int64_t line, int64_t last, int64_t column, int64_t channels, const Bits *taps, Bits *copy, const Bits **lines,
    const int vectors) {
    const Tensor *x = problem->x.tensor;
    const int64_t pitch = length_of(problem) * vectors, between = lines_apart(problem), held = lines_held(problem);
    const int64_t down = (problem->taps[0] + 1) / 2, apart = 2 * problem->dilations[0] / between;
    const int64_t beside = problem->dilations[1] * vectors, step = problem->strides[1] * vectors;
    const int positions = vectors == CHANNELS ? POSITIONS / 2 : POSITIONS; /* their sums fit into registers */
    const int64_t top = line % problem->height * problem->strides[0] - problem->before[0];
    const char *image = (const char *)x->data + line / problem->height * x->strides[0] + column;
    Bits block[HELD * CHANNELS] __attribute__((aligned(64)));
    for (int64_t begin = 0, copied = 0; line < last; line++, begin += problem->strides[0] / between) {
        for (; copied < begin + held; copied++) {
            const int64_t y = top + copied * between, below = y + problem->dilations[0];
            NAME(pair_lines)(
                problem, y >= 0 && y < x->shape[1] ? image + y * x->strides[1] : 0,
                below >= 0 && below < x->shape[1] ? image + below * x->strides[1] : 0, pitch / vectors, channels,
                copy + copied % held * pitch, vectors);
        }
        for (int64_t i = 0; i < down; i++) lines[i] = copy + (begin + i * apart) % held * pitch;
        for (int64_t at = 0, ready = 0; at < problem->width;) {
            Bits *to = block + (at - ready) * vectors;
            if (problem->width - at < positions) {
                NAME(windows)(lines, at, taps, down, problem->taps[1], beside, step, to, 1, vectors);
                at++;
            } else {
                NAME(windows)(lines, at, taps, down, problem->taps[1], beside, step, to, positions, vectors);
                at += positions;
            }
            if (at < problem->width && at - ready + positions <= HELD) continue;
            NAME(finish)(problem, (int32_t *)block, line * problem->width + ready, at - ready, column, channels, vectors * LANES);
            ready = at;
        }
    }
}

/* Windows of single channels: lines of x are widened in pairs that lie in one window, so that an instruction multiplies two taps. */
TARGETED static int NAME(compute_windows)(const Problem *problem, int64_t first, int64_t last, int64_t column, int64_t end) {
    const int64_t down = (problem->taps[0] + 1) / 2, copied = lines_held(problem) * length_of(problem) * CHANNELS;
    char *memory = 0;
    if (posix_memalign((void **)&memory, 64, (size_t)(copied + down * problem->taps[1] * CHANNELS) * sizeof(Bits) + (size_t)down * 8)) return 4;
    Bits *copy = (Bits *)memory, *taps = copy + copied;
    const Bits **lines = (const Bits **)(taps + down * problem->taps[1] * CHANNELS);
    for (int64_t at = column, next; at < end; at = next) {
        const int64_t left = (end - at + LANES - 1) / LANES, vectors = left >= CHANNELS ? CHANNELS : left > 1 ? CHANNELS / 2 : 1;
        next = least(at + vectors * LANES, end);
        for (int64_t i = 0; i < problem->taps[0]; i++)
            for (int64_t j = 0; j < problem->taps[1]; j++) {
                Bits weights[CHANNELS], *to = taps + (i / 2 * problem->taps[1] + j) * vectors;
                const char *from = problem->weights + at * problem->column_step + i * problem->tap_steps[0] + j * problem->tap_steps[1];
                NAME(row_of_weights)(problem, from, next - at, vectors, weights);
                for (int64_t v = 0; v < vectors; v++) to[v] = i % 2 ? to[v] | weights[v] << 16 : weights[v] & 0xffff;
            }
        for (int64_t line = first, after; line < last; line = after) {
            after = least(last, (line / problem->height + 1) * problem->height);
            if (vectors == 1) NAME(channels)(problem, line, after, at, next - at, taps, copy, lines, 1);
            else if (vectors == CHANNELS) NAME(channels)(problem, line, after, at, next - at, taps, copy, lines, CHANNELS);
            else NAME(channels)(problem, line, after, at, next - at, taps, copy, lines, CHANNELS / 2);
        }
    }
    free(memory);
    return 0;
}
/* Channels of a tile of 4 x 4 positions, of which those without a place are zeros: B' d B, at 16 places ``distance`` apart. */
TARGETED static void NAME(transform)(const Problem *problem, const char *const places[16], int16_t *to, int64_t distance) {
    for (int64_t c = 0; c < problem->inputs; c += 2 * LANES) {
        Wide d[4][4];
        UNROLLED (int i = 0; i < 16; i++) {
            const char *from = places[i];
            char rest[2 * LANES] = {0};
            if (!from) {
                d[i / 4][i % 4] = (Wide)NAME(every)(0);
                continue;
            }
            from += c;
            if (problem->inputs - c < 2 * LANES) memcpy(rest, from, (size_t)(problem->inputs - c)), from = rest;
            d[i / 4][i % 4] = problem->x_signed ? __builtin_convertvector(*(const WideOctets *)from, Wide)
                                                : __builtin_convertvector(*(const WideOctetsU *)from, Wide);
        }
        UNROLLED (int j = 0; j < 4; j++) {
            const Wide a = d[0][j], b = d[1][j], e = d[2][j], f = d[3][j];
            d[0][j] = a - e, d[1][j] = b + e, d[2][j] = e - b, d[3][j] = b - f;
        }
        UNROLLED (int i = 0; i < 4; i++) {
            const Wide a = d[i][0], b = d[i][1], e = d[i][2], f = d[i][3];
            int16_t *row = to + 4 * i * distance + c;
            *(Wide *)row = a - e, *(Wide *)(row + distance) = b + e, *(Wide *)(row + 2 * distance) = e - b, *(Wide *)(row + 3 * distance) = b - f;
        }
    }
}

/* Some columns of W as 16 panels ``distance`` apart: 2G g (2G)'. */
TARGETED static void NAME(transform_weights)(const Problem *problem, int64_t column, int64_t columns, int64_t vectors, int16_t *panel, int64_t distance) {
    const char *weights = problem->weights + column * problem->column_step;
    for (int64_t k = 0; k < problem->inputs; k++) {
        Bits g[9][VECTORS];
        for (int tap = 0; tap < 9; tap++) {
            const char *from = weights + k * problem->input_step + tap / 3 * problem->tap_steps[0] + tap % 3 * problem->tap_steps[1];
            __builtin_prefetch(from + AHEAD * problem->input_step);
            NAME(row_of_weights)(problem, from, columns, vectors, g[tap]);
        }
        for (int64_t v = 0; v < vectors; v++) {
            Bits half[4][3];
            UNROLLED (int j = 0; j < 3; j++) {
                const Bits ends = g[j][v] + g[6 + j][v];
                half[0][j] = g[j][v] * 2, half[1][j] = ends + g[3 + j][v], half[2][j] = ends - g[3 + j][v], half[3][j] = g[6 + j][v] * 2;
            }
            UNROLLED (int i = 0; i < 4; i++) {
                const Bits ends = half[i][0] + half[i][2];
                const Bits row[4] = {half[i][0] * 2, ends + half[i][1], ends - half[i][1], half[i][2] * 2};
                UNROLLED (int j = 0; j < 4; j++) {
                    Bits *to = (Bits *)(panel + (4 * i + j) * distance + (k / 2 * vectors + v) * 2 * LANES);
                    *to = k % 2 ? *to | row[j] << 16 : row[j] & 0xffff;
                }
            }
        }
    }
}

/* Lines of tiles: transformed, multiplied place by place, and transformed back. */
TARGETED static int NAME(compute_tiles)(const Problem *problem, int64_t first, int64_t last, int64_t column, int64_t end) {
    const Tensor *x = problem->x.tensor;
    const int64_t tiles_down = (problem->height + 1) / 2, tiles_across = (problem->width + 1) / 2, pairs = (problem->inputs + 1) / 2;
    const int64_t pitch = (problem->inputs + 2 * LANES - 1) / (2 * LANES) * 2 * LANES;
    int64_t chunk = TILES / (16 * pitch * tiles_across);
    chunk = least(chunk < 1 ? 1 : chunk, last - first);
    const int64_t most = chunk * tiles_across, width_most = VECTORS * LANES, offset = 0;
    const int64_t panel_size = pairs * 2 * width_most + APART / 2, apart = most * pitch + APART / 2, sums_apart = most * width_most + APART / 4;
    char *memory = 0;
    const int64_t widened = 16 * apart * 2, panels = 16 * panel_size * 2, sums_size = 16 * sums_apart * 4;
    if (posix_memalign((void **)&memory, 64, (size_t)(widened + panels + sums_size + problem->width * width_most * 4))) return 4;
    int16_t *inputs = (int16_t *)memory, *panel = (int16_t *)(memory + widened);
    int32_t *sums = (int32_t *)(memory + widened + panels), *block = (int32_t *)(memory + widened + panels + sums_size);
    for (int64_t line = first, lines; line < last; line += lines) {
        lines = least(chunk, last - line);
        const int64_t tiles = lines * tiles_across;
        for (int64_t tile = 0; tile < tiles; tile++) {
            const int64_t row = line + tile / tiles_across, image = row / tiles_down;
            const int64_t top = row % tiles_down * 2 - problem->before[0], left = tile % tiles_across * 2 - problem->before[1];
            const char *places[16];
            for (int i = 0; i < 16; i++) {
                const int64_t y = top + i / 4, across = left + i % 4;
                const int is_inside = y >= 0 && y < x->shape[1] && across >= 0 && across < x->shape[2];
                places[i] = is_inside ? (const char *)x->data + image * x->strides[0] + y * x->strides[1] + across * x->strides[2] : 0;
            }
            NAME(transform)(problem, places, inputs + tile * pitch, apart);
            if (problem->inputs % 2)
                for (int i = 0; i < 16; i++) inputs[i * apart + tile * pitch + problem->inputs] = 0;
        }
        for (int64_t at = column, next; at < end; at = next) {
            next = least(at + width_most, end);
            const int64_t vectors = (next - at + LANES - 1) / LANES, width = vectors * LANES, blocks = (tiles + ROWS - 1) / ROWS;
            NAME(transform_weights)(problem, at, next - at, vectors, panel, panel_size);
            for (int64_t place = 0; place < 16; place++)
                for (int64_t part = 0; part < blocks; part++) {
                    const int64_t tile = tiles * part / blocks, rows = tiles * (part + 1) / blocks - tile;
                    const int16_t *from[MOST_ROWS];
                    for (int64_t row = 0; row < rows; row++) from[row] = inputs + place * apart + (tile + row) * pitch;
                    NAME(block)(
                        from, &offset, 1, pairs, panel + place * panel_size, 0, sums + place * sums_apart + tile * width, rows, vectors);
                }
            for (int64_t row = 0; row < 2 * lines; row++) {
                const int64_t y = (line + row / 2) % tiles_down * 2 + row % 2, image = (line + row / 2) / tiles_down, odd = row % 2;
                if (y >= problem->height) continue;
                for (int64_t tile = 0; tile < tiles_across; tile++)
                    for (int64_t v = 0; v < width; v += LANES) {
                        const int32_t *m = sums + (row / 2 * tiles_across + tile) * width + v;
                        Bits sum[4];
                        UNROLLED (int j = 0; j < 4; j++) {
#define PLACE(i) (*(const Bits *)(m + (4 * (i) + j) * sums_apart))
                            sum[j] = odd ? PLACE(1) - PLACE(2) - PLACE(3) : PLACE(0) + PLACE(1) + PLACE(2);
#undef PLACE
                        }
                        int32_t *to = block + 2 * tile * width + v;
                        *(Bits *)to = (sum[0] + sum[1] + sum[2]) >> 2;
                        if (2 * tile + 1 < problem->width) *(Bits *)(to + width) = (sum[1] - sum[2] - sum[3]) >> 2;
                    }
                NAME(finish)(problem, block, (image * problem->height + y) * problem->width, problem->width, at, next - at, width);
            }
        }
    }
    free(memory);
    return 0;
}
#undef Wide
#undef WideOctets
#undef WideOctetsU
#undef UNROLLED
#undef Halves
#endif
