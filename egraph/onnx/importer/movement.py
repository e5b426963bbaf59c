"""ONNX operators that only move elements, as compositions of Reshape, Transpose, Slice, Pad, Expand, Concat, Gather."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.model_file import to_array
from egraph.onnx.importer.state import Call, NotCore, axis_of, usable
from egraph.tensor import Node

MOST_PARTS = 64
"""The most parts of one Concat: each part is a case nested in the next, and expressions are written and read by recursion."""


def _reshape(call: Call) -> Node:
    shape, target = call.shape(0), list(call.integers("shape", 1) or ())
    if not call.attribute("allowzero", 0):
        if any(n == 0 and k >= len(shape) for k, n in enumerate(target)):
            raise NotCore("a size 0 copies an axis that is not there")
        target = [shape[k] if n == 0 else n for k, n in enumerate(target)]
    if target.count(-1) == 1:
        fixed_elements = math.prod(n for n in target if n != -1)
        if fixed_elements <= 0 or math.prod(shape) % fixed_elements:
            raise NotCore("the size -1 cannot be found")
        target[target.index(-1)] = math.prod(shape) // fixed_elements
    return call.reshape(call[0], target)


def _flatten(call: Call) -> Node:
    shape, axis = call.shape(0), int(call.attribute("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return call.reshape(call[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _squeeze(call: Call) -> Node:
    shape = call.shape(0)
    axes = call.integers("axes", 1, [k for k, n in enumerate(shape) if n == 1]) or ()
    drop = {axis_of(axis, len(shape)) for axis in axes}
    if any(shape[axis] != 1 for axis in drop):
        raise NotCore("a squeezed axis is not 1")
    return call.reshape(call[0], [n for k, n in enumerate(shape) if k not in drop])


def _unsqueeze(call: Call) -> Node:
    shape, axes = call.shape(0), call.integers("axes", 1) or ()
    rank = len(shape) + len(axes)
    new, sizes = {axis_of(axis, rank) for axis in axes}, iter(shape)
    if len(new) != len(axes):
        raise NotCore("axes repeat")
    return call.reshape(call[0], [1 if k in new else next(sizes) for k in range(rank)])


def _transpose(call: Call) -> Node:
    rank = len(call.shape(0))
    perm = [int(k) for k in call.attribute("perm", list(reversed(range(rank))))]
    return call.transpose(call[0], perm)


def _concat(call: Call) -> Node:
    """Concatenate the parts that have elements."""
    operands = [call[k] for k in range(len(call.operands))]
    operands = [part for part in operands if not part.type.is_static or part.type.elements]
    if not all(usable(part.type) for part in operands):
        raise NotCore("the size of a part is not known")
    axis = axis_of(int(call.attribute("axis", 1)), operands[0].type.rank)
    return concatenated(call, operands, axis)


def concatenated(call: Call, parts: Sequence[Node], axis: int) -> Node:
    """Return values concatenated, many of them in groups, because the meaning of each part is nested in those of the parts after it."""
    while len(parts) > MOST_PARTS:
        groups = (parts[start : start + MOST_PARTS] for start in range(0, len(parts), MOST_PARTS))
        parts = [concatenated(call, group, axis) for group in groups]
    return parts[0] if len(parts) == 1 else call.apply("Concat", *parts, axis=axis)


def stacked(call: Call, parts: Sequence[Node], axis: int) -> Node:
    """Return values of one shape stacked along a new axis."""
    shapes = {part.type.shape for part in parts}
    if len(shapes) != 1 or not all(usable(part.type) for part in parts):
        raise NotCore("values of several sizes, or none")
    shape = parts[0].type.sizes
    axis = axis_of(axis, len(shape) + 1)
    rows = [call.reshape(part, (*shape[:axis], 1, *shape[axis:])) for part in parts]
    return concatenated(call, rows, axis)


def slice_axis(call: Call, node: Node, axis: int, start: int, end: int) -> Node:
    """node[..., start:end, ...], start and end already normalised"""
    return slice_axes(call, node, {axis: (start, end, 1)})


def slice_axes(call: Call, node: Node, cuts: Mapping[int, tuple[int, int, int]]) -> Node:
    """Slice with numpy's clamping; a node with an empty result is left to onnxruntime."""
    starts, ends, steps = [], [], []
    for axis, size in enumerate(node.type.sizes):
        start, end, step = cuts.get(axis, (0, size, 1))
        if step == 0:
            raise NotCore("a step is 0")
        start, end, step = slice(start, end, step).indices(size)
        count = len(range(start, end, step))
        if count == 0:
            raise NotCore("the result is empty")
        step = 1 if count == 1 else step
        starts.append(start)
        ends.append(start + count * step)
        steps.append(step)
    if starts == [0] * len(starts) and ends == list(node.type.sizes) and steps == [1] * len(steps):
        return node
    return call.apply("Slice", node, starts=tuple(starts), ends=tuple(ends), steps=tuple(steps))


def _slice(call: Call) -> Node:
    rank = len(call.shape(0))
    starts, ends = call.integers("starts", 1) or (), call.integers("ends", 2) or ()
    axes = call.integers("axes", 3, range(len(starts))) or ()
    steps = call.integers("steps", 4, [1] * len(starts)) or ()
    cuts: dict[int, tuple[int, int, int]] = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cuts[axis_of(axis, rank)] = (start, end, step)
    if len(cuts) != len(axes):
        raise NotCore("axes repeat")
    return slice_axes(call, call[0], cuts)


def _split(call: Call) -> list[Node | None]:
    shape, count = call.shape(0), len(call.node.output)
    axis = axis_of(int(call.attribute("axis", 0)), len(shape))
    sizes = call.integers("split", 1)
    if sizes is None:
        part = -(-shape[axis] // count)
        if call.opset < 18 and shape[axis] % count:
            raise NotCore("the parts are not equal")
        sizes = tuple(min(part, shape[axis] - k * part) for k in range(count))
    if len(sizes) != count or sum(sizes) != shape[axis] or min(sizes) < 0:
        raise NotCore("the parts do not make up the axis")
    parts: list[Node | None] = []
    start = 0
    for name, size in zip(call.node.output, sizes, strict=True):
        if size:
            parts.append(slice_axis(call, call[0], axis, start, start + size) if name else None)
        else:
            parts.append(call.like(np.zeros((*shape[:axis], 0, *shape[axis + 1 :]))))
        start += size
    return parts


def pad_node(call: Call, node: Node, before: Sequence[int], after: Sequence[int], mode: str = "constant", value: float = 0.0) -> Node:
    """Pad by positive sizes and cut by negative ones."""
    if any(n < 0 for n in (*before, *after)):
        if mode != "constant":
            raise NotCore("negative padding that is not constant")
        if any(n + min(0, b) + min(0, a) < 1 for n, b, a in zip(node.type.sizes, before, after, strict=True)):
            raise NotCore("everything is cut off")
        cuts = {k: (max(0, -b), n + min(0, a), 1) for k, (n, b, a) in enumerate(zip(node.type.sizes, before, after, strict=True))}
        node = slice_axes(call, node, cuts)
        before, after = [max(0, n) for n in before], [max(0, n) for n in after]
    if not any(before) and not any(after):
        return node
    return call.apply("Pad", node, before=tuple(before), after=tuple(after), mode=mode, value=value)


def _pad(call: Call) -> Node:
    rank, mode = len(call.shape(0)), str(call.attribute("mode", "constant"))
    pads = call.integers("pads", 1) or ()
    axes = [axis_of(a, rank) for a in call.known(3).reshape(-1).tolist()] if call.has(3) else list(range(rank))
    value = call.attribute("value", 0.0) if call.opset < 11 else (call.known(2).reshape(()).item() if call.has(2) else 0.0)
    if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
        raise NotCore("pads do not fit the axes")
    before, after = [0] * rank, [0] * rank
    for k, axis in enumerate(axes):
        before[axis], after[axis] = pads[k], pads[k + len(axes)]
    exact = float(value)
    if exact != value or math.isnan(exact):
        raise NotCore("the padding value is not a float")
    return pad_node(call, call[0], before, after, mode, exact if mode == "constant" else 0.0)


def _expand(call: Call) -> Node:
    target = np.broadcast_shapes(call.shape(0), tuple(int(n) for n in call.known(1)))
    return expanded(call, call[0], target)


def expanded(call: Call, node: Node, shape: Sequence[int]) -> Node:
    """Expand, unless the node has this shape."""
    return node if tuple(shape) == node.type.shape else call.apply("Expand", node, shape=tuple(int(n) for n in shape))


def _constant_of_shape(call: Call) -> Node:
    value = call.attribute("value")
    fill = np.zeros(1, np.float32) if value is None else to_array(value, call.state.folder)
    shape = tuple(int(n) for n in call.known(0))
    scalar = call.constant(fill.reshape(()), fill.dtype.name)
    return expanded(call, scalar, shape)


def _tile(call: Call) -> Node:
    """Expand over new axes before the repeated ones, then merge them"""
    shape, repeats = call.shape(0), [int(n) for n in call.known(1)]
    if min(repeats, default=1) < 1 or len(repeats) != len(shape):
        raise NotCore("the result is empty")
    inner, outer = [], []
    for size, count in zip(shape, repeats, strict=True):
        inner += [size] if count == 1 else [1, size]
        outer += [size] if count == 1 else [count, size]
    spread = expanded(call, call.reshape(call[0], inner), outer)
    return call.reshape(spread, [n * r for n, r in zip(shape, repeats, strict=True)])


def _gather(call: Call) -> Node:
    shape, axis = call.shape(0), int(call.attribute("axis", 0))
    axis = axis_of(axis, len(shape))
    value = call.data(1)
    if value is None:
        return call.apply("Gather", call[0], call[1], axis=axis)
    if value.size and (int(value.min()) < -shape[axis] or int(value.max()) >= shape[axis]):
        raise NotCore("an index is out of range")
    positions = np.where(value < 0, value + shape[axis], value).astype(np.int64)
    if positions.size == 1:
        at = int(positions.reshape(()))
        return call.reshape(slice_axis(call, call[0], axis, at, at + 1), (*shape[:axis], *positions.shape, *shape[axis + 1 :]))
    return call.apply("Gather", call[0], call.constant(positions, "int64"), axis=axis)


def _gather_nd(call: Call) -> Node:
    """Gather along one axis: rows if an index has one number, or all indexed axes merged into one if the indices are known"""
    shape, (*positions, depth), batches = call.shape(0), call.shape(1), int(call.attribute("batch_dims", 0))
    indexed = shape[batches : batches + depth]
    value = call.data(1)
    if value is None:
        if batches or depth != 1:
            return call.apply("GatherND", call[0], call[1], batch_dims=batches)
        return call.apply("Gather", call[0], call.reshape(call[1], positions), axis=0)
    sizes = np.array(indexed, np.int64)
    if np.any(value < -sizes) or np.any(value >= sizes):
        raise NotCore("an index is out of range")
    weights = [math.prod(indexed[k + 1 :]) for k in range(depth)]
    flat = np.where(value < 0, value + sizes, value).astype(np.int64) @ np.array(weights, np.int64)
    batch = np.arange(math.prod(shape[:batches]), dtype=np.int64).reshape(*shape[:batches], *[1] * (len(positions) - batches))
    rows = call.reshape(call[0], (math.prod(shape[: batches + depth]), *shape[batches + depth :]))
    return call.apply("Gather", rows, call.constant(flat + batch * math.prod(indexed), "int64"), axis=0)


def _reverse_sequence(call: Call) -> Node:
    """A reversed slice, if every row is reversed as a whole"""
    shape = call.shape(0)
    time, batch = (axis_of(int(call.attribute(f"{name}_axis", default)), len(shape)) for name, default in (("time", 0), ("batch", 1)))
    if not np.array_equal(call.known(1), np.full(shape[batch], shape[time])):
        raise NotCore("rows that are reversed in part")
    return slice_axes(call, call[0], {time: (shape[time] - 1, -shape[time] - 1, -1)})


def _depth_to_space(call: Call) -> Node:
    n, c, h, w = call.shape(0)
    block = int(call.required("blocksize"))
    depth = c // block**2
    if call.attribute("mode", "DCR") == "DCR":
        split = call.transpose(call.reshape(call[0], (n, block, block, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        split = call.transpose(call.reshape(call[0], (n, depth, block, block, h, w)), (0, 1, 4, 2, 5, 3))
    return call.reshape(split, (n, depth, h * block, w * block))


def _space_to_depth(call: Call) -> Node:
    n, c, h, w = call.shape(0)
    block = int(call.required("blocksize"))
    if h % block or w % block or call.attribute("mode", "DCR") != "DCR":
        raise NotCore("blocks do not divide the image")
    split = call.transpose(call.reshape(call[0], (n, c, h // block, block, w // block, block)), (0, 3, 5, 1, 2, 4))
    return call.reshape(split, (n, c * block**2, h // block, w // block))


HANDLERS: Mapping[str, Handler] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Tile": _tile,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "ReverseSequence": _reverse_sequence,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
