"""LSTM, GRU and RNN as one kernel: a fold along time over products that were computed before it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from egraph.errors import LowerError
from egraph.tensor import Kernel
from lower.targets import Launch, Library
from lower.targets.cpu.recurrence.match import RecurrenceCall, match, recurrence_tiles

if TYPE_CHECKING:
    from lower.steps import StepWriter


def launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Match the kernel again, now that it is known where its operands and its result lie."""
    places = writer.placement.locations
    bases = {index: places[node].window for index, node in enumerate(kernel.inputs)}
    call = match(kernel.fragment, bases=bases, destination=places[kernel.output].window)
    if not isinstance(call, RecurrenceCall):
        raise LowerError(f"{kernel.implementation} cannot compute this kernel: {call}", where=str(kernel.output))
    inputs = tuple(writer.window(kernel.inputs[index], window) for index, window in call.operands)
    return Launch(inputs, writer.window(kernel.output, call.destination), call.spec())


LIBRARY = Library("recurrence", recurrence_tiles, launch, source=Path(__file__).with_name("recurrence.c"))
