"""Attention as one generated kernel: softmax(f(q k^T)) v without the scores in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from egraph.tensor import Kernel, Node, Target
from lower.attention.match import AttentionCall, match
from lower.attention.tiles import attention_tiles
from lower.calls.launch import launch_matched
from lower.candidates.tile import Tile, Tiling
from lower.targets import Launch, Library
from lower.targets.cuda.generator.attention import AttentionRequest, refusal
from lower.views import Reason
from runtime.devices.cuda.kernels import GENERATED_STEP

if TYPE_CHECKING:
    from lower.steps import StepWriter


def _tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    for number, tile in attention_tiles(tiling):
        call = match(tile.fragment)
        if isinstance(call, AttentionCall) and refusal(call) is None:
            yield number, tile


def _launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Return the launch of the kernel that is generated for a call."""

    def recipe(call: AttentionCall) -> Mapping[str, Any] | Reason:
        if reason := refusal(call):
            return reason
        request = AttentionRequest(kernel.fragment, call=call)
        writer.requests.setdefault(request.symbol, request)
        return {"symbol": request.symbol}

    return launch_matched(writer, kernel, match, recipe)


def request_of(fragment: Node) -> AttentionRequest:
    """Return the request of a fragment's kernel alone; without a call if the fragment is no attention."""
    call = match(fragment)
    return AttentionRequest(fragment, call=call if isinstance(call, AttentionCall) else None)


def library(target: Target) -> Library:
    """Return the library, which is the same for all targets."""
    return Library("attention", _tiles, _launch, kind=GENERATED_STEP)
