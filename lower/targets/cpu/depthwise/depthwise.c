/* Depthwise convolutions (one input and one output channel a group), channels last, and what follows them. Weights are packed once, when a
 * program is loaded.
 *
 * Sums of a few positions by a panel of channels stay in registers over all taps. With few taps, rows of x are read where they lie, and
 * all channels of a few positions are computed before the next. With many, a panel is computed row by row: what a row of results reads is
 * copied side by side, padding included, into rows that stay in the first cache for the next results. Zeros are multiplied there, so
 * weights are taken to be finite.
 *
 * ``depthwise_pack``. Arguments: weights [C, 1, taps..] with any strides, the packed weights [panels, taps.., PANEL].
 *
 * ``depthwise_convolve``. Arguments: x [N, .., C], what was packed, operands of the steps [N, .., C], the result [N, .., C]; then integers:
 * taps, strides, padding before and dilations, of rows and of columns each, and the steps (epilogue.h). Tensors have one or two axes of
 * positions; they have any strides, zero where they repeat; channels lie side by side, or an operand repeats.
 *
 * The file is included once for each set of vector instructions. */
#include "../kernel.h"
#include "../epilogue.h"
#ifndef LANES

#define PANEL 16
#define MOST_POSITIONS 12
#define POSITIONS (LANES == 16 ? 12 : LANES == 8 ? 6 : 2) /* which take most registers that there are */
#define GEOMETRY 8                                        /* integers before the steps */
#define FEW_TAPS 12                                       /* a number that is read: with more, rows are copied */
#define MOST_AT_EDGES 5                                   /* where more than one position in so many reads padding, they are, too */
#define MOST_TAPS 1024                                    /* rows of taps */
#define SERIAL_OPERATIONS 30000.0                         /* less than this is done before another thread has started */
#define LINE_BYTES 64

typedef struct {
    int64_t taps, stride, before, dilation, inputs, outputs;
} Axis;

typedef struct Problem {
    const Tensor *x, *out;
    Rows of_out;
    const float *packed, *bias;
    int has_bias; /* whether the first step adds a number for each channel */
    int64_t images, channels, panels, groups; /* a group of rows of results: those of an image, or of a panel of it */
    Axis rows, columns;
    int64_t row_distance, column_distance; /* of x */
    int64_t first_inside, end_inside;      /* positions of a row all of whose taps are inside */
    int64_t held;                          /* numbers of a row that is copied */
    Steps steps;
    int (*compute)(const struct Problem *problem, int64_t first, int64_t last);
} Problem;

/* What some positions sum: rows of taps from ``first`` to ``last``, and columns of taps. */
typedef struct {
    const float *const *rows, *weights;
    int64_t first, last, columns, at, dilation, distance; /* at: where the first position reads; distance: of weights, between rows */
} Taps;

static const float zeros[PANEL] __attribute__((aligned(64)));

/* The input that a tap of a result reads, which may lie in the padding. */
static int64_t input_of(const Axis *axis, int64_t output, int64_t tap) {
    return output * axis->stride + tap * axis->dilation - axis->before;
}

#define KERNEL "depthwise/depthwise.c"
#include "../instruction_sets.h"

/* A share of all rows of all groups. */
static int work(int task, const Environment *environment, void *data) {
    const Problem *problem = data;
    const int64_t tasks = environment->num_task, rows = problem->groups * problem->rows.outputs;
    return problem->compute(problem, rows * task / tasks, rows * (task + 1) / tasks);
}

EXPORT int depthwise_pack(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    if (count != 2) return 2;
    const Tensor *weights = arguments[0].tensor, *packed = arguments[1].tensor;
    const int axes = weights->rank - 2;
    if (axes < 1 || axes > 2 || weights->bits != 32) return 3;
    const int64_t channels = weights->shape[0], columns = weights->shape[axes + 1], rows = axes == 2 ? weights->shape[2] : 1;
    const int64_t along = weights->strides[axes + 1], down = axes == 2 ? weights->strides[2] : 0;
    if (packed->shape[0] != (channels + PANEL - 1) / PANEL * PANEL * rows * columns) return 4;
    float *to = packed->data;
    for (int64_t first = 0; first < channels; first += PANEL)
        for (int64_t row = 0; row < rows; row++)
            for (int64_t column = 0; column < columns; column++)
                for (int64_t i = 0; i < PANEL; i++) {
                    const float *from = (const float *)weights->data + (first + i) * weights->strides[0] + row * down + column * along;
                    *to++ = first + i < channels ? *from : 0.0f;
                }
    return 0;
}

static Axis axis_of(const Value *integers, int number, int64_t inputs, int64_t outputs) {
    const int64_t taps = integers[number].integer, stride = integers[2 + number].integer, before = integers[4 + number].integer;
    return (Axis){taps, stride, before, integers[6 + number].integer, inputs, outputs};
}

EXPORT int depthwise_convolve(void *self, const Value *arguments, int32_t count, Value *result) {
    (void)self, (void)result;
    const int integers = integers_of(arguments, count);
    if (integers <= GEOMETRY || count - integers < 3) return 2;
    const Value *codes = arguments + count - integers;
    const Tensor *x = arguments[0].tensor, *out = codes[-1].tensor;
    const int axes = out->rank - 1, is_plane = axes == 3;
    if (axes < 2 || axes > 3) return 4;
    Problem problem = {
        .x = x, .out = out, .of_out = rows_of(out, axes), .packed = arguments[1].tensor->data, .images = out->shape[0],
        .groups = out->shape[0], .channels = out->shape[axes], .panels = (out->shape[axes] + PANEL - 1) / PANEL,
        .rows = axis_of(codes, 0, is_plane ? x->shape[1] : 1, is_plane ? out->shape[1] : 1),
        .columns = axis_of(codes, 1, x->shape[axes - 1], out->shape[axes - 1]),
    };
    if (read_steps(&problem.steps, codes + GEOMETRY, integers - GEOMETRY, arguments, 2, axes) + 1 != count - integers) return 3;
    problem.held = (input_of(&problem.columns, problem.columns.outputs - 1, problem.columns.taps - 1) + problem.columns.before + 1) * PANEL;
    if (problem.rows.taps > MOST_TAPS) return 4;
    const Axis *down = &problem.rows, *along = &problem.columns;
    while (problem.first_inside < along->outputs && input_of(along, problem.first_inside, 0) < 0) problem.first_inside++;
    problem.end_inside = along->outputs;
    while (problem.end_inside > problem.first_inside && input_of(along, problem.end_inside - 1, along->taps - 1) >= along->inputs) problem.end_inside--;
    problem.column_distance = x->strides[axes - 1], problem.row_distance = is_plane ? x->strides[1] : 0;
    const Step *step = problem.steps.each;
    problem.has_bias = problem.steps.count && step->kind == ADD && step->repeats && step->along && step->operand.size == 4;
    if (problem.has_bias) problem.bias = (const float *)(const void *)step->operand.data;
    const int64_t at_edges = along->outputs - problem.end_inside + problem.first_inside;
    const int copies = problem.channels % PANEL || at_edges * MOST_AT_EDGES > along->outputs ||
        down->taps * along->taps > FEW_TAPS * down->stride * along->stride;
    if (copies) problem.compute = FOR_PROCESSOR(compute_copies), problem.groups *= problem.panels;
    else problem.compute = FOR_PROCESSOR(compute);
    const double positions = (double)problem.images * (double)problem.rows.outputs * (double)problem.columns.outputs;
    const double operations = positions * (double)problem.channels * (double)(problem.rows.taps * problem.columns.taps);
    if (__TVMBackendParallelLaunch && operations > SERIAL_OPERATIONS) return __TVMBackendParallelLaunch(work, &problem, 0);
    const Environment alone = {0, 1};
    return work(0, &alone, &problem);
}

#else /* ------------------------------------------------------------------ once for each set of instructions */

#define UNROLLED _Pragma("clang loop unroll(full)") for
#define VECTORS (PANEL / LANES)

TARGETED INLINE void NAME(put)(float *to, const float *from, int64_t count) {
    if (count == PANEL)
        UNROLLED (int v = 0; v < VECTORS; v++) STORE(to + v * LANES, LOAD(from + v * LANES));
    else
        for (int64_t i = 0; i < count; i++) to[i] = from[i];
}

/* Copy what a panel reads of a row of x, with its padding. */
TARGETED static void NAME(copy_row)(const Problem *problem, const float *from, int64_t count, float *to) {
    const int64_t columns = problem->held / PANEL, before = problem->columns.before, distance = problem->column_distance;
    const int64_t end = least(columns, before + problem->columns.inputs);
    int64_t column = 0;
    for (; column < least(before, columns); column++, to += PANEL) NAME(put)(to, zeros, PANEL);
    if (count == PANEL)
        for (; column < end; column++, to += PANEL) NAME(put)(to, from + (column - before) * distance, PANEL);
    for (; column < end; column++, to += PANEL) {
        NAME(put)(to, zeros, PANEL);
        NAME(put)(to, from + (column - before) * distance, count);
    }
    for (; column < columns; column++, to += PANEL) NAME(put)(to, zeros, PANEL);
}

/* out[i][..] = added[..] + sum of x[tap][i * step ..] * weights[tap][..] over rows of taps that are inside, for a few positions. */
TARGETED INLINE void NAME(sums)(const Taps *taps, const float *added, float *out, int64_t distance, const int64_t step, const int count) {
    Vector sums[MOST_POSITIONS][VECTORS];
    UNROLLED (int i = 0; i < count; i++)
        UNROLLED (int v = 0; v < VECTORS; v++) sums[i][v] = LOAD(added + v * LANES);
    for (int64_t row = taps->first; row < taps->last; row++) {
        const float *x = taps->rows[row] + taps->at, *weights = taps->weights + row * taps->distance;
        for (int64_t column = 0; column < taps->columns; column++, x += taps->dilation, weights += PANEL)
            UNROLLED (int v = 0; v < VECTORS; v++) {
                const Vector weight = LOAD(weights + v * LANES);
                UNROLLED (int i = 0; i < count; i++) sums[i][v] += LOAD(x + i * step + v * LANES) * weight;
            }
    }
    UNROLLED (int i = 0; i < count; i++)
        UNROLLED (int v = 0; v < VECTORS; v++) STORE(out + i * distance + v * LANES, sums[i][v]);
}

#define CASE(count) \
    case count: NAME(sums)(taps, added, out, distance, step, count); break;

TARGETED INLINE void NAME(block)(
    const Taps *taps, const float *added, float *out, int64_t distance, int64_t count, const int64_t step) {
    switch (count) {
        CASE(1) CASE(2)
#if LANES >= 8
        CASE(3) CASE(4) CASE(5) CASE(6)
#endif
#if LANES == 16
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}
#undef CASE

/* What a row of results reads of rows of x, which lie at ``x`` and below. */
TARGETED INLINE Taps NAME(taps_of)(const Problem *problem, int64_t row, const float *x, const float **rows) {
    const Axis *down = &problem->rows;
    Taps taps = {.rows = rows, .last = down->taps, .columns = problem->columns.taps, .distance = problem->columns.taps * PANEL};
    while (taps.first < taps.last && input_of(down, row, taps.first) < 0) taps.first++;
    while (taps.last > taps.first && input_of(down, row, taps.last - 1) >= down->inputs) taps.last--;
    for (int64_t tap = taps.first; tap < taps.last; tap++) rows[tap] = x + input_of(down, row, tap) * problem->row_distance;
    return taps;
}

/* Rows of the result, numbered through all images, all channels of a few positions at a time. */
TARGETED static int NAME(compute)(const Problem *problem, int64_t first, int64_t last) {
    const Axis *along = &problem->columns;
    const int64_t outputs = along->outputs, channels = problem->channels, step = along->stride * problem->column_distance;
    const int64_t size = problem->rows.taps * along->taps * PANEL, distance = problem->of_out.distance;
    const Step *steps = problem->steps.each + problem->has_bias, *after = problem->steps.each + problem->steps.count;
    const float *rows[MOST_TAPS];
    for (int64_t number = first; number < last; number++) {
        const int64_t row = number % problem->rows.outputs, image = number / problem->rows.outputs;
        const Taps whole = NAME(taps_of)(problem, row, (const float *)problem->x->data + image * problem->x->strides[0], rows);
        for (int64_t column = 0, some; column < outputs; column += some) {
            Taps taps = whole;
            int64_t skipped = 0; /* columns of taps that are in the padding before */
            some = least(POSITIONS, problem->end_inside - column);
            if (column < problem->first_inside || column >= problem->end_inside) {
                some = 1;
                while (skipped < taps.columns && input_of(along, column, skipped) < 0) skipped++;
                while (taps.columns > skipped && input_of(along, column, taps.columns - 1) >= along->inputs) taps.columns--;
                taps.columns -= skipped;
            }
            taps.at = input_of(along, column, skipped) * problem->column_distance, taps.dilation = along->dilation * problem->column_distance;
            taps.weights = problem->packed + skipped * PANEL;
            float *to = (float *)row_of(&problem->of_out, number * outputs + column);
            for (int64_t channel = 0; channel < channels; channel += PANEL, taps.at += PANEL, taps.weights += size)
                NAME(block)(&taps, problem->has_bias ? problem->bias + channel : zeros, to + channel, distance, some, step);
            for (const Step *each = steps; each < after; each++)
                NAME(apply)(each, to, number * outputs + column, some, 0, channels, channels, distance);
        }
    }
    return 0;
}

/* Rows of the result, numbered through all panels of all images. What they read is copied. */
TARGETED static int NAME(compute_copies)(const Problem *problem, int64_t first, int64_t last) {
    const Axis *down = &problem->rows, *along = &problem->columns;
    const int64_t slots = (down->taps - 1) * down->dilation + 1, outputs = along->outputs, step = along->stride * PANEL;
    const Step *after = problem->steps.each + problem->steps.count;
    if (first >= last) return 0;
    const int64_t numbers = slots * problem->held + outputs * PANEL, bytes = numbers * 4 + slots * (int64_t)sizeof(int64_t);
    float *held = aligned_alloc(LINE_BYTES, (size_t)((bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES));
    if (!held) return 5;
    float *sums = held + slots * problem->held;
    const float *rows[MOST_TAPS];
    int64_t *in_slot = (int64_t *)(void *)(sums + outputs * PANEL), done = -1; /* the image and panel whose rows are held */
    for (int64_t number = first; number < last; number++) {
        const int64_t row = number % down->outputs, group = number / down->outputs, panel = group % problem->panels;
        const int64_t image = group / problem->panels, channel = panel * PANEL, count = least(PANEL, problem->channels - channel);
        const float *x = (const float *)problem->x->data + image * problem->x->strides[0] + channel;
        if (group != done) memset(in_slot, -1, (size_t)slots * sizeof *in_slot);
        done = group;
        Taps taps = NAME(taps_of)(problem, row, x, rows);
        taps.dilation = along->dilation * PANEL, taps.weights = problem->packed + panel * down->taps * taps.distance;
        for (int64_t tap = taps.first; tap < taps.last; tap++) {
            const int64_t input = input_of(down, row, tap), slot = input % slots;
            float *copy = held + slot * problem->held;
            if (in_slot[slot] != input) NAME(copy_row)(problem, rows[tap], count, copy);
            in_slot[slot] = input, rows[tap] = copy;
        }
        const int has_bias = problem->has_bias && count == PANEL;
        const float *added = has_bias ? problem->bias + channel : zeros;
        const Step *steps = problem->steps.each + has_bias;
        const int64_t position = (image * down->outputs + row) * outputs;
        const int is_held = steps < after || count < PANEL || !problem->of_out.even;
        float *to = is_held ? sums : (float *)row_of(&problem->of_out, position) + channel;
        const int64_t distance = is_held ? PANEL : problem->of_out.distance;
        for (int64_t column = 0, some; column < outputs; column += some, taps.at += some * step) {
            const int64_t left = outputs - column;
            some = left >= 2 * POSITIONS || left <= POSITIONS ? least(left, POSITIONS) : (left + 1) / 2;
            if (step == PANEL) NAME(block)(&taps, added, to + column * distance, distance, some, PANEL);
            else NAME(block)(&taps, added, to + column * distance, distance, some, step);
        }
        if (!is_held) continue;
        for (const Step *each = steps; each < after; each++) NAME(apply)(each, sums, position, outputs, channel, count, PANEL, PANEL);
        for (int64_t column = 0; column < outputs; column++)
            NAME(put)((float *)row_of(&problem->of_out, position + column) + channel, sums + column * PANEL, count);
    }
    free(held);
    return 0;
}
#undef UNROLLED
#undef VECTORS
#endif
