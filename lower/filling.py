"""How a box of a larger tensor is filled: by a kernel that writes there, in one run or in several, or by a copy of its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from egraph.tensor import Kernel, Node, walk
from egraph.tensor.boxes import Box
from lower.roofline import DeviceSpeed
from lower.views import Reason, Window, contiguous, read

Writes: TypeAlias = Callable[[Kernel, Window], int]
"""Returns in how many runs a library's kernel writes its result into a window; 0 if it cannot."""


@dataclass(frozen=True)
class Filling:
    """The additional time of filling a box besides the kernel's own, in microseconds, and why the result is copied; empty if it is not."""

    more_us: float
    copied: Reason = ""


def box_window(window: Window, box: Box) -> Window:
    """Return the window over a box's positions."""
    return window.slice(tuple(r.start for r in box), tuple(r.stop for r in box), tuple(r.step for r in box))


def filling(kernel: Kernel, window: Window | Reason, writes: Writes, speed: DeviceSpeed) -> Filling:
    """Return how a kernel's result gets into a window.

    All kernels write into a contiguous run of memory, and generated kernels into any window. A library's kernel writes into other windows
    if the library says so, unless in so many runs that a copy costs less.
    """
    copy_us = speed.copy_us(kernel.output.type.size_bytes)
    if isinstance(window, str):
        return Filling(copy_us, f"it is stored in another shape: {window}")
    if window.is_contiguous or kernel.implementation.is_generated:
        return Filling(0.0)
    runs = writes(kernel, window)
    if not runs:
        return Filling(copy_us, f"{kernel.implementation} writes no result with these gaps")
    if (runs - 1) * speed.launch_us > copy_us:
        return Filling(copy_us, f"{kernel.implementation} would take {runs} runs to write it, and a copy costs less")
    return Filling((runs - 1) * speed.launch_us)


def whole_below(view: Node) -> Node | None:
    """Return the operand that a view shows whole, its elements in the same order; None for any other view."""
    if not all(node.type.is_static for node in walk((view,))):
        return None
    shown = read(view, lambda leaf: contiguous(leaf.type.sizes))
    if isinstance(shown, str) or not shown[1].is_contiguous or shown[0].type.elements != view.type.elements:
        return None
    return shown[0]
