"""Stitched tensors of a program: which kernel fills which boxes, as data, as a text picture and as SVG.

          h = 0  h in 1..26  h = 27
    n = 0 mod 2  .  .  A
    n = 1 mod 2  B  .  .
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from string import ascii_uppercase
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from egraph.tensor import Kernel, Node, Program, walk
from egraph.tensor.boxes import Box, axis_names, boxes_of, cells, describe_boxes, mask_of, progressions
from egraph.tensor.ops.stitch import parts_of

Owners: TypeAlias = NDArray[np.int16]
Shown: TypeAlias = tuple[tuple[int, tuple[Box, ...]], ...]
"""Operands by their position, each with its visible disjoint boxes; the operand that is visible everywhere else has none."""

MOST_DRAWN = 1 << 26
"""Largest number of elements of a tensor that is drawn."""
WIDTH, HEIGHT, LEFT, TOP = 300, 180, 90, 26
"""Size of a drawn tensor, and the space for the names of its axes, in pixels."""
MOST_MARKS = 64
"""Largest number of positions of a range with a step that are drawn one by one."""
LETTERS = f".{ascii_uppercase}"
"""The letter of each part in a picture, the tensor outside of all boxes first."""


@dataclass(frozen=True)
class Filled:
    """Boxes of a stitched tensor that one kernel fills; ``ranges`` holds first, last and step of every axis of every box."""

    kernel: int | None
    """The kernel's number, or None if an input or a constant is there."""
    name: str
    ranges: tuple[tuple[tuple[int, int, int], ...], ...]
    copied: str = ""
    """The reason why its result is copied to the boxes; empty if it is written there."""

    @property
    def boxes(self) -> tuple[Box, ...]:
        return tuple(tuple(range(first, last + 1, step) for first, last, step in box) for box in self.ranges)


@dataclass(frozen=True)
class Stitched:
    """A tensor that several kernels fill; the first part is wherever none of the others is."""

    kernel: int | None
    """The kernel that assembles the parts, or does so among other work; None if no launch is needed."""
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    parts: tuple[Filled, ...]

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Stitched:
        """Read the result of ``dataclasses.asdict``."""
        parts = []
        for part in data["parts"]:
            ranges = tuple(tuple((first, last, step) for first, last, step in box) for box in part["ranges"])
            parts.append(Filled(part["kernel"], part["name"], ranges, part.get("copied", "")))
        return Stitched(data["kernel"], tuple(data["shape"]), tuple(data["axes"]), tuple(parts))

    def describe(self) -> list[str]:
        """Return the meaning of each letter of the picture."""
        lines = []
        for letter, part in zip(LETTERS, self.parts, strict=False):
            where = "everywhere else" if part is self.parts[0] else describe_boxes(part.boxes, self.shape, self.axes)
            copied = f", by a copy: {part.copied}" if part.copied else ""
            lines.append(f"{letter} {part.name if part.kernel is None else f'kernel {part.kernel}, {part.name}'}: {where}{copied}")
        return lines

    @property
    def drawn(self) -> tuple[int, int]:
        """Return the axes of the picture, downwards and to the right: those along which boxes do not span the tensor."""
        whole = [range(size) for size in self.shape]
        cut = [axis for axis in range(len(self.shape)) if any(box[axis] != whole[axis] for part in self.parts for box in part.boxes)]
        others = [axis for axis in range(len(self.shape)) if axis not in cut]
        first, second = sorted((cut + others)[:2]) if len(self.shape) > 1 else (0, 0)
        return first, second

    def owners(self) -> Owners:
        """Return, for every position along both drawn axes, the part that is there or somewhere along the other axes."""
        down, right = self.drawn
        rows, columns = self.shape[down], self.shape[right] if right != down else 1
        numbers = np.zeros((rows, columns), np.int16)
        for number, part in reversed(list(enumerate(self.parts))):
            for box in part.boxes:
                numbers[np.ix_(np.array(box[down]), np.array(box[right] if right != down else [0]))] = number
        return numbers


def stitched_tensors(
    program: Program, corrected: Collection[str], copies: Mapping[tuple[Node, Node], str] = MappingProxyType({})
) -> tuple[Stitched, ...]:
    """Return the tensors of a program that several kernels fill.

    These are choices between results by boxes, and concatenations of kernels with a rule among ``corrected``. ``copies``: for a tensor and
    the node that fills a box of it, the reason why that is copied.
    """
    made_by: dict[Node, int | None] = {}
    names: dict[int, str] = {}
    tensors: list[Stitched] = []
    for kernel in program.kernels:
        number = None if kernel.implementation.is_free else len(names)
        if number is None:
            made_by[kernel.output] = next((made_by[node] for node in kernel.inputs if node in made_by), None)
        else:
            names[number], made_by[kernel.output] = kernel.implementation.text, number
        for node in walk((kernel.fragment,)):
            parts = shown(node)
            if parts is None and node.op == "Concat" and set(kernel.rules) & set(corrected):
                parts = _beside(node)
            if parts is not None:
                filled = _filled(node, parts, kernel, number, made_by, names)
                reasons = {made_by.get(part): reason for (whole, part), reason in copies.items() if whole is kernel.output}
                filled = tuple(replace(each, copied=reasons.get(each.kernel, "")) for each in filled)
                tensors.append(Stitched(number, node.type.sizes, _axes(node, kernel), filled))
    return tuple(tensors)


def shown(node: Node) -> Shown | None:
    """Return the visible boxes of the operands of a choice by boxes, the operand everywhere else first, or None for other nodes."""
    parts = parts_of(node) if node.type.is_static and node.type.elements <= MOST_DRAWN else None
    if parts is None:
        return None
    free, seen = np.ones(node.type.sizes, np.bool_), list[tuple[int, tuple[Box, ...]]]()
    for part in parts[:-1]:
        inside = mask_of([part.box], node.type.sizes)
        seen.append((part.operand, boxes_of(free & inside)))
        free &= ~inside
    return (parts[-1].operand, ()), *seen


def _beside(node: Node) -> Shown:
    """Return the operands of a concatenation with their boxes."""
    axis, start = node.integer("axis"), 0
    parts: list[tuple[int, tuple[Box, ...]]] = []
    for number, operand in enumerate(node.inputs):
        stop = start + operand.type.sizes[axis]
        parts.append((number, (tuple(range(start, stop) if k == axis else range(n) for k, n in enumerate(node.type.sizes)),)))
        start = stop
    return tuple(parts)


def _filled(
    node: Node, parts: Sequence[tuple[int, tuple[Box, ...]]], kernel: Kernel, own: int | None,
    made_by: Mapping[Node, int | None], names: Mapping[int, str],
) -> tuple[Filled, ...]:  # fmt: skip
    """Return the parts of a tensor, the largest first; the parts of one kernel are one."""
    boxes_by: dict[int | None, tuple[Box, ...]] = {}
    for operand, boxes in parts:
        leaf = node.inputs[operand]
        made = made_by.get(kernel.inputs[leaf.integer("index")]) if leaf.op == "Placeholder" else own
        boxes_by[made] = boxes_by.get(made, ()) + boxes
    rest = node.type.elements - sum(map(cells, boxes_by.values()))
    order = sorted(boxes_by, key=lambda made: -(cells(boxes_by[made]) or rest))
    return tuple(
        Filled(
            made, "a weight or an input" if made is None else names[made],
            tuple(tuple((r[0], r[-1], r.step) for r in box) for box in boxes_by[made]),
        )
        for made in order
    )  # fmt: skip


def _axes(node: Node, kernel: Kernel) -> tuple[str, ...]:
    """Return the names of a stitched tensor's axes: those of the layout of the values that fill it, if they have one."""
    plain = axis_names(node)
    for leaf in node.inputs:
        below = kernel.inputs[leaf.integer("index")] if leaf.op == "Placeholder" else leaf
        while below.op in ("Reshape", "Slice") and below.type.rank == node.type.rank:
            (below,) = below.inputs
        if below.type.rank == node.type.rank and axis_names(below) != plain:
            return axis_names(below)
    return plain


def picture(tensor: Stitched) -> list[str]:
    """Return a stitched tensor as lines; positions of two axes that are filled alike are grouped."""
    down, right = tensor.drawn
    owners = tensor.owners()
    rows, columns = _alike(owners), _alike(owners.T) if right != down else [range(1)]
    if right == down:
        columns = [range(1)]
    names = [describe_boxes([_along(tensor, down, group)], tensor.shape, tensor.axes) for group in rows]
    heads = [describe_boxes([_along(tensor, right, group)], tensor.shape, tensor.axes) for group in columns] if right != down else [""]
    width = max(map(len, names))
    lines = [" " * width + "".join(f"  {head}" for head in heads)] if any(heads) else []
    for name, group in zip(names, rows, strict=True):
        cells = (f"  {LETTERS[owners[group[0], column[0]]]:{len(head)}}" for head, column in zip(heads, columns, strict=True))
        lines.append((name.rjust(width) + "".join(cells)).rstrip())
    shape = ",".join(map(str, tensor.shape))
    by = "put together without a kernel" if tensor.kernel is None else f"put together by kernel {tensor.kernel}"
    head = f"stitched [{shape}] over {', '.join(tensor.axes)}, {by}"
    return [head, *(f"  {line}" for line in (*lines, *tensor.describe()))]


def _along(tensor: Stitched, axis: int, positions: range) -> Box:
    return tuple(positions if k == axis else range(size) for k, size in enumerate(tensor.shape))


def _alike(owners: Owners) -> list[range]:
    """Return ranges of rows that are equal, in order."""
    kinds: dict[bytes, list[int]] = {}
    for position, row in enumerate(owners):
        kinds.setdefault(row.tobytes(), []).append(position)
    return sorted((r for positions in kinds.values() for r in progressions(positions)), key=lambda r: (r.start, r.step))


def svg(tensor: Stitched) -> str:
    """Return a stitched tensor as inline SVG, to scale along both drawn axes."""
    down, right = tensor.drawn
    rows, columns = tensor.shape[down], tensor.shape[right] if right != down else 1
    whole, label = LEFT + WIDTH + 10, 'role="img" aria-label="a tensor, and which kernel fills which part of it"'
    lines = [
        f'<svg class="stitched" viewBox="0 0 {whole} {TOP + HEIGHT + 10}" width="{whole}" {label}>',
        f'<text x="{LEFT}" y="{TOP - 8}">{escape(tensor.axes[right])}: {columns}</text>' if right != down else "",
        f'<text x="6" y="{TOP + 14}">{escape(tensor.axes[down])}: {rows}</text>',
        f'<rect class="part0" x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"><title>{escape(tensor.describe()[0])}</title></rect>',
    ]
    for number, (part, description) in enumerate(zip(tensor.parts, tensor.describe(), strict=False)):
        for box in part.boxes:
            across = _marks(box[right], columns, WIDTH) if right != down else [(0.0, float(WIDTH))]
            for y, height in _marks(box[down], rows, HEIGHT):
                for x, width in across:
                    at = f'x="{LEFT + x:.1f}" y="{TOP + y:.1f}" width="{width:.1f}" height="{height:.1f}"'
                    lines.append(f'<rect class="part{1 + (number - 1) % 4}" {at}><title>{escape(description)}</title></rect>')
    return "\n".join(line for line in [*lines, "</svg>"] if line)


def _marks(positions: range, size: int, pixels: int) -> list[tuple[float, float]]:
    """Return the places and lengths of the marks of an axis's positions; contiguous positions, or too many, are one mark."""
    scale = pixels / size
    if positions.step == 1 or len(positions) > MOST_MARKS:
        return [(positions[0] * scale, (positions[-1] + 1 - positions[0]) * scale)]
    return [(position * scale, scale) for position in positions]
