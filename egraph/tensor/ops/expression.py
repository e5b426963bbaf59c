"""Expression: any tensor-algebra scope over its operands, as an operator; derivations make it, and it has no library kernel.

Its one attribute is the scope's canonical text, so that alpha-equivalent expressions are one node. The text contains no
shapes of operands; their types do. An inner scope is an operand of its own, computed by another node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from random import Random

import numpy as np

from egraph.tensor.expr.bodies import guarded_reads, operations
from egraph.tensor.expr.canonical import canonical
from egraph.tensor.expr.conditions import truth
from egraph.tensor.expr.evaluate import EvaluationError, Evaluator
from egraph.tensor.expr.index import DataIndex, Index, Iterator, atoms, bounds, length
from egraph.tensor.expr.parsing import ParseError, parse_scope
from egraph.tensor.expr.printing import format_scope
from egraph.tensor.expr.scope import Compare, Guarded, Number, Read, Reduction, Scalar, Scope, Table, Tensor, inside, table
from egraph.tensor.ops.sampling import SIZES, Sample
from egraph.tensor.ops.scopes import grid, multiply
from egraph.tensor.ops.sizes import refuse
from egraph.tensor.ops.spec import OpSpec, Shape, Values

MOST_POINTS = 1 << 22
"""The most positions at which one read is checked to lie inside its operand, if intervals do not decide."""


def text_of(scope: Scope) -> str:
    """Return the attribute of the expression that computes ``scope``, whose tensors are named by operand position."""
    return format_scope(canonical(scope))


def _meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    return _parsed(a["text"], tuple(operands))


@lru_cache(maxsize=1 << 12)
def _parsed(text: str, operands: tuple[Tensor, ...]) -> Scope:
    return parse_scope(text, {tensor.name: tensor for tensor in operands})


@lru_cache(maxsize=1 << 12)
def _checked(text: str, shapes: tuple[Shape, ...]) -> Shape:
    try:
        scope = _parsed(text, tuple(Tensor(str(k), shape) for k, shape in enumerate(shapes)))
        written = text_of(scope)
    except (ParseError, EvaluationError) as error:
        refuse(str(error))
    if written != text:
        refuse(f"the text is not canonical; it should be {written!r}")
    used: set[str] = set()
    for read, conditions in guarded_reads(scope.body):
        if isinstance(read, Read):
            if isinstance(read.source, Scope):
                refuse("an inner scope must be an operand of its own")
            used.add(read.source.name)
        _check_read(read, conditions)
    if used != {str(k) for k in range(len(shapes))}:
        refuse(f"it reads operands {', '.join(sorted(used))} of {len(shapes)}")
    return scope.shape


def _check_read(read: Read | Table, conditions: tuple[Compare, ...]) -> None:
    shape = read.source.shape if isinstance(read, Read) else read.shape
    if len(shape) != len(read.indices):
        refuse(f"a tensor of {len(shape)} axes is read with {len(read.indices)} indices")
    for size, coordinate in zip(shape, read.indices, strict=True):
        undecided = [required for required in inside(coordinate, 0, size) if not truth(required)]
        if not all(any(_follows(required, condition) for condition in conditions) for required in undecided):
            _check_place(coordinate, size, conditions)


def _follows(required: Compare, condition: Compare) -> bool:
    """Return whether one inequality follows from another by the ranges of what they differ in."""
    if "<=" not in (condition.operator, condition.operator + "="):
        return False
    required_slack = required.right - required.left - int(required.operator == "<")
    room = required_slack - (condition.right - condition.left - int(condition.operator == "<"))
    limits = bounds(room)
    return limits is not None and limits[0] >= 0


def _iterators(value: Index) -> set[Iterator]:
    return {atom for atom in atoms(value) if isinstance(atom, Iterator)}


def _check_place(coordinate: Index, size: object, conditions: tuple[Compare, ...]) -> None:
    """Refuse an index that leaves [0, size) at a position where the conditions over its own iterators hold."""
    if any(isinstance(atom, DataIndex) for atom in atoms(coordinate)):
        refuse("an index that is read from a tensor")
    iterators = sorted(_iterators(coordinate), key=lambda i: i.name)
    if bounds(coordinate) is None or math.prod(length(i) for i in iterators) > MOST_POINTS:
        refuse(f"whether the index {coordinate} stays within {size} is not decided")
    near = [c for c in conditions if _iterators(c.left - c.right) <= set(iterators)]
    evaluator = Evaluator({}, "float64", {})
    env = {i: np.arange(length(i)).reshape([-1 if j is i else 1 for j in iterators]) for i in iterators}
    value = evaluator.index(coordinate, env)
    if (((value < 0) | (value >= size)) & evaluator.conditions(near, env)).any():
        refuse(f"the index {coordinate} leaves 0..{size} where no guard forbids it")


def _shape(shapes: Sequence[Shape], a: Values) -> Shape:
    return _checked(a["text"], tuple(tuple(shape) for shape in shapes))


def _flops(shapes: Sequence[tuple[int, ...]], a: Values) -> int:
    return operations(_parsed(a["text"], tuple(Tensor(str(k), shape) for k, shape in enumerate(shapes))))


def _sample(random: Random) -> Sample:
    """Return a shifted, strided, padded read times a table or a second operand, summed; or a read through divisions."""
    if random.random() < 0.3:
        n, d = random.choice((2, 3, 4)), random.choice((2, 3))
        (i, j), at = grid("i", (n, d))
        flat = at[0] * d + at[1]
        scope = Scope.pointwise((i, j), Read(Tensor("0", (d, n)), (flat // n, flat % n)))
        return ((d, n),), {"text": text_of(scope)}
    size, taps, stride, channels = random.choice(SIZES), random.choice((1, 2, 3)), random.choice((1, 2)), random.choice(SIZES)
    outer, (c, h) = grid("i", (channels, random.choice(SIZES)))
    inner, (k,) = grid("k", (taps,))
    coordinate = h * stride + k - random.choice((0, 1))
    source = Tensor("0", (channels, size))
    value: Scalar = Read(source, (c, coordinate))
    shapes: tuple[tuple[int, ...], ...] = ((channels, size),)
    if random.random() < 0.5:
        weights = [Fraction(random.randint(-3, 3), random.choice((1, 2, 4))) for _ in range(taps)]
        value = multiply(value, table(weights, k))
    else:
        value = multiply(value, Read(Tensor("1", (taps, channels)), (k, c)))
        shapes += ((taps, channels),)
    guard = Guarded(inside(coordinate, 0, size), value, Number(Fraction(0)))
    return shapes, {"text": text_of(Scope(outer, inner, Reduction.SUM, guard))}


EXPRESSION: tuple[OpSpec, ...] = (
    OpSpec("Expression", None, "reduction", _shape, _meaning, _sample, attributes=("text",), flops=_flops),
)
