"""The order of work: which kernels launch, which are views, which onnxruntime runs together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from egraph.tensor import TUPLE, Kernel, Node, Program
from egraph.tensor.ops.stitch import stitch_of


@dataclass
class Draft:
    """A draft of one step: a native kernel, or a group of opaque kernels and the views between them."""

    kernels: list[Kernel]
    outputs: list[Node] = field(default_factory=list)

    @property
    def is_opaque(self) -> bool:
        return self.kernels[0].implementation.is_opaque

    @property
    def results(self) -> list[Node]:
        return [kernel.output for kernel in self.kernels]

    @property
    def inputs(self) -> list[Node]:
        """Values read from outside, each once (an onnxruntime group keeps its constants to itself)."""
        made = set(self.results)
        read = dict.fromkeys(node for kernel in self.kernels for node in kernel.inputs if node not in made)
        return [node for node in read if not (self.is_opaque and node.op == "Constant")]


@dataclass(frozen=True)
class Order:
    """Steps in running order, with the view kernels that take effect before each (and, last, at the end)."""

    drafts: tuple[Draft, ...]
    views: tuple[tuple[Kernel, ...], ...]


def order(program: Program) -> Order:
    """Group consecutive opaque kernels into one step each; the tensor that a stitch is written over is made before its parts."""
    drafts: list[Draft] = []
    views: list[list[Kernel]] = [[]]
    maker: dict[Node, Draft] = {}
    for kernel in _wholes_first(program.kernels):
        last = drafts[-1] if drafts else None
        if kernel.implementation.is_view:
            group = maker.get(kernel.inputs[0])
            # Only onnxruntime can look into a tuple or into a value whose size is not known ahead of time.
            if group is not None and (group is last or kernel.inputs[0].type == TUPLE or not kernel.output.type.is_static):
                group.kernels.append(kernel)
                maker[kernel.output] = group
            else:
                views[-1].append(kernel)
            continue
        if kernel.implementation.is_opaque and last is not None and last.is_opaque and not views[-1]:
            last.kernels.append(kernel)
        else:
            drafts.append(Draft([kernel]))
            views.append([])
        if kernel.implementation.is_opaque:
            maker[kernel.output] = drafts[-1]
    _find_outputs(program, drafts, [kernel for group in views for kernel in group])
    return Order(tuple(drafts), tuple(tuple(group) for group in views))


def _wholes_first(kernels: Sequence[Kernel]) -> Sequence[Kernel]:
    """Return the kernels with those of a stitch's parts after that of its whole, if the whole reads none of them; else in their order.

    A part that is made before its whole would have to be copied to its box.
    """
    number = {kernel.output: at for at, kernel in enumerate(kernels)}
    before = [{number[node] for node in kernel.inputs if node in number} for kernel in kernels]
    has_more = False
    for kernel in kernels:
        stitch = stitch_of(kernel.fragment) if kernel.implementation.is_generated else None
        if stitch is None:
            continue
        whole = _viewed(kernel.inputs[stitch.background], kernels, number)
        for part in (_viewed(kernel.inputs[operand], kernels, number) for operand, _ in stitch.parts):
            if whole in number and part in number and number[part] not in _needed(number[whole], before):
                before[number[part]].add(number[whole])
                has_more = True
    return [kernels[at] for at in _sorted(before)] if has_more else kernels


def _viewed(node: Node, kernels: Sequence[Kernel], number: Mapping[Node, int]) -> Node:
    """Return the value that a value is a view of; itself if it is no view."""
    while node in number and kernels[number[node]].implementation.is_view:
        node = kernels[number[node]].inputs[0]
    return node


def _needed(at: int, before: Sequence[Collection[int]]) -> set[int]:
    """Return a number and all that must come before it."""
    needed, left = {at}, [at]
    while left:
        new = set(before[left.pop()]) - needed
        needed |= new
        left += new
    return needed


def _sorted(before: Sequence[Collection[int]]) -> list[int]:
    """Return the numbers in an order in which each follows all that must come before it, otherwise ascending."""
    after: list[list[int]] = [[] for _ in before]
    for at, needed in enumerate(before):
        for other in needed:
            after[other].append(at)
    missing = [len(needed) for needed in before]
    ready, result = [at for at, count in enumerate(missing) if not count], list[int]()
    while ready:
        result.append(heappop(ready))
        for at in after[result[-1]]:
            missing[at] -= 1
            if not missing[at]:
                heappush(ready, at)
    return result


def _find_outputs(program: Program, drafts: Sequence[Draft], views: Sequence[Kernel]) -> None:
    readers: dict[Node, set[int]] = {}
    for position, draft in enumerate(drafts):
        for kernel in draft.kernels:
            for node in kernel.inputs:
                readers.setdefault(node, set()).add(position)
    read_values = {node for kernel in views for node in kernel.inputs} | set(program.graph.roots)
    for position, draft in enumerate(drafts):
        draft.outputs = [
            node for node in dict.fromkeys(draft.results)
            if node.type != TUPLE and (not draft.is_opaque or node in read_values or readers.get(node, set()) - {position})
        ]  # fmt: skip
