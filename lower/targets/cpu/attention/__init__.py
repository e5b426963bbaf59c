"""Attention in blocks of rows: softmax(f(q k^T)) v as one kernel that never stores the scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from egraph.errors import LowerError
from egraph.tensor import Kernel
from lower.attention.match import AttentionCall, match
from lower.attention.tiles import attention_tiles
from lower.targets import Launch, Library

if TYPE_CHECKING:
    from lower.steps import StepWriter


def launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Match the kernel again, now that it is known where its operands and its result lie."""
    places = writer.placement.locations
    bases = {index: places[node].window for index, node in enumerate(kernel.inputs)}
    call = match(kernel.fragment, bases=bases, destination=places[kernel.output].window)
    if not isinstance(call, AttentionCall):
        raise LowerError(f"{kernel.implementation} cannot compute this kernel: {call}", where=str(kernel.output))
    inputs = tuple(writer.window(kernel.inputs[operand.index], operand.window) for operand in call.operands)
    return Launch(inputs, writer.window(kernel.output, call.destination), call.spec())


LIBRARY = Library("attention", attention_tiles, launch, source=Path(__file__).with_name("attention.c"))
