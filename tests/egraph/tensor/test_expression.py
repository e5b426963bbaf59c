"""Expressions as text and as an operator: printed text parses back, equal expressions have one text, and reads stay inside."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from egraph.errors import TypeMismatch
from egraph.tensor import TensorType, placeholder
from egraph.tensor.expr.bodies import parts
from egraph.tensor.expr.canonical import canonical
from egraph.tensor.expr.compose import chosen
from egraph.tensor.expr.evaluate import evaluate
from egraph.tensor.expr.index import Iterator, index
from egraph.tensor.expr.parsing import ParseError, parse_scope
from egraph.tensor.expr.printing import format_scope
from egraph.tensor.expr.scope import Apply, Read, Scalar, Scope, Tensor, table
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import fragment_expression

A, K = Tensor("0", (8, 8)), Tensor("1", (3, 3))
TENSORS = {"0": A, "1": K}


@pytest.mark.parametrize("name", sorted(OPS))
def test_meanings_are_printed_and_parsed_back(name: str) -> None:
    spec, random = OPS[name], Random(7)
    for _ in range(5):
        shapes, attributes = spec.sample(random)
        dtypes = spec.sample_dtypes or ("float32",) * len(shapes)
        operands = [Tensor(str(k), *operand) for k, operand in enumerate(zip(shapes, dtypes, strict=True))]
        scope = spec.meaning(operands, attributes)
        text = format_scope(scope)
        if "object" in text or "DataIndex" in text or "Read(" in text:
            continue  # an index read from a tensor has no notation
        assert format_scope(parse_scope(text, {t.name: t for t in operands})) == text


def test_names_and_orders_do_not_matter() -> None:
    one = parse_scope("{a<6,b<6} sum(r<3,s<3) ($0[a+r,b+s] * $1[r,s])", TENSORS)
    other = parse_scope("{h<6,w<6} sum(v<3,u<3) ($1[u,v] * $0[h+u,w+v])", TENSORS)
    swapped = parse_scope("{h<6,w<6} sum(v<3,u<3) ($1[v,u] * $0[h+u,w+v])", TENSORS)
    assert text_of(one) == text_of(other) == "{i0<6,i1<6} sum(r0<3,r1<3) ($0[i0+r1,i1+r0] * $1[r1,r0])"
    assert text_of(one) != text_of(swapped)


def test_padding_is_part_of_the_identity() -> None:
    padded = parse_scope("{i<8} [0<=i-1 ? $0[i-1,0] : 0]", TENSORS)
    other = parse_scope("{i<8} [0<=i-1 ? $0[i-1,0] : 1]", TENSORS)
    assert text_of(padded) != text_of(other)


def test_ranges_are_shifted_to_zero() -> None:
    shifted = parse_scope("{i<4} sum(2<=k<5) $0[i,k-2]", TENSORS)
    assert text_of(shifted) == "{i0<4} sum(r0<3) $0[i0,r0]"
    values = np.random.default_rng(0).standard_normal((8, 8))
    np.testing.assert_allclose(evaluate(canonical(shifted), {"0": values}), evaluate(shifted, {"0": values}))


def test_tables_are_exact_and_mean_choices() -> None:
    i, r = Iterator("i", 0, 2), Iterator("r", 0, 3)
    entry = table([[1, Fraction(-1, 3), 0], [0, 2, 5]], index(i), index(r))
    scope = Scope.pointwise((i, r), entry)
    assert evaluate(scope, {}).tolist() == [[1, -1 / 3, 0], [0, 2, 5]]
    assert np.array_equal(evaluate(scope, {}, "prime"), evaluate(Scope.pointwise((i, r), chosen(entry)), {}, "prime"))
    assert text_of(parse_scope("{i<2} table(2x3: 1 -1/3 0 0 2 5)[i,1]", {})) == "{i0<2} table(2: -1/3 2)[i0]"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{i0<9} $0[i0,0]", "leaves 0..8"),
        ("{i0<8} $0[i0-1,0]", "leaves 0..8"),
        ("{i0<8} [0<=i0-1 ? $0[0,i0] : $0[i0-1,0]]", "leaves 0..8"),
        ("{a<8} $0[a,0]", "canonical"),
        ("{i0<8} $0[i0]", "2 axes"),
        ("{i0<8} $1[i0,0]", "no \\$1"),
        ("{i0<8} 1", "reads operands"),
        ("{i0<8} {{ni0<8} $0[ni0,0]}[i0]", "operand of its own"),
        ("{i0<8} table(3: 1 2 3)[i0]", "leaves 0..3"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, what: str) -> None:
    with pytest.raises(TypeMismatch, match=what):
        apply("Expression", placeholder(0, TensorType("float32", (8, 8))), text=text)


def test_a_guard_makes_a_read_safe() -> None:
    node = apply("Expression", placeholder(0, TensorType("float32", (8, 8))), text="{i0<9} [0<=i0-1 ? $0[i0-1,0] : 0]")
    assert node.type == TensorType("float32", (9,))


def test_errors_say_where() -> None:
    with pytest.raises(ParseError, match="expected ','"):
        parse_scope("{i<3} $0[i,0 ", TENSORS)
    assert Read(A, (index(0), index(0))) == parse_scope("{} $0[0,0]", TENSORS).body


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_read_twice_is_composed_once(turned: bool) -> None:
    """A value that is read twice is composed once.

    Sixty steps that each read their operand twice are 2^60 reads as a tree, but two parts a step if they are shared.
    """
    node = placeholder(0, TensorType("float32", (4, 4)))
    for _ in range(60):
        operands = (apply("Tanh", node), node)
        node = apply("Add", *(apply("Transpose", each, perm=(1, 0)) if turned else each for each in operands))
    parts: dict[int, Scalar] = {}
    queue: list[Scalar] = [fragment_expression(node).body]
    for part in queue:
        if id(part) not in parts:
            parts[id(part)] = part
            queue += part.arguments if isinstance(part, Apply) else ()
    assert len(parts) <= 2 * 60 + 2


def test_what_normalisations_read_in_several_places_is_composed_once() -> None:
    """A scope that a normalisation reads in several places is composed once.

    Six nested normalisations have 58,738 parts if each read has its own copy of the scopes below it.
    """
    node = placeholder(0, TensorType("float32", (4, 8)))
    scale, bias = (placeholder(at, TensorType("float32", (8,))) for at in (1, 2))
    for _ in range(6):
        node = apply("Add", apply("LayerNormalization", node, scale, bias, axis=1, epsilon=1e-5), node)
    shared: dict[int, Scalar] = {}
    queue: list[Scalar] = [fragment_expression(node).body]
    for part in queue:
        if id(part) not in shared:
            shared[id(part)] = part
            queue += (part.source.body,) if isinstance(part, Read) and isinstance(part.source, Scope) else parts(part)
    assert len(shared) < 1000
