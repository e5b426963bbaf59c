"""Sequences and optional values with known elements: an element that is put in and taken out again needs no sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from egraph.onnx.importer.movement import slice_axis, stacked
from egraph.onnx.importer.state import UNREADABLE, Call, NotCore, axis_of, usable
from egraph.onnx.types import is_tensor
from egraph.tensor import Node

Elements = tuple[Node, ...]


def remember(call: Call, results: Sequence[Node | None]) -> None:
    """Record the elements of the sequence that a node makes, if they are known."""
    maker = MAKERS.get(call.node.op_type) if call.node.domain in ("", "ai.onnx") else None
    if maker is None or results[0] is None:
        return
    try:
        call.state.sequences[results[0]] = maker(call)
    except UNREADABLE:
        return


def taken(call: Call) -> list[Node | None] | None:
    """Return the value that a node takes out of a known sequence; None for other nodes and sequences."""
    taker = TAKERS.get(call.node.op_type) if call.node.domain in ("", "ai.onnx") else None
    if taker is None or not call.has(0) or call[0] not in call.state.sequences or is_tensor(call[0].type):
        return None
    try:
        return [taker(call, call.state.sequences[call[0]])]
    except UNREADABLE:
        return None


def _place(call: Call, index: int, count: int) -> int:
    """Return a place in a sequence of ``count`` elements; negative numbers count from its end."""
    at = int(call.known(index).reshape(()))
    if not -count <= at < count:
        raise NotCore("a place that the sequence does not have")
    return at % count


# Operators that make sequences


def _constructed(call: Call) -> Elements:
    return tuple(call[k] for k in range(len(call.operands)))


def _split(call: Call) -> Elements:
    if not usable(call[0].type):
        raise NotCore("sizes are not known")
    shape = call.shape(0)
    axis = axis_of(int(call.attribute("axis", 0)), len(shape))
    if call.has(1):
        given = call.known(1)
        sizes = [int(size) for size in given] if given.ndim else [int(given)] * (shape[axis] // int(given))
        sizes += [shape[axis] - sum(sizes)] if not given.ndim and sum(sizes) < shape[axis] else []
    else:
        sizes = [1] * shape[axis]
    if min(sizes) < 1 or sum(sizes) != shape[axis]:
        raise NotCore("the parts do not make up the axis")
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    parts = [slice_axis(call, call[0], axis, end - size, end) for end, size in zip(ends, sizes, strict=True)]
    if call.has(1) or int(call.attribute("keepdims", 1)):
        return tuple(parts)
    return tuple(call.reshape(part, (*shape[:axis], *shape[axis + 1 :])) for part in parts)


def _known(call: Call) -> Elements:
    if call[0] not in call.state.sequences:
        raise NotCore("the sequence is not known")
    return call.state.sequences[call[0]]


def _inserted(call: Call) -> Elements:
    elements = _known(call)
    at = int(call.known(2).reshape(())) if call.has(2) else len(elements)
    if not -len(elements) <= at <= len(elements):
        raise NotCore("a place that the sequence does not have")
    at = at + len(elements) if at < 0 else at
    return (*elements[:at], call[1], *elements[at:])


def _erased(call: Call) -> Elements:
    elements = _known(call)
    at = _place(call, 1, len(elements)) if call.has(1) else len(elements) - 1
    return (*elements[:at], *elements[at + 1 :])


MAKERS: Mapping[str, Callable[[Call], Elements]] = {
    "SequenceConstruct": _constructed,
    "SequenceEmpty": lambda call: (),
    "SplitToSequence": _split,
    "SequenceInsert": _inserted,
    "SequenceErase": _erased,
    "Optional": lambda call: (call[0],),
    "Identity": _known,
}


# Operators that take elements out of sequences


def _joined(call: Call, elements: Elements) -> Node:
    """Join the elements along an axis, or stack them along a new one."""
    if call.attribute("new_axis", 0):
        return stacked(call, elements, int(call.required("axis")))
    if not elements or not all(usable(element.type) for element in elements):
        raise NotCore("the size of an element is not known")
    axis = axis_of(int(call.required("axis")), elements[0].type.rank)
    return elements[0] if len(elements) == 1 else call.apply("Concat", *elements, axis=axis)


TAKERS: Mapping[str, Callable[[Call, Elements], Node]] = {
    "SequenceAt": lambda call, elements: elements[_place(call, 1, len(elements))],
    "SequenceLength": lambda call, elements: call.constant(len(elements), "int64"),
    "ConcatFromSequence": _joined,
    "OptionalGetElement": lambda call, elements: elements[0],
    "OptionalHasElement": lambda call, elements: call.constant(True, "bool"),
}
