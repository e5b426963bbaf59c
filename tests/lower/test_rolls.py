"""A cyclic shift, written as two slices, is compiled to one read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egraph.tensor import Node, placeholders, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.eoperator.request import KernelRequest, kernel_of
from lower.eoperator.rolls import with_rolls
from lower.eoperator.terms import subterms
from lower.targets.cpu.generator.library import compile_library
from tests.support.fragments import concat, cut, leaf, reshape, transpose
from tests.support.kernels import Loaded, check


def rolled(x: Node, axis: int, shift: int) -> Node:
    """Return concat(x[shift:], x[:shift]) along an axis, as exporters write a cyclic shift."""
    sizes, none = list(x.type.sizes), [0] * len(x.type.sizes)
    starts, ends = [*none], [*sizes]
    starts[axis] = ends[axis] = shift
    return concat(axis, cut(x, starts, sizes), cut(x, none, ends))


def kinds(fragment: Node) -> set[str]:
    return {term.kind for term in subterms((kernel_of(KernelRequest(fragment)).root,))}


def shifted_windows(channels: int = 8, window: int = 3, shift: int = 1) -> Node:
    """Return rows that are normalised, rolled along both image axes and divided into windows, as in shifted-window attention."""
    size = 2 * window
    x, scale, bias = leaf(0, 1, size * size, channels), leaf(1, channels, constant=True), leaf(2, channels, constant=True)
    normal = apply("LayerNormalization", x, scale, bias, axis=2, epsilon=1e-5)
    image = rolled(rolled(reshape(normal, 1, size, size, channels), 1, shift), 2, shift)
    return transpose(reshape(image, 1, 2, window, 2, window, channels), 0, 1, 3, 2, 4, 5)


@given(st.lists(st.integers(2, 6), min_size=2, max_size=4), st.data())
def test_a_roll_computes_what_its_slices_do(sizes: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(sizes) - 2))
    shift = data.draw(st.integers(1, sizes[axis] - 1))
    fragment = rolled(leaf(0, *sizes), axis, shift)
    values = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    roll = with_rolls(fragment)
    assert roll.op == "Expression"
    assert np.array_equal(evaluate((roll,), {placeholders(roll)[0]: values})[0], np.roll(values, -shift, axis))


def test_what_only_looks_like_a_roll_stays() -> None:
    x, y = leaf(0, 4, 6, 8), leaf(1, 4, 6, 8)
    halves = cut(x, (0, 2, 0), (4, 6, 8)), cut(x, (0, 0, 0), (4, 2, 8))
    strided = apply("Slice", x, starts=(0, 2, 0), ends=(4, 6, 8), steps=(1, 2, 1))
    for fragment in (
        rolled(x, 2, 3),  # along the axis of the vectors
        concat(1, halves[1], halves[0]),
        concat(1, halves[0], halves[0]),
        concat(1, halves[0], cut(y, (0, 0, 0), (4, 2, 8))),
        concat(1, halves[0], cut(x, (0, 0, 0), (4, 3, 8))),
        concat(1, halves[0], cut(x, (0, 1, 0), (4, 2, 8))),
        concat(1, cut(x, (0, 2, 0), (4, 5, 8)), halves[1]),
        concat(1, cut(x, (1, 2, 0), (4, 6, 8)), cut(x, (1, 0, 0), (4, 2, 8))),
        concat(1, strided, halves[1]),
        concat(0, halves[0], halves[0]),
        concat(1, halves[0], halves[1], halves[1]),
    ):
        assert with_rolls(fragment) is fragment


def test_shifted_windows_are_one_loop_with_the_code_of_one_part(tmp_path: Path) -> None:
    fragment = shifted_windows()
    assert [node.op for node in walk((with_rolls(fragment),))].count("Expression") == 2
    assert "guard" not in kinds(fragment)
    library = compile_library([fragment], tmp_path / "kernels.so", threads=2, cache=tmp_path / "cache")
    check(Loaded(library.path), library[fragment], fragment)


@pytest.mark.parametrize("axis", [1, 2])
def test_rolls_are_generated(axis: int, tmp_path: Path) -> None:
    """Another operator may move the rolled axis to the end, along which vectors lie."""
    image = rolled(leaf(0, 2, 5, 7, 6), axis, 2)
    whole = rolled(leaf(0, 2, 5, 7, 6, dtype="int32"), axis, 2)
    fragments = [image, transpose(image, 0, 3, 1, 2), apply("Relu", transpose(image, 0, 3, 2, 1)), apply("Mul", whole, whole)]
    library = compile_library(fragments, tmp_path / "kernels.so", threads=1, cache=tmp_path / "cache")
    for fragment in fragments:
        check(Loaded(library.path), library[fragment], fragment)
