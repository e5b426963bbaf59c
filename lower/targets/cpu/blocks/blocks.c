/* x W' + bias, with weights of four or eight bits and a scale and a zero point for each block: weights become numbers in registers, so
 * that memory gives out bytes. Where there are many rows, a product by weights that were dequantised once is faster.
 *
 * Arguments: x [..., K], packed [N, blocks, bytes], scales [N, blocks], zero points [N, bytes of a column], a bias [N] or none, the result
 * [..., N], all side by side; then integers: bits, whether there is a bias.
 *
 * The file is included once for each set of vector instructions. */
#include "../kernel.h"
#ifndef LANES
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ROWS 4                    /* rows of x that one pass over the weights serves */
#define COLUMNS 2                 /* columns of the result that share what is read of x */
#define LARGEST 15                /* number of four bits */
#define AHEAD_BYTES 4096          /* of what is asked from memory before it is read: a page, at whose end the processor stops to guess */
#define SERIAL_OPERATIONS 50000.0 /* less than this is done before another thread has started */

typedef struct Problem {
    const float *ordered; /* x as the vectors of weights stand in a block: of four bits, even and odd numbers apart */
    const uint8_t *packed, *zeros;
    const float *scales, *bias;
    float *out;
    int bits;
    int64_t rows, columns, blocks, width, zero_bytes; /* width: bytes of a block */
    void (*compute)(const struct Problem *problem, int64_t first, int64_t last);
} Problem;

/* From a place on: 0 to LARGEST less a zero point. */
static const float differences[2 * LARGEST + 1] = {-15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1, 0,
                                                   1,   2,   3,   4,   5,   6,   7,  8,  9,  10, 11, 12, 13, 14, 15};

#define KERNEL "blocks/blocks.c"
#include "../instruction_sets.h"

static int work(int task, const Environment *environment, void *data) {
    const Problem *problem = data;
    const int64_t tasks = environment->num_task, groups = (problem->columns + COLUMNS - 1) / COLUMNS, end = problem->columns;
    const int64_t first = groups * task / tasks * COLUMNS, last = groups * (task + 1) / tasks * COLUMNS;
    if (first < last) problem->compute(problem, first, last < end ? last : end);
    return 0;
}

/* Lanes of the widest vectors of which a block has whole ones. */
static int lanes_for(int64_t width) {
#if defined(__x86_64__)
    const int set = instructions();
    if (set == AVX512 && width % 16 == 0) return 16;
    if (set != PLAIN && width % 8 == 0) return 8;
#endif
    return width % 4 == 0 ? 4 : 0;
}

EXPORT int blocks_matmul(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    if (count < 7) return 2;
    const int bits = (int)arguments[count - 2].integer, has_bias = (int)arguments[count - 1].integer;
    if (count != 7 + has_bias) return 3;
    const Tensor *x = arguments[0].tensor, *packed = arguments[1].tensor, *out = arguments[count - 3].tensor;
    const int64_t size = x->shape[x->rank - 1], a_byte = 8 / bits;
    Problem problem = {.packed = packed->data, .scales = arguments[2].tensor->data, .zeros = arguments[3].tensor->data, .out = out->data};
    problem.bias = has_bias ? arguments[4].tensor->data : 0;
    problem.bits = bits, problem.rows = 1, problem.columns = packed->shape[0];
    for (int axis = 0; axis < x->rank - 1; axis++) problem.rows *= x->shape[axis];
    problem.blocks = packed->shape[1], problem.width = packed->shape[2], problem.zero_bytes = arguments[3].tensor->shape[1];
    const int lanes = lanes_for(problem.width);
    if (!lanes) return 4;
#if defined(__x86_64__)
    problem.compute = lanes == 16 ? compute_avx512 : lanes == 8 ? compute_avx2 : compute_plain;
#else
    problem.compute = compute_plain;
#endif
    const int64_t pitch = problem.blocks * problem.width * a_byte;
    float *ordered = 0;
    if (posix_memalign((void **)&ordered, 64, (size_t)(problem.rows * pitch) * sizeof(float))) return 5;
    for (int64_t row = 0; row < problem.rows; row++) {
        const float *from = (const float *)x->data + row * size;
        float *to = ordered + row * pitch;
        int64_t i = 0;
        if (bits == 4) {
            for (; i + 2 * lanes <= size; i += 2 * lanes)
                for (int lane = 0; lane < lanes; lane++) to[i + lane] = from[i + 2 * lane], to[i + lanes + lane] = from[i + 2 * lane + 1];
            memset(to + i, 0, (size_t)(pitch - i) * sizeof(float));
            for (const int64_t start = i; i < size; i++) to[start + (i - start) / 2 + (i - start) % 2 * lanes] = from[i];
        } else {
            memcpy(to, from, (size_t)size * sizeof(float));
            memset(to + size, 0, (size_t)(pitch - size) * sizeof(float));
        }
    }
    problem.ordered = ordered;
    int status;
    const double operations = (double)problem.rows * (double)problem.columns * (double)pitch;
    if (__TVMBackendParallelLaunch && operations > SERIAL_OPERATIONS) status = __TVMBackendParallelLaunch(work, &problem, 0);
    else {
        const Environment alone = {0, 1};
        status = work(0, &alone, &problem);
    }
    free(ordered);
    return status;
}

#else /* ------------------------------------------------------------------ once for each set of instructions */

typedef uint8_t NAME(Bytes) __attribute__((vector_size(LANES), aligned(1), may_alias));
#define Bytes NAME(Bytes)

TARGETED INLINE Vector NAME(numbers)(Bytes bytes, int32_t zero) {
#if LANES == 16 /* compilers take bytes that come from memory one by one */
    const Bits wide = (Bits)_mm512_cvtepu8_epi32((__m128i)bytes);
#elif LANES == 8
    const Bits wide = (Bits)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
#else
    const Bits wide = __builtin_convertvector(bytes, Bits);
#endif
    return __builtin_convertvector(wide - zero, Vector);
}

TARGETED INLINE float NAME(total)(Vector vector) {
    float half[LANES / 2], sum = 0.0f;
    for (int i = 0; i < LANES / 2; i++) half[i] = vector[i] + vector[i + LANES / 2];
    for (int i = 0; i < LANES / 2; i++) sum += half[i];
    return sum;
}

#if LANES == 16
/* Two numbers of each byte: a vector holds all that four bits may mean. */
#define LOWER(bytes) (Vector)_mm512_permutexvar_ps(_mm512_cvtepu8_epi32((__m128i)bytes), (__m512)meanings)
#define UPPER(bytes) (Vector)_mm512_permutexvar_ps(_mm512_srli_epi32(_mm512_cvtepu8_epi32((__m128i)bytes), 4), (__m512)meanings)
#else
#define LOWER(bytes) NAME(numbers)(bytes & LARGEST, zero) * scale
#define UPPER(bytes) NAME(numbers)(bytes >> 4, zero) * scale
#endif

/* A few rows by a few columns. */
TARGETED INLINE void NAME(tile)(const Problem *problem, int64_t row, int64_t column, const int rows, const int columns, const int bits) {
    const int64_t blocks = problem->blocks, width = problem->width, pitch = blocks * width * (8 / bits);
    const float *x = problem->ordered + row * pitch;
    const uint8_t *packed = problem->packed + column * blocks * width, *zeros = problem->zeros + column * problem->zero_bytes;
    const float *scales = problem->scales + column * blocks;
    Vector even[ROWS][COLUMNS], odd[ROWS][COLUMNS];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) even[r][c] = odd[r][c] = NAME(all)(0.0f);
    for (int64_t block = 0; block < blocks; block++) {
        const float *part = x + block * width * (8 / bits);
        for (int c = 0; c < columns; c++) {
            const uint8_t *bytes = packed + (c * blocks + block) * width, *own_zeros = zeros + c * problem->zero_bytes;
            const int32_t zero = bits == 4 ? own_zeros[block >> 1] >> 4 * (block & 1) & LARGEST : own_zeros[block];
            __builtin_prefetch(bytes + AHEAD_BYTES);
            const Vector scale = NAME(all)(scales[c * blocks + block]);
#if LANES == 16
            const Vector meanings = LOAD(differences + (bits == 4 ? LARGEST - zero : 0)) * scale;
#endif
            for (int64_t i = 0; i < width; i += LANES) {
                const Bytes read = *(const Bytes *)(bytes + i);
                if (bits == 4) {
                    const Vector lower = LOWER(read), upper = UPPER(read);
                    for (int r = 0; r < rows; r++) {
                        even[r][c] += lower * LOAD(part + r * pitch + 2 * i);
                        odd[r][c] += upper * LOAD(part + r * pitch + 2 * i + LANES);
                    }
                } else {
                    const Vector number = NAME(numbers)(read, zero) * scale;
                    for (int r = 0; r < rows; r++) even[r][c] += number * LOAD(part + r * pitch + i);
                }
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            problem->out[(row + r) * problem->columns + column + c] =
                NAME(total)(even[r][c] + odd[r][c]) + (problem->bias ? problem->bias[column + c] : 0.0f);
}

#define TILE(row, rows, columns) \
    if (problem->bits == 4) NAME(tile)(problem, row, column, rows, columns, 4); \
    else NAME(tile)(problem, row, column, rows, columns, 8)

TARGETED static void NAME(compute)(const Problem *problem, int64_t first, int64_t last) {
    for (int64_t column = first; column < last; column += COLUMNS)
        for (int64_t row = 0; row < problem->rows; row += ROWS) {
            const int64_t left = problem->rows - row, rows = left < ROWS ? left : ROWS;
            if (last - column < COLUMNS)
                for (int64_t r = 0; r < rows; r++) { TILE(row + r, 1, 1); }
            else if (rows == 1) { TILE(row, 1, COLUMNS); }
            else if (rows == 2) { TILE(row, 2, COLUMNS); }
            else if (rows == 3) { TILE(row, 3, COLUMNS); }
            else { TILE(row, ROWS, COLUMNS); }
        }
}
#undef Bytes
#undef LOWER
#undef UPPER
#undef TILE
#endif
