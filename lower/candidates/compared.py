"""Values that a program compares with elements selected from them: one kernel computes each, so that it has one set of bits.

``max_pool(h) == h`` marks the peaks of ``h`` exactly, because a maximum is one of the values. A program finds other peaks if two kernels
that round differently compute ``h``, one for the pool and one for the comparison, or if it computes the maxima as ``f(max_pool(x))`` where
``h`` is ``f(x)``. So ``h`` is stored, and elements are selected from the stored tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from egraph.tensor import ENode, FrozenEGraph

COMPARISONS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
SELECTING = frozenset({
    *("Reshape", "Transpose", "Slice", "Expand", "Concat", "Pad", "Gather", "GatherElements", "GatherND", "Where"),
    *("MaxPool", "ReduceMax", "ReduceMin", "Max", "Min", "Clip", "Relu", "Opaque", "OpaqueOutput"),
})  # fmt: skip
"""Operators that compute no numbers but select elements of their operands. onnxruntime's operators count as such, because most that stay
there (TopK, scatters) are."""
Classes = Mapping[int, tuple[ENode, ...]]


def compared_once(frozen: FrozenEGraph) -> tuple[FrozenEGraph, frozenset[int]]:
    """Return the e-graph without the e-nodes that bypass a value compared with elements selected from it, and these values."""
    stored: dict[int, None] = {}
    classes: dict[int, tuple[ENode, ...]] = dict(frozen.classes)
    comparisons = [node for nodes in frozen.classes.values() for node in nodes if node.op in COMPARISONS]
    needed = _computable(frozen, classes) if comparisons else frozenset()
    for node in comparisons:
        if any(child in frozen.constants or not frozen.types[child].dtype.startswith("float") for child in node.children):
            continue
        first, second = (_selected_from(frozen, child) for child in node.children)
        common = [number for number in first if number in second and number not in frozen.leaves]
        for anchor in sorted(common, key=lambda number: (number not in stored, not _is_computed(frozen, number), number)):
            narrowed = _narrowed(classes, anchor, {*first, *second} - stored.keys() - frozen.leaves)
            if _computable(frozen, narrowed) == needed:
                stored[anchor], classes = None, narrowed
                break
    return (replace(frozen, classes=classes) if stored else frozen), frozenset(stored)


def _selected_from(frozen: FrozenEGraph, number: int) -> dict[int, None]:
    """Return a class and the classes from which its elements are selected."""
    reached = {number: None}
    stack = [number]
    while stack:
        for node in frozen.classes[stack.pop()]:
            for child in node.children if node.op in SELECTING else ():
                if child not in reached and child not in frozen.constants:
                    reached[child] = None
                    stack.append(child)
    return reached


def _is_computed(frozen: FrozenEGraph, number: int) -> bool:
    """Return whether the input program computes a class's numbers instead of only selecting them."""
    return any(not node.rule and node.op not in SELECTING for node in frozen.classes[number])


def _narrowed(classes: Classes, anchor: int, region: Iterable[int]) -> dict[int, tuple[ENode, ...]]:
    """Return the classes in which those of a region that can be selected from ``anchor`` have no other e-nodes."""
    narrowed = dict(classes)
    reached, waiting = {anchor}, set(region) - {anchor}
    while True:
        more = {number for number in waiting if any(_selects(node, reached) for node in classes[number])}
        if not more:
            break
        reached |= more
        waiting -= more
    for number in reached - {anchor}:
        narrowed[number] = tuple(node for node in classes[number] if _selects(node, reached))
    return narrowed


def _selects(node: ENode, numbers: set[int]) -> bool:
    return node.op in SELECTING and not numbers.isdisjoint(node.children)


def _computable(frozen: FrozenEGraph, classes: Classes) -> frozenset[int]:
    """Return the classes that can be computed from leaves, through any number of e-nodes."""
    done = set(frozen.leaves)
    readers: dict[int, list[int]] = {}
    for number, nodes in classes.items():
        for child in {child for node in nodes for child in node.children}:
            readers.setdefault(child, []).append(number)
    stack = [number for number in classes if number not in done]
    while stack:
        number = stack.pop()
        if number not in done and any(done.issuperset(node.children) for node in classes[number]):
            done.add(number)
            stack.extend(readers.get(number, ()))
    return frozenset(done)
