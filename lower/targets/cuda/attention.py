"""Attention as one generated kernel: softmax(f(q k^T)) v without the scores in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from egraph.errors import LowerError
from egraph.tensor import Kernel, Target
from lower.attention.match import AttentionCall, match
from lower.attention.tiles import attention_tiles
from lower.candidates.tile import Tile, Tiling
from lower.targets import Launch, Library
from lower.targets.cuda.generator.attention import AttentionRequest, refusal
from runtime.devices.cuda.kernels import GENERATED_STEP

if TYPE_CHECKING:
    from lower.steps import StepWriter


def _tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    for number, tile in attention_tiles(tiling):
        call = match(tile.fragment)
        if isinstance(call, AttentionCall) and refusal(call) is None:
            yield number, tile


def _launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Match the kernel again, now that it is known where its operands and its result lie."""
    places = writer.placement.locations
    bases = {index: places[node].window for index, node in enumerate(kernel.inputs)}
    call = match(kernel.fragment, bases=bases, destination=places[kernel.output].window)
    reason = call if isinstance(call, str) else refusal(call)
    if isinstance(call, str) or reason is not None:
        raise LowerError(f"{kernel.implementation} cannot compute this kernel: {reason}", where=str(kernel.output))
    request = AttentionRequest(kernel.fragment, call=call)
    writer.requests.setdefault(request.symbol, request)
    inputs = tuple(writer.window(kernel.inputs[operand.index], operand.window) for operand in call.operands)
    return Launch(inputs, writer.window(kernel.output, call.destination), {"symbol": request.symbol})


def library(target: Target) -> Library:
    """Return the library; it is the same for all targets."""
    return Library("attention", _tiles, _launch, kind=GENERATED_STEP)
