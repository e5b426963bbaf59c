"""Mutants of an operator: programs of its type that agree with it on part of the output, found by moves, nearest first.

A beam search expands the states that agree with the operator at the largest share of the compared positions.
Afterwards it is proved where each mutant differs; a mutant is worth its corrections if these are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from egraph.derive.estimating import estimate
from egraph.partial.arrangements import Nodes
from egraph.partial.moves import Move, Mutated, is_symmetric, mirrored_axis, moved, start, with_few_channels
from egraph.tensor import Node
from egraph.tensor.boxes import Box, boxes_of, cells, mask_of
from egraph.tensor.ops.window import Layout

Agreement = Callable[[Node], Callable[[Node], float]]
"""A function that takes an operator and returns a function of programs: the share of some positions, on random operands, at which
a program agrees with the operator.
"""
Where = Callable[[Node, Node], tuple[Box, ...] | None]
"""A function that returns disjoint boxes outside of which two programs are proved equal; None if that is undecided."""
Moves = tuple[str, ...]
Pair = tuple[Mutated, Mutated]
"""A state of an operator, and the corresponding state of the operator with few channels, which is used for comparisons."""
LARGEST_SHARE = 0.6
"""The largest part of the output that corrections may compute."""
MOST_KINDS = 4
"""The number of additional programs of new kinds that are decided although others agree more. Kinds differ in the sizes of the parts of a
tensor, on which the speed of a kernel depends.
"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of the search for mutants. Larger limits find everything that smaller ones find, unless the beam takes another way."""

    tried: int
    """The most programs that are compared with an operator or a region at some positions."""
    decided: int
    """The most programs for which it is proved where they differ: once for those that agree at all compared positions, once for others."""
    alike: int
    """The most of these with the same moves."""
    least_agreement: float = 0.4


@dataclass(frozen=True, slots=True)
class BeamBounds(Bounds):
    """The limits of the moves of a convolution."""

    tried: int = 600
    decided: int = 10
    alike: int = 2
    depth: int = 2
    """The number of successive moves."""
    beam: int = 4
    """The number of states that are expanded in each step."""


BOUNDS = BeamBounds()


@dataclass(frozen=True, slots=True)
class Mutant:
    """Programs, one per result, the moves that led to them, and disjoint boxes outside of which each is proved equal."""

    programs: Nodes
    moves: Moves
    boxes: tuple[tuple[Box, ...], ...]

    @property
    def cells(self) -> int:
        return sum(map(cells, self.boxes))


def decided(
    roots: Nodes, seen: Mapping[Nodes, float], moves: Callable[[Nodes], Moves], where: Where, bounds: Bounds,
    kind: Callable[[Nodes], object] = lambda programs: None,
) -> tuple[Mutant, ...]:  # fmt: skip
    """Return the programs that are worth their corrections, those with the fewest cells to correct first, ties by cost.

    ``seen``: the share of some positions at which each agrees with the results. Of the programs by the same moves, in any order, one that
    is equal everywhere and one that is corrected are kept: the one that agrees most, ties by estimated cost. New kinds have
    ``MOST_KINDS`` places beyond the limit.
    """
    cost = {each: (estimate(*each), len(moves(each)), [program.digest for program in each]) for each in seen}
    order = sorted(seen, key=lambda each: (-seen[each], cost[each]))
    kept: dict[tuple[Moves, bool], Mutant] = {}
    for seems_equal in (True, False):
        compared, kinds = list[Moves](), set[object]()
        for each in (each for each in order if (seen[each] == 1.0) == seems_equal):
            names = tuple(sorted(moves(each)))
            most = bounds.decided + (0 if kind(each) in kinds else MOST_KINDS)
            if len(compared) >= most or (names, seems_equal) in kept or compared.count(names) >= bounds.alike:
                continue
            compared.append(names)
            kinds.add(kind(each))
            boxes = _boxes(roots, each, where)
            if boxes is not None:
                kept.setdefault((names, not any(boxes)), Mutant(each, moves(each), boxes))
    return tuple(sorted(kept.values(), key=lambda each: (each.cells, cost[each.programs])))


def _boxes(roots: Nodes, programs: Nodes, where: Where) -> tuple[tuple[Box, ...], ...] | None:
    """Return the boxes where programs differ from results; None if it is not proved that corrections of them are small enough."""
    boxes: list[tuple[Box, ...]] = []
    for root, program in zip(roots, programs, strict=True):
        differ = where(root, program)
        if differ is None or cells(differ) > LARGEST_SHARE * root.type.elements:
            return None
        boxes.append(differ)
    return tuple(boxes)


def mutants(node: Node, agreement: Agreement, where: Where, bounds: BeamBounds = BOUNDS) -> tuple[Mutant, ...]:
    """Return mutants of an operator over placeholders. Zeros keep the parts apart in the mutants that are equal everywhere.

    If both spatial axes are alike, the agreement of a program also holds for the program with the axes exchanged.
    """
    if node.op != "Conv":
        return ()
    layout = Layout(node.string("layout"), node.type.rank - 2)
    mirrored = partial(_mirrored, layout=layout) if is_symmetric(node) else None
    thin = with_few_channels(node)
    agrees = _once_of_two(agreement(thin), mirrored)
    seen: dict[Node, float] = {node: 1.0}
    states: dict[Node, Mutated] = {}
    beam: tuple[tuple[float, Pair], ...] = ((0.0, (start(node), start(thin))),)
    for _ in range(bounds.depth):
        made: list[tuple[float, int, Pair]] = []
        for before, pair in beam:
            for candidate in zip(*(moved(state, layout) for state in pair), strict=True):
                program, compared = (state.program(operator) for state, operator in zip(candidate, (node, thin), strict=True))
                if program is None or compared is None or program in seen or len(seen) >= bounds.tried:
                    continue
                seen[program] = agrees(compared, candidate[0].moves)
                if seen[program] >= bounds.least_agreement and seen[program] != before:  # a move without effect stands alone
                    states[program] = candidate[0]
                    if seen[program] < 1.0:  # otherwise it is an operator of its own in the e-graph, with its own moves
                        made.append((-seen[program], len(made), candidate))
        beam = _different(((-share, pair) for share, _, pair in sorted(made, key=lambda each: each[:2])), bounds.beam)
    shares: dict[Nodes, float] = {(program,): seen[program] for program in states}
    names, parts = lambda programs: states[programs[0]].names, lambda programs: states[programs[0]].parts
    known: dict[tuple[Move, ...], tuple[Box, ...] | None] = {}

    def where_or_mirrored(original: Node, program: Node) -> tuple[Box, ...] | None:
        moves = states[program].moves
        other = None if mirrored is None else mirrored(moves)
        known[moves] = _exchanged(known[other], original, layout) if other in known else where(original, program)
        return known[moves]

    return decided((node,), shares, names, where_or_mirrored, bounds, parts)


def _mirrored(moves: tuple[Move, ...], layout: Layout) -> tuple[Move, ...]:
    return tuple(move.mirrored(layout) for move in moves)


def _once_of_two(
    agrees: Callable[[Node], float], mirrored: Callable[[tuple[Move, ...]], tuple[Move, ...]] | None
) -> Callable[[Node, tuple[Move, ...]], float]:
    """Return a function of a program and its moves that gives its agreement, computed once for two programs that are mirror images."""
    shares: dict[tuple[Move, ...], float] = {}

    def share(program: Node, moves: tuple[Move, ...]) -> float:
        other = None if mirrored is None else mirrored(moves)
        shares[moves] = shares[other] if other in shares else agrees(program)
        return shares[moves]

    return share


def _exchanged(boxes: tuple[Box, ...] | None, node: Node, layout: Layout) -> tuple[Box, ...] | None:
    """Return boxes of a tensor with the two spatial axes exchanged."""
    if boxes is None:
        return None
    order = [mirrored_axis(axis, layout) for axis in range(node.type.rank)]
    return boxes_of(mask_of([tuple(box[axis] for axis in order) for box in boxes], node.type.sizes))


def _different(pairs: Iterable[tuple[float, Pair]], count: int) -> tuple[tuple[float, Pair], ...]:
    """Return the first ``count`` states of different moves, with their agreement."""
    first: dict[Moves, tuple[float, Pair]] = {}
    for share, pair in pairs:
        if len(first) < count:
            first.setdefault(pair[0].names, (share, pair))
    return tuple(first.values())
