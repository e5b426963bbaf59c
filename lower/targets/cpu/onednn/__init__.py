"""Match fragments to single calls of the vendor library, with views as strides and epilogues as post-operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from egraph.tensor import Kernel, walk
from egraph.tensor.ops.dtypes import BYTES
from lower.calls.call import LibraryCall
from lower.calls.launch import launch_call
from lower.calls.tiles import Matcher, library_tiles
from lower.targets import Launch, Library
from lower.targets.cpu.onednn.match import implementations, match, operand_precisions
from lower.views import Reason, Window

if TYPE_CHECKING:
    from lower.steps import StepWriter


NEUTRAL: Mapping[str, float] = {"sub": 0.0, "add": 0.0, "mul": 1.0, "div": 1.0}
"""The operand with which a binary post-operation changes nothing, by algorithm."""


def library_launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Return the launch of a kernel of the library."""

    def matched(*arguments: Any, **options: Any) -> LibraryCall | Reason:
        call = match(*arguments, **options)
        return call if isinstance(call, str) else without_neutral(call, kernel, writer.program.graph.tensors)

    return launch_call(writer, kernel, matched)


def without_neutral(call: LibraryCall, kernel: Kernel, tensors: Mapping[str, np.ndarray]) -> LibraryCall:
    """Return a call without the steps whose constants leave the result unchanged to the last bit: zero points of 0, scales of 1.

    x + 0 differs from x if x is -0.0, so that it is removed only if the result is bytes. A result in bytes is rounded when it is stored, so
    that a last rounding is removed, too.
    """
    is_byte = kernel.output.type.dtype in BYTES

    def is_neutral(operation: Mapping[str, Any]) -> bool:
        if operation["kind"] != "binary" or operation["algorithm"] not in NEUTRAL or (operation["algorithm"] == "add" and not is_byte):
            return False
        node = kernel.inputs[call.arguments[operation["argument"]].operand]
        data = tensors.get(node.string("digest")) if node.op == "Constant" else None
        return data is not None and bool(np.all(data == NEUTRAL[operation["algorithm"]]))

    kept = [operation for operation in call.post_operations if not is_neutral(operation)]
    if is_byte and kept and kept[-1] == {"kind": "eltwise", "algorithm": "round", "alpha": 0.0, "beta": 0.0}:
        kept.pop()
    if len(kept) == len(call.post_operations):
        return call
    read = {operation["argument"] for operation in kept if "argument" in operation}
    places = [i for i, argument in enumerate(call.arguments) if argument.role or i in read]
    post_operations = [
        {**operation, "argument": places.index(operation["argument"])} if "argument" in operation else operation for operation in kept
    ]
    return replace(call, arguments=tuple(call.arguments[i] for i in places), post_operations=tuple(post_operations))


def writes(kernel: Kernel, window: Window) -> int:
    """Return in how many runs a kernel writes into a window as fast as elsewhere; 0 if it cannot.

    A product writes rows into any window whose columns lie side by side, unless a post-operation reads another operand. For that case and
    for other strided results the library has only its reference implementation. A convolution or a pool writes a result with gaps piece by
    piece.
    """
    call = match(kernel.fragment, kernel.implementation.name, destination=window)
    if not isinstance(call, LibraryCall):
        return 0
    if window.is_contiguous or call.pieces:
        return max(1, len(call.pieces))
    is_float = all(node.type.dtype == "float32" for node in walk((kernel.fragment,)))
    is_plain = call.primitive == "matmul" and is_float and all(each["kind"] == "eltwise" for each in call.post_operations)
    return int(is_plain and (call.destination.strides[-1] == 1 or call.destination.shape[-1] == 1))


TILES = partial(library_tiles, matcher=Matcher(implementations, lru_cache(maxsize=1 << 15)(match)))
LIBRARY = Library("onednn", TILES, library_launch, writes=writes, reads=operand_precisions)
