"""The common part of NVIDIA's libraries: an epilogue of a summand, a bias and an activation, in this order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from egraph.tensor import PLAIN, Implementation, Kernel, Node, walk
from lower.calls.call import Anchor, Argument, LibraryCall
from lower.calls.epilogue import Resolver, Spine, first_call, unsized
from lower.calls.launch import Match
from lower.views import Reason, Window, contiguous, lying
from runtime.devices.cuda.cudnn import EnginePlan

MULTIPLIED = ("src", "weights")
"""The operands that kernels of a lower precision round."""


@dataclass(frozen=True)
class Epilogue:
    """activation(contraction + summand + bias); a bias is a vector, broadcast, and a summand has the result's shape."""

    summand: Argument | None = None
    bias: Argument | None = None
    activation: str = ""

    @property
    def is_empty(self) -> bool:
        return self.summand is None and self.bias is None and not self.activation


def epilogue_of(anchor: Anchor, matched: Spine, destination: Window) -> Epilogue | Reason:
    """Return the post-operations as one epilogue, or why the libraries cannot fuse them."""
    epilogue = Epilogue()
    for operation in matched.post_operations:
        if epilogue.activation:
            return "the libraries fuse nothing after an activation"
        if operation.window is None:
            if (operation.algorithm, operation.alpha) == ("relu", 0.0) or operation.algorithm == "gelu_tanh":
                epilogue = replace(epilogue, activation=operation.algorithm)
                continue
            return f"the libraries fuse no {operation.algorithm}"
        if operation.algorithm != "add" or operation.kind != "binary":
            return f"the libraries fuse no {operation.algorithm} of two tensors"
        window = anchor.arrange(operation.window)
        if isinstance(window, str):
            return window
        window = window.unbroadcast()
        assert operation.operand is not None
        if window.shape == destination.shape and epilogue.summand is None:
            epilogue = replace(epilogue, summand=Argument("", operation.operand, window))
        elif anchor.bias_axis is not None and epilogue.bias is None and _varies_along(window, anchor.bias_axis):
            if window.shape[anchor.bias_axis] != destination.shape[anchor.bias_axis]:
                return "a bias is one number for all outputs"
            epilogue = replace(epilogue, bias=Argument("bias", operation.operand, window))
        else:
            return "the libraries add a vector of biases and one summand of the result's shape, nothing else"
    return epilogue


def _varies_along(window: Window, axis: int) -> bool:
    axis %= len(window.shape)
    return all(size == 1 for i, size in enumerate(window.shape) if i != axis)


def match_call(
    fragment: Node,
    resolvers: Mapping[str, Resolver],
    completed: Callable[[Anchor, Window, Epilogue], LibraryCall | Reason],
    bases: Mapping[int, Window] | None,
    destination: Window | None,
) -> LibraryCall | Reason:
    """Return the library call that computes ``fragment``, or why there is none.

    ``bases[i]`` is where placeholder i lies and ``destination`` where the result goes (row-major by default).
    """
    for node in walk((fragment,)):
        if node.type.dtype != "float32":
            return f"the libraries are used for float32 only, not {node.type.dtype}"
    if (reason := unsized(fragment)) is not None:
        return reason

    def with_epilogue(anchor: Anchor, matched: Spine) -> LibraryCall | Reason:
        arranged = anchor.arrange(matched.destination)
        if isinstance(arranged, str):
            return arranged
        epilogue = epilogue_of(anchor, matched, arranged)
        return epilogue if isinstance(epilogue, str) else completed(anchor, arranged, epilogue)

    return first_call(fragment, resolvers, destination or contiguous(fragment.type.sizes), lying(bases), with_epilogue)


def reads(match: Match, fragment: Node, implementation: str) -> Mapping[int, frozenset[str]] | str:
    """Return the precisions to which a call rounds each operand: its own for multiplied operands, none for others."""
    call = match(fragment, implementation)
    if isinstance(call, str):
        return call
    precision = Implementation.parse(implementation).precision
    return call.precisions(lambda argument: precision if argument.role in MULTIPLIED else PLAIN)


def named_plan(kernel: Kernel, call: LibraryCall, match: Match) -> Mapping[str, Any]:
    """Return the plan that a kernel names, as part of a recipe; none if operands lie otherwise than when the plan was measured."""
    if not kernel.implementation.plan:
        return {}
    alone = match(kernel.fragment, kernel.implementation.name)
    if not isinstance(alone, LibraryCall) or _places(alone) != _places(call):
        return {}
    return EnginePlan.parse(kernel.implementation.plan).spec


def _places(call: LibraryCall) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    windows = [*(argument.window for argument in call.arguments), call.destination]
    return [(window.shape, window.strides) for window in windows]
