"""Lay kernels over a frozen e-graph: every way to compute a class in one launch, for extraction to choose from.

Five families: views (free), library calls with folded views and fused epilogues, eOperators, opaque nodes, and onnxruntime on a single
operator that nothing else runs. Their number grows linearly with the e-graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from egraph.policy import CandidatesPolicy
from egraph.tensor import Candidate, FrozenEGraph, Implementation, Node, Target
from lower.candidates.compared import compared_once
from lower.candidates.tile import Tile, Tiling, tensors_of
from lower.candidates.view_tiles import opaque_tiles, view_tiles
from lower.targets import default_target, lowering_for

Supports = Callable[[Node], str | None]


def candidates(
    frozen: FrozenEGraph,
    target: Target | None = None,
    *,
    supports: Supports | None = None,
    fused: bool = True,
    policy: CandidatesPolicy = CandidatesPolicy(),
    is_late: Callable[[], bool] = lambda: False,
) -> Mapping[int, tuple[Candidate, ...]]:
    """Return the candidates of every class that must be computed, with costs still zero.

    Inputs and classes known at compile time have none. ``supports`` returns why a fragment cannot become an eOperator (None if it can); by
    default the generator for ``target`` is asked. Without ``fused``, every kernel is one operator. Once ``is_late`` holds, so is every
    further one.
    """
    lowering = lowering_for(target or default_target())
    frozen, stored = compared_once(frozen)
    inside = {node for number in stored for node in frozen.classes[number]}
    tiling = Tiling(frozen, target or lowering.target, fused=fused, policy=policy, is_late=is_late, stored=stored)
    needed = [number for number in frozen.classes if number not in tiling.leaves]
    tiles_of: dict[int, dict[Tile, None]] = {number: {} for number in needed}
    generated = lowering.generator.tiles(tiling, supports or lowering.generator.supports, tiling.implementation(lowering.generated.name))
    for tiles in (view_tiles(tiling), *(library.tiles(tiling) for library in lowering.libraries), generated):
        for number, tile in tiles:
            if number in tiles_of and inside.isdisjoint(tile.covered[1:]):
                tiles_of[number].setdefault(tile)
    read = {number: [tensors_of(tile.fragment) for tile in tiles] for number, tiles in tiles_of.items()}
    for number, tile in opaque_tiles(tiling, read):
        if number in tiles_of:
            tiles_of[number].setdefault(tile)
    return {number: tuple(_distinct(tiling, number, tiles)) for number, tiles in tiles_of.items()}


def needed_sources(frozen: FrozenEGraph, target: Target, policy: CandidatesPolicy = CandidatesPolicy()) -> tuple[Path, ...]:
    """Return the C sources of the libraries that have a kernel for at least one class."""
    frozen, stored = compared_once(frozen)
    tiling = Tiling(frozen, target, policy=policy, stored=stored)
    libraries = [(library.source, library.tiles) for library in lowering_for(target).libraries if library.source is not None]
    return tuple(source for source, tiles in libraries if any(True for _ in tiles(tiling)))


def _distinct(tiling: Tiling, number: int, tiles: Mapping[Tile, None]) -> list[Candidate]:
    seen: dict[tuple[Node, tuple[int, ...], Implementation], Candidate] = {}
    for tile in tiles:
        fragment, operands = tiling.canonical(tile.fragment)
        if number not in operands:
            candidate = Candidate(fragment, operands, tile.covered, tile.implementation, is_spare=tile.is_spare)
            seen.setdefault((fragment, operands, tile.implementation), candidate)
    return list(seen.values())
