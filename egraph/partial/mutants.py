"""Mutants of an operator: programs of its type that agree with it on part of the output, by moves, the nearest first.

A beam of states is moved on, those first that agree with the operator at most of some positions: the disagreement leads.
What differs where is then proved, and a mutant is worth its corrections where these are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from egraph.derive.matching.views import moved_elements
from egraph.partial.moves import Mutated, moved, start
from egraph.tensor import Node
from egraph.tensor.boxes import Box, cells
from egraph.tensor.ops.window import Layout

Agreement = Callable[[Node], Callable[[Node], float]]
"""Returns, for an operator, what says at which share of some positions a program is seen to agree with it on random operands."""
Where = Callable[[Node, Node], tuple[Box, ...] | None]
"""Returns disjoint boxes outside of which two programs are proved equal; None where that is not decided."""
LARGEST_SHARE = 0.6
"""Corrections may compute at most this part of the output."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far mutants are looked for; more finds what less found, unless the beam leads elsewhere."""

    tried: int
    """Programs that are compared with an operator or a region at some positions."""
    decided: int
    """Programs of which it is proved where they differ; of an operator's, of those that agree at all positions tried and of the others."""
    least_agreement: float = 0.4


@dataclass(frozen=True, slots=True)
class BeamBounds(Bounds):
    """How far a convolution is moved."""

    tried: int = 600
    decided: int = 10
    depth: int = 2
    """Moves one after the other."""
    beam: int = 4
    """States that are moved on."""
    alike: int = 2
    """Of the programs that are decided, those of the same moves."""


BOUNDS = BeamBounds()


@dataclass(frozen=True, slots=True)
class Mutant:
    """Programs, one a result, how they came about, and disjoint boxes outside of which each is proved equal."""

    programs: tuple[Node, ...]
    moves: tuple[str, ...]
    boxes: tuple[tuple[Box, ...], ...]

    @property
    def cells(self) -> int:
        return sum(map(cells, self.boxes))


def decided(roots: Sequence[Node], programs: tuple[Node, ...], moves: tuple[str, ...], where: Where) -> Mutant | None:
    """Return programs as a mutant of results; None where it is not proved that they differ in a part that is worth a correction."""
    boxes: list[tuple[Box, ...]] = []
    for root, program in zip(roots, programs, strict=True):
        differ = where(root, program)
        if differ is None or cells(differ) > LARGEST_SHARE * root.type.elements:
            return None
        boxes.append(differ)
    return Mutant(programs, moves, tuple(boxes))


def mutants(node: Node, agreement: Agreement, where: Where, bounds: BeamBounds = BOUNDS) -> tuple[Mutant, ...]:
    """Return mutants of an operator over placeholders, those with the fewest cells to correct first.

    Of those that the same moves make, one is equal everywhere (zeros keep the parts apart) and one moves the fewest elements.
    """
    if node.op != "Conv":
        return ()
    layout = Layout(node.string("layout"), node.type.rank - 2)
    agrees = agreement(node)
    seen: dict[Node, float] = {node: 1.0}
    states: dict[Node, Mutated] = {}
    beam: tuple[tuple[float, Mutated], ...] = ((0.0, start(node)),)
    for _ in range(bounds.depth):
        made: list[tuple[float, int, Mutated]] = []
        for before, state in beam:
            for candidate in moved(state, layout):
                program = candidate.program(node)
                if program is None or program in seen or len(seen) >= bounds.tried:
                    continue
                seen[program] = agrees(program)
                if seen[program] >= bounds.least_agreement and seen[program] != before:  # a move that changes nothing stands alone
                    states[program] = candidate
                    if seen[program] < 1.0:  # what is equal everywhere is an operator of its own in the e-graph, with moves of its own
                        made.append((-seen[program], len(made), candidate))
        beam = _different(((-share, state) for share, _, state in sorted(made)), bounds.beam)
    order = sorted(states, key=lambda p: (-seen[p], len(states[p].names), moved_elements(p), p.digest))
    result: dict[tuple[tuple[str, ...], bool], Mutant] = {}
    for seems_equal in (True, False):
        compared: list[tuple[str, ...]] = []
        for program in (program for program in order if (seen[program] == 1.0) == seems_equal):
            names = states[program].names
            if len(compared) >= bounds.decided or (names, seems_equal) in result or compared.count(names) >= bounds.alike:
                continue
            compared.append(names)
            mutant = decided((node,), (program,), names, where)
            if mutant is not None:
                result.setdefault((names, not mutant.cells), mutant)
    return tuple(sorted(result.values(), key=lambda m: (m.cells, moved_elements(m.programs[0]), m.programs[0].digest)))


def _different(states: Iterable[tuple[float, Mutated]], count: int) -> tuple[tuple[float, Mutated], ...]:
    """Return the first states of different moves, so many, with their agreement."""
    first: dict[tuple[str, ...], tuple[float, Mutated]] = {}
    for share, state in states:
        if len(first) < count:
            first.setdefault(state.names, (share, state))
    return tuple(first.values())
