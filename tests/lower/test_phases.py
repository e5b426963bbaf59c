"""Strided scatters are split into phases: the sums stay the same, but contain only terms that reach the element."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from egraph.errors import TypeMismatch
from egraph.tensor import Node
from egraph.tensor.expr.index import Index, Iterator, Modulo, index, known, length, substitute
from egraph.tensor.expr.scope import Compare
from egraph.tensor.ops import apply
from lower.eoperator.phases import split_phases
from lower.eoperator.request import Kernel, KernelRequest, kernel_of
from lower.eoperator.terms import Term, Terms, subterms
from lower.targets.cuda.generator import multiplies_in, write
from lower.targets.cuda.generator.products import _factors
from lower.targets.cuda.generator.schedules import Scheduler
from lower.targets.cuda.generator.writer import Writer
from tests.support.cuda_kernels import check, compiled
from tests.support.fragments import leaf
from tests.support.kernels import feeds

WINDOW: dict[str, Any] = {"dilations": (1, 1), "group": 1, "layout": "NCHW", "pads": (0, 0, 0, 0)}


def transposed(sizes: tuple[int, int], taps: tuple[int, int], channels: tuple[int, int] = (1, 1), **changed: Any) -> Node:
    """Return a transposed convolution of an image with these sizes."""
    weights = leaf(1, *channels, *taps, constant=True)
    data = (2, channels[0], *sizes) if changed.get("layout", "NCHW") == "NCHW" else (2, *sizes, channels[0])
    return apply("ConvTranspose", leaf(0, *data), weights, **{**WINDOW, "output_padding": (0, 0), **changed})


def split(kernel: Kernel) -> tuple[tuple[Iterator, ...], Term, Index]:
    return split_phases(kernel.table, kernel.iterators, kernel.root, kernel.offset)


def number(value: Index, at: dict[Iterator, int]) -> int:
    return known(substitute(value, at))


def computed(term: Term, at: dict[Iterator, int]) -> Fraction:
    """Return a term's value for operands whose element n is n * n + 1."""
    match term.kind:
        case "number":
            return Fraction(term.data)
        case "read":
            return Fraction(number(term.data[1], at) ** 2 + 1)
        case "guard":
            holds = all(condition_holds(condition, at) for condition in term.data)
            return computed(term.children[0 if holds else 1], at)
        case "reduce":
            ranges = (range(known(i.low), known(i.low) + length(i)) for i in term.data[1])
            places = (dict(zip(term.data[1], each, strict=True)) for each in itertools.product(*ranges))
            return sum((computed(term.children[0], {**at, **each}) for each in places), Fraction(0))
    assert term.kind == "apply" and term.data == "mul", term
    left, right = (computed(child, at) for child in term.children)
    return left * right


def condition_holds(condition: Compare, at: dict[Iterator, int]) -> bool:
    left, right = number(condition.left, at), number(condition.right, at)
    return {"<": left < right, "<=": left <= right, "==": left == right, "!=": left != right}[condition.operator]


def elements(space: tuple[tuple[Iterator, ...], Term, Index]) -> dict[int, Fraction]:
    """Return the stored value of each element."""
    iterators, root, offset = space
    ranges = (range(length(i)) for i in iterators)
    places = [dict(zip(iterators, each, strict=True)) for each in itertools.product(*ranges)]
    stored = {number(offset, at): computed(root, at) for at in places}
    assert len(stored) == len(places), "no element is stored twice"
    return stored


def remainders(space: tuple[tuple[Iterator, ...], Term, Index]) -> int:
    """Return the number of conditions that contain a remainder."""
    guards = [term for term in subterms((space[1],)) if term.kind == "guard"]
    return sum(isinstance(atom, Modulo) for term in guards for each in term.data for atom in (each.left - each.right).atoms)


@given(st.data())
def test_phases_are_the_same_sums(data: st.DataObject) -> None:
    def pair(least: int, most: int) -> tuple[int, int]:
        return data.draw(st.integers(least, most)), data.draw(st.integers(least, most))

    strides, dilations, taps, sizes, (before, after) = pair(1, 4), pair(1, 3), pair(1, 5), pair(1, 3), pair(0, 2)
    pads = (before, before, after, after)
    try:
        node = transposed(sizes, taps, strides=strides, dilations=dilations, pads=pads, output_padding=(strides[0] - 1, 0))
    except TypeMismatch:
        assume(False)
    kernel = kernel_of(KernelRequest(node))
    whole = kernel.iterators, kernel.root, kernel.offset
    assert elements(split(kernel)) == elements(whole)


@pytest.mark.parametrize(("taps", "before", "dilation"), [(4, 1, 1), (2, 0, 1), (3, 1, 1), (6, 2, 1), (3, 1, 3)])
def test_no_term_is_tested_for_its_phase(taps: int, before: int, dilation: int) -> None:
    """Stride 2 with an even number of outputs: each sum has half of the terms, and no condition contains a remainder."""
    reach = dilation * (taps - 1) + 1
    after = 2 * 4 + reach - 2 - before - 8  # so that eight elements are made of five
    pads, padding = (before, before, max(after, 0), max(after, 0)), max(-after, 0)
    node = transposed((5, 5), (taps, taps), strides=(2, 2), pads=pads, dilations=(dilation,) * 2, output_padding=(padding,) * 2)
    kernel = kernel_of(KernelRequest(node))
    space = split(kernel)
    assert remainders((kernel.iterators, kernel.root, kernel.offset)) and not remainders(space)
    summed = [i for term in subterms((space[1],)) if term.kind == "reduce" for i in term.data[1]]
    assert [length(i) for i in summed] == [-(-taps // 2)] * 2 * (taps > 2)


def test_what_cannot_be_split_stays() -> None:
    """Nine outputs at stride two, a convolution (all terms meet), one output per phase, or a dilation that the stride divides."""
    nodes = [
        transposed((5, 5), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
        apply("Conv", leaf(0, 1, 1, 8, 8), leaf(1, 1, 1, 3, 3), **WINDOW, strides=(2, 2)),
        transposed((1, 1), (2, 2), strides=(2, 2)),
        transposed((4, 4), (3, 3), strides=(2, 2), dilations=(2, 2), output_padding=(1, 1)),
    ]
    for node in nodes:
        kernel = kernel_of(KernelRequest(node))
        assert split(kernel) == (kernel.iterators, kernel.root, kernel.offset)


def test_kernels_of_transposed_convolutions_multiply_what_meets() -> None:
    """Test phase products, few channels, channels last, a stride that does not divide the taps, and fused epilogues."""
    nodes = [
        transposed((6, 6), (4, 4), (40, 24), strides=(2, 2), pads=(1, 1, 1, 1)),
        transposed((6, 6), (4, 4), (40, 24), strides=(2, 2), pads=(1, 1, 1, 1), layout="NHWC"),
        transposed((4, 5), (3, 2), (36, 9), strides=(3, 1)),
        transposed((4, 4), (4, 4), (33, 16), strides=(3, 3), pads=(1, 1, 0, 0)),
        transposed((5, 5), (4, 4), (8, 2), strides=(2, 2), pads=(1, 1, 1, 1)),
    ]
    fused = [apply("Relu", apply("Add", node, leaf(2, *([1] * 4)))) for node in nodes[:1]]
    kernels = {node: write(KernelRequest(node)) for node in (*nodes, *fused)}
    assert [multiplies_in(node, "float32") for node in nodes] == [True] * 4 + [False]
    module = compiled(list(kernels.values()))
    for node, kernel in kernels.items():
        assert "einsat_remainder" not in kernel.text.split('extern "C"', 1)[1]
        check(module, kernel, node, feeds(node))


def test_neighbouring_threads_have_neighbouring_places_beside_phases() -> None:
    """The innermost iterator is a phase, which both operands need.

    The columns of a tile are the positions of the image, not the channels.
    """
    kernel = kernel_of(KernelRequest(transposed((6, 6), (4, 4), (40, 24), strides=(2, 2), pads=(1, 1, 1, 1))))
    product = Scheduler(kernel, Writer({name: f"in{name}" for name in kernel.sizes}, kernel.dtypes)).product(kernel)
    assert product is not None
    sizes = [[length(i) for i in iterators] for iterators in (product.rows, product.columns, product.batch)]
    assert sizes == [[24], [2, 6, 6], [2, 2]]


@pytest.mark.parametrize(("rows", "is_inside"), [(8, True), (4, False)])
def test_an_operand_that_is_read_outside_but_for_a_guard_that_it_cannot_have_makes_no_product(rows: int, is_inside: bool) -> None:
    """sum_k {i + j < rows} a[i, k] b[i, j, k] with i < 8: the guard that keeps a in range needs j, which a does not have."""
    i, j, k = (Iterator(name, 0, 8) for name in "ijk")
    sizes = {"a": 8 * rows, "b": 512}
    table = Terms({"a": (1,), "b": (1,)}, dict.fromkeys(sizes, "float32"))
    left, right = table.read("a", index(i) * 8 + k), table.read("b", index(i) * 64 + index(j) * 8 + k)
    body = table.guard((Compare(index(i) + j, "<", index(rows)),), table.apply("mul", (left, right)), table.number(Fraction(0)))
    assert body.kind == "guard"
    assert (_factors(table, sizes, body) is not None) is is_inside
