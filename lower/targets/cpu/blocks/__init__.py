"""Products by weights of four or eight bits, which become numbers in registers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from egraph.errors import LowerError
from egraph.tensor import Kernel
from lower.targets import Launch, Library
from lower.targets.cpu.blocks.match import BlocksCall, blocks_tiles, match

if TYPE_CHECKING:
    from lower.steps import StepWriter


def launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Return the launch of a kernel, whose operands lie side by side as all results do."""
    call = match(kernel.fragment)
    if not isinstance(call, BlocksCall):
        raise LowerError(f"{kernel.implementation} cannot compute this kernel: {call}", where=str(kernel.output))
    return Launch(tuple(writer.buffer(kernel.inputs[index]) for index in call.operands), writer.buffer(kernel.output), call.spec())


LIBRARY = Library("blocks", blocks_tiles, launch, source=Path(__file__).with_name("blocks.c"))
