"""Values that are stored in a narrower element type than the one in which they are computed.

A kernel that writes such a value has ``Narrow{to='bfloat16'}(f)`` around its fragment; a kernel that reads one has an operand
``Widen{to='float32'}(%0:bfloat16[...])``. Both occur only at the edges of a fragment, where a library or the generator converts in
registers. They are not operators of the language: no model, rule or proof contains them. They are added to a program after it was
chosen, and removed before anything but kernels is made from it. :func:`in_one_type` gives the meaning of a program with them, up to
the rounding of stored values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from egraph.tensor.graph import Graph, Kernel, Program
from egraph.tensor.implementation import PLAIN
from egraph.tensor.node import Node, make, placeholder, rewrite, walk
from egraph.tensor.ops import OPS
from egraph.tensor.types import TensorType, attributes, numpy_dtype

NARROW, WIDEN = "Narrow", "Widen"
STORAGE = (NARROW, WIDEN)
"""Operators that convert a value to the element type in which it is stored, and back."""
MOVING = ("view", "movement")


def narrow(node: Node, dtype: str) -> Node:
    """Return a value as it is stored in a narrower element type."""
    return make(NARROW, (node,), attributes(to=dtype), TensorType(dtype, node.type.shape))


def widen(node: Node, dtype: str) -> Node:
    """Return a stored value in the element type of the arithmetic."""
    return make(WIDEN, (node,), attributes(to=dtype), TensorType(dtype, node.type.shape))


@dataclass(frozen=True)
class Stored:
    """A fragment's arithmetic, and how its operands and result are stored."""

    fragment: Node
    """The computation, with operands and result in the element types of the arithmetic."""
    operands: frozenset[int]
    """The placeholders, by index, that are stored in a narrower type."""
    is_result: bool
    """Whether the result is stored in a narrower type."""


@lru_cache(maxsize=1 << 14)
def stored(fragment: Node) -> Stored:
    """Return a fragment's arithmetic, separate from how its operands and its result are stored."""
    operands = frozenset(
        operand.integer("index") for node in walk((fragment,)) if node.op == WIDEN for operand in node.inputs if operand.op == "Placeholder"
    )
    inner = fragment.inputs[0] if fragment.op == NARROW else fragment
    if inner is fragment and not operands:
        return Stored(fragment, operands, False)
    wide = {node.inputs[0]: _leaf(node.inputs[0], node.type) for node in walk((inner,)) if node.op == WIDEN}

    def change(old: Node, below: tuple[Node, ...]) -> Node:
        return below[0] if old.op == WIDEN else wide.get(old) or make(old.op, below, old.attributes, old.type)

    return Stored(rewrite((inner,), change)[inner], operands, inner is not fragment)


def stored_types(fragment: Node) -> set[str]:
    """Return the element types in which a fragment's operands and its result are stored, of those that are converted."""
    types = {node.inputs[0].type.dtype for node in walk((fragment,)) if node.op == WIDEN}
    return types | ({fragment.type.dtype} if fragment.op == NARROW else set())


def _leaf(old: Node, type: TensorType) -> Node:
    """Return a placeholder of another type."""
    return placeholder(old.integer("index"), type, constant=bool(old.attribute("constant")))


def in_one_type(roots: Iterable[Node], dtype_of: Callable[[Node], str] = lambda leaf: leaf.type.dtype) -> dict[Node, Node]:
    """Return every node below ``roots`` without storage; ``dtype_of``: the new element type of a leaf.

    A node that only moves a stored value then has the type in which the value is computed.
    """

    def change(old: Node, below: tuple[Node, ...]) -> Node:
        if old.op in STORAGE:
            return below[0]
        wider = [new.type.dtype for was, new in zip(old.inputs, below, strict=True) if old.type.dtype == was.type.dtype != new.type.dtype]
        dtype = wider[0] if wider else old.type.dtype if old.inputs else dtype_of(old)
        return make(old.op, below, old.attributes, TensorType(dtype, old.type.shape))

    return rewrite(roots, change)


def is_moving(kernel: Kernel) -> bool:
    """Return whether a kernel computes nothing, so that its result can be stored in the type of its operand."""
    inner = [node for node in walk((kernel.fragment,)) if node.op != "Placeholder"]
    moves = all(node.op in OPS and OPS[node.op].category in MOVING for node in inner)
    return kernel.implementation.is_view or (kernel.implementation.is_generated and moves)


def fragment_with(kernel: Kernel, values: frozenset[Node], dtype: str) -> Node:
    """Return a kernel's fragment with these values stored in a narrower type."""
    return _narrowed(kernel, values, dtype)[kernel.fragment]


def _narrowed(kernel: Kernel, values: frozenset[Node], dtype: str) -> dict[Node, Node]:
    """Return the replacement of every node of a kernel's fragment if these values are stored in a narrower type."""
    if is_moving(kernel) and kernel.output in values:
        return rewrite((kernel.fragment,), lambda old, below: make(old.op, below, old.attributes, _narrower(old.type, dtype)))

    def change(old: Node, below: tuple[Node, ...]) -> Node:
        if old.op == "Placeholder" and kernel.inputs[old.integer("index")] in values:
            return widen(_leaf(old, _narrower(old.type, dtype)), old.type.dtype)
        new = make(old.op, below, old.attributes, old.type)
        return narrow(new, dtype) if old is kernel.fragment and kernel.output in values else new

    return rewrite((kernel.fragment,), change)


def _narrower(type: TensorType, dtype: str) -> TensorType:
    return TensorType(dtype, type.shape) if type.dtype == PLAIN else type


def with_stored(
    program: Program, values: frozenset[Node], dtype: str, cost_us: Callable[[Kernel], float] = lambda kernel: kernel.cost_us
) -> Program:
    """Return a program that stores these values in a narrower type; ``cost_us``: the new time of a kernel of the given program.

    Constants among the values are rounded here; their new digest is the old one with the type appended.
    """
    new: dict[Node, Node] = {}
    tensors = dict(program.graph.tensors)
    for node in sorted((value for value in values if value.op == "Constant"), key=lambda value: value.string("digest")):
        digest = f"{node.string('digest')}.{dtype}"
        new[node] = make("Constant", (), attributes(digest=digest), _narrower(node.type, dtype))
        tensors[digest] = tensors[node.string("digest")].astype(numpy_dtype(dtype))
    inside: dict[Node, Node] = {}
    kernels: list[Kernel] = []
    for kernel in program.kernels:
        changed = _narrowed(kernel, values, dtype)
        inputs = tuple(new.get(node, node) for node in kernel.inputs)
        before, after = bound(kernel.fragment, kernel.inputs), bound(changed[kernel.fragment], inputs)
        inside |= {before[old]: after[now] for old, now in changed.items() if old.op != "Placeholder"}
        new[kernel.output] = after[changed[kernel.fragment]]
        kernels.append(
            replace(kernel, fragment=changed[kernel.fragment], inputs=inputs, output=new[kernel.output], cost_us=cost_us(kernel))
        )
    total_us = program.cost_us + sum(after.cost_us - before.cost_us for before, after in zip(program.kernels, kernels, strict=True))
    graph = replace(renamed(program.graph, {**inside, **new}), tensors=tensors)
    return replace(program, graph=graph, kernels=tuple(kernels), cost_us=total_us)


def bound(fragment: Node, operands: Sequence[Node]) -> dict[Node, Node]:
    """Return the value of every node of a fragment over these operands, as a node."""

    def change(old: Node, below: tuple[Node, ...]) -> Node:
        return operands[old.integer("index")] if old.op == "Placeholder" else make(old.op, below, old.attributes, old.type)

    return rewrite((fragment,), change)


def renamed(graph: Graph, new: Mapping[Node, Node]) -> Graph:
    """Return the graph with nodes replaced; names and origins move to the new nodes."""
    return replace(
        graph,
        outputs=tuple((name, new.get(node, node)) for name, node in graph.outputs),
        origins={new.get(node, node): names for node, names in graph.origins.items()},
        names={new.get(node, node): name for node, name in graph.names.items()},
    )


def without_stored(program: Program) -> Program:
    """Return the program that was extracted: every value is stored in the type in which it is computed."""
    if not stored_values(program):
        return program
    new = in_one_type([*program.graph.roots, *(node for kernel in program.kernels for node in (*kernel.inputs, kernel.output))])
    kernels = tuple(
        replace(
            kernel,
            fragment=_in_types_of(kernel.fragment, [new[node] for node in kernel.inputs]),
            inputs=tuple(new[node] for node in kernel.inputs),
            output=new[kernel.output],
        )
        for kernel in program.kernels
    )
    return replace(program, graph=renamed(program.graph, new), kernels=kernels)


def _in_types_of(fragment: Node, operands: Sequence[Node]) -> Node:
    """Return a fragment without storage, for operands of these types."""
    return in_one_type((fragment,), lambda leaf: operands[leaf.integer("index")].type.dtype)[fragment]


def stored_values(program: Program) -> int:
    """Return how many kernels write their result in a narrower type than they compute it in."""
    return sum(stored(kernel.fragment).is_result for kernel in program.kernels)
