"""Read a fragment from its root down to the one operator that a primitive computes: views and post-operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from egraph.tensor import Node, walk
from egraph.tensor.ops.quantisation import LIMITS
from lower.calls.call import Anchor, Base, LibraryCall, PostOperation
from lower.views import Reason, Window, back, read

Eltwise = Callable[[Mapping[str, Any]], tuple[str, float, float] | Reason]


def _clip(a: Mapping[str, Any]) -> tuple[str, float, float] | Reason:
    low, high = float(a["min"]), float(a["max"])
    if (low, high) == (0.0, float("inf")):
        return "relu", 0.0, 0.0
    if abs(low) == float("inf") or abs(high) == float("inf"):
        return "clip needs two finite bounds"
    return "clip", low, high


ELTWISE: Mapping[str, Eltwise] = {
    "Relu": lambda a: ("relu", 0.0, 0.0),
    "LeakyRelu": lambda a: ("relu", float(a["alpha"]), 0.0),
    "Sigmoid": lambda a: ("logistic", 0.0, 0.0),
    "Tanh": lambda a: ("tanh", 0.0, 0.0),
    "Elu": lambda a: ("elu", float(a["alpha"]), 0.0),
    "Round": lambda a: ("round", 0.0, 0.0),
    "Exp": lambda a: ("exp", 0.0, 0.0),
    "Sqrt": lambda a: ("sqrt", 0.0, 0.0),
    "Abs": lambda a: ("abs", 0.0, 0.0),
    "Neg": lambda a: ("linear", -1.0, 0.0),
    "Clip": _clip,
    "Gelu": lambda a: ("gelu_tanh" if a["approximate"] == "tanh" else "gelu_erf", 0.0, 0.0),
    "HardSwish": lambda a: ("hardswish", 1 / 6, 0.5),
    "HardSigmoid": lambda a: ("hardsigmoid", float(a["alpha"]), float(a["beta"])),
    "Mish": lambda a: ("mish", 0.0, 0.0),
    "Softplus": lambda a: ("soft_relu", 1.0, 0.0),
}
BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "PRelu": "prelu"}
"""Max and Min are missing: if the contraction's result is NaN, the library's return the other operand."""
CONVERTING = ("Cast", "Saturate", "Quantize", "Dequantize")
"""Epilogues of products of bytes, whose first operand is the product."""


@dataclass(frozen=True)
class Spine:
    """The anchor, where its result goes, and the post-operations in the order in which they apply."""

    anchor: Node
    destination: Window
    post_operations: tuple[PostOperation, ...]


def spine(root: Node, anchors: frozenset[str], destination: Window, base: Base) -> Spine | Reason:
    """Return the spine below ``root``. Every window found on the way is carried through the views below it."""
    holds = holding(root, anchors)
    post_operations: list[PostOperation] = []
    node, is_last = root, True
    while node.op not in anchors:
        if node.op in ("Reshape", "Transpose"):
            moved = _carry(node, destination, post_operations)
            if isinstance(moved, str):
                return moved
            destination, post_operations = moved
            node = node.inputs[0]
            continue
        step = _take(node, holds, base, is_last=is_last)
        if isinstance(step, str):
            return step
        (operations, node), is_last = step, False
        post_operations += operations
    if any(operand in holds for operand in node.inputs):
        return f"{node.op} computes on the result of another contraction"
    return Spine(node, destination, tuple(reversed(post_operations)))


def unsized(fragment: Node) -> Reason | None:
    """Return why no call computes a fragment, if a size is unknown or a tensor is empty."""
    strange = next((node.type for node in walk((fragment,)) if not node.type.is_static or 0 in node.type.sizes), None)
    return f"{strange} is empty or has unknown sizes" if strange is not None else None


Resolver = Callable[[Node, Base], "tuple[Anchor, ...] | Reason"]
"""Returns the ways to call a library for an operator, or why there is none."""


def first_call(
    fragment: Node, resolvers: Mapping[str, Resolver], destination: Window, base: Base,
    completed: Callable[[Anchor, Spine], LibraryCall | Reason],
) -> LibraryCall | Reason:  # fmt: skip
    """Return the first complete call among the ways to run the fragment's one anchor, or why there is none."""
    matched = spine(fragment, frozenset(resolvers), destination, base)
    if isinstance(matched, str):
        return matched
    anchors = resolvers[matched.anchor.op](matched.anchor, base)
    if isinstance(anchors, str):
        return anchors
    reason = "no arrangement fits"
    for anchor in anchors:
        call = completed(anchor, matched)
        if not isinstance(call, str):
            return call
        reason = call
    return reason


def holding(root: Node, anchors: frozenset[str]) -> set[Node]:
    """Return the anchors, and all nodes computed from them."""
    holds: set[Node] = set()
    for node in walk((root,)):
        if node.op in anchors or any(operand in holds for operand in node.inputs):
            holds.add(node)
    return holds


def _carry(view: Node, destination: Window, operations: list[PostOperation]) -> tuple[Window, list[PostOperation]] | Reason:
    moved = back(view, destination)
    if isinstance(moved, str):
        return moved
    carried = []
    for operation in operations:
        if operation.window is not None:
            window = back(view, operation.window)
            if isinstance(window, str):
                return window
            operation = replace(operation, window=window)
        carried.append(operation)
    return moved, carried


def _take(node: Node, holds: set[Node], base: Base, *, is_last: bool) -> tuple[list[PostOperation], Node] | Reason:
    """Return a node's post-operations, last first, and the node below; ``is_last``: the call computes nothing from this node."""
    if node.op in ELTWISE:
        recipe = ELTWISE[node.op](dict(node.attributes))
        return recipe if isinstance(recipe, str) else ([PostOperation("eltwise", *recipe)], node.inputs[0])
    if node.op in CONVERTING:
        return _converted(node, holds, base, is_last=is_last)
    if node.op not in BINARY:
        return f"{node.op} is not an epilogue of the library"
    left, right = node.inputs
    if left in holds and right in holds:
        return _gated(node)
    if node.op == "PRelu" and right in holds:
        return "the slope of PRelu is computed"
    below, other = (left, right) if left in holds else (right, left)
    if below.type != node.type:
        return f"{node.op} broadcasts the contraction's result"
    operand = read(other, base)
    if isinstance(operand, str):
        return operand
    leaf, window = operand
    number, window = leaf.integer("index"), window.expand(node.type.sizes)
    kind = "prelu" if node.op == "PRelu" else "binary"
    if below is left or node.op not in ("Sub", "Div"):
        return [PostOperation(kind, BINARY[node.op], operand=number, window=window)], below
    if node.op == "Div":
        return "a number divided by the contraction's result is not an epilogue of the library"
    return [PostOperation("binary", "add", operand=number, window=window), PostOperation("eltwise", "linear", -1.0, 0.0)], below


def _converted(node: Node, holds: set[Node], base: Base, *, is_last: bool) -> tuple[list[PostOperation], Node] | Reason:
    """Return a conversion of the contraction's result as steps in float32.

    The library rounds and saturates results that it stores as bytes. Intermediate bytes are whole numbers within the bounds of their type.
    """
    below, *constants = node.inputs
    if below not in holds:
        return f"{node.op} of bytes is not an epilogue of the library"
    windows = []
    for other in constants:
        operand = read(other, base)
        if other in holds or isinstance(operand, str):
            return f"an operand of {node.op} is computed"
        windows.append((operand[0].integer("index"), operand[1].expand(node.type.sizes)))

    def binary(algorithm: str, position: int) -> PostOperation:
        return PostOperation("binary", algorithm, operand=windows[position][0], window=windows[position][1])

    rounded = PostOperation("eltwise", "round")
    saturated = []
    if not is_last and node.type.dtype in LIMITS:
        low, high = LIMITS[node.type.dtype]
        saturated = [PostOperation("eltwise", "clip", float(low), float(high))]
    match node.op:
        case "Quantize":
            return [*saturated, binary("add", 1), rounded, binary("div", 0)], below
        case "Dequantize":
            return [binary("mul", 0), binary("sub", 1)], below
        case "Saturate" if saturated:
            return [*saturated, rounded], below
    return [], below


def _gated(node: Node) -> tuple[list[PostOperation], Node] | Reason:
    """Recognise x * sigmoid(x), x * hardsigmoid(x) and x * tanh(softplus(x))."""
    for x, gate in (node.inputs, tuple(reversed(node.inputs))):
        if node.op == "Mul" and gate.inputs and gate.inputs[0] is x:
            if gate.op == "Sigmoid":
                return [PostOperation("eltwise", "swish", 1.0, 0.0)], x
            if gate.op == "HardSigmoid":
                return [PostOperation("eltwise", "hardswish", gate.real("alpha"), gate.real("beta"))], x
        if node.op == "Mul" and gate.op == "Tanh" and gate.inputs[0].op == "Softplus" and gate.inputs[0].inputs[0] is x:
            return [PostOperation("eltwise", "mish")], x
    return f"both operands of {node.op} hold a contraction"
