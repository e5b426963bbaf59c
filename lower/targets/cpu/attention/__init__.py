"""Attention in blocks of rows: softmax(f(q k^T)) v as one kernel that never stores the scores."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egraph.tensor import Kernel, Node
from lower.attention.match import AttentionCall, match
from lower.attention.tiles import attention_tiles
from lower.calls.launch import launch_matched
from lower.candidates.tile import Tile, Tiling
from lower.targets import Launch, Library, reads_as_computed
from lower.targets.cpu.tiles import ROUNDED, without_tiles
from lower.views import Reason

if TYPE_CHECKING:
    from lower.steps import StepWriter


def rounding_is_slow() -> Reason | None:
    """Return why products of rounded operands are no faster on this processor; None if they are."""
    return without_tiles(f"attention in {ROUNDED} takes longer than in float32")


def tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    """Yield attention in float32, and with rounded operands if that may be faster."""
    rounds = ROUNDED in tiling.target.precisions and rounding_is_slow() is None
    for number, tile in attention_tiles(tiling):
        yield number, tile
        if rounds:
            yield number, replace(tile, implementation=tiling.implementation(tile.implementation.in_precision(ROUNDED).text))


def launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Return the launch of a kernel, which calls the function of its precision."""
    rounds = kernel.implementation.precision == ROUNDED
    return launch_matched(writer, kernel, match, _rounding if rounds else AttentionCall.spec)


def _rounding(call: AttentionCall) -> Mapping[str, Any]:
    return {"function": f"attention_{ROUNDED}", "integers": [int(call.is_guarded), call.steps_before, *call.factors, *call.codes]}


def reads(fragment: Node, implementation: str) -> Mapping[int, frozenset[str]] | Reason:
    """Return why operands and results cannot be stored in the type that they are rounded to: they are read and written in float32."""
    precision = implementation.partition("@")[2]
    if precision not in ("", ROUNDED):
        return f"attention is computed in float32 and {ROUNDED}"
    return (rounding_is_slow() if precision else None) or reads_as_computed(fragment, implementation)


def family(fragment: Node) -> Hashable | None:
    """Return sizes and steps, which determine the time; the views through which operands and result are accessed hardly matter."""
    call = match(fragment)
    if isinstance(call, str):
        return None
    (*batch, rows, depth), (*_, keys, width) = call.arguments[0].window.shape, call.arguments[2].window.shape
    return math.prod(batch), rows, keys, depth, width, call.is_guarded, call.codes[sum(call.factors) :]


LIBRARY = Library("attention", tiles, launch, source=Path(__file__).with_name("attention.c"), reads=reads, family=family)
