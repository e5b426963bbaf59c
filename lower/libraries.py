"""The libraries whose kernels compete with generated ones: where each fits into an e-graph, and how its steps are written.

The other half of a library, how its steps run, is an entry of ``runtime.steps.KINDS``. CONTRIBUTING.md adds one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from egraph.tensor import Kernel
from lower.candidates.library_tiles import library_tiles
from lower.candidates.tile import Tile, Tiling
from lower.library import Launch
from lower.library.launch import library_launch

if TYPE_CHECKING:
    from lower.steps import StepWriter


@dataclass(frozen=True)
class Library:
    """``tiles`` lays its kernels over an e-graph, ``launch`` writes one that was chosen.

    Its implementations are called ``<name>.<kernel>``, its steps are of the kind ``name``.
    """

    name: str
    tiles: Callable[[Tiling], Iterator[tuple[int, Tile]]]
    launch: Callable[[StepWriter, Kernel], Launch]


LIBRARIES: tuple[Library, ...] = (
    Library("onednn", library_tiles, library_launch),
)  # fmt: skip


def library_of(implementation: str) -> Library | None:
    """Return the library that an implementation belongs to."""
    name = implementation.partition(".")[0]
    return next((library for library in LIBRARIES if library.name == name), None)
