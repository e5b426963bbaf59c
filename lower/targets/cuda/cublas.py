"""cuBLASLt: matrix products, also as convolutions of one tap, with a summand, a bias and an activation.

Operands are matrices with a leading dimension, transposed or not, and batches one stride apart; the result is row-major. The library
chooses its kernel on the device, within a bound on workspace, because its heuristics answer nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from egraph.tensor import Implementation, Kernel, Node, Target
from lower.calls.call import Anchor, LibraryCall
from lower.calls.contractions import convolution_as_matmul, matmul
from lower.calls.launch import launch_call
from lower.calls.tiles import Matcher, library_tiles
from lower.targets import Launch, Library
from lower.targets.cuda.call import Epilogue, match_call, named_plan, reads
from lower.views import Reason, Window
from runtime.devices.cuda.cublas import COMPUTE, WORKSPACE_BYTES, matrix

if TYPE_CHECKING:
    from lower.steps import StepWriter

NAME = "cublas.matmul"
RESOLVERS = {"MatMul": matmul, "Conv": convolution_as_matmul}


def implementations(op: str) -> tuple[str, ...]:
    """Return the names of the implementations of an operator."""
    return (NAME,) if op in RESOLVERS else ()


def match(
    fragment: Node, implementation: str, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None
) -> LibraryCall | Reason:
    """Return the call that computes a fragment, or why there is none."""
    precision = Implementation.parse(implementation).precision
    if precision not in COMPUTE:
        return f"cuBLASLt rounds no float32 operands to {precision}"
    return match_call(fragment, RESOLVERS, _completed, bases, destination)


def _completed(anchor: Anchor, destination: Window, epilogue: Epilogue) -> LibraryCall | Reason:
    shape, result = destination.shape, matrix(destination.shape, destination.strides)
    if isinstance(result, str) or result.is_transposed:
        return "the result is no row-major matrix"
    arguments = [replace(argument, window=_batched(argument.window, shape), packed=False) for argument in anchor.arguments]
    post_operations: list[Mapping[str, Any]] = []
    if epilogue.bias is not None:
        if not epilogue.bias.window.is_contiguous:
            return "a bias does not lie densely"
        arguments.append(epilogue.bias)
    if epilogue.summand is not None:
        post_operations.append({"kind": "binary", "algorithm": "add", "argument": len(arguments)})
        arguments.append(epilogue.summand)
    if epilogue.activation:
        post_operations.append({"kind": "eltwise", "algorithm": epilogue.activation, "alpha": 0.0, "beta": 0.0})
    for argument in arguments:
        if argument.role == "bias":
            continue
        layout = matrix(argument.window.shape, argument.window.strides)
        if isinstance(layout, str):
            return layout
        if argument.role == "" and layout.is_transposed:
            return "a summand is no row-major matrix"
    return LibraryCall("matmul", anchor.parameters, tuple(arguments), destination, tuple(post_operations))


def _batched(window: Window, result: tuple[int, ...]) -> Window:
    """Return an operand broadcast over every batch of the result."""
    return window.expand((*result[: len(result) - 2], *window.shape[-2:]))


def _launch(writer: StepWriter, kernel: Kernel) -> Launch:
    return launch_call(writer, kernel, match, lambda call: {
        **call.spec(), "precision": kernel.implementation.precision, "workspace_bytes": WORKSPACE_BYTES, **named_plan(kernel, call, match),
    })  # fmt: skip


def library(target: Target) -> Library:
    """Return the library, which is the same for all targets."""
    return Library("cublas", partial(library_tiles, matcher=MATCHER), _launch, reads=partial(reads, match), has_plans=True)


MATCHER = Matcher(implementations, lru_cache(maxsize=1 << 15)(match))
