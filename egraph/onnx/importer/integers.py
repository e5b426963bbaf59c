"""Integers with known ranges, computed as numbers: float32 holds every whole number up to 2^24.

Examples are masks, positions, places and counts: operators that compare, add or select them then need no integer kernels. A comparison is
exact if one side is known to lie below 2^24, because rounding moves no greater number past it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from egraph.onnx.importer.elementwise import HANDLERS as ELEMENTWISE
from egraph.onnx.importer.elementwise import Handler, as_type
from egraph.onnx.importer.reduction import HANDLERS as REDUCTIONS
from egraph.onnx.importer.state import Call, Importing, NotCore, axis_of
from egraph.onnx.integer_ranges import EVERYTHING, Interval
from egraph.onnx.types import dtype_name, opaque_proto
from egraph.tensor import Node
from egraph.tensor.ops.dtypes import BYTES, INTEGERS, RANGES
from egraph.tensor.ops.quantisation import WHOLE

EXACT_TO = 1 << 24
"""float32 holds every whole number up to this one."""
DIVIDED_TO = 1 << 20
"""Numbers up to this one are divided exactly: half a unit is added to the dividend, and no rounding of the quotient reaches another whole
number.
"""
MOST_STEPS = 60
"""The number of operators through which a range is traced back from a value."""

# Ranges


def range_of(state: Importing, node: Node, steps: int = MOST_STEPS) -> Interval:
    """Return the least and the largest possible value of a node, as far as they are known; conditions are 0 or 1."""
    if node not in state.ranges:
        state.ranges[node] = _range(state, node, steps - 1)
    return state.ranges[node]


def _range(state: Importing, node: Node, steps: int) -> Interval:
    """Return the range that follows from an operator and the ranges of its operands, within the limits of the element type."""
    limits = RANGES.get(node.type.dtype, EVERYTHING)
    data = state.data(node)
    if data is not None:
        is_whole = data.size and data.dtype.kind in "iufb" and np.isfinite(data).all()
        return (float(data.min()), float(data.max())) if is_whole else limits
    if node.op in ("ArgMax", "ArgMin"):
        return 0.0, float(node.inputs[0].type.sizes[node.integer("axis")] - 1)
    if node.op == "OpaqueOutput":
        return _range_of_places(node) or limits
    carry = CARRIES.get(node.op)
    if carry is None or not steps:
        return limits
    operands = node.inputs[: 1 if node.op in MOVES else None]
    low, high = carry(node, [range_of(state, operand, steps) for operand in operands])
    return (low, high) if limits[0] <= low and high <= limits[1] else limits  # integers that exceed their type wrap around


def _range_of_places(node: Node) -> Interval | None:
    """Return the range of the indices that a TopK returns; None for other results."""
    proto = opaque_proto(node.inputs[0])
    data = node.inputs[0].inputs[0].type if node.inputs[0].inputs else None
    is_place = (proto.domain, proto.op_type, node.integer("index")) in (("", "TopK", 1), ("ai.onnx", "TopK", 1))
    if not is_place or data is None or not data.is_static:
        return None
    axis = next((each.i for each in proto.attribute if each.name == "axis"), -1)
    return 0.0, float(data.sizes[axis] - 1)


def _union(_: Node, known: Sequence[Interval]) -> Interval:
    return min(low for low, _ in known), max(high for _, high in known)


def _corners(function: Callable[[float, float], float], known: Sequence[Interval]) -> Interval:
    values = [function(x, y) for x in known[0] for y in known[1]]
    return EVERYTHING if any(map(math.isnan, values)) else (min(values), max(values))


def _quotient(_: Node, known: Sequence[Interval]) -> Interval:
    return _corners(lambda x, y: x / y, known) if known[1][0] > 0 else EVERYTHING


def _sum(node: Node, known: Sequence[Interval]) -> Interval:
    count = node.inputs[0].type.elements // node.type.elements
    return known[0][0] * count, known[0][1] * count


def _clipped(node: Node, known: Sequence[Interval]) -> Interval:
    low, high = (min(max(bound, node.real("min")), node.real("max")) for bound in known[0])
    return low, high


def _padded(node: Node, known: Sequence[Interval]) -> Interval:
    value = node.real("value")
    return (min(known[0][0], value), max(known[0][1], value)) if node.string("mode") == "constant" else known[0]


MOVES = ("Reshape", "Transpose", "Slice", "Expand", "Gather", "GatherElements", "GatherND", "Pad")
"""Operators of which only operand 0 holds the values."""
CARRIES: Mapping[str, Callable[[Node, Sequence[Interval]], Interval]] = {
    **dict.fromkeys((*MOVES, "Cast", "ReduceMax", "ReduceMin", "Concat"), _union),
    "Pad": _padded,
    "Where": lambda _, known: _union(_, known[1:]),
    "Add": lambda _, known: _corners(operator.add, known),
    "Sub": lambda _, known: _corners(operator.sub, known),
    "Mul": lambda _, known: _corners(operator.mul, known),
    "Div": _quotient,
    "Neg": lambda _, known: (-known[0][1], -known[0][0]),
    "Abs": lambda _, known: (max(0.0, known[0][0], -known[0][1]), max(-known[0][0], known[0][1])),
    "Sign": lambda _, known: (-1.0, 1.0),
    "Max": lambda _, known: _corners(max, known),
    "Min": lambda _, known: _corners(min, known),
    "Floor": lambda _, known: (float(np.floor(known[0][0])), float(np.floor(known[0][1]))),
    "Truncate": lambda _, known: (float(np.trunc(known[0][0])), float(np.trunc(known[0][1]))),
    "Relu": lambda _, known: (max(0.0, known[0][0]), max(0.0, known[0][1])),
    "Clip": _clipped,
    "ReduceSum": _sum,
}
"""Functions by operator that return the range of a result from the ranges of its operands."""

# Integers as numbers


def _is_below(interval: Interval, limit: float = EXACT_TO) -> bool:
    """Return whether every value is known to lie strictly between -limit and limit."""
    return -limit < interval[0] and interval[1] < limit


def _number(call: Call, node: Node) -> Node:
    """Return integers or conditions as numbers: the whole numbers that they were made of, if these are known."""
    data = call.state.data(node)
    if data is not None:
        return call.constant(data, "float32")
    return call.state.wholes.get(node) or as_type(call, node, "float32")


def _exact(call: Call, node: Node, limit: float = EXACT_TO) -> Node:
    """Return integers as numbers that float32 holds exactly."""
    if node.type.dtype not in INTEGERS and node.type.dtype != "bool":
        raise NotCore("no integers")
    if not _is_below(range_of(call.state, node), limit):
        raise NotCore("the integers may be greater than float32 holds")
    return _number(call, node)


def _integer(call: Call, number: Node, dtype: str) -> Node:
    """Return whole numbers as integers of a type, and record the numbers as those of the integers."""
    result = _cut(call, number, dtype)
    call.state.wholes[result] = number
    return result


def _cut(call: Call, number: Node, dtype: str) -> Node:
    """Return numbers as integers of a type that holds them, truncated towards 0."""
    interval = range_of(call.state, number)
    low, high = RANGES[dtype] if dtype in (*WHOLE, *BYTES) else (0, -1)
    if not _is_below(interval) or interval[0] < low or interval[1] > high:
        raise NotCore(f"{dtype} may not hold the result")
    result = call.apply("Saturate" if dtype in BYTES else "Truncate", number, to=dtype)
    call.state.ranges[result] = interval
    return result


def _as_numbers(read: Handler, *, indices: Sequence[int] | None = None) -> Handler:
    """Return a handler that reads an operator of integers as one of numbers. ``indices``: operands that are converted, default all."""

    def handler(call: Call) -> Node:
        chosen = range(len(call.operands)) if indices is None else indices
        operands = tuple(
            _exact(call, value) if value is not None and k in chosen else value for k, value in enumerate(call.operands)
        )
        result = read(replace(call, operands=operands))
        assert isinstance(result, Node)
        return _integer(call, result, call[indices[0] if indices else 0].type.dtype)

    return handler


# Operators


def _compared(call: Call) -> Node:
    """A comparison with one side below 2^24; of conditions, whether they differ"""
    if call.node.op_type == "Equal" and call[0].type.dtype == "bool":
        return call.apply("Not", _differs(call))
    if call[0].type.dtype not in INTEGERS:
        raise NotCore("no integers")
    if not any(_is_below(range_of(call.state, call[k])) for k in range(2)):
        raise NotCore("both sides may be greater than float32 holds")
    return call.apply(call.node.op_type, _number(call, call[0]), _number(call, call[1]))


def _differs(call: Call) -> Node:
    """(a or b) and not (a and b)"""
    both, either = call.apply("And", call[0], call[1]), call.apply("Or", call[0], call[1])
    return call.apply("And", either, call.apply("Not", both))


def _divisor(call: Call) -> Node:
    if range_of(call.state, call[1])[0] < 1:
        raise NotCore("the divisor may not be positive")
    return _exact(call, call[1], DIVIDED_TO)


def _quotient_of_integers(call: Call) -> Node:
    """a / b, truncated towards 0: (a + 1/2) / b, or (a - 1/2) / b below 0, is never a whole number, nor near to one"""
    x, divisor = _exact(call, call[0], DIVIDED_TO), _divisor(call)
    half = call.constant(0.5, "float32")
    if range_of(call.state, x)[0] < 0:
        is_negative = call.apply("Less", x, call.constant(0, "float32"))
        half = call.apply("Where", is_negative, call.constant(-0.5, "float32"), half)
    if call[0].type.dtype in BYTES:
        raise NotCore("bytes are rounded, not cut")
    return _cut(call, call.apply("Div", call.apply("Add", x, half), divisor), call[0].type.dtype)


def _remainder(call: Call) -> Node:
    """a - b floor(a / b)"""
    if int(call.attribute("fmod", 0)):
        raise NotCore("a remainder of the dividend's sign")
    x, divisor = _exact(call, call[0], DIVIDED_TO), _divisor(call)
    quotient = call.apply("Floor", call.apply("Div", call.apply("Add", x, call.constant(0.5, "float32")), divisor))
    result = call.apply("Sub", x, call.apply("Mul", divisor, quotient))
    call.state.ranges[result] = (0.0, range_of(call.state, divisor)[1] - 1)
    return _integer(call, result, call[0].type.dtype)


def _cast(call: Call) -> Node:
    """An integer or a condition as an integer of another type that holds it"""
    to = call[1].type.dtype if call.node.op_type == "CastLike" else dtype_name(int(call.attribute("to", 0)))
    return _integer(call, _exact(call, call[0]), to)


def _any_or_all(call: Call) -> Node:
    """Return whether some or all conditions hold."""
    numbers = replace(call, operands=(_exact(call, call[0]), *call.operands[1:]))
    result = REDUCTIONS[call.node.op_type](numbers)
    assert isinstance(result, Node)
    return call.apply("Greater", result, call.constant(0.5, "float32"))


def _reduced(call: Call) -> Node | list[Node | None]:
    if call[0].type.dtype == "bool":
        return _any_or_all(call)
    return _as_numbers(REDUCTIONS[call.node.op_type], indices=(0,))(call)


def _place(call: Call) -> Node:
    result = REDUCTIONS[call.node.op_type](replace(call, operands=(_exact(call, call[0]),)))
    assert isinstance(result, Node)
    return result


def _one_hot(call: Call) -> Node:
    """on if a place equals the index, or the index counted from the end, else off"""
    depth, values = int(call.known(1).reshape(())), call[2]
    if call[0].type.dtype not in INTEGERS or depth < 1 or values.type.shape != (2,):
        raise NotCore("no integers, or no places")
    shape = call.shape(0)
    axis = axis_of(int(call.attribute("axis", -1)), len(shape) + 1)
    # nothing is known of an input: the operator stays, because the expected indices are inferred from it
    index = call.reshape(_exact(call, call[0]), (*shape[:axis], 1, *shape[axis:]))
    places = np.arange(depth).reshape(depth, *[1] * (len(shape) - axis))
    is_on = call.apply("Equal", index, call.constant(places, "float32"))
    if range_of(call.state, call[0])[0] < 0:
        is_on = call.apply("Or", is_on, call.apply("Equal", index, call.constant(places - depth, "float32")))
    is_float = values.type.dtype == "float32"
    numbers = values if is_float else _exact(call, values)
    off, on = (call.reshape(call.apply("Slice", numbers, starts=(k,), ends=(k + 1,), steps=(1,)), ()) for k in range(2))
    result = call.apply("Where", is_on, on, off)
    return result if is_float else _integer(call, result, values.type.dtype)


def _between(call: Call) -> Node:
    """min(max(x, low), high)"""
    result = call.apply("Max", call[0], call[1]) if call.has(1) else call[0]
    return call.apply("Min", result, call[2]) if call.has(2) else result


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _compared),
    "Xor": _differs,
    "Where": _as_numbers(ELEMENTWISE["Where"], indices=(1, 2)),
    **{name: _as_numbers(ELEMENTWISE[name]) for name in ("Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Sign")},
    "Clip": _as_numbers(_between),
    "Div": _quotient_of_integers,
    "Mod": _remainder,
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceSum"), _reduced),
    "CumSum": _as_numbers(REDUCTIONS["CumSum"], indices=(0,)),
    **dict.fromkeys(("ArgMax", "ArgMin"), _place),
    "OneHot": _one_hot,
}
"""Handlers of operators of integers and conditions that have no core form as they stand."""
