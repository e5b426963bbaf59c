"""Lay kernels over a frozen e-graph: every way to compute a class in one launch, for extraction to choose from.

Five families: views (free), library calls with folded views and fused epilogues, eOperators, opaque nodes, and for
what nothing else runs, onnxruntime on the single operator. Their number grows linearly with the e-graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from egraph.tensor import Candidate, FrozenEGraph, Node
from lower.candidates.eoperator_tiles import eoperator_tiles
from lower.candidates.tile import Tile, Tiling, tensors_of
from lower.candidates.view_tiles import opaque_tiles, view_tiles

Supports = Callable[[Node], str | None]
TARGETS = ("cpu",)


def candidates(
    frozen: FrozenEGraph, target: str = "cpu", *, supports: Supports | None = None, fused: bool = True
) -> Mapping[int, tuple[Candidate, ...]]:
    """Return the candidates of every class that must be computed, with costs still zero.

    Inputs and classes known at compile time have none. ``supports`` says why a fragment cannot become an eOperator
    (None when it can); by default the generator for ``target`` is asked. Without ``fused``, every kernel is one operator.
    """
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}; there are {', '.join(TARGETS)}")
    if supports is None:
        from lower.eoperator.request import supports_by_parts as generator_supports

        supports = generator_supports
    from lower.libraries import LIBRARIES  # it imports this package

    tiling = Tiling(frozen, fused=fused)
    needed = [number for number in frozen.classes if number not in tiling.leaves]
    found: dict[int, dict[Tile, None]] = {number: {} for number in needed}
    for tiles in (view_tiles(tiling), *(library.tiles(tiling) for library in LIBRARIES), eoperator_tiles(tiling, supports)):
        for number, tile in tiles:
            if number in found:
                found[number].setdefault(tile)
    read = {number: [tensors_of(tile.fragment) for tile in tiles] for number, tiles in found.items()}
    for number, tile in opaque_tiles(tiling, read):
        if number in found:
            found[number].setdefault(tile)
    return {number: tuple(_distinct(tiling, number, tiles)) for number, tiles in found.items()}


def _distinct(tiling: Tiling, number: int, tiles: Mapping[Tile, None]) -> list[Candidate]:
    seen: dict[tuple[Node, tuple[int, ...], str], Candidate] = {}
    for tile in tiles:
        fragment, operands = tiling.canonical(tile.fragment)
        if number not in operands:
            one = Candidate(fragment, operands, tile.covered, tile.implementation, is_spare=tile.is_spare)
            seen.setdefault((fragment, operands, tile.implementation), one)
    return list(seen.values())
