"""The order of work: which kernels launch, which are views, which onnxruntime runs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from egraph.tensor import TUPLE, Kernel, Node, Program


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
    """Group opaque kernels that follow each other into one step each."""
    drafts: list[Draft] = []
    views: list[list[Kernel]] = [[]]
    maker: dict[Node, Draft] = {}
    for kernel in program.kernels:
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
