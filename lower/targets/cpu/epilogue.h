/* What follows a product in the same kernel: steps of numbers, each of a function or with another operand.
 *
 * Included behind kernel.h, once as it is, for what steps are, and once for each set of vector instructions, for what they compute. */
#ifndef LANES
#define MOST_STEPS 16
#define Octets NAME(Octets)
#define OctetsU NAME(OctetsU)

enum { ADD, SUBTRACT, MULTIPLY, DIVIDE, RELU, CLIP, LOGISTIC, SWISH, HARD_LOGISTIC, HARD_SWISH, ROUND, LINEAR, TANH, GELU, GELU_TANH };
enum { SIGNED, UNSIGNED, FLOAT, BFLOAT = 4 }; /* DLDataTypeCode */

/* The place of each row of a tensor; without ``even``, rows have no common distance. */
typedef struct {
    const Tensor *tensor;
    char *data;
    int axes, even, size;
    int64_t distance;
} Rows;

typedef struct {
    int kind;
    float first, second;
    Rows operand;
    int64_t along; /* the operand's distance between columns, 0 or 1 */
    int repeats;   /* whether the operand is the same for all rows */
} Step;

typedef struct {
    int of_integers, count; /* the first are of int32 */
    Step each[MOST_STEPS];
} Steps;

static Rows rows_of(const Tensor *tensor, int axes) {
    Rows rows = {.tensor = tensor, .data = tensor->data, .axes = axes, .even = 1, .size = tensor->bits / 8};
    int is_innermost = 1;
    int64_t next = 0; /* the distance that the next axis has if rows are even; strides may be negative */
    for (int axis = axes - 1; axis >= 0; axis--) {
        if (tensor->shape[axis] == 1) continue;
        if (is_innermost) rows.distance = tensor->strides[axis];
        else if (tensor->strides[axis] != next) rows.even = 0;
        is_innermost = 0;
        next = tensor->strides[axis] * tensor->shape[axis];
    }
    return rows;
}

static char *row_of(const Rows *rows, int64_t row) {
    if (rows->even) return rows->data + row * rows->distance * rows->size;
    int64_t offset = 0;
    for (int axis = rows->axes - 1; axis >= 0; axis--) {
        offset += row % rows->tensor->shape[axis] * rows->tensor->strides[axis];
        row /= rows->tensor->shape[axis];
    }
    return rows->data + offset * rows->size;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Read steps, each of three integers, behind how many are of int32, and their operands, from argument ``at`` on; return the argument
 * after these, or -1. */
static int read_steps(Steps *steps, const Value *codes, int count, const Value *arguments, int at, int axes) {
    if (count < 1 || count % 3 != 1 || count / 3 > MOST_STEPS) return -1;
    steps->of_integers = (int)codes->integer, steps->count = count / 3;
    for (int step = 0; step < steps->count; step++) {
        Step *one = steps->each + step;
        const Value *code = codes + 1 + 3 * step;
        const uint32_t bits[2] = {(uint32_t)code[1].integer, (uint32_t)code[2].integer};
        one->kind = (int)code->integer;
        memcpy(&one->first, bits, 4), memcpy(&one->second, bits + 1, 4);
        if (one->kind <= DIVIDE) {
            const Tensor *operand = arguments[at++].tensor;
            one->operand = rows_of(operand, axes);
            one->along = operand->strides[axes];
            one->repeats = one->operand.even && !one->operand.distance;
        }
    }
    return at;
}

/* How many of the arguments are integers, which are the last. */
static int integers_of(const Value *arguments, int count) {
    int integers = 0;
    while (integers < count && arguments[count - 1 - integers].type == 1) integers++;
    return integers;
}

#else /* ------------------------------------------------------------------ once for each set of instructions */

typedef int8_t Octets __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint8_t OctetsU __attribute__((vector_size(LANES), aligned(1), may_alias));

TARGETED INLINE Bits NAME(every)(int32_t value) {
    Bits result;
    for (int i = 0; i < LANES; i++) result[i] = value;
    return result;
}

TARGETED INLINE Vector NAME(between)(Vector x, float low, float high) {
    const Vector least = NAME(all)(low), most = NAME(all)(high), above = NAME(where)((Bits)(x < least), least, x);
    return NAME(where)((Bits)(above > most), most, above);
}

TARGETED INLINE Bits NAME(widened)(const char *from, int is_signed) {
    return is_signed ? __builtin_convertvector(*(const Octets *)from, Bits) : __builtin_convertvector(*(const OctetsU *)from, Bits);
}

/* Whole numbers from an operand, of which there may be less than a vector. */
TARGETED INLINE Bits NAME(integers)(const Rows *rows, const char *from, int64_t count) {
    Bits result = NAME(every)(0);
    if (rows->size == 4) {
        if (count >= LANES) return *(const Bits *)from;
        for (int64_t i = 0; i < count; i++) result[i] = ((const int32_t *)from)[i];
        return result;
    }
    const int is_signed = rows->tensor->code == SIGNED;
    if (count >= LANES) return NAME(widened)(from, is_signed);
    for (int64_t i = 0; i < count; i++) result[i] = is_signed ? ((const int8_t *)from)[i] : ((const uint8_t *)from)[i];
    return result;
}

/* Numbers that lie in bfloat16. */
TARGETED INLINE Vector NAME(from_halves)(const char *from, int64_t count) {
    if (count >= LANES) return (Vector)(__builtin_convertvector(*(const Halfwords *)from, Bits) << 16);
    Bits result = NAME(every)(0);
    for (int64_t i = 0; i < count; i++) result[i] = (int32_t)((uint32_t)((const uint16_t *)from)[i] << 16);
    return (Vector)result;
}

TARGETED INLINE Vector NAME(numbers)(const Rows *rows, const char *from, int64_t count) {
    if (rows->tensor->code == BFLOAT) return NAME(from_halves)(from, count);
    if (rows->tensor->code != FLOAT) return __builtin_convertvector(NAME(integers)(rows, from, count), Vector);
    if (count >= LANES) return LOAD((const float *)from);
    Vector result = NAME(all)(0.0f);
    for (int64_t i = 0; i < count; i++) result[i] = ((const float *)from)[i];
    return result;
}

/* x / 2 (1 + erf(x / sqrt 2)), by Abramowitz and Stegun 7.1.26: the error function is off by 1.5e-7 at most. */
TARGETED INLINE Vector NAME(gelu)(Vector x) {
    const Bits sign = (Bits)x & NAME(every)((int32_t)0x80000000u);
    const Vector size = (Vector)((Bits)x ^ sign) * 0.707106781f, t = 1.0f / (1.0f + size * 0.3275911f);
    Vector sum = t * 1.061405429f - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = sum * t + 0.254829592f;
    const Vector rest = sum * t * NAME(power)(-(size * size)); /* 1 - erf of the size */
    return NAME(where)((Bits)(x < 0.0f), rest, 2.0f - rest) * x * 0.5f;
}

/* x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as x / (1 + e^-2y) of the y that tanh is of. */
TARGETED INLINE Vector NAME(gelu_tanh)(Vector x) { return x / NAME(logistic_divisor)(1.59576912f * (x + 0.044715f * x * x * x)); }

/* The nearest whole number, of two the even one. */
TARGETED INLINE Vector NAME(rounded)(Vector x) {
    const Bits sign = (Bits)x & NAME(every)((int32_t)0x80000000u);
    const Vector size = (Vector)((Bits)x ^ sign), whole = size + 8388608.0f - 8388608.0f;
    return (Vector)((Bits)NAME(where)((Bits)(size < 8388608.0f), whole, size) | sign);
}

#define EACH(expression) \
    { \
        for (int64_t row = 0; row < rows; row++) \
            for (int64_t i = 0; i < width; i += LANES) { \
                const Vector x = LOAD(block + row * distance + i); \
                STORE(block + row * distance + i, expression); \
            } \
        break; \
    }
#define WITH(expression) \
    for (int64_t i = 0; i < width; i += LANES) { \
        Vector y = NAME(all)(0.0f); \
        if (step->repeats) y = NAME(operand)(step, 0, column + i, columns - i); \
        for (int64_t row = 0; row < rows; row++) { \
            if (!step->repeats) y = NAME(operand)(step, first + row, column + i, columns - i); \
            const Vector x = LOAD(block + row * distance + i); \
            STORE(block + row * distance + i, expression); \
        } \
    } \
    break;

TARGETED INLINE Vector NAME(operand)(const Step *step, int64_t row, int64_t column, int64_t count) {
    const char *from = row_of(&step->operand, row);
    if (step->along) return NAME(numbers)(&step->operand, from + column * step->operand.size, count);
    return NAME(all)(NAME(numbers)(&step->operand, from, 1)[0]);
}

/* One step of numbers for a block of results, whose rows lie ``distance`` apart: ``width`` a row, of which ``columns`` are real. */
TARGETED static void NAME(apply)(
    const Step *step, float *block, int64_t first, int64_t rows, int64_t column, int64_t columns, int64_t width, int64_t distance) {
    const float a = step->first, b = step->second;
    switch (step->kind) {
        case ADD: WITH(x + y)
        case SUBTRACT: WITH(x - y)
        case MULTIPLY: WITH(x * y)
        case DIVIDE: WITH(x / y)
        case RELU:
            if (a == 0.0f) EACH(NAME(where)((Bits)(x < 0.0f), NAME(all)(0.0f), x)) /* of minus infinity, too */
            else EACH(NAME(where)((Bits)(x < 0.0f), x * a, x))
        case CLIP: EACH(NAME(between)(x, a, b))
        case LOGISTIC: EACH(NAME(logistic)(x))
        case SWISH: EACH(x / NAME(logistic_divisor)(x * a))
        case HARD_LOGISTIC: EACH(NAME(between)(x * a + b, 0.0f, 1.0f))
        case HARD_SWISH: EACH(x * NAME(between)(x * a + b, 0.0f, 1.0f))
        case ROUND: EACH(NAME(rounded)(x))
        case LINEAR: EACH(x * a + b)
        case TANH: EACH(NAME(hyperbolic)(x))
        case GELU: EACH(NAME(gelu)(x))
        case GELU_TANH: EACH(NAME(gelu_tanh)(x))
    }
}
#undef EACH
#undef WITH
#endif
