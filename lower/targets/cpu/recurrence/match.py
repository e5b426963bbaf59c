"""Match fragments that are recurrences over views of their operands, below transposes or reshapes, and offer them as tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from egraph.tensor import Node
from egraph.tensor.ops.recurrence import DIRECTIONS, GATES
from lower.axes import below_views, merged
from lower.calls.call import Argument
from lower.candidates.tile import Tile, Tiling
from lower.candidates.view_tiles import tiles_above
from lower.views import Reason, Window, lying, read

KINDS = {("LSTM", ""): 0, ("GRU", "0"): 1, ("GRU", "1"): 2, ("RNN", "tanh"): 3, ("RNN", "relu"): 4}
"""Numbers of the kinds in recurrence.c, by operator and the attribute that selects its form."""


@dataclass(frozen=True)
class RecurrenceCall:
    """A complete call: its operands, and where states are written [t, d, b, j]."""

    arguments: tuple[Argument, ...]
    destination: Window
    kind: int
    direction: int
    keeps_cell: bool

    def spec(self) -> dict[str, object]:
        """Return the call as a plan step's recipe."""
        return {"function": "recurrence", "integers": [self.kind, self.direction, int(self.keeps_cell)]}


def match(fragment: Node, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None) -> RecurrenceCall | Reason:
    """Return the call that computes ``fragment``, or why there is none; operands and result are row-major by default."""
    below = below_views(fragment, destination)
    if isinstance(below, str):
        return below
    node, result = below
    if node.op not in GATES or node.type.dtype != "float32":
        return f"{node.op} is no recurrence of float32 numbers"
    joined = [merged(axis) for axis in result.axes]
    if any(len(axis) > 1 for axis in joined):
        return "an axis of the result does not lie at one distance"
    strides = tuple(axis[0][1] if axis else math.prod(result.shape[at + 1 :]) for at, axis in enumerate(joined))
    written = Window(result.offset, result.shape, strides)
    arguments = []
    for position, operand in enumerate(node.inputs):
        leaf_and_window = read(operand, lying(bases))
        if isinstance(leaf_and_window, str):
            return leaf_and_window
        leaf, window = leaf_and_window
        arguments.append(Argument("", leaf.integer("index"), window))
        if position == 1 and not window.is_contiguous:
            return "the recurrent weights do not lie side by side"
    for window in (written, *(argument.window for argument in arguments)):
        if window.shape[-1] > 1 and window.strides[-1] != 1:
            return "units do not lie side by side"
    attributes = dict(node.attributes)
    form = str(attributes.get("linear_before_reset", attributes.get("activation", "")))
    return RecurrenceCall(
        tuple(arguments), written, KINDS[node.op, form], list(DIRECTIONS).index(node.string("direction")),
        keeps_cell=bool(attributes.get("keeps_cell")),
    )  # fmt: skip


def recurrence_tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    """Yield each recurrence, also below views that are not free: its result is then written in their order."""
    folds: dict[int, list[Tile]] = {}
    for number, nodes in tiling.frozen.classes.items():
        for node in nodes:
            if node.op in GATES and number not in tiling.leaves:
                tile = Tile(tiling.over_leaves(number, node), (node,), tiling.implementation("recurrence.fold"))
                if _fits(tiling.canonical(tile.fragment)[0]):
                    folds.setdefault(number, []).append(tile)
                    yield number, tile
    yield from tiles_above(tiling, folds, _fits, 1)


def _fits(fragment: Node) -> bool:
    return isinstance(match(fragment), RecurrenceCall)
