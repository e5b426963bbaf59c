/* What kernels in C share: how they are called, which vector instructions the processor has, and functions over vectors.
 *
 * A kernel's file includes this first, and then itself once for each set of instructions (instruction_sets.h): with LANES numbers a
 * vector, NAME(name) for the set's own names, and TARGETED before its functions. */
#ifndef LANES
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define TASKS_PER_THREAD 4 /* as the dispatcher divides what it launches */

/* DLTensor */
typedef struct {
    void *data;
    int32_t device[2], rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset_bytes;
} Tensor;

/* TVMFFIAny */
typedef struct {
    int32_t type;
    uint32_t zero;
    union {
        Tensor *tensor;
        int64_t integer;
    };
} Value;

typedef struct {
    void *sync_handle;
    int32_t num_task;
} Environment;

/* Filled by whoever loads the library. */
EXPORT int (*__TVMBackendParallelLaunch)(int (*body)(int, const Environment *, void *), void *data, int tasks) = 0;

#define LEAST_POWER -86.98f /* e to this is 1.7e-38 */
#define Vector NAME(Vector)
#define Bits NAME(Bits)
#define Halfwords NAME(Halfwords)
#define LOAD(pointer) (*(const Vector *)(pointer))

/* Store a vector as a whole. Of a value that is chosen between what lies there and something else, compilers make a masked store, which
 * takes AMD's processors before Zen 4 about twenty cycles; the empty statement hides how the value was made. */
#if defined(__x86_64__)
#define STORE(pointer, value) \
    ({ \
        Vector stored = (value); \
        __asm__("" : "+v"(stored)); \
        *(Vector *)(pointer) = stored; \
    })
#else
#define STORE(pointer, value) (*(Vector *)(pointer) = (value))
#endif

#if defined(__x86_64__)
enum { UNKNOWN, PLAIN, AVX2, AVX512 };

static int detect_instructions(void) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1) || !(c >> 12 & 1)) return PLAIN; /* xgetbv, fma */
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b >> 5 & 1)) return PLAIN;
    return (low & 0xe6) == 0xe6 && (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1) ? AVX512 : AVX2; /* f, dq, bw, vl */
}

/* Asked once: virtual machines take 10 us to answer. */
static int instructions(void) {
    static int known = UNKNOWN;
    if (!__atomic_load_n(&known, __ATOMIC_RELAXED)) __atomic_store_n(&known, detect_instructions(), __ATOMIC_RELAXED);
    return __atomic_load_n(&known, __ATOMIC_RELAXED);
}

#define FOR_PROCESSOR(name) (instructions() == AVX512 ? name##_avx512 : instructions() == AVX2 ? name##_avx2 : name##_plain)
#else
#define FOR_PROCESSOR(name) name##_plain
#endif

#else /* ------------------------------------------------------------------ once for each set of instructions */

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Bits __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t Halfwords __attribute__((vector_size(2 * LANES), aligned(1), may_alias));

TARGETED INLINE Vector NAME(all)(float value) {
    Vector result;
    for (int i = 0; i < LANES; i++) result[i] = value;
    return result;
}

TARGETED INLINE Vector NAME(where)(Bits condition, Vector yes, Vector no) {
    return (Vector)((condition & (Bits)yes) | (~condition & (Bits)no));
}

/* e^x = result * half for x from LEAST_POWER, 0.9 units in the last place off at most, to 88.8, where it is infinite; no number where x is
 * none. ``half`` is half of the power of two, so that it is finite, and the sum is doubled. */
TARGETED INLINE Vector NAME(exponential)(Vector x, Vector *half) {
    const Vector magic = NAME(all)(12583038.0f); /* n + magic ends with n + 126 */
    const Vector shifted = x * 1.44269504f + magic, whole = shifted - magic;
    Vector rest = x - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    Vector sum = rest * (2 * 1.3814540107e-3f) + 2 * 8.3687451362e-3f;
    sum = sum * rest + 2 * 4.1668390787e-2f;
    sum = sum * rest + 2 * 1.6666520399e-1f;
    sum = sum * rest + 2 * 4.9999993432e-1f;
    sum = sum * rest + 2.0f;
    *half = (Vector)((Bits)shifted << 23);
    return sum * rest + 2.0f;
}

/* e^x for x <= 0, and 0 below LEAST_POWER. */
TARGETED INLINE Vector NAME(power)(Vector x) {
    const Bits tiny = (Bits)(x < LEAST_POWER);
    Vector half, sum = NAME(exponential)(NAME(where)(tiny, NAME(all)(LEAST_POWER), x), &half);
    return NAME(where)(tiny, NAME(all)(0.0f), sum * half);
}

/* 1 + e^-x, infinite where e^-x is too large for float32: so a quotient by it is zero, or no number where x is infinite. */
TARGETED INLINE Vector NAME(logistic_divisor)(Vector x) {
    const Vector below = NAME(where)((Bits)(-x > 88.8f), NAME(all)(88.8f), -x);
    Vector half, sum = NAME(exponential)(NAME(where)((Bits)(below < LEAST_POWER), NAME(all)(LEAST_POWER), below), &half);
    return sum * half + 1.0f;
}

/* 1 / (1 + e^-x) */
TARGETED INLINE Vector NAME(logistic)(Vector x) { return 1.0f / NAME(logistic_divisor)(x); }

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
#endif
