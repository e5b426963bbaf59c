"""Enumerate the terms of a context and group them by their values; terms of one group are candidate equations.

Values are exact residues in F_p if every operator is rational, else float64 on signed data. Terms are composed of
one representative per group. An equation between terms that differ only in a subterm is therefore never generated: it follows
by congruence from the equation of the subterms (TASO's common subgraphs, and those above them).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

import numpy as np

from egraph.tensor import Attributes
from egraph.tensor.expr.evaluate import Field
from egraph.tensor.expr.evaluate import evaluate as evaluate_scope
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.scope import Scope, Tensor
from egraph.tensor.ops import OPS
from verify.generate.contexts import Context, settle
from verify.generate.dimensions import Sizes, instantiate, match
from verify.generate.productions import Production
from verify.generate.terms import Application, Equation, Term, attributes_of, describe, joint_context, length_in, variables
from verify.random_testing import RATIONAL

EXTENTS = (3, 2, 5, 4, 7, 6, 11, 8, 13, 9, 17, 10)
"""Lengths of d0, d1, ... in the first test; the second test swaps them in pairs."""
DIGITS = 8
"""Decimal digits to which float64 values that differ only by rounding agree."""


def lengths_of(context: Context, world: int) -> dict[str, int]:
    """Return a length for each extent of a context; the lengths are all different, and each world has another choice."""
    names = sorted({n for shape in context for size in shape for n in size if not n.isdigit()}, key=lambda n: int(n[1:]))
    return {name: EXTENTS[(i ^ (world % 2)) % len(EXTENTS)] + 2 * (world // 2) for i, name in enumerate(names)}


def field_of(productions: Sequence[Production]) -> Field:
    """Return the arithmetic in which terms of these operators are compared."""
    return "prime" if all(production.op in RATIONAL for production in productions) else "float64"


@lru_cache(maxsize=1 << 14)
def _meaning(op: str, values: Attributes, shapes: tuple[tuple[int, ...], ...]) -> Scope:
    return OPS[op].meaning([Tensor(str(i), shape, "float32") for i, shape in enumerate(shapes)], dict(values))


@dataclass
class World:
    """Random data for the variables of a context, and the values of terms over them."""

    context: Context
    arithmetic: Field
    number: int
    lengths: dict[str, int] = field(init=False)
    values: dict[Term, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = lengths_of(self.context, self.number)
        seed = int.from_bytes(hashlib.sha256(f"{self.number} {self.context!r}".encode()).digest()[:8], "big")
        generator = np.random.default_rng(seed)
        length = length_in(self.lengths)
        self.values = {}
        for i, shape in enumerate(self.context):
            sizes = tuple(map(length, shape))
            drawn = generator.integers(1, PRIME, sizes) if self.arithmetic == "prime" else self._signed(generator, sizes)
            self.values[i] = np.asarray(drawn)

    @staticmethod
    def _signed(generator: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
        """Draw nonzero multiples of 1/8, equally many of either sign; their polynomials and maxima are exact."""
        count = math.prod(sizes)
        signs = generator.permutation(np.where(np.arange(count) % 2, 1, -1)).reshape(sizes)
        return np.asarray(generator.integers(1, 25, sizes) * signs / 8)

    def value(self, term: Term) -> np.ndarray:
        """Return the value of a term."""
        if term not in self.values:
            assert isinstance(term, Application)
            self.values[term] = self.apply(term, [self.value(operand) for operand in term.operands])
        return self.values[term]

    def apply(self, term: Application, operands: Sequence[np.ndarray]) -> np.ndarray:
        values = attributes_of(term, self.context, self.lengths)
        scope = _meaning(term.production.op, values, tuple(operand.shape for operand in operands))
        with np.errstate(all="ignore"):
            return evaluate_scope(scope, {str(i): operand for i, operand in enumerate(operands)}, self.arithmetic)

    def fingerprint(self, value: np.ndarray) -> bytes:
        """Return a key that equal values share."""
        if self.arithmetic == "prime":
            return value.tobytes()
        scale = float(np.abs(value[np.isfinite(value)]).max(initial=0.0)) or 1.0
        rounded = np.round(value / 10.0 ** np.floor(np.log10(scale)), DIGITS) + 0.0
        return f"{scale:.6g}".encode() + np.asarray(rounded).tobytes()


def agree(left: np.ndarray, right: np.ndarray, arithmetic: Field) -> bool:
    """Return whether two values are equal, in float64 up to rounding."""
    if left.shape != right.shape:
        return False
    if arithmetic == "prime":
        return bool(np.array_equal(left, right))
    scale = max(1.0, float(np.abs(left[np.isfinite(left)]).max(initial=0.0)))
    return bool(np.allclose(left, right, rtol=0.0, atol=1e-9 * scale, equal_nan=True))


def candidates(
    context: Context, productions: Sequence[Production], depth: int, seen: frozenset[Context], *, terms: int
) -> tuple[tuple[Equation, ...], int]:
    """Return the equations of terms of up to ``depth`` operators that need this context, and the number of terms tried.

    Equations whose most general context is another one of the ``seen`` contexts are left to that one. At most ``terms`` terms
    are evaluated.
    """
    arithmetic = field_of(productions)
    world, second = World(context, arithmetic, 0), World(context, arithmetic, 1)
    groups: dict[tuple[Sizes, bytes], Term] = {}
    levels: list[list[tuple[Term, Sizes, frozenset[int]]]] = [[]]
    for i, shape in enumerate(context):
        groups[(shape, world.fingerprint(world.values[i]))] = i
        levels[0].append((i, shape, frozenset((i,))))
    everything = frozenset(range(len(context)))
    kept: dict[str, Equation] = {}
    tried = 0
    for level in range(1, depth + 1):
        levels.append([])
        for term, shape in _compositions(levels, level, productions):
            used = frozenset(variables(term))
            if len(everything - used) > depth - level:
                continue
            if tried >= terms:
                return tuple(kept.values()), tried
            tried += 1
            value = world.apply(term, [world.values[operand] for operand in term.operands])
            if not np.isfinite(value).any():
                continue
            key = (tuple(tuple(sorted(size)) for size in shape), world.fingerprint(value))
            first = groups.setdefault(key, term)
            if first is term:
                world.values[term] = value
                levels[level].append((term, shape, used))
                continue
            if used | frozenset(variables(first)) != everything:
                continue
            general = joint_context((term, first), len(context))
            if general is not None and general != context and settle(general)[0] in seen:
                continue
            if agree(second.value(term), second.value(first), arithmetic):
                equation = Equation(term, first, context)
                kept.setdefault(str(equation), equation)
    return tuple(kept.values()), tried


def _compositions(
    levels: Sequence[Sequence[tuple[Term, Sizes, frozenset[int]]]], level: int, productions: Sequence[Production]
) -> Iterator[tuple[Application, Sizes]]:
    """Yield the well-typed applications of operators to representatives, with ``level`` operators in total."""
    for production in productions:
        expected, made = production.shapes
        if production.arity == 1:
            for term, shape, _ in levels[level - 1]:
                bound: dict[str, tuple[str, ...]] = {}
                if match(expected[0], shape, bound):
                    yield Application(production, (term,)), instantiate(made, bound)
            continue
        for first in range(level):
            for (left, left_shape, _), (right, right_shape, _) in product(levels[first], levels[level - 1 - first]):
                if production.commutative and (describe(left), first) > (describe(right), level - 1 - first):
                    continue
                bound = {}
                if match(expected[0], left_shape, bound) and match(expected[1], right_shape, bound):
                    yield Application(production, (left, right)), instantiate(made, bound)


def commutativity(productions: Sequence[Production]) -> tuple[Equation, ...]:
    """Return ``x op y = y op x`` for the commutative operators, which enumeration generates in only one order."""
    equations = []
    seen: set[str] = set()
    for production in productions:
        if production.commutative and production.op not in seen:
            seen.add(production.op)
            context = joint_context((Application(production, (0, 1)),), 2)
            assert context is not None
            equations.append(Equation(Application(production, (0, 1)), Application(production, (1, 0)), context))
    return tuple(equations)

