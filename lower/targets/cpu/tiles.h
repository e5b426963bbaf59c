/* Numbers of bfloat16, two in 32 bits, and sums of their products, which processors with tiles compute 16 by 16.
 *
 * Tiles of rows: 32 numbers of each of up to 16 rows, a row in a cache line. Tiles of columns: 32 numbers of each of 16 columns, a panel;
 * two numbers of a column share 32 bits, the first one the lower half, and those of all columns lie side by side.
 *
 * Included behind kernel.h, once as it is, and once for each set of vector instructions. */
#ifndef LANES
#define PANEL 16      /* columns of a panel: whole vectors of every set of instructions */
#define TILE_ROWS 16  /* rows of x, or 32-bit numbers of a column, in a tile of the processor */
#define LINE_BYTES 64 /* of a cache; a tile's row is one */
#define TILE_BYTES (TILE_ROWS * PANEL * 4)

/* The nearest bfloat16 of a number, given by its bits. */
INLINE uint16_t half_of(uint32_t bits) {
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#if defined(__x86_64__)
/* Whether there are instructions for pairs of bfloat16. Asked once. */
INLINE int multiplies_halves(void) {
    static int known = 0;
    unsigned a, b, c, d;
    if (!__atomic_load_n(&known, __ATOMIC_RELAXED)) {
        const int has = instructions() == AVX512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1;
        __atomic_store_n(&known, 1 + has, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(&known, __ATOMIC_RELAXED) - 1;
}
#endif

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

/* Whether there are instructions for tiles of bfloat16, and the system lets this process use them. Asked once. */
INLINE int multiplies_tiles(void) {
    enum { REQUEST = 0x1023, TILE_DATA = 18, STATES = 3 << 17 };
    static int known = 0;
    unsigned a, b, c, d, low, high;
    if (!__atomic_load_n(&known, __ATOMIC_RELAXED)) {
        int has = multiplies_halves() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & d >> 24 & 1; /* bf16, tiles */
        if (has) {
            __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
            has = (low & STATES) == STATES && !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
        }
        __atomic_store_n(&known, 1 + has, __ATOMIC_RELAXED);
    }
    return __atomic_load_n(&known, __ATOMIC_RELAXED) - 1;
}
#else
INLINE int multiplies_tiles(void) { return 0; }
#endif

/* The packed panels to prefetch while sums are computed; of each of their tiles, the lines from the first to the one before the last. */
typedef struct {
    const char *from;
    int first, last;
} Ahead;

/* The operands of one block of sums: tiles of rows and of packed panels, along the axis that is summed. */
typedef struct {
    const char *x, *packed;
    int64_t x_bytes, x_part_bytes; /* from a tile of rows to the next, and to the same one of the lower part */
    int64_t panel_bytes;           /* from a panel to the next */
    int64_t steps;                 /* tiles of each row and column */
    int64_t distance;              /* bytes from a row of sums to the next */
    Ahead ahead;
    int adds; /* whether they are added to the block's earlier sums */
} Run;

#define TILE_LOAD(tile, from, distance) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"((int64_t)(distance)) : "memory")
#define TILE_STORE(tile, to, distance) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"((int64_t)(distance)) : "memory")
#define TILE_DOT(sums, rows, columns) __asm__ volatile("tdpbf16ps %tmm" #columns ", %tmm" #rows ", %tmm" #sums)

#else /* ------------------------------------------------------------------ once for each set of instructions */

/* The bfloat16 nearest to numbers, as float32. */
TARGETED INLINE Bits NAME(nearest)(Vector x) {
    const Bits bits = (Bits)x, is_number = (Bits)(x == x), nearest = bits + 0x7fff + ((bits >> 16) & 1);
    return ((is_number & nearest) | (~is_number & (bits | 0x400000))) & (int32_t)0xffff0000u;
}

#undef DOT
#undef NARROW
#if LANES == 16
/* sums += the products of both halves of each 32 bits */
#define DOT(sums, one, two) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(one), "v"(two))
#define NARROW(halves, x) __asm__("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(x))
#else
#define DOT(sums, one, two) (void)0
#define NARROW(halves, x) (void)0
#endif

#if LANES == 16
/* Tiles 0 to 3 are sums, of the first and the second rows by the first and the second panel; 4 and 5 rows, 6 and 7 panels. */
TARGETED INLINE void NAME(shape_tiles)(int64_t rows) {
    struct { uint8_t palette, start, unused[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } shape = {1, 0, {0}, {0}, {0}};
    const uint8_t first = (uint8_t)(rows < TILE_ROWS ? rows : TILE_ROWS), second = (uint8_t)(rows > TILE_ROWS ? rows - TILE_ROWS : TILE_ROWS);
    const uint8_t each[8] = {first, first, second, second, first, second, TILE_ROWS, TILE_ROWS};
    for (int tile = 0; tile < 8; tile++) shape.row_bytes[tile] = PANEL * 4, shape.rows[tile] = each[tile];
    __asm__ volatile("ldtilecfg %0" : : "m"(shape));
}

TARGETED INLINE void NAME(fetch)(const Ahead *ahead, int64_t offset) {
    for (int line = ahead->first; line < ahead->last; line++) __builtin_prefetch(ahead->from + offset + line * PANEL * 4, 0, 2);
}

/* sums[row][..] += sum of x[row][k] * packed[k][..], for up to 32 rows and two panels. */
TARGETED INLINE void NAME(tile_sums)(const Run *run, float *sums, const int has_rows, const int has_panel, const int parts) {
    const int64_t panel_bytes = run->panel_bytes, lower = panel_bytes / parts, x_bytes = run->x_bytes, steps = run->steps;
    const int64_t distance = run->distance;
    const char *x = run->x, *rest = x + run->x_part_bytes, *packed = run->packed;
    const Ahead ahead = run->ahead;
    char *second = (char *)sums + PANEL * 4, *third = (char *)sums + TILE_ROWS * distance, *fourth = third + PANEL * 4;
    if (run->adds) {
        TILE_LOAD(0, sums, distance);
        if (has_panel) TILE_LOAD(1, second, distance);
        if (has_rows) TILE_LOAD(2, third, distance);
        if (has_rows && has_panel) TILE_LOAD(3, fourth, distance);
    } else __asm__ volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3");
#define DOTS_OF_TILES \
    TILE_DOT(0, 4, 6); \
    if (has_panel) TILE_DOT(1, 4, 7); \
    if (has_rows) TILE_DOT(2, 5, 6); \
    if (has_rows && has_panel) TILE_DOT(3, 5, 7);
    for (int64_t at = 0; at < steps * TILE_BYTES; at += TILE_BYTES, x += x_bytes, rest += x_bytes) {
        TILE_LOAD(6, packed + at, PANEL * 4);
        if (has_panel) TILE_LOAD(7, packed + panel_bytes + at, PANEL * 4);
        if (ahead.from) {
            NAME(fetch)(&ahead, at);
            if (has_panel) NAME(fetch)(&ahead, panel_bytes + at);
        }
        if (parts == 2) {
            TILE_LOAD(4, rest, PANEL * 4);
            if (has_rows) TILE_LOAD(5, rest + TILE_BYTES, PANEL * 4);
            DOTS_OF_TILES
            if (ahead.from) {
                NAME(fetch)(&ahead, lower + at);
                if (has_panel) NAME(fetch)(&ahead, panel_bytes + lower + at);
            }
        }
        TILE_LOAD(4, x, PANEL * 4);
        if (has_rows) TILE_LOAD(5, x + TILE_BYTES, PANEL * 4);
        DOTS_OF_TILES
        if (parts == 2) {
            TILE_LOAD(6, packed + lower + at, PANEL * 4);
            if (has_panel) TILE_LOAD(7, packed + panel_bytes + lower + at, PANEL * 4);
            DOTS_OF_TILES
        }
    }
    TILE_STORE(0, sums, distance);
    if (has_panel) TILE_STORE(1, second, distance);
    if (has_rows) TILE_STORE(2, third, distance);
    if (has_rows && has_panel) TILE_STORE(3, fourth, distance);
}

TARGETED static void NAME(sums_of_tiles)(const Run *run, float *sums, int has_rows, int has_panel, int parts) {
#define CASE(number, rows, panel, parts) \
    case number: NAME(tile_sums)(run, sums, rows, panel, parts); break;
    switch (4 * (parts - 1) + 2 * has_rows + has_panel) {
        CASE(0, 0, 0, 1) CASE(1, 0, 1, 1) CASE(2, 1, 0, 1) CASE(3, 1, 1, 1)
        CASE(4, 0, 0, 2) CASE(5, 0, 1, 2) CASE(6, 1, 0, 2) CASE(7, 1, 1, 2)
    }
#undef CASE
}
#undef DOTS_OF_TILES
#endif
#endif
