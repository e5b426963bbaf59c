"""Compare kernels that read tables with the float64 reference: transforms of fast convolutions, with ragged tiles and padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from egraph.derive.bilinear.convolutions import algorithms
from egraph.derive.bilinear.cook_toom import cook_toom
from egraph.derive.bilinear.programs import Bilinear, program
from egraph.tensor import Node, TensorType, placeholder, placeholders, walk
from egraph.tensor.expr.index import Iterator, index, length
from egraph.tensor.expr.scope import Read, Reduction, Scope, Tensor, table
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import evaluate
from egraph.tensor.ops.scopes import grid, multiply
from lower.eoperator.linear import Matrix, linear_program
from lower.eoperator.regions import regions, shares
from lower.eoperator.request import kernel_of
from lower.eoperator.tabled import Tile, strongest, tabled_digits, tile, unrolled
from lower.eoperator.terms import subterms
from lower.eoperator.transforms import split_digits
from lower.targets.cpu.generator import KernelRequest, Library, compile_library, supports
from lower.targets.cpu.generator.library import _link
from tests.support.fragments import leaf
from tests.support.kernels import Loaded, check, feeds, samples


def convolution(x: tuple[int, ...], w: tuple[int, ...], transposed: bool = False, **attributes: Any) -> Node:
    rank = len(x) - 2
    ones = (1,) * rank
    values: dict[str, Any] = {"strides": ones, "pads": ones * 2, "dilations": ones, "group": 1, "layout": "NHWC", **attributes}
    weights = placeholder(1, TensorType("float32", w), constant=True)
    if transposed:
        return apply("ConvTranspose", leaf(0, *x), weights, output_padding=(0,) * rank, **values)
    return apply("Conv", leaf(0, *x), weights, **values)


CONVOLUTIONS = (
    convolution((1, 14, 13, 32), (5, 32, 3, 3)),
    convolution((2, 7, 9, 20), (18, 20, 3, 3)),
    convolution((1, 6, 7, 3), (16, 3, 3, 3), pads=(0, 2, 1, 0)),
    convolution((1, 13, 11, 16), (6, 16, 3, 3), strides=(2, 2)),
    convolution((1, 12, 13, 6), (8, 6, 3, 3), dilations=(2, 2)),
    convolution((1, 9, 10, 24), (16, 12, 3, 3), group=2),
    convolution((2, 19, 17), (5, 17, 5), pads=(2, 2)),
    convolution((1, 6, 5, 12), (12, 7, 4, 4), strides=(2, 2), transposed=True),
)


def derived(node: Node, what: Bilinear) -> Node:
    x, w = node.inputs
    return program(x, w, what)


def transforms() -> list[Node]:
    """Return every expression in the programs of some convolutions, each over operands of its own."""
    found: dict[Node, None] = {}
    for node in CONVOLUTIONS:
        choices = list(algorithms(node))
        for what in choices[len(choices) // 3 :: len(choices) // 2 + 1]:
            for part in walk((derived(node, what),)):
                if part.op == "Expression":
                    operands = [leaf(k, *operand.type.sizes) for k, operand in enumerate(part.inputs)]
                    found[apply("Expression", *operands, text=part.string("text"))] = None
    return list(found)


def tabulated(size: int, *, unrollable: bool) -> Node:
    """sum_k x[i, k] t[k], or the same with a table that no short loop reads: x[i, j] t[i]"""
    (i,), at = grid("i", (size,))
    (k,), _ = grid("k", (4,))
    weights = table([Fraction(position % 5 - 2, 4) for position in range(4 if unrollable else size)], index(k if unrollable else i))
    scope = Scope((i,), (k,), Reduction.SUM, multiply(Read(Tensor("0", (size, 4)), (at[0], index(k))), weights))
    return apply("Expression", leaf(0, size, 4), text=text_of(scope))


def weighted_rows() -> Node:
    """sum_k x[i, k] t[i, k]: each row has a table of its own"""
    (i,), at = grid("i", (5,))
    (k,), _ = grid("k", (4,))
    weights = table([Fraction(position % 7 - 3, 4) for position in range(20)], index(i) * 4 + index(k))
    scope = Scope((i,), (k,), Reduction.SUM, multiply(Read(Tensor("0", (5, 4)), (at[0], index(k))), weights))
    return apply("Expression", leaf(0, 5, 4), text=text_of(scope))


def epilogues() -> list[Node]:
    """Return transforms with elementwise operators before and after them."""
    v, *_, y = [f for f in transforms() if f.type.rank in (3, 4)][:2]
    x = apply("Relu", apply("Add", v.inputs[0], leaf(1, v.inputs[0].type.sizes[-1])))
    before = apply("Expression", x, text=v.string("text"))
    after = apply("Clip", apply("Add", apply("Add", y, leaf(1, y.type.sizes[-1])), leaf(2, *y.type.sizes)), min=0.0, max=6.0)
    return [before, after]


def one_tile() -> Node:
    """Return a transform of one tile with many channels, where each thread computes some of the positions."""
    node = convolution((1, 4, 4, 2048), (4, 2048, 3, 3))
    what = next(w for w in algorithms(node) if [axis.algorithm.products for axis in w.axes] == [6, 6])
    return derived(node, what).inputs[0].inputs[0]


def bordered(height: int = 11, width: int = 10) -> Node:
    """Return a transform of tiles of 4 x 4, the last of which reach beyond the image."""
    node = convolution((1, height, width, 32), (4, 32, 3, 3))
    what = next(w for w in algorithms(node) if [axis.algorithm.products for axis in w.axes] == [6, 6])
    return derived(node, what).inputs[0].inputs[0]


SMALL = tabulated(5, unrollable=False)
LARGER, LARGEST = bordered(27, 26), bordered(51, 53)
"""7 x 7 and 13 x 14 tiles: corners are rare in the first, and edges also in the second."""
BORDERED = [bordered(), LARGER, LARGEST]
TABULATED = [tabulated(37, unrollable=True), SMALL, weighted_rows()]
FRAGMENTS = [*transforms(), *epilogues(), one_tile(), *BORDERED, *samples(["Expression"], 16), *TABULATED]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("kernels")
    return compile_library(FRAGMENTS, folder / "kernels.so", threads=2, cache=folder)


@pytest.mark.parametrize("tasks", [1, 3])
def test_transforms_agree_with_the_reference(library: Library, tasks: int) -> None:
    assert not library.failures
    loaded = Loaded(library.path, tasks)
    for fragment in FRAGMENTS:
        check(loaded, library[fragment], fragment)
    assert loaded.launches


def spread(fragment: Node, steps: Sequence[int], gap: int) -> KernelRequest:
    """Return a request whose result has the given steps between positions, and a gap after each row."""
    strides, step = list[int](), 1
    for size, apart in zip(reversed(fragment.type.sizes), reversed(steps), strict=True):
        strides.append(step * apart)
        step *= size * apart + gap
    return KernelRequest(fragment, output_strides=tuple(reversed(strides)))


@pytest.mark.parametrize("tasks", [1, 3])
def test_transforms_write_into_strides(tasks: int, tmp_path: Path) -> None:
    """Corrections of fast convolutions are written into boxes. Memory between their positions must not change."""
    chosen = [fragment for fragment in FRAGMENTS[::4] if not supports(fragment)]
    requests = [spread(each, steps, 3) for each in chosen for steps in ((1,) * each.type.rank, (2,) * each.type.rank)]
    made = compile_library(requests, tmp_path / "kernels.so", threads=tasks, cache=tmp_path)
    loaded = Loaded(made.path, tasks)
    for request in requests:
        fragment, strides = request.fragment, request.output_strides or ()
        arrays = feeds(fragment)
        (expected,) = evaluate((fragment,), dict(zip(placeholders(fragment), arrays, strict=True)))
        size = 1 + sum((count - 1) * stride for count, stride in zip(fragment.type.sizes, strides, strict=True))
        target = np.full(size, 7, np.float32)
        loaded.run(made[request], [*arrays, target])
        window = np.lib.stride_tricks.as_strided(target, fragment.type.sizes, [4 * stride for stride in strides])
        np.testing.assert_allclose(window, expected, rtol=1e-4, atol=1e-4)
        window[...] = 7
        assert (target == 7).all()


@pytest.mark.parametrize("fragment", [f for f in transforms() if f.inputs[0].type.rank > 1], ids=lambda f: str(f.type))
def test_every_table_of_a_transform_is_unrolled(fragment: Node) -> None:
    given, _ = plain_tile(fragment)
    assert not any(term.kind in ("table", "reduce") for term in subterms(given.roots))


def plain_tile(node: Node) -> tuple[Tile, tuple[Iterator, ...]]:
    """Return the tile of a transform whose iterators are digits already, and the remaining iterators."""
    kernel = kernel_of(KernelRequest(node))
    iterators, root, offset = split_digits(kernel.table, kernel.iterators, kernel.root, kernel.offset)
    iterators, replace, cuts = tabled_digits(kernel.table, iterators, root)
    root, offset = kernel.table.substitute(root, replace), kernel.table.index(offset, replace)
    chosen = unrolled(iterators, root)
    assert chosen is not None
    return tile(kernel.table, chosen, root, offset, cuts), tuple(i for i in iterators if i not in chosen)


def test_regions_leave_nothing_to_ask(library: Library) -> None:
    """For tiles of 4 over 11 rows and 10 columns, the padding is known in the first, middle and last region of each axis."""
    from lower.targets.cpu.generator.generate import generate

    v = bordered()
    given, outer = plain_tile(v)
    table = kernel_of(KernelRequest(v)).table
    found = regions(table, given, outer[:-1])
    assert [[(i.low, i.high) for i in narrow] for narrow in found.values()] == [[(0, 1), (1, 2), (2, 3)]] * 2
    code = generate(KernelRequest(v), threads=1).script()
    assert code.count("if ") == 2 + 3 * 2  # one of three regions of rows, and in each one of three of columns
    check(Loaded(library.path), library[v], v)


@pytest.mark.parametrize(("fragment", "count"), [(bordered(), 9), (LARGER, 5), (LARGEST, 1)], ids=["3x3", "7x7", "13x14"])
def test_frequent_regions_get_code_of_their_own(fragment: Node, count: int) -> None:
    from lower.targets.cpu.generator.unrolled import frequent_regions

    given, outer = plain_tile(fragment)
    chosen = frequent_regions(regions(kernel_of(KernelRequest(fragment)).table, given, outer[:-1]))
    sizes = [math.prod(map(length, picked)) for picked in chosen]
    assert len(sizes) == count and sizes == sorted(sizes)


@pytest.mark.parametrize("fragment", BORDERED, ids=["3x3", "7x7", "13x14"])
@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_threads_share_planes_in_every_region(fragment: Node, tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lower.targets.cpu.generator.unrolled as unrolled_module
    from lower.targets.cpu.generator.generate import compile_object, generate

    monkeypatch.setattr(unrolled_module, "PARALLEL_NS", 0.0)
    request = KernelRequest(fragment)
    function = generate(request, threads=2)
    assert "T.parallel(8)" in function.script()  # two shares of the planes, each over all tiles
    compile_object(function, tmp_path / "kernel.o")
    _link([tmp_path / "kernel.o"], tmp_path / "kernel.so")
    loaded = Loaded(tmp_path / "kernel.so", tasks)
    check(loaded, request.symbol, request.fragment)
    assert loaded.launches == 1


def test_threads_share_planes_as_the_product_that_reads_them_does() -> None:
    v = one_tile()
    given, outer = plain_tile(v)
    parts = shares(given, outer, 2)
    assert [len(part.stores) for part in parts] == [18, 18]
    assert {store.root for part in parts for store in part.stores} == {store.root for store in given.stores}
    planes = [sorted(int(str(store.offset - given.stores[0].offset)) for store in part.stores) for part in parts]
    assert planes[0][-1] < planes[1][0]
    assert shares(given, outer, 6) == ()  # each share would repeat much of the others' work


def test_elements_that_lie_between_each_other_are_not_shared_out() -> None:
    node = convolution((1, 16, 16, 8), (8, 8, 3, 3))
    what = next(w for w in algorithms(node) if [axis.algorithm.products for axis in w.axes] == [6, 6])
    y = derived(node, what)
    operand = leaf(0, *y.inputs[0].type.sizes)
    for transform in (apply("Expression", operand, text=y.string("text")), y.inputs[0].inputs[0]):  # rows of an image; parts before places
        given, outer = plain_tile(transform)
        assert shares(given, outer, 2) == ()


def test_a_large_table_that_no_short_loop_reads_is_refused() -> None:
    assert supports(SMALL) is None
    assert "no short loop" in str(supports(tabulated(400, unrollable=False)))
    large = kernel_of(KernelRequest(tabulated(400, unrollable=False)))
    assert unrolled(large.iterators, large.root) is None


def test_a_linear_program_is_its_matrix() -> None:
    random = Random(3)
    for _ in range(50):
        rows, columns = random.randint(1, 6), random.randint(1, 6)
        matrix: Matrix = tuple(tuple(Fraction(random.choice((0, 0, 1, -1, 2, -3)), 2) for _ in range(columns)) for _ in range(rows))
        x = [Fraction(random.randint(-9, 9)) for _ in range(columns)]
        result = linear_program(matrix).run(x, lambda pairs: sum((value * c for value, c in pairs), Fraction(0)))
        assert result == [sum((a * b for a, b in zip(row, x, strict=True)), Fraction(0)) for row in matrix]


def test_rows_share_sums() -> None:
    """The points are pairs of opposites: x[1] + x[3] and x[1] - x[3] are used by two rows each."""
    for algorithm, most in ((cook_toom(2, 3), 4), (cook_toom(4, 3), 12), (cook_toom(6, 3), 24)):
        built = linear_program(algorithm.b)
        assert sum(len(combination) - 1 for combination in (*built.steps, *built.rows)) <= most


def test_the_strongest_conditions_stand_for_all() -> None:
    from egraph.tensor.expr.scope import inside

    i = index(Iterator("i", 0, 9))
    found = strongest([*inside(4 * i - 1, 0, 30), *inside(4 * i + 4, 0, 30)])
    assert found is not None and {str(c) for c in found} == {"0<=4*i-1", "0<=-4*i+25"}
    assert strongest([*inside(i, 0, 3), *inside(i, 4, 9)]) is None


def test_the_code_of_a_transform_is_stable(golden: Callable[[str, str], None]) -> None:
    from lower.targets.cpu.generator.generate import generate

    node = convolution((1, 6, 6, 16), (16, 16, 3, 3), pads=(0, 0, 0, 0))
    what = next(w for w in algorithms(node) if [axis.algorithm.products for axis in w.axes] == [4, 4])
    product = next(part for part in walk((derived(node, what),)) if part.op == "MatMul")
    v = product.inputs[0]
    golden("eoperator_transform.tir", generate(KernelRequest(v), threads=1).script() + "\n")
