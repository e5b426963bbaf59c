"""Draw a program as a layered picture: kernels in rows by their longest path from the inputs, lines to their operands.

Deterministic and dependency-free. Long programs are drawn with chains of kernels gathered into one box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from egraph.optimize.outcome import KernelRow

MOST_BOXES = 90
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 168, 40, 16, 26, 12
LETTER_WIDTH = 6.6
SWEEPS = 4


@dataclass(frozen=True)
class Box:
    """One kernel, or a chain of them: ``operands`` are positions of other boxes."""

    title: str
    subtitle: str
    time_us: float
    kind: str
    operands: tuple[int, ...]
    tooltip: str


@dataclass(frozen=True)
class Placed:
    """A box with the top left corner where it is drawn."""

    box: Box
    x: float
    y: float


def boxes(rows: Sequence[KernelRow]) -> tuple[Box, ...]:
    """Return a box a kernel; where that is too many, a box a chain (each reads only the one before, and alone does)."""
    chains = [[i] for i in range(len(rows))] if len(rows) <= MOST_BOXES else _chains(rows)
    home = {i: number for number, chain in enumerate(chains) for i in chain}
    return tuple(
        _box([rows[i] for i in chain], tuple(sorted({home[o] for i in chain for o in rows[i].operands} - {number})))
        for number, chain in enumerate(chains)
    )


def _chains(rows: Sequence[KernelRow]) -> list[list[int]]:
    readers = [0] * len(rows)
    for row in rows:
        for operand in row.operands:
            readers[operand] += 1
    chains: list[list[int]] = []
    home: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        last = row.operands[0] if len(row.operands) == 1 and readers[row.operands[0]] == 1 else None
        chain = home[last] if last is not None and home[last][-1] == last else []
        if not chain:
            chains.append(chain)
        chain.append(i)
        home[i] = chain
    return chains


def _box(rows: Sequence[KernelRow], operands: tuple[int, ...]) -> Box:
    time_us = sum(row.time_us for row in rows)
    costliest = max(rows, key=lambda row: row.time_us)
    name = rows[0].name if len(rows) == 1 else f"{len(rows)} kernels: {costliest.name} ..."
    shape = rows[-1].shape.removeprefix("float32")
    told = "\n".join(f"{row.name}  {row.shape}  {row.time_us:.1f} us  {row.implementation}" for row in rows)
    return Box(name, f"{shape}  {time_us:.1f} us", time_us, costliest.kind, operands, told)


def place(drawn: Sequence[Box]) -> tuple[Placed, ...]:
    """Give every box its row (longest path) and its place in the row (mean of its neighbours, in a few sweeps)."""
    layer = [0] * len(drawn)
    for i, box in enumerate(drawn):
        layer[i] = max((layer[o] + 1 for o in box.operands if o < i), default=0)
    rows: list[list[int]] = [[i for i in range(len(drawn)) if layer[i] == depth] for depth in range(max(layer, default=-1) + 1)]
    readers: list[list[int]] = [[] for _ in drawn]
    for i, box in enumerate(drawn):
        for operand in box.operands:
            readers[operand].append(i)
    position = {i: float(p) for row in rows for p, i in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            around = {i: list(drawn[i].operands) if sweep % 2 == 0 else readers[i] for i in row}
            row.sort(key=lambda i: (sum(position[n] for n in around[i]) / len(around[i]) if around[i] else position[i], i))
            position.update({i: float(p) - len(row) / 2 for p, i in enumerate(row)})
    widest = max((len(row) for row in rows), default=0)
    return tuple(
        Placed(
            drawn[i],
            MARGIN + (widest - len(row)) * (BOX_WIDTH + GAP_X) / 2 + p * (BOX_WIDTH + GAP_X),
            MARGIN + depth * (BOX_HEIGHT + GAP_Y),
        )
        for i, depth, row, p in sorted((i, depth, row, p) for depth, row in enumerate(rows) for p, i in enumerate(row))
    )


def draw(rows: Sequence[KernelRow]) -> str:
    """Return the program as inline SVG."""
    drawn = boxes(rows)
    placed = place(drawn)
    width = max((p.x for p in placed), default=0.0) + BOX_WIDTH + MARGIN
    height = max((p.y for p in placed), default=0.0) + BOX_HEIGHT + MARGIN
    slowest = max((box.time_us for box in drawn), default=0.0) or 1.0
    label = 'role="img" aria-label="kernels and their operands"'
    lines = [f'<svg class="graph" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" {label}>']
    for here in placed:
        for operand in here.box.operands:
            there = placed[operand]
            x1, y1 = there.x + BOX_WIDTH / 2, there.y + BOX_HEIGHT
            x2, y2 = here.x + BOX_WIDTH / 2, here.y
            middle = (y1 + y2) / 2
            curve = f"M{x1:.0f} {y1:.0f} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"
            lines.append(f'<path class="edge" d="{curve}"/>')
    for here in placed:
        box = here.box
        heat = BOX_WIDTH * box.time_us / slowest
        lines.append(
            f'<g class="box {box.kind}"><title>{escape(box.tooltip)}</title>'
            f'<rect x="{here.x:.0f}" y="{here.y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
            f'<rect class="heat" x="{here.x:.0f}" y="{here.y + BOX_HEIGHT - 4:.0f}" width="{heat:.1f}" height="4"/>'
            f'<text x="{here.x + 8:.0f}" y="{here.y + 16:.0f}">{escape(_shortened(box.title))}</text>'
            f'<text class="small" x="{here.x + 8:.0f}" y="{here.y + 30:.0f}">{escape(_shortened(box.subtitle))}</text></g>'
        )
    return "\n".join([*lines, "</svg>"])


def _shortened(text: str) -> str:
    most = int((BOX_WIDTH - 16) / LETTER_WIDTH)
    return text if len(text) <= most else text[: most - 1] + "…"
