"""Lay constants in memory as generated kernels read them: a view of the constant stored in another order of axes takes its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from egraph.tensor import VIEW, Kernel, Node, Program, TensorType, attributes, make, placeholder
from egraph.tensor.ops import apply

Orders: TypeAlias = Callable[[Node], Mapping[int, tuple[int, ...]]]
"""Returns the order of axes, outermost first, in which a fragment's constant operands are best stored, if it is not their own."""


@dataclass(frozen=True)
class Tensors(Mapping[str, np.ndarray]):
    """Constants, some of which are computed only when they are read, because programs are planned more often than they are written."""

    given: Mapping[str, np.ndarray]
    made: Mapping[str, Callable[[], np.ndarray]]

    def __getitem__(self, digest: str) -> np.ndarray:
        return self.made[digest]() if digest in self.made else self.given[digest]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.given, *self.made)))

    def __len__(self) -> int:
        return len({*self.given, *self.made})


def packed(program: Program, orders: Callable[[Kernel], Mapping[int, tuple[int, ...]]]) -> Program:
    """Return the program with constants stored in the order that is best for their kernels; values and results stay the same nodes."""
    made: dict[str, Callable[[], np.ndarray]] = {}
    views: dict[Node, Kernel] = {}
    kernels = []
    for kernel in program.kernels:
        inputs = list(kernel.inputs)
        for position, order in orders(kernel).items():
            constant = inputs[position]
            if constant.op == "Constant":
                view = _view(constant, order)
                views[view.output], inputs[position] = view, view.output
                made[view.inputs[0].string("digest")] = _stored(program.graph.tensors, constant.string("digest"), order)
        kernels.append(replace(kernel, inputs=tuple(inputs)))
    if not views:
        return program
    graph = replace(program.graph, tensors=Tensors(program.graph.tensors, made))
    return replace(program, graph=graph, kernels=(*views.values(), *kernels))


def stored_name(digest: str, order: Sequence[int]) -> str:
    """Return the name of a constant that is stored in an order of its axes."""
    return f"{digest}.{'.'.join(map(str, order))}"


def _view(constant: Node, order: Sequence[int]) -> Kernel:
    """Return the kernel, which computes nothing, that views the stored constant as the original one."""
    type = TensorType(constant.type.dtype, tuple(constant.type.sizes[axis] for axis in order))
    stored = make("Constant", (), attributes(digest=stored_name(constant.string("digest"), order)), type)
    inverse = tuple(order.index(axis) for axis in range(len(order)))
    fragment = apply("Transpose", placeholder(0, type, constant=True), perm=inverse)
    return Kernel(fragment, (stored,), apply("Transpose", stored, perm=inverse), VIEW)


def _stored(tensors: Mapping[str, np.ndarray], digest: str, order: Sequence[int]) -> Callable[[], np.ndarray]:
    return lambda: np.ascontiguousarray(np.transpose(tensors[digest], order))
