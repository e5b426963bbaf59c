"""Tiles for the vendor library: an anchor over views of its operands, grown upwards by epilogues that it can fuse."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache

from egraph.ir import ENode, Node
from lower.candidates.tile import Tile, Tiling
from lower.library import implementations, match
from lower.library.epilogue import BINARY, ELTWISE
from lower.views import Window, contiguous, read

READINGS = 4
"""Ways to read one operand through views, at most."""
BEAM = 6
"""Tiles kept of one class, implementation and round."""
ROUNDS = 7
"""Epilogue operators over an anchor, views counted, at most."""
VIEW_DEPTH = 4
READS_VIEWS = ("MatMul", "Conv", "ConvTranspose", "MaxPool", "AveragePool")
GATES = ("Sigmoid", "HardSigmoid")


def library_tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    """Yield every tile whose fragment the library computes in one call."""
    frontier = _anchors(tiling)
    kept: dict[int, dict[Tile, None]] = {}
    for _ in range(ROUNDS):
        for number, tiles in frontier.items():
            kept.setdefault(number, {}).update(dict.fromkeys(tiles))
            for tile in tiles:
                if tile.fragment.op != "Reshape":  # the tile below it, viewed, is the same for free
                    yield number, tile
        frontier = _grow(tiling, frontier, kept)
        if not frontier:
            return


def _anchors(tiling: Tiling) -> dict[int, list[Tile]]:
    found: dict[int, list[Tile]] = {}
    for number, nodes in tiling.frozen.classes.items():
        if number in tiling.leaves:
            continue
        tiles: dict[str, list[Tile]] = {}
        for node in nodes:
            for implementation in implementations(node.op):
                group = tiles.setdefault(implementation, [])
                for fragment, covered in _anchor_fragments(tiling, number, node):
                    tile = Tile(fragment, (node, *covered), implementation)
                    if len(group) < 2 * BEAM and _matches(tiling, fragment, implementation):
                        group.append(tile)
        if any(tiles.values()):
            found[number] = [tile for group in tiles.values() for tile in group]
    return found


def _anchor_fragments(tiling: Tiling, number: int, node: ENode) -> Iterator[tuple[Node, tuple[ENode, ...]]]:
    """Yield the anchor over its operands, as they are and seen through views."""
    if node.op not in READS_VIEWS:
        yield tiling.over_leaves(number, node), ()
        return
    for combination in itertools.product(*(readings(tiling, child) for child in node.children)):
        covered = tuple(e_node for _, below in combination for e_node in below)
        yield tiling.build(number, node, [operand for operand, _ in combination]), covered


def readings(tiling: Tiling, number: int) -> list[tuple[Node, tuple[ENode, ...]]]:
    """Return a class and other classes that it is a strided window of, with the views between."""
    leaf = tiling.leaf(number)
    found: list[tuple[Node, tuple[ENode, ...]]] = [(leaf, ())]
    if number in tiling.leaves or not leaf.type.is_static:
        return found
    seen: set[tuple[int, Window]] = {(number, contiguous(leaf.type.sizes))}
    # Chains of classes from the top; a chain is built into a fragment from its bottom.
    chains: list[tuple[tuple[int, ENode], ...]] = [()]
    for _ in range(VIEW_DEPTH):
        longer = []
        for chain in chains:
            top = chain[-1][1].children[0] if chain else number
            if top in tiling.leaves and chain:
                continue
            longer += [(*chain, (top, node)) for node in tiling.frozen.classes[top] if node.op in ("Reshape", "Transpose", "Slice")]
        for chain in longer[: 4 * READINGS]:
            fragment = tiling.leaf(chain[-1][1].children[0])
            if not fragment.type.is_static:
                continue
            for owner, node in reversed(chain):
                fragment = tiling.build(owner, node, [fragment])
            result = read(fragment, lambda placed: contiguous(placed.type.sizes))
            if isinstance(result, str):
                continue
            key = (chain[-1][1].children[0], result[1])
            # A reshape at the bottom is free as a view of its own, so reading through it adds nothing.
            if key in seen or chain[-1][1].op == "Reshape" or result[1].is_contiguous:
                continue
            seen.add(key)
            found.append((fragment, tuple(node for _, node in chain)))
            if len(found) >= READINGS:
                return found
        chains = longer[: 4 * READINGS]
    return found


def _grow(tiling: Tiling, frontier: dict[int, list[Tile]], kept: dict[int, dict[Tile, None]]) -> dict[int, list[Tile]]:
    """Return new tiles: one more operator above the tiles of the last round."""
    grown: dict[int, list[Tile]] = {}
    above = sorted({number for below in frontier for number in tiling.consumers[below]} - tiling.leaves)
    for number in above:
        counts: dict[str, int] = {}
        for node in tiling.frozen.classes[number]:
            for tile in _extended(tiling, number, node, frontier):
                old = kept.get(number, {})
                if counts.get(tile.implementation, 0) >= BEAM or tile in old or not _is_new(tile, old):
                    continue
                if _matches(tiling, tile.fragment, tile.implementation):
                    counts[tile.implementation] = counts.get(tile.implementation, 0) + 1
                    grown.setdefault(number, []).append(tile)
    return grown


def _is_new(tile: Tile, old: dict[Tile, None]) -> bool:
    return all(tile.fragment is not one.fragment or tile.implementation != one.implementation for one in old)


def _extended(tiling: Tiling, number: int, node: ENode, frontier: dict[int, list[Tile]]) -> Iterator[Tile]:
    if node.op in ELTWISE or node.op in ("Reshape", "Transpose"):
        for tile in frontier.get(node.children[0], ()):
            yield Tile(tiling.build(number, node, [tile.fragment]), (node, *tile.covered), tile.implementation)
    elif node.op in BINARY:
        for side in (0, 1):
            other = node.children[1 - side]
            for tile in frontier.get(node.children[side], ()):
                operands = [tile.fragment, tiling.leaf(other)] if side == 0 else [tiling.leaf(other), tile.fragment]
                yield Tile(tiling.build(number, node, operands), (node, *tile.covered), tile.implementation)
                for gate in tiling.frozen.classes[other] if node.op == "Mul" else ():
                    if gate.op in GATES and gate.children == (node.children[side],):
                        gated = tiling.build(other, gate, [tile.fragment])
                        pair = [tile.fragment, gated] if side == 0 else [gated, tile.fragment]
                        yield Tile(tiling.build(number, node, pair), (node, gate, *tile.covered), tile.implementation)


def _matches(tiling: Tiling, fragment: Node, implementation: str) -> bool:
    return _matches_canonical(tiling.canonical(fragment)[0], implementation)


@lru_cache(maxsize=1 << 15)
def _matches_canonical(fragment: Node, implementation: str) -> bool:
    return not isinstance(match(fragment, implementation), str)


