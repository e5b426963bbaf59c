"""Draw sizes for the variables of TASO terms such that the terms are well-typed: groups, odd and even kernels, uneven concatenations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from bench.corpora.linear import Affine, Sizes, System
from bench.corpora.taso_operators import VALID
from bench.corpora.terms import Application, Term
from verify.random_binding import Refused

EXTENTS = (1, 2, 2, 3, 3, 4, 5, 6)
GROUPS = (1, 1, 1, 2, 2, 3, 0)
"""Numbers of groups; 0 stands for one channel a group."""
CONSTANTS = frozenset({"Imatmul", "Iewmul"})


@dataclass(frozen=True)
class Drafted:
    """The sizes of a term, and the two parts of each axis that was concatenated."""

    sizes: Sizes
    seams: Mapping[int, tuple[Drafted, Drafted] | None] = field(default_factory=dict)


class Draft:
    """Unknown sizes of variables, with the equations that terms put on them."""

    def __init__(self, ranks: Mapping[str, int], random: Random) -> None:
        self.random, self.system = random, System(random)
        odd = random.random() < 0.75
        self.parity = [odd if random.random() < 0.9 else not odd for _ in range(2)]
        self.group = random.choice((1, *GROUPS[2:])) if random.random() < 0.6 else None
        """The number of groups of every convolution, if they have it in common."""
        self.twins = random.random() < 0.4
        self.known: dict[Term, Drafted | None] = {}
        self.outputs: dict[object, Affine] = {}
        self.shapes: dict[str, Sizes] = {
            name: tuple(self.system.unknown(EXTENTS) for _ in range(rank)) for name, rank in ranks.items()
        }

    def equate(self, left: Sizes, right: Sizes) -> None:
        if len(left) != len(right):
            raise Refused("ranks differ")
        for a, b in zip(left, right, strict=True):
            x, y = self.system.simplify(a), self.system.simplify(b)
            if len(x.terms) == 2 == len(y.terms) and not x.constant and not y.constant and self.random.random() < 0.6:
                for (u, c), (v, d) in zip(x.terms, y.terms, strict=True):  # a + b = c + d: a = c and b = d, mostly
                    self.system.equate(Affine(0, ((u, c),)), Affine(0, ((v, d),)))
                self.system.equate(a, b)
            elif x != y:
                self.system.equate(x, y)

    def term(self, term: Term) -> Drafted | None:
        """Return the sizes of a term and where it was concatenated, None for a constant that fits anywhere."""
        if term not in self.known:
            self.known[term] = self._term(term)
        return self.known[term]

    def _term(self, term: Term) -> Drafted | None:
        match term:
            case str() if term in CONSTANTS:
                return None
            case str():
                return Drafted(self.shapes[term])
            case Application(operator, arguments):
                return self._application(operator, arguments)
        raise Refused("a number stands where a tensor is needed")

    def _application(self, operator: str, arguments: tuple[Term, ...]) -> Drafted | None:
        numbers = [a for a in arguments if isinstance(a, int)]
        if operator in ("Iconv", "Cpool"):
            return None
        if operator in ("split_0", "split_1"):
            inner = arguments[-1]
            if isinstance(inner, Application) and inner.operator == "split":
                numbers, inner = [a for a in inner.arguments if isinstance(a, int)], inner.arguments[-1]
            return self._part(self.term(inner), numbers[0], int(operator[-1]))
        operands = [self.term(a) for a in arguments if not isinstance(a, int)]
        shapes = [o for o in operands if o is not None]
        sizes = [o.sizes for o in shapes]
        if not shapes or (operands[0] is None and operator == "smul"):
            return None
        match operator:
            case "conv2d":
                result = self._conv((numbers[0], numbers[1]), numbers[2], sizes)
                return Drafted(result, {0: shapes[0].seams.get(0), 1: shapes[-1].seams.get(0 if len(shapes) == 2 else 1)})
            case "poolmax" | "poolavg":
                kh, kw, sh, sw, padding = numbers[:5]
                spatial = self._window(sizes[0][2:], (Affine(kh), Affine(kw)), (sh, sw), padding)
                return Drafted((*sizes[0][:2], *spatial), shapes[0].seams)
            case "ewadd" | "ewmul":
                if len(shapes) == 2:
                    self.equate(sizes[0], sizes[1])
                return shapes[0]
            case "matmul" if len(shapes) == 2:
                self.equate((sizes[0][-1],), (sizes[1][0],))
                return Drafted((sizes[0][0], sizes[1][-1]), {0: shapes[0].seams.get(0), 1: shapes[1].seams.get(1)})
            case "matmul" | "relu" | "smul" | "sigmoid" | "tanh":
                return shapes[0]
            case "merge":
                return None
            case "transpose":
                return Drafted(sizes[0][::-1], {1 - axis: seam for axis, seam in shapes[0].seams.items()})
            case "concat":
                return self._concat(numbers[0], shapes)
            case "enlarge":
                kernel = sizes[1][2:] if len(shapes) == 2 else tuple(Affine(k) for k in numbers)
                return Drafted((*sizes[0][:2], *kernel), shapes[0].seams)
        raise Refused(f"operator {operator} is unknown")

    def _concat(self, axis: int, operands: Sequence[Drafted]) -> Drafted:
        result = operands[0]
        if axis >= len(result.sizes):
            raise Refused("no such axis")
        for operand in operands[1:]:
            first, second = result.sizes, operand.sizes
            self.equate(first[:axis] + first[axis + 1 :], second[:axis] + second[axis + 1 :])
            if self.twins and (self.system.simplify(first[axis] - second[axis])).terms:
                self.equate(first[axis : axis + 1], second[axis : axis + 1])
            sizes = (*first[:axis], first[axis] + second[axis], *first[axis + 1 :])
            result = Drafted(sizes, {**result.seams, axis: (result, operand)})
        return result

    def _part(self, whole: Drafted | None, axis: int, part: int) -> Drafted:
        """Return the sizes of a part on one side of the concatenation."""
        seam = None if whole is None else whole.seams.get(axis)
        if whole is None or seam is None:
            raise Refused("a split of what was not concatenated")
        sizes = (*whole.sizes[:axis], seam[part].sizes[axis], *whole.sizes[axis + 1 :])
        return Drafted(sizes, {**whole.seams, axis: seam[part].seams.get(axis)})

    def _conv(self, strides: tuple[int, int], padding: int, operands: Sequence[Sizes]) -> Sizes:
        data = operands[0]
        if len(operands) == 1:  # a constant kernel of three taps
            return (*data[:2], *self._window(data[2:], (Affine(3), Affine(3)), strides, padding))
        weight = operands[1]
        if len(data) != 4 or len(weight) != 4:
            raise Refused("a convolution of another rank")
        group = self.random.choice(GROUPS) if self.group is None else self.group
        if group:
            self.equate((data[1],), (weight[1] * group,))
            self.equate((weight[0],), (self.system.unknown((1, 1, 2, 3)) * group,))
        else:
            self.equate((weight[1],), (Affine(1),))
            self.equate((weight[0],), (data[1] * self.random.choice((1, 1, 2)),))
        for size, odd in zip(weight[2:], self.parity, strict=True):
            if self.system.simplify(size).terms and padding != VALID:
                self.equate((size,), (self.system.unknown((0, 1, 1, 2) if odd else (0, 0, 1), 0) * 2 + (1 if odd else 2),))
        return (data[0], weight[0], *self._window(data[2:], weight[2:], strides, padding))

    def _window(self, space: Sizes, kernel: Sizes, strides: tuple[int, int], padding: int) -> Sizes:
        result = []
        for size, taps, stride, odd in zip(space, kernel, strides, self.parity, strict=True):
            if stride == 1 and padding == VALID:
                result.append(size - taps + 1)
            elif stride == 1:
                taps = self.system.simplify(taps)
                even = not odd if taps.terms else taps.constant % 2 == 0
                result.append(size + (1 if even else 0))
            else:  # decided by rejection; the same sizes give the same result
                key = (self.system.simplify(size), self.system.simplify(taps), stride, padding)
                result.append(self.outputs.setdefault(key, self.system.unknown(EXTENTS)))
        return tuple(result)


def draw_shapes(
    lefts: Sequence[Term], rights: Sequence[Term], ranks: Mapping[str, int], random: Random
) -> Mapping[str, tuple[int, ...]]:
    """Return shapes of the variables for which the left terms are likely well-typed; raises ``Refused`` if a draw fails.

    Half of the draws meet the right terms' constraints too; the others find cases in which these ask for more.
    """
    draft = Draft(ranks, random)
    for term in (*lefts, *rights) if random.random() < 0.5 else lefts:
        draft.term(term)
    values = draft.system.draw()
    shapes = {name: tuple(draft.system.value(size, values) for size in sizes) for name, sizes in draft.shapes.items()}
    for shape in shapes.values():
        if min(shape, default=1) < 1:
            raise Refused("a size would be smaller than one")
    return shapes
