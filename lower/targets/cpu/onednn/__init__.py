"""Match fragments to single calls of the vendor library, views as strides and epilogues as post-operations."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from egraph.tensor import Kernel, walk
from lower.calls.call import LibraryCall
from lower.calls.launch import launch_call
from lower.calls.tiles import Matcher, library_tiles
from lower.targets import Launch, Library
from lower.targets.cpu.onednn.match import implementations, match, operand_precisions
from lower.views import Window

if TYPE_CHECKING:
    from lower.steps import StepWriter


def library_launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Return the launch of a kernel of the library."""
    return launch_call(writer, kernel, match)


def writes(kernel: Kernel, window: Window) -> int:
    """Return in how many runs a kernel writes into a window as fast as elsewhere; 0 where it cannot.

    A product writes rows anywhere whose columns stand side by side, unless an operand beside it is joined to it: then, and for other
    strided results, the library has its reference implementation only. A convolution or a pool writes a result with gaps piece by piece.
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
