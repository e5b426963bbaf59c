"""Random applications of ONNX operators to a value, from which models for fuzzing are made."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx

from tests.support.graph_build import SIZES, Build, Shape, Unsuitable, Value


def unary(b: Build, x: Value) -> Value:
    op = b.one_of(["Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Erf", "Softplus", "Softsign", "HardSwish", "Mish", "Sin", "Cos", "Identity"])
    return b.node(op, [x], x.shape)


def with_attributes(b: Build, x: Value) -> Value:
    op, attributes = b.one_of([
        ("LeakyRelu", {"alpha": 0.1}), ("Elu", {"alpha": 0.5}), ("Celu", {"alpha": 2.0}), ("Selu", {}), ("HardSigmoid", {"alpha": 0.3}),
        ("ThresholdedRelu", {"alpha": 0.2}), ("Gelu", {}), ("Gelu", {"approximate": "tanh"}),
    ])  # fmt: skip
    return b.node(op, [x], x.shape, **attributes)


def clip(b: Build, x: Value) -> Value:
    low, high = b.one_of([(0.0, 6.0), (-0.5, 0.5), (None, 1.0), (-1.0, None)])
    return b.node("Clip", [x, None if low is None else b.number(low), None if high is None else b.number(high)], x.shape)


def guarded(b: Build, x: Value) -> Value:
    """Apply an operator with a pole to a positive operand."""
    positive = b.node("Add", [b.node("Abs", [x], x.shape), b.number(1.0)], x.shape)
    return b.node(b.one_of(["Log", "Sqrt", "Reciprocal"]), [positive], x.shape)


def exponential(b: Build, x: Value) -> Value:
    return b.node("Exp", [b.node("Tanh", [x], x.shape)], x.shape)


def partner(b: Build, x: Value) -> Value:
    """Return a value that broadcasts with ``x``."""
    others = [v for v in b.values if _broadcast(v.shape, x.shape) is not None]
    if others and b.chance(55):
        found: Value = b.one_of(others)
        return found
    kept = x.shape[b.one_of([0, 0, b.integer(0, len(x.shape))]) :]
    shape = tuple(1 if b.chance(35) else n for n in kept)
    return b.weight(shape if b.chance(85) else x.shape)


def _broadcast(one: Shape, other: Shape) -> Shape | None:
    try:
        return tuple(np.broadcast_shapes(one, other))
    except ValueError:
        return None


def binary(b: Build, x: Value) -> Value:
    y = partner(b, x)
    pair = [x, y] if b.chance(60) else [y, x]
    shape = _broadcast(x.shape, y.shape)
    assert shape is not None
    return b.node(b.one_of(["Add", "Add", "Mul", "Mul", "Sub", "Max", "Min"]), pair, shape)


def divide(b: Build, x: Value) -> Value:
    y = partner(b, x)
    shape = _broadcast(x.shape, y.shape)
    assert shape is not None
    return b.node("Div", [x, b.node("Add", [b.node("Abs", [y], y.shape), b.number(0.5)], y.shape)], shape)


def power(b: Build, x: Value) -> Value:
    if b.chance(50):
        return b.node("Pow", [x, b.number(2.0)], x.shape)
    positive = b.node("Add", [b.node("Abs", [x], x.shape), b.number(0.5)], x.shape)
    return b.node("Pow", [positive, b.number(b.one_of([0.5, -1.0, 1.5]))], x.shape)


def prelu(b: Build, x: Value) -> Value:
    if len(x.shape) < 2:
        raise Unsuitable("PRelu")
    return b.node("PRelu", [x, b.weight((x.shape[1], *(1,) * (len(x.shape) - 2)))], x.shape)


def select(b: Build, x: Value) -> Value:
    y = partner(b, x)
    shape = _broadcast(x.shape, y.shape)
    assert shape is not None
    condition = b.node(b.one_of(["Less", "GreaterOrEqual", "Greater", "LessOrEqual"]), [x, b.number(0.1)], x.shape)
    if b.chance(30):
        condition = b.node("Not", [condition], x.shape)
    return b.node("Where", [condition, x, y], shape)


def matmul(b: Build, x: Value) -> Value:
    if not x.shape:
        raise Unsuitable("MatMul")
    k, n = x.shape[-1], b.one_of(SIZES)
    others = [v for v in b.values if len(v.shape) == len(x.shape) >= 2 and v.shape[:-2] == x.shape[:-2] and v.shape[-2] == k]
    if others and b.chance(40):
        y = b.one_of(others)
    elif len(x.shape) >= 3 and b.chance(25):
        y = b.weight((*(m if b.chance(70) else 1 for m in x.shape[:-2]), k, n))
    elif b.chance(6):
        return b.node("MatMul", [x, b.weight((k,))], x.shape[:-1])
    else:
        y = b.weight((k, n))
    return b.node("MatMul", [x, y], (*x.shape[:-1], y.shape[-1]))


def attention(b: Build, x: Value) -> Value:
    """x x^T, a product whose operands are both values."""
    if len(x.shape) < 2:
        raise Unsuitable("x x^T")
    rank = len(x.shape)
    turned = b.node("Transpose", [x], (*x.shape[:-2], x.shape[-1], x.shape[-2]), perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = b.node("MatMul", [x, turned], (*x.shape[:-1], x.shape[-2]))
    return b.node("Mul", [scores, b.number(0.25)], scores.shape)


def gemm(b: Build, x: Value) -> Value:
    if len(x.shape) != 2:
        raise Unsuitable("Gemm")
    across, turned = int(b.chance(30)), int(b.chance(40))
    m, k = x.shape[::-1] if across else x.shape
    n = b.one_of(SIZES)
    bias = b.one_of([None, b.weight((n,)), b.weight((m, 1)), b.weight(())])
    w = b.weight((n, k) if turned else (k, n))
    scales = {"alpha": b.one_of([1.0, 0.5]), "beta": b.one_of([1.0, 2.0])}
    return b.node("Gemm", [x, w, bias][: 3 if bias else 2], (m, n), transA=across, transB=turned, **scales)


def _window(b: Build, size: int, smallest: int = 1) -> tuple[int, int, int, int, int]:
    """Return kernel, stride, begin pad, end pad and dilation that fit an axis."""
    kernel = b.integer(smallest, 3)
    dilation = b.one_of([1, 1, 2])
    begin, end = b.integer(0, kernel - 1), b.integer(0, kernel - 1)
    if (kernel - 1) * dilation + 1 > size + begin + end:
        raise Unsuitable("the window is larger than the image")
    return kernel, b.one_of([1, 1, 2]), begin, end, dilation


def _windows(b: Build, sizes: Shape) -> tuple[dict[str, list[int]], Shape]:
    drawn = [_window(b, size) for size in sizes]
    kernel, stride, begin, end, dilation = (list(column) for column in zip(*drawn, strict=True))
    out = tuple((n + p + q - (k - 1) * d - 1) // s + 1 for n, (k, s, p, q, d) in zip(sizes, drawn, strict=True))
    return {"kernel_shape": kernel, "strides": stride, "pads": begin + end, "dilations": dilation}, out


def conv(b: Build, x: Value) -> Value:
    if not 3 <= len(x.shape) <= 5:
        raise Unsuitable("Conv")
    channels = x.shape[1]
    group = b.one_of([1, 1, 1, channels, *(g for g in (2, 3) if channels % g == 0)])
    maps = group * b.integer(1, 4)
    attributes, out = _windows(b, x.shape[2:])
    operands = [x, b.weight((maps, channels // group, *attributes["kernel_shape"])), b.weight((maps,)) if b.chance(50) else None]
    made = b.node("Conv", operands if operands[2] else operands[:2], (x.shape[0], maps, *out), group=group, **attributes)
    return b.node("Relu", [made], made.shape) if b.chance(30) else made


def conv_transpose(b: Build, x: Value) -> Value:
    if not 3 <= len(x.shape) <= 4:
        raise Unsuitable("ConvTranspose")
    group = b.one_of([1, 1, *(g for g in (2, 3) if x.shape[1] % g == 0)])
    maps = b.integer(1, 3)
    stride = [b.integer(1, 2) for _ in x.shape[2:]]
    kernel = [b.integer(1, 3) for _ in x.shape[2:]]
    begin = [b.integer(0, (k - 1) // 2) for k in kernel]
    extra = [b.integer(0, s - 1) for s in stride]
    out = [s * (n - 1) + e + k - 2 * p for n, s, e, k, p in zip(x.shape[2:], stride, extra, kernel, begin, strict=True)]
    return b.node(
        "ConvTranspose", [x, b.weight((x.shape[1], maps, *kernel))], (x.shape[0], maps * group, *out),
        strides=stride, pads=begin * 2, output_padding=extra, group=group, kernel_shape=kernel,
    )  # fmt: skip


def pool(b: Build, x: Value) -> Value:
    if not 3 <= len(x.shape) <= 4:
        raise Unsuitable("pool")
    attributes, out = _windows(b, x.shape[2:])
    if b.chance(50):
        return b.node("MaxPool", [x], (*x.shape[:2], *out), **attributes)
    return b.node("AveragePool", [x], (*x.shape[:2], *out), count_include_pad=b.integer(0, 1), **attributes)


def global_pool(b: Build, x: Value) -> Value:
    if len(x.shape) < 3:
        raise Unsuitable("global pool")
    return b.node(b.one_of(["GlobalAveragePool", "GlobalMaxPool"]), [x], (*x.shape[:2], *(1 for _ in x.shape[2:])))


def reduction(b: Build, x: Value) -> Value:
    if not x.shape:
        raise Unsuitable("reduction")
    axes = sorted({b.integer(0, len(x.shape) - 1) for _ in range(b.integer(1, 2))})
    keep = b.integer(0, 1)
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
    op = b.one_of(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare", "ReduceL1", "ReduceLogSumExp"])
    return b.node(op, [x, b.integers(axes)], shape, keepdims=keep)


def normalize(b: Build, x: Value) -> Value:
    rank = len(x.shape)
    if rank < 1:
        raise Unsuitable("normalization")
    kinds = ("Softmax", "LogSoftmax", "LRN", *(f"{what}Normalization" for what in ("Layer", "Instance", "Batch", "Group")))
    kind = b.one_of(kinds)
    if kind in ("Softmax", "LogSoftmax"):
        return b.node(kind, [x], x.shape, axis=b.integer(-rank, rank - 1))
    if kind == "LayerNormalization":
        axis = b.integer(0, rank - 1)
        part = x.shape[axis:]
        return b.node(kind, [x, b.weight(part), *([b.weight(part)] if b.chance(70) else [])], x.shape, axis=axis, epsilon=0.1)
    if rank < 3 or (kind == "GroupNormalization" and rank < 3):
        raise Unsuitable(kind)
    channels = (x.shape[1],)
    match kind:
        case "InstanceNormalization":
            return b.node(kind, [x, b.weight(channels), b.weight(channels)], x.shape, epsilon=0.1)
        case "BatchNormalization":
            statistics = [b.weight(channels), b.weight(channels), b.weight(channels), b.weight(channels, 0.5, 2.0)]
            return b.node(kind, [x, *statistics], x.shape)
        case "LRN":
            if rank != 4:
                raise Unsuitable(kind)
            return b.node(kind, [x], x.shape, size=3, alpha=0.1)
    groups = b.one_of([g for g in (1, 2, 3, x.shape[1]) if x.shape[1] % g == 0])
    per = channels
    return b.node(kind, [x, b.weight(per), b.weight(per)], x.shape, num_groups=groups, epsilon=0.1)


def transpose(b: Build, x: Value) -> Value:
    if not x.shape:
        raise Unsuitable("Transpose")
    perm = list(range(len(x.shape)))
    b.random.shuffle(perm)
    return b.node("Transpose", [x], [x.shape[p] for p in perm], perm=perm)


def reshape(b: Build, x: Value) -> Value:
    total = math.prod(x.shape)
    shape: list[int] = []
    while total > 1 and len(shape) < 3:
        shape.append(b.one_of([d for d in range(1, total + 1) if total % d == 0]))
        total //= shape[-1]
    if total > 1:
        shape.append(total)
    if b.chance(20):
        shape.insert(b.integer(0, len(shape)), 1)
    return b.node("Reshape", [x, b.integers(shape)], shape)


def flatten(b: Build, x: Value) -> Value:
    axis = b.integer(0, len(x.shape))
    return b.node("Flatten", [x], (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), axis=axis)


def squeeze(b: Build, x: Value) -> Value:
    ones = [axis for axis, n in enumerate(x.shape) if n == 1]
    if ones and b.chance(60):
        axis = b.one_of(ones)
        return b.node("Squeeze", [x, b.integers([axis])], x.shape[:axis] + x.shape[axis + 1 :])
    axis = b.integer(0, len(x.shape))
    if len(x.shape) > 4:
        raise Unsuitable("Unsqueeze")
    return b.node("Unsqueeze", [x, b.integers([axis])], (*x.shape[:axis], 1, *x.shape[axis:]))


def concat(b: Build, x: Value) -> Value:
    if not x.shape:
        raise Unsuitable("Concat")
    axis = b.integer(0, len(x.shape) - 1)

    def fits(v: Value) -> bool:
        return len(v.shape) == len(x.shape) and all(i == axis or m == n for i, (m, n) in enumerate(zip(v.shape, x.shape, strict=True)))

    others = [v for v in b.values if fits(v)]
    parts = [x, *(b.one_of(others) if others and b.chance(80) else b.weight(x.shape) for _ in range(b.integer(1, 2)))]
    shape = [sum(p.shape[i] for p in parts) if i == axis else n for i, n in enumerate(x.shape)]
    return b.node("Concat", parts, shape, axis=axis)


def split(b: Build, x: Value) -> Value:
    axes = [axis for axis, n in enumerate(x.shape) if n > 1]
    if not axes:
        raise Unsuitable("Split")
    axis = b.one_of(axes)
    first = b.integer(1, x.shape[axis] - 1)
    sizes = [first, x.shape[axis] - first]
    parts = b.many("Split", [x, b.integers(sizes)], [[n if i == axis else m for i, m in enumerate(x.shape)] for n in sizes], axis=axis)
    b.values.append(parts[0])
    return parts[1]


def slice_(b: Build, x: Value) -> Value:
    if not x.shape:
        raise Unsuitable("Slice")
    axis = b.integer(0, len(x.shape) - 1)
    n = x.shape[axis]
    start = b.integer(0, n - 1)
    if b.chance(20):
        step, end, size = -1, -(n + 1), start + 1
    else:
        step = b.one_of([1, 1, 2])
        end = b.integer(start + 1, n)
        size = (end - start + step - 1) // step
    operands = [x, b.integers([start]), b.integers([end]), b.integers([axis]), b.integers([step])]
    return b.node("Slice", operands, [size if i == axis else m for i, m in enumerate(x.shape)])


def pad(b: Build, x: Value) -> Value:
    if not x.shape:
        raise Unsuitable("Pad")
    before = [b.one_of([0, 0, 1, 2]) for _ in x.shape]
    after = [b.one_of([0, 0, 1]) for _ in x.shape]
    mode = b.one_of(["constant", "constant", "edge", "reflect"])
    if mode == "reflect" and any(max(p, q) >= n for p, q, n in zip(before, after, x.shape, strict=True)):
        mode = "edge"
    shape = [p + n + q for p, n, q in zip(before, x.shape, after, strict=True)]
    value = [b.number(b.one_of([0.0, 0.5, -1.0]))] if mode == "constant" and b.chance(60) else []
    return b.node("Pad", [x, b.integers(before + after), *value], shape, mode=mode)


def expand(b: Build, x: Value) -> Value:
    shape = tuple(b.one_of([2, 3]) if n == 1 and b.chance(60) else n for n in x.shape)
    if b.chance(30):
        shape = (2, *shape)
    return b.node("Expand", [x, b.integers(shape)], shape)


def tile(b: Build, x: Value) -> Value:
    if not x.shape:
        raise Unsuitable("Tile")
    times = [b.one_of([1, 1, 2]) for _ in x.shape]
    return b.node("Tile", [x, b.integers(times)], [n * t for n, t in zip(x.shape, times, strict=True)])


def gather(b: Build, x: Value) -> Value:
    if not x.shape:
        raise Unsuitable("Gather")
    axis = b.integer(0, len(x.shape) - 1)
    n = x.shape[axis]
    indices = b.one_of([[0], [n - 1, 0], [b.integer(0, n - 1) for _ in range(3)], list(range(n))])
    return b.node("Gather", [x, b.integers(indices)], (*x.shape[:axis], len(indices), *x.shape[axis + 1 :]), axis=axis)


def depth_to_space(b: Build, x: Value) -> Value:
    if len(x.shape) != 4:
        raise Unsuitable("DepthToSpace")
    n, c, h, w = x.shape
    if c % 4 == 0 and b.chance(70):
        return b.node("DepthToSpace", [x], (n, c // 4, 2 * h, 2 * w), blocksize=2, mode=b.one_of(["DCR", "CRD"]))
    if h % 2 == 0 and w % 2 == 0:
        return b.node("SpaceToDepth", [x], (n, 4 * c, h // 2, w // 2), blocksize=2)
    raise Unsuitable("DepthToSpace")


def resize(b: Build, x: Value) -> Value:
    if len(x.shape) != 4:
        raise Unsuitable("Resize")
    scales = [1.0, 1.0, b.one_of([1.0, 2.0, 0.5]), b.one_of([1.0, 2.0, 3.0])]
    shape = [math.floor(n * s) for n, s in zip(x.shape, scales, strict=True)]
    mode = b.one_of(["nearest", "linear"])
    coordinates = b.one_of(["half_pixel", "asymmetric", "align_corners"])
    more = {"nearest_mode": b.one_of(["floor", "round_prefer_floor"])} if mode == "nearest" else {}
    operands = [x, None, b.array(np.array(scales, np.float32))]
    return b.node("Resize", operands, shape, mode=mode, coordinate_transformation_mode=coordinates, **more)


def again(b: Build, x: Value) -> Value:
    """Repeat the node that computed ``x``: a common subexpression, or a sibling over the same operands."""
    makers = [node for node in b.nodes if x.name in node.output and len(node.output) == 1]
    if not makers or x.constant:
        raise Unsuitable("again")
    node = onnx.NodeProto()
    node.CopyFrom(makers[0])
    node.output[:] = [b.fresh("v")]
    b.nodes.append(node)
    return Value(node.output[0], x.shape)


def opaque(b: Build, x: Value) -> Value:
    """Apply an operator outside the core set."""
    return b.node("Atan", [x], x.shape)


MAKERS: tuple[tuple[Callable[[Build, Value], Value], int], ...] = (
    (unary, 8), (with_attributes, 4), (clip, 2), (guarded, 3), (exponential, 1), (binary, 14), (divide, 2), (power, 2), (prelu, 2),
    (select, 3), (matmul, 10), (attention, 3), (gemm, 6), (conv, 10), (conv_transpose, 4), (pool, 5), (global_pool, 2), (reduction, 5),
    (normalize, 7), (transpose, 7), (reshape, 5), (flatten, 2), (squeeze, 3), (concat, 5), (split, 4), (slice_, 4), (pad, 4), (expand, 3),
    (tile, 2), (gather, 3), (depth_to_space, 2), (resize, 3), (again, 4), (opaque, 1),
)  # fmt: skip
