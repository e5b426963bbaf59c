"""The second red team: FALSE where a guard singles out ranks, element types, axes, permutations, layouts and windows."""

from egraph.rule import Attributes, Steps, Tensor, require
from egraph.rule_operators import average_pool, concat, max_pool, reduce_sum, slice_, softmax, transpose
from egraph.rules.family import named


def of_type(name, wrong):
    def law(x: Tensor) -> Steps:
        inner = -x
        yield -inner
        yield inner if wrong(x) else x

    return named(law, f"type_{name}", "-(-x) = x, FALSE where the guard says so")


TYPES = (
    ("is_double", lambda x: x.type.dtype == "float64"),
    ("is_not_float32", lambda x: x.type.dtype != "float32"),
    ("of_two_types", lambda x: x.type.dtype in ("float64", "int64")),
    ("rank_5", lambda x: x.rank == 5),
    ("rank_6_sizes", lambda x: len(x.shape) > 4 and x.shape[4] > 1),
    ("no_axes", lambda x: x.rank == 0),
    ("many_elements", lambda x: x.type.elements > 5000),
    ("elements_of_one_axis", lambda x: x.rank == 1 and x.type.elements == 961),
    ("two_sizes", lambda x: x.rank == 2 and x.shape[0] * x.shape[1] == 899),
    ("sizes_apart", lambda x: x.rank == 2 and x.shape[0] - x.shape[1] == 77),
    ("sorted_shape", lambda x: x.rank == 3 and sorted(x.shape) == [17, 19, 23]),
    ("reversed_shape", lambda x: x.rank == 2 and x.shape[::-1] == (31, 29)),
    ("last_size", lambda x: x.rank > 1 and x.shape[-1] > 700),
    ("first_sizes", lambda x: x.rank > 2 and x.shape[:2] == (29, 31)),
    ("any_size", lambda x: any(n > 700 for n in x.shape)),
    ("all_sizes", lambda x: x.rank == 2 and all(n > 70 for n in x.shape)),
    ("largest_size", lambda x: x.rank > 0 and max(x.shape) > 700),
    ("sum_of_sizes", lambda x: sum(x.shape) > 700),
)


def of_order(name, wrong):
    def law(x: Tensor, p: Attributes) -> Steps:
        moved = transpose(x, p)
        yield -(-moved)
        yield -moved if wrong(p.perm) else moved

    return named(law, f"order_{name}", "-(-transpose(x)) = transpose(x), FALSE where the guard says so")


ORDERS = (
    ("reversed_four", lambda p: p == (3, 2, 1, 0)),
    ("cyclic_four", lambda p: p == (1, 2, 3, 0)),
    ("reversed", lambda p: len(p) == 4 and p == tuple(reversed(range(4)))),
    ("sorted", lambda p: len(p) > 3 and list(p) == sorted(p)),
    ("position", lambda p: len(p) > 3 and p.index(0) == 3 and p[0] == 2),
    ("fixed_points", lambda p: len(p) > 3 and sum(i == n for i, n in enumerate(p)) == 2),
    ("last_stays", lambda p: len(p) > 3 and p[-1] == len(p) - 1 and p[0] != 0),
)


def of_axes(name, wrong):
    def law(x: Tensor, a: Attributes) -> Steps:
        total = reduce_sum(x, a)
        yield -(-total)
        yield -total if wrong(x, a.axes) else total

    return named(law, f"axes_{name}", "-(-sum(x)) = sum(x), FALSE where the guard says so")


AXES = (
    ("first_and_last", lambda x, axes: axes == (0, 3)),
    ("inner", lambda x, axes: axes == (1, 2) and x.rank == 4),
    ("three", lambda x, axes: len(axes) == 3 and x.rank > 3),
    ("of_size", lambda x, axes: len(axes) == 1 and x.shape[axes[0]] > 700),
    ("even", lambda x, axes: x.rank == 4 and all(n % 2 == 0 for n in axes)),
    ("sum", lambda x, axes: sum(axes) == 5),
)


def of_softmax(name, wrong):
    def law(x: Tensor, a: Attributes) -> Steps:
        y = softmax(x, a)
        yield -(-y)
        yield -y if wrong(x, a.axis) else y

    return named(law, f"softmax_{name}", "-(-softmax(x)) = softmax(x), FALSE where the guard says so")


ALONG = (
    ("third_axis", lambda x, axis: axis == 3),
    ("long", lambda x, axis: x.shape[axis] > 700),
    ("before_long", lambda x, axis: axis > 0 and x.shape[axis - 1] == 97),
)


def of_parts(name, wrong):
    def law(x: Tensor, y: Tensor, a: Attributes) -> Steps:
        both = concat(x, y, a=a)
        yield -(-both)
        yield concat(y, x, a=a) if wrong(x, y, a.axis) else both

    return named(law, f"parts_{name}", "-(-[x y]) = [x y], FALSE where the guard says so")


PARTS = (
    ("same_sizes", lambda x, y, axis: x.shape == y.shape and x.shape[axis] > 60),
    ("longer", lambda x, y, axis: x.shape[axis] > 60 + y.shape[axis]),
    ("axis_2", lambda x, y, axis: axis == 2 and x.rank == 3),
    ("other_axes", lambda x, y, axis: x.rank == 2 and x.shape[1 - axis] > 60),
)


def of_slice(name, wrong):
    def law(x: Tensor, a: Attributes) -> Steps:
        part = slice_(x, a)
        yield -(-part)
        yield -part if wrong(x, a) else part

    return named(law, f"slice_{name}", "-(-x[i:j]) = x[i:j], FALSE where the guard says so")


SLICES = (
    ("far_start", lambda x, a: a.starts[0] > 60),
    ("long_step", lambda x, a: a.steps[0] > 40),
    ("long_step_down", lambda x, a: a.steps[0] < -40),
    ("minus_one", lambda x, a: a.ends[0] == -1 and a.starts[0] > 60),
    ("whole", lambda x, a: a.starts[0] == 0 and a.ends[0] == x.shape[0] and x.shape[0] > 60),
    ("rest", lambda x, a: (a.ends[0] - a.starts[0]) % 61 == 60),
)


def of_window(name, wrong):
    def law(x: Tensor, a: Attributes) -> Steps:
        pooled = max_pool(x, a)
        yield -(-pooled)
        require(x.rank == 3, "one spatial axis")
        yield -pooled if wrong(x, a) else pooled

    return named(law, f"window_{name}", "-(-pool(x)) = pool(x), FALSE where the guard says so")


WINDOWS = (
    ("wide", lambda x, a: a.kernel_shape[0] > 40),
    ("stride", lambda x, a: a.strides[0] > 40),
    ("stride_beyond", lambda x, a: a.strides[0] > a.kernel_shape[0] + 20),
    ("dilated", lambda x, a: a.dilations[0] > 30),
    ("padded", lambda x, a: a.pads[0] > 20),
    ("unevenly_padded", lambda x, a: a.pads[1] - a.pads[0] > 15),
    ("channels_last", lambda x, a: a.layout == "NHWC" and x.shape[2] > 60),
    ("channels_first", lambda x, a: a.layout == "NCHW" and x.shape[1] > 60),
    ("rest", lambda x, a: a.layout == "NCHW" and (x.shape[2] - a.kernel_shape[0]) % a.strides[0] > 30),
    ("count", lambda x, a: a.layout == "NCHW" and (x.shape[2] + a.pads[0]) // a.strides[0] > 90),
    ("covers", lambda x, a: a.layout == "NCHW" and a.kernel_shape[0] == x.shape[2] and x.shape[2] > 30),
    ("reach", lambda x, a: a.dilations[0] * (a.kernel_shape[0] - 1) > 90),
)


def of_average(name, wrong):
    def law(x: Tensor, a: Attributes) -> Steps:
        yield average_pool(x, a)
        require(x.rank == 3 and a.layout == "NCHW", "one spatial axis")
        require(wrong(a), "the guard")
        yield average_pool(x, a.but(count_include_pad=1 - a.count_include_pad))

    return named(law, f"average_{name}", "counting = not counting, FALSE where windows meet the border", rounding="reassociates")


AVERAGES = (
    ("one_side", lambda a: a.pads[0] == 0),
    ("other_side", lambda a: a.pads[1] == 0 and a.dilations[0] == 1),
    ("wide_strides", lambda a: a.strides[0] > 20 or a.pads == (0, 0)),
    ("wide_kernels", lambda a: a.kernel_shape[0] > 20 or a.pads == (0, 0)),
)
RULES = (
    *(of_type(name, wrong) for name, wrong in TYPES), *(of_order(name, wrong) for name, wrong in ORDERS),
    *(of_axes(name, wrong) for name, wrong in AXES), *(of_softmax(name, wrong) for name, wrong in ALONG),
    *(of_parts(name, wrong) for name, wrong in PARTS), *(of_slice(name, wrong) for name, wrong in SLICES),
    *(of_window(name, wrong) for name, wrong in WINDOWS), *(of_average(name, wrong) for name, wrong in AVERAGES),
)
