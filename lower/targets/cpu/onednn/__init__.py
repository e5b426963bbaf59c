"""Match fragments to single calls of the vendor library, views as strides and epilogues as post-operations."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from egraph.errors import LowerError
from egraph.tensor import Kernel
from lower.calls.call import LibraryCall
from lower.calls.tiles import Matcher, library_tiles
from lower.targets import Launch, Library
from lower.targets.cpu.onednn.match import implementations, match

if TYPE_CHECKING:
    from lower.steps import StepWriter


def library_launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Match the kernel again, now that it is known where its operands and its result lie."""
    locations = writer.placement.places
    bases = {i: locations[node].window for i, node in enumerate(kernel.inputs)}
    call = match(kernel.fragment, kernel.implementation.name, bases=bases, destination=locations[kernel.output].window)
    if not isinstance(call, LibraryCall):
        raise LowerError(f"{kernel.implementation} cannot compute this kernel: {call}", where=str(kernel.output))
    inputs = tuple(writer.window(kernel.inputs[argument.operand], argument.window) for argument in call.arguments)
    return Launch(inputs, writer.window(kernel.output, call.destination), call.spec())


LIBRARY = Library("onednn", partial(library_tiles, matcher=Matcher(implementations, lru_cache(maxsize=1 << 15)(match))), library_launch)
