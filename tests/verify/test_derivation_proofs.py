"""Derived programs are proved equal to the operators that they compute, at real sizes; wrong ones are refuted or stay open.

The reference interpreter decides which programs are right, in a prime field and at sizes that it can evaluate.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from egraph.errors import EinsatError
from egraph.tensor import Node, walk
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.index import Iterator, index
from egraph.tensor.expr.parsing import ParseError, parse_scope
from egraph.tensor.expr.scope import ZERO, Guarded, Scope, Tensor, inside, table
from egraph.tensor.node import rewrite
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import evaluate, fragment_expression
from egraph.tensor.ops.scopes import read
from tests.support import derived_bilinear as bilinear
from tests.support import derived_programs as programs
from tests.support.derived_bilinear import Matrices
from tests.support.fragments import Pair, leaf
from tests.support.normal_values import Evaluator, Residues
from verify.application import equal_at_sizes
from verify.assumptions import Assumptions
from verify.equality import prove_equal
from verify.facts import Facts
from verify.normal import normalise
from verify.normal.grids import Grid, structure
from verify.outcome import Equal
from verify.sampling import difference, drawn

Build = Callable[[], Pair]

AT_REAL_SIZES: dict[str, Build] = {
    "F(2,3) at 64x56x56": lambda: bilinear.winograd(1, 64, 64, 56, 56, 3, 3, (2, 2)),
    "F(4,3) at 256x56x56": lambda: bilinear.winograd(1, 256, 256, 56, 56, 3, 3, (4, 4)),
    "F(6,3) at 512x28x28": lambda: bilinear.winograd(1, 512, 512, 28, 28, 3, 3, (6, 6)),
    "F(4,5)": lambda: bilinear.winograd(1, 48, 64, 38, 38, 5, 5, (4, 4)),
    "F(2,7) along a row": lambda: bilinear.winograd(4, 128, 128, 17, 17, 1, 7, (1, 2)),
    "F(4,3) in blocks of rows": lambda: bilinear.rows_apart(1, 64, 64, 224, 56, (4, 4)),
    "blocks of rows": lambda: bilinear.rows_apart(2, 64, 64, 224, 32),
    "gathered 64x56x56": lambda: programs.gathered(1, 64, 64, 56, 56, 3, 3),
    "gathered, strided": lambda: programs.gathered(4, 3, 64, 224, 224, 7, 7, stride=2),
    "gathered, dilated": lambda: programs.gathered(1, 512, 256, 14, 14, 3, 3, dilation=2),
    "gathered in groups": lambda: programs.gathered(1, 768, 192, 18, 18, 3, 3, group=12),
    "gathered, depthwise": lambda: programs.gathered(1, 32, 32, 112, 112, 3, 3, group=32),
    "conv3x3 as product and offset reduction": lambda: programs.offset_reduced(8, 16, 32, 224, 224, 3, 3),
    "conv3x3 512 at 7x7": lambda: programs.offset_reduced(1, 512, 512, 7, 7, 3, 3),
    "conv1x7 as product and offset reduction": lambda: programs.offset_reduced(1, 2048, 128, 7, 7, 1, 7),
    "conv1x1": lambda: programs.pointwise_product(1, 512, 512, 7),
    "one product for each tap": lambda: programs.taps_apart(1, 3, 64, 224, 3),
    "transposed 4x4, by parity": lambda: programs.transposed(1, 448, 256, 2),
    "transposed 4x4, batch 16": lambda: programs.transposed(16, 448, 256, 2),
    "transposed 4x4, all taps": lambda: programs.transposed(1, 448, 256, 2, by_parity=False),
    "transposed 8x8, stride 4": lambda: programs.transposed(1, 56, 3, 12, 8, 4, 2),
    "transposed as four convolutions": lambda: programs.interleaved(1, 448, 256, 4),
    "conv5x5 as conv3x3": lambda: programs.enlarged(16, 32, 224, 1, 5),
    "conv6x6 as conv3x3": lambda: programs.enlarged(1, 16, 224, 64, 6),
    "conv9x9 as conv3x3": lambda: programs.enlarged(8, 16, 224, 32, 9),
    "conv9x9 as conv3x3, relaxed": lambda: programs.enlarged(8, 16, 224, 32, 9, 4),
    "stride 2 by phases": lambda: programs.phased(1, 64, 128, 56),
    "stride 2 by phases, odd": lambda: programs.phased(2, 8, 8, 57),
    "stride 2 by phases, 7x7": lambda: programs.phased(1, 3, 64, 224, 7),
    "dilation into the batch": lambda: programs.undilated(1, 512, 256, 14),
    "band product": lambda: programs.narrow_band(programs.band, 8, 10_000, 512, 32, 4, "batch"),
    "product of a band": lambda: programs.narrow_band(programs.band_of, 8, 10_000, 512, 32, 4, "batch"),
    "correlation": lambda: programs.correlation(32, swapped=False),
    "Strassen by tables": lambda: bilinear.strassen(512, 256, 768),
    "Strassen by slices": lambda: bilinear.strassen_of_slices(256),
    "two products merged": lambda: programs.merged(128, 64, 32, which=1),
    "attention in a band": lambda: programs.band_attention(8, 10_000, 64, 32, 4),
    "positions along a line": lambda: programs.line_of("x + 2y"),
    "positions along a line, downwards": lambda: programs.line_of("x - 2y"),
    "positions along a line, both downwards": lambda: programs.line_of("-x - 2y"),
    "a reshape": lambda: programs.flattened(7),
    "two convolutions in turn": lambda: programs.in_turn(1, 64, 56),
    "below bias, residual and activation": lambda: programs.below(programs.with_residual, bilinear.winograd(1, 8, 8, 28, 28, 3, 3, (4, 4))),
    "below a pool": lambda: programs.below(programs.pooled, bilinear.winograd(1, 64, 64, 56, 56, 3, 3, (4, 4))),
    "projections of heads": lambda: programs.heads(1, 128, 12, 64),
}
SMALL: dict[str, Build] = {
    "F(2,3)": lambda: bilinear.winograd(2, 3, 4, 5, 6, 3, 3, (2, 2)),
    "F(3,3), uneven padding": lambda: bilinear.winograd(1, 2, 2, 5, 7, 3, 3, (3, 2), (0, 2, 1, 0)),
    "F(4,3), F(2,2)": lambda: bilinear.winograd(1, 2, 2, 7, 5, 3, 2, (4, 2), (1, 1, 1, 0)),
    "F(2,5)": lambda: bilinear.winograd(1, 1, 2, 5, 5, 5, 5, (2, 2)),
    "F(2,3) in blocks": lambda: bilinear.rows_apart(1, 2, 2, 9, 4, (2, 2)),
    "gathered": lambda: programs.gathered(2, 4, 4, 5, 6, 3, 3, 2, 1, 2),
    "offset reduction": lambda: programs.offset_reduced(2, 2, 3, 4, 5, 3, 3),
    "transposed": lambda: programs.transposed(2, 2, 3, 3),
    "transposed, all taps": lambda: programs.transposed(1, 2, 3, 3, 6, 3, 1, by_parity=False),
    "interleaved": lambda: programs.interleaved(1, 2, 2, 3),
    "enlarged": lambda: programs.enlarged(1, 2, 8, 2, 5),
    "phased": lambda: programs.phased(1, 2, 2, 7),
    "undilated": lambda: programs.undilated(2, 2, 2, 6, 3),
    "band": lambda: programs.narrow_band(programs.band, 2, 12, 2, 2, 3, "batch"),
    "product of a band": lambda: programs.narrow_band(programs.band_of, 1, 12, 2, 2, 3, "batch"),
    "Strassen": lambda: bilinear.strassen(4, 2, 6),
    "merged": lambda: programs.merged(3, 2, 4, which=1),
}


def swapped_rows(matrices: list[Matrices]) -> list[Matrices]:
    (a, g, b), second = matrices
    return [(a, [g[1], g[0], *g[2:]], b), second]


def one_constant_off(matrices: list[Matrices]) -> list[Matrices]:
    (a, g, b), second = matrices
    return [(a, g, [[b[0][0] + Fraction(1, 64), *b[0][1:]], *b[1:]]), second]


def outputs_shifted(matrices: list[Matrices]) -> list[Matrices]:
    (a, g, b), second = matrices
    return [([*a[1:], a[0]], g, b), second]


WRONG: dict[str, Build] = {
    "constants of another row": lambda: bilinear.winograd(1, 64, 64, 56, 56, 3, 3, (4, 4), change=swapped_rows),
    "one constant": lambda: bilinear.winograd(1, 64, 64, 56, 56, 3, 3, (4, 4), change=one_constant_off),
    "another output of the tile": lambda: bilinear.winograd(1, 64, 64, 56, 56, 3, 3, (4, 4), change=outputs_shifted),
    "a tile that starts one column late": lambda: bilinear.winograd(1, 64, 64, 56, 56, 3, 3, (4, 4), shift=1),
    "shifted reads off by one": lambda: programs.offset_reduced(8, 16, 32, 224, 224, 3, 3, shift=1),
    "the other parity": lambda: programs.transposed(1, 448, 256, 2, tap=1),
    "windows across the chunks of a band": lambda: programs.narrow_band(programs.band, 8, 10_000, 512, 32, 4, "chunks"),
    "a band's windows across chunks": lambda: programs.narrow_band(programs.band_of, 8, 10_000, 512, 32, 4, "chunks"),
    "correlation with the transpose": lambda: programs.correlation(224, swapped=True),
    "Strassen with a wrong sign": lambda: bilinear.strassen(512, 256, 768, wrong=True),
    "Strassen of slices with a wrong sign": lambda: bilinear.strassen_of_slices(256, wrong=True),
    "a reshape of another stride": lambda: programs.flattened(6),
    "the other of two products": lambda: programs.merged(128, 64, 32, which=0),
}


def agree(left: Node, right: Node) -> bool:
    """Return whether two fragments are equal on random residues."""
    leaves = [node for node in walk((left, right)) if node.op == "Placeholder"]
    random = np.random.default_rng(7)
    first, second = evaluate((left, right), {x: random.integers(1, PRIME, x.type.sizes) for x in leaves}, "prime")
    return bool(np.array_equal(first, second))


def proved(left: Node, right: Node) -> bool:
    """Return whether the prover proves equality without random operands."""
    return isinstance(prove_equal(fragment_expression(left), fragment_expression(right), Assumptions(facts=Facts(at_sizes=True))), Equal)


@pytest.mark.parametrize("name", AT_REAL_SIZES)
def test_programs_are_proved_at_real_sizes(name: str) -> None:
    left, right = AT_REAL_SIZES[name]()
    assert not equal_at_sizes(left, right)


@pytest.mark.parametrize("name", SMALL)
def test_programs_are_right_and_proved_at_small_sizes(name: str) -> None:
    left, right = SMALL[name]()
    assert agree(left, right)
    assert not equal_at_sizes(left, right)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_are_refuted_and_never_proved(name: str) -> None:
    left, right = WRONG[name]()
    assert "the sides differ at [" in equal_at_sizes(left, right)
    assert not proved(left, right)


@pytest.mark.parametrize("name", SMALL)
def test_a_changed_number_is_never_proved_unless_nothing_changes(name: str) -> None:
    """A program with one number off by one (a guard, shift, tile or constant) is proved only if it still computes the same."""
    random = Random(name)
    left, right = SMALL[name]()
    wrong = 0
    for _ in range(24):
        mutant = mutated(right, random)
        if mutant is None or mutant is right:
            continue
        try:
            equal = agree(left, mutant)
        except EinsatError:  # the mutant reads outside of an operand
            continue
        wrong += not equal
        assert equal or not proved(left, mutant)
        assert equal or equal_at_sizes(left, mutant)
    assert wrong or "Expression" not in {node.op for node in walk((right,))}


def mutated(root: Node, random: Random) -> Node | None:
    """Return a program with one number of one expression changed; None if the result is no valid expression."""
    chosen = random.choice([node for node in walk((root,)) if node.op == "Expression"] or [root])
    if chosen.op != "Expression":
        return None
    text = chosen.string("text")
    numbers = [m for m in re.finditer(r"(?<![\w$.])\d+", text) if m.start() > text.index("}")]
    if not numbers:
        return None
    number = random.choice(numbers)
    changed = f"{text[: number.start()]}{max(0, int(number[0]) + random.choice((-1, 1)))}{text[number.end() :]}"
    try:
        scope = parse_scope(changed, {str(k): Tensor(str(k), x.type.sizes) for k, x in enumerate(chosen.inputs)})
        mutant = apply("Expression", *chosen.inputs, text=text_of(scope))
        if mutant.type != chosen.type:
            return None
        return rewrite((root,), lambda node, inputs: mutant if node is chosen else remade(node, inputs))[root]
    except (ParseError, EinsatError, ZeroDivisionError):
        return None


def remade(node: Node, inputs: tuple[Node, ...]) -> Node:
    return node if inputs == node.inputs else apply(node.op, *inputs, attributes=node.attributes)


@pytest.mark.parametrize("name", SMALL)
def test_normal_forms_at_known_sizes_keep_their_value(name: str) -> None:
    random = Random(name)
    left, right = SMALL[name]()
    leaves = {x: np.random.default_rng(3).integers(1, PRIME, x.type.sizes) for x in walk((left, right)) if x.op == "Placeholder"}
    data = {str(x.integer("index")): value for x, value in leaves.items()}
    for side in (left, right):
        scope = fragment_expression(side)
        output = tuple(Iterator(f"o{axis}", 0, size) for axis, size in enumerate(scope.shape))
        form = normalise(scope, tuple(map(index, output)), Assumptions(facts=Facts(at_sizes=True)))
        (expected,) = evaluate((side,), leaves, "prime")
        for _ in range(4):
            position = tuple(random.randrange(size) for size in side.type.sizes)
            assert Evaluator(data, Residues()).value(form, dict(zip(output, position, strict=True))) == expected[position]


def test_what_holds_under_assumptions_only_is_open_unless_they_are_allowed() -> None:
    x, y = leaf(0, 4), leaf(1, 4)
    left = apply("Div", apply("Mul", x, y), y)
    assert "under assumptions only: nonzero divisor" in equal_at_sizes(left, x)
    assert equal_at_sizes(left, x, "assumes finite") == ""
    assert equal_at_sizes(apply("Add", x, y), apply("Add", y, x)) == ""


def test_programs_of_another_type_are_not_compared() -> None:
    x = leaf(0, 1, 4)
    assert "the left side is float32[1,4], the right side float32[4]" in equal_at_sizes(apply("Relu", x), apply("Reshape", x, shape=(4,)))


def test_an_iterator_that_another_determines_stays_within_the_sum() -> None:
    """sum(i, j) [i == j] x[i] y[j] = sum(i) x[i] y[i]"""
    x, y = leaf(0, 5), leaf(1, 5)
    tensors = {"0": Tensor("0", (5,)), "1": Tensor("1", (5,))}

    def sum_of(text: str) -> Node:
        return apply("Expression", x, y, text=text_of(parse_scope(text, tensors)))

    diagonal = sum_of("{o<1} sum(i<5,j<5) [i==j ? ($0[i] * $1[j]) : 0]")
    assert not equal_at_sizes(diagonal, sum_of("{o<1} sum(i<5) ($0[i] * $1[i])"))
    assert equal_at_sizes(diagonal, sum_of("{o<1} sum(i<5,j<5) ($0[i] * $1[j])"))


@pytest.mark.parametrize(
    ("rows", "restrictions", "pieces"),
    [
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], 1, 0),
        ([[0, 0, 0], [0, 5, 0], [0, 0, 0]], 2, 0),
        ([[0, 0, 0], [0, 5, 5], [0, 5, 5]], 2, 0),
        ([[1, 2], [2, 4], [-1, -2]], 0, 2),
        ([[1, 2], [3, 4]], 0, 1),
        ([[0, 2, 0], [0, 0, 3], [0, 0, 0]], 3, 1),
    ],
)
def test_tables_are_taken_apart(rows: list[list[int]], restrictions: int, pieces: int) -> None:
    values = np.array(rows)
    parts = structure(Grid(values.shape, tuple(values.reshape(-1).tolist())))
    assert (len(parts.restrictions), len(parts.pieces)) == (restrictions, pieces)
    for position in np.ndindex(values.shape):
        product = parts.coefficient
        for restriction in parts.restrictions:
            total = restriction.offset + sum(c * p for c, p in zip(restriction.coefficients, position, strict=True))
            product *= total == 0 if restriction.relation == "==" else total >= 0
        if product:
            for piece in parts.pieces:
                product *= piece.grid.array[tuple(position[a] - s for a, s in zip(piece.axes, piece.shifts, strict=True))]
        assert product == values[position]


def test_sampled_positions_are_those_of_the_reference() -> None:
    """The values at sampled positions are those that the programs compute there; a difference anywhere else is not detected."""
    x = leaf(0, 9)
    iterator = Iterator("i", 0, 9)
    copy = Scope.pointwise((iterator,), read(Tensor("0", (9,)), (index(iterator),)))
    hole = Scope.pointwise((iterator,), Guarded(inside(index(iterator), 4, 5), ZERO, copy.body))
    assert difference(copy, copy, drawn(copy.shape)) == ""
    assert difference(copy, hole, [(3,), (5,)]) == ""
    assert difference(copy, hole, [(3,), (4,)]).startswith("the sides differ at [4]")
    assert equal_at_sizes(apply("Expression", x, text=text_of(copy)), apply("Expression", x, text=text_of(hole)))
    ones = Scope.pointwise((iterator,), table([1] * 9, index(iterator)))
    assert difference(ones, copy, [(0,)])
