"""Test attention in blocks of rows for any sizes, views, factors, masks and guards, against the meaning of the operators."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egraph.tensor import Graph, Node, Program, TensorType, attributes, make, rewrite, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.attention.match import AttentionCall, match
from lower.candidates import candidates
from lower.compile import CompileOptions, compile_program
from lower.targets import lowering
from lower.targets.cpu import attention, tiles
from runtime.devices.cpu.native.build import build
from runtime.executable import Executable
from tests.support.lowering import Model, check, choose, float32, freeze

SIZES = (1, 2, 3, 5, 7, 16, 17, 31, 49, 64, 67, 130)
PROCESSORS: dict[str, tuple[str, ...]] = {"this one": (), "without tiles": ("-U__linux__",), "without vectors": ("-U__x86_64__",)}
"""Flags with which attention.c has code for processors that lack some of this one's instructions."""


def constant(m: Model, value: object) -> Node:
    digest = f"c{len(m.tensors)}"
    array = np.asarray(value)
    m.tensors[digest] = array if array.dtype == bool else array.astype(np.float32)
    return make("Constant", (), attributes(digest=digest), TensorType(str(m.tensors[digest].dtype), array.shape))


def heads(x: Node, count: int) -> Node:
    batch, rows, columns = x.type.sizes
    return apply("Transpose", apply("Reshape", x, shape=(batch, rows, count, columns // count)), perm=(0, 2, 1, 3))


def cut(x: Node, axis: int, low: int, high: int) -> Node:
    starts = tuple(low if i == axis else 0 for i in range(x.type.rank))
    ends = tuple(high if i == axis else size for i, size in enumerate(x.type.sizes))
    return apply("Slice", x, starts=starts, ends=ends, steps=(1,) * x.type.rank)


def transposed(x: Node) -> Node:
    rank = x.type.rank
    return apply("Transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def attended(m: Model, q: Node, k: Node, v: Node, mask: str, factor: str, *, guarded: bool, after: str = "") -> Node:
    """Return g(softmax(f(q k^T))) v."""
    if factor == "queries":
        q = apply("Mul", q, constant(m, 0.23))
    keys = transposed(k)
    if factor == "both":
        q, keys = apply("Mul", q, constant(m, 0.6)), apply("Div", apply("Mul", keys, constant(m, 0.9)), constant(m, 2.3))
    scores = apply("MatMul", q, keys)
    if factor == "scores":
        scores = apply("Div", scores, constant(m, [[[4.1]]]))
    *batch, rows, columns = scores.type.sizes
    hidden = np.where(m.random.random((rows, columns)) < 0.3, -np.inf, 0.0)
    hidden[:, 0] = 0.0  # a fully masked row would be NaN
    if mask == "rows and columns":
        scores = apply("Add", scores, constant(m, hidden))
    if mask == "columns":
        scores = apply("Add", constant(m, hidden[-1]), scores)
    if mask == "bias":
        scores = apply("Sub", scores, m.weight(*batch[-1:], rows, columns))
    if mask == "condition":
        scores = apply("Where", constant(m, hidden == 0), scores, constant(m, -1e30))
    if mask == "input":
        scores = apply("Add", apply("Mul", scores, m.input(rows, 1)), m.input(*batch, 1, columns))
    p = apply("Softmax", scores, axis=len(batch) + 1)
    if guarded:
        p = apply("Where", apply("IsNaN", p), constant(m, 0.0), p)
    if after == "rows":
        p = apply("Where", constant(m, m.random.random((rows, 1)) < 0.4), constant(m, [0.0]), p)
    if after == "condition":
        p = apply("Where", constant(m, hidden == 0), p, constant(m, 0.125))
    if after == "weights":
        p = apply("Mul", apply("Mul", m.input(*batch, 1, 1), p), m.input(*batch, rows, columns))
    return apply("MatMul", p, v)


def is_one_kernel(graph: Graph) -> Program:
    program = choose(graph, "attention")
    launched = [kernel.implementation.text for kernel in program.kernels if not kernel.implementation.is_free]
    assert launched == ["attention.blocks"]
    return program


MASKS = ("", "rows and columns", "columns", "bias", "condition", "input")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from([(), (1,), (3,), (2, 3)]), st.tuples(*[st.sampled_from(SIZES)] * 4), st.sampled_from(MASKS),
    st.sampled_from(["", "queries", "both", "scores"]), st.booleans(), st.sampled_from(["", "", "rows", "condition", "weights"]),
    st.sampled_from([1, 2]),
)  # fmt: skip
def test_attention_over_whole_operands(
    batch: tuple[int, ...], sizes: tuple[int, int, int, int], mask: str, factor: str, guarded: bool, after: str, threads: int
) -> None:
    rows, columns, depth, width = sizes
    m = Model()
    if factor == "scores" and len(batch) < 1:
        batch = (1,)
    q, k, v = m.input(*batch, rows, depth), m.input(*batch, columns, depth), m.input(*batch, columns, width)
    graph = m.graph(attended(m, q, k, v, mask, factor, guarded=guarded, after=after))
    with tempfile.TemporaryDirectory() as folder:
        check(graph, is_one_kernel(graph), Path(folder), threads)


def run_rounded(graph: Graph, feeds: dict[str, np.ndarray], folder: Path, *, threads: int, processor: str) -> np.ndarray:
    """Run attention in bf16 with the code for the given processor."""
    program = is_one_kernel(graph)
    kernels = (
        each if each.implementation.is_free else replace(each, implementation=each.implementation.in_precision("bf16"))
        for each in program.kernels
    )
    plan = compile_program(replace(program, kernels=tuple(kernels)), folder, CompileOptions(threads=threads))
    assert [step.spec["function"] for step in plan.steps] == ["attention_bf16"]
    weights = {buffer.key: graph.tensors[buffer.key] for buffer in plan.buffers if buffer.area == "weight"}
    library = build(Path(attention.__file__).with_name("attention.c"), PROCESSORS[processor])
    executable = Executable(plan, weights, threads=threads, libraries=lambda file: library)
    result: np.ndarray = executable.run(feeds)[plan.outputs[0].name]
    executable.close()
    return result


def in_bfloat16(array: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def rounded(m: Model, y: Node, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return attention whose products have rounded operands, and the error bound.

    The bound allows a few numbers to be rounded to the other neighbour.
    """
    leaves = {node: feeds[node.string("name")] for node in m.inputs}
    leaves |= {node: m.tensors[node.string("digest")] for node in walk((y,)) if node.op == "Constant"}
    (product,) = (node for node in walk((y.inputs[0],)) if node.op == "MatMul")
    scores = make("Placeholder", (), attributes(index=0, constant=False), product.type)
    new = rewrite((y.inputs[0],), lambda old, below: scores if old is product else make(old.op, below, old.attributes, old.type))
    leaves[scores] = np.matmul(*map(in_bfloat16, evaluate(product.inputs, leaves)))
    p, values = (in_bfloat16(each).astype(np.float64) for each in evaluate((new[y.inputs[0]], y.inputs[1]), leaves))
    largest = np.max(p[..., :, :, None] * np.abs(values)[..., None, :, :], axis=-2)
    return p @ values, 5e-5 * (p @ np.abs(values)) + 2.0**-4 * largest + 1e-7


@settings(max_examples=90, deadline=None, derandomize=True)
@given(
    st.sampled_from([(), (3,), (2, 3)]), st.tuples(*[st.sampled_from((*SIZES, 33, 200))] * 4), st.sampled_from(MASKS),
    st.sampled_from(["", "queries", "both", "scores"]), st.booleans(), st.sampled_from(["", "", "rows", "condition"]),
    st.sampled_from([1, 2]), st.sampled_from(list(PROCESSORS)),
)  # fmt: skip
def test_attention_of_rounded_operands(
    batch: tuple[int, ...], sizes: tuple[int, int, int, int], mask: str, factor: str, guarded: bool, after: str, threads: int,
    processor: str,
) -> None:  # fmt: skip
    """bf16(g(softmax(f(bf16(a q) bf16(b k)^T)))) bf16(v), where a few numbers may be rounded to the other neighbour."""
    rows, columns, depth, width = sizes
    m = Model()
    if factor == "scores" and len(batch) < 1:
        batch = (1,)
    q, k, v = m.input(*batch, rows, depth), m.input(*batch, columns, depth), m.input(*batch, columns, width)
    y = attended(m, q, k, v, mask, factor, guarded=guarded, after=after)
    graph = m.graph(y)
    feeds = {node.string("name"): m.random.standard_normal(node.type.sizes).astype(np.float32) for node in m.inputs}
    with tempfile.TemporaryDirectory() as folder:
        got = run_rounded(graph, feeds, Path(folder), threads=threads, processor=processor)
    expected, bound = rounded(m, y, feeds)
    assert np.all(np.abs(got - expected) <= bound)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize(("rows", "columns"), [(40, 33), (33, 40)])
def test_rounded_operands_are_read_where_they_lie(tmp_path: Path, processor: str, rows: int, columns: int) -> None:
    """Elements of queries and keys are strided, over two whole vectors; values are a part of a wider tensor."""
    m = Model()
    q, k = transposed(m.input(3, 40, rows)), transposed(m.input(3, 40, columns))
    y = attended(m, q, k, cut(m.input(3, columns, 50), 2, 7, 42), "", "queries", guarded=False)
    feeds = {node.string("name"): m.random.standard_normal(node.type.sizes).astype(np.float32) for node in m.inputs}
    got = run_rounded(m.graph(y), feeds, tmp_path, threads=2, processor=processor)
    expected, bound = rounded(m, y, feeds)
    assert np.all(np.abs(got - expected) <= bound)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_operands_are_rounded_to_the_nearest(tmp_path: Path, processor: str) -> None:
    """Operands are rounded to the nearest number.

    With one key, the result is the rounded values. With two keys, scores that only rounding makes equal give the mean. With three equal
    keys, probabilities are thirds, which are rounded up.
    """
    m = Model()
    graph = m.graph(attended(m, m.input(3, 1), m.input(1, 1), m.input(1, 4), "", "", guarded=False))
    values = np.array([[1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-7, 1 + 2.0**-8 + 2.0**-20]], np.float32)
    feeds = {"x0": np.ones((3, 1), np.float32), "x1": np.ones((1, 1), np.float32), "x2": values}
    got = run_rounded(graph, feeds, tmp_path / "values", threads=1, processor=processor)
    np.testing.assert_array_equal(got, np.tile([[1.0, 1 + 2.0**-6, -1 - 2.0**-7, 1 + 2.0**-7]], (3, 1)))

    m = Model()
    graph = m.graph(attended(m, m.input(2, 3), m.input(2, 3), m.input(2, 1), "", "", guarded=False))
    queries = np.array([[1024.0, 0.0, 0.0], [0.0, 1024.0 * (1 + 2.0**-9), 1024.0]], np.float32)
    keys = np.array([[1 + 2.0**-9, 1.0, 0.0], [1.0, 0.0, 1.0]], np.float32)
    feeds = {"x0": queries, "x1": keys, "x2": np.array([[0.0], [1.0]], np.float32)}
    got = run_rounded(graph, feeds, tmp_path / "scores", threads=1, processor=processor)
    np.testing.assert_array_equal(got, [[0.5], [0.5]])

    m = Model()
    graph = m.graph(attended(m, m.input(1, 2), m.input(3, 2), m.input(3, 1), "", "", guarded=False))
    feeds = {"x0": np.zeros((1, 2), np.float32), "x1": np.ones((3, 2), np.float32), "x2": np.ones((3, 1), np.float32)}
    got = run_rounded(graph, feeds, tmp_path / "probabilities", threads=1, processor=processor)
    np.testing.assert_array_equal(got, [[1 + 2.0**-9]])


@pytest.mark.parametrize("has_tiles", [False, True])
def test_rounding_is_offered_where_the_processor_has_tiles(monkeypatch: pytest.MonkeyPatch, has_tiles: bool) -> None:
    monkeypatch.setattr(tiles, "x86_flags", lambda: frozenset({tiles.TILE_FEATURE} if has_tiles else ()))
    m = Model()
    q, k, v = m.input(2, 9, 4), m.input(2, 9, 4), m.input(2, 9, 4)
    y = apply("Transpose", attended(m, q, k, v, "", "", guarded=False), perm=(1, 0, 2))
    frozen, _ = freeze(m.graph(y))
    for precisions in ((), ("bf16x3",), ("bf16",)):
        laid = candidates(frozen, replace(lowering("cpu").target, precisions=precisions))
        kernels = [(each.implementation.text, each.fragment.op) for offered in laid.values() for each in offered]
        assert {op for text, op in kernels if text == "attention.blocks"} == {"MatMul", "Transpose"}
        rounding = {op for text, op in kernels if text == "attention.blocks@bf16"}
        assert rounding == ({"MatMul", "Transpose"} if has_tiles and "bf16" in precisions else set())
    fragment = apply("MatMul", apply("Softmax", apply("MatMul", q, transposed(k)), axis=2), v)
    reason = attention.reads(fragment, "attention.blocks@bf16")
    assert isinstance(reason, str) and ("no amx_bf16" in reason) is not has_tiles
    assert "float32 and bf16" in str(attention.reads(fragment, "attention.blocks@bf16x3"))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("rows", "count", "depth"), [(1, 1, 1), (5, 3, 7), (49, 6, 32), (67, 2, 64), (300, 2, 20)])
def test_attention_over_parts_of_one_product(tmp_path: Path, mask: str, rows: int, count: int, depth: int) -> None:
    """Attention reads its operands in place from the wide product, and writes the heads interleaved."""
    m = Model()
    width = count * depth
    wide = m.input(2, rows, 3 * width)
    q, k, v = (heads(cut(wide, 2, part * width, (part + 1) * width), count) for part in range(3))
    y = apply("Transpose", attended(m, q, k, v, mask, "queries", guarded=False), perm=(0, 2, 1, 3))
    graph = m.graph(apply("Reshape", y, shape=(2, rows, width)))
    plan = check(graph, is_one_kernel(graph), tmp_path, 2)
    assert [step.kind for step in plan.steps] == ["function"]
    assert plan.buffers[plan.steps[0].inputs[0]].strides[-2:] == (3 * width, 1) or rows == 1


def test_groups_of_queries_share_keys_that_are_not_repeated(tmp_path: Path) -> None:
    m = Model()
    q, k, v = m.input(1, 8, 33, 16), m.input(1, 2, 33, 16), m.input(1, 2, 33, 16)

    def repeated(x: Node) -> Node:
        apart = apply("Reshape", x, shape=(1, 2, 1, 33, 16))
        return apply("Reshape", apply("Expand", apart, shape=(1, 2, 4, 33, 16)), shape=(1, 8, 33, 16))

    graph = m.graph(attended(m, q, repeated(k), repeated(v), "rows and columns", "both", guarded=False))
    plan = check(graph, is_one_kernel(graph), tmp_path, 2)
    assert 0 in plan.buffers[plan.steps[0].inputs[1]].strides


def test_reshapes_of_the_batch_stand_between(tmp_path: Path) -> None:
    m = Model()
    q, k, v = m.input(6, 20, 8), m.input(6, 20, 8), m.input(6, 20, 8)
    scores = apply("Reshape", apply("MatMul", q, transposed(k)), shape=(2, 3, 20, 20))
    p = apply("Softmax", apply("Add", scores, m.input(2, 1, 20, 20)), axis=3)
    graph = m.graph(apply("MatMul", apply("Reshape", p, shape=(6, 20, 20)), v))
    check(graph, is_one_kernel(graph), tmp_path)


def run(m: Model, y: Node, feeds: dict[str, np.ndarray], folder: Path) -> np.ndarray:
    from runtime import Session

    graph = m.graph(y)
    compile_program(is_one_kernel(graph), folder, CompileOptions(threads=1))
    with Session(folder, threads=1) as session:
        (result,) = session.run(None, feeds)
    return np.asarray(result)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("lies", ["along the keys", "once a row"])
def test_conditions_choose_numbers_wherever_they_lie(tmp_path: Path, lies: str, keeps: bool) -> None:
    """A condition may replace a score, or select the score over another number. The sizes cover whole vectors and the rest of a row."""
    m = Model()
    q, k, v = m.input(30, 8), m.input(37, 8), m.input(37, 5)
    scores = apply("MatMul", q, transposed(k))
    other = m.input(30, 37 if lies == "along the keys" else 1)
    condition = constant(m, m.random.random((30, 37)) < 0.5)
    chosen = apply("Where", condition, scores, other) if keeps else apply("Where", condition, other, scores)
    graph = m.graph(apply("MatMul", apply("Softmax", chosen, axis=1), v))
    check(graph, is_one_kernel(graph), tmp_path, 2)


@pytest.mark.parametrize("guarded", [False, True])
def test_what_is_no_number_stays_in_its_row(tmp_path: Path, guarded: bool) -> None:
    """A score that is NaN or infinity, or scores that are all minus infinity, make their row NaN, and no other row."""
    m = Model()
    q, k, v, mask = m.input(30, 8), m.input(21, 8), m.input(21, 5), m.input(30, 21)
    p = apply("Softmax", apply("Add", apply("MatMul", q, transposed(k)), mask), axis=1)
    if guarded:
        p = apply("Where", apply("IsNaN", p), constant(m, 0.5), p)
    y = apply("MatMul", p, v)
    feeds = {f"x{i}": m.random.standard_normal(node.type.sizes).astype(np.float32) for i, node in enumerate(m.inputs)}
    feeds["x3"][3] = -np.inf
    feeds["x3"][7, 20] = np.nan
    feeds["x3"][8, 0] = np.nan
    feeds["x3"][11, 4] = np.inf
    feeds["x3"][12, :20] = -np.inf
    result = run(m, y, feeds, tmp_path)
    odd = [3, 7, 8, 11]
    if guarded:
        np.testing.assert_allclose(result[odd], np.tile(0.5 * feeds["x2"].sum(0), (4, 1)), rtol=1e-5, atol=1e-5)
    else:
        assert np.isnan(result[odd]).all()
    assert np.isfinite(np.delete(result, odd, axis=0)).all()
    np.testing.assert_allclose(result[12], feeds["x2"][20], rtol=1e-6)


def test_large_scores_neither_overflow_nor_vanish(tmp_path: Path) -> None:
    m = Model()
    q, k, v = m.input(9, 4), m.input(40, 4), m.input(40, 3)
    y = apply("MatMul", apply("Softmax", apply("MatMul", q, transposed(k)), axis=1), v)
    feeds = {f"x{i}": 100 * m.random.standard_normal(node.type.sizes).astype(np.float32) for i, node in enumerate(m.inputs)}
    scores = feeds["x0"].astype(np.float64) @ feeds["x1"].T
    powers = np.exp(scores - scores.max(1, keepdims=True))
    expected = powers / powers.sum(1, keepdims=True) @ feeds["x2"]
    np.testing.assert_allclose(run(m, y, feeds, tmp_path), expected, rtol=2e-2, atol=1e-2)  # scores of 1e4: 3 digits after the point


@pytest.mark.parametrize("mask", ["bool[9,9]", "float[9,9]", "bool[2,1,1,9]"])
def test_the_standards_attention_with_a_mask_that_is_given(tmp_path: Path, mask: str) -> None:
    """The function of the standard's operator replaces, after the softmax, the rows whose keys are all masked."""
    from egraph.onnx.importer import load

    model = onnx.parser.parse_model(
        f"<ir_version: 11, opset_import: ['': 23]> g (float[2,3,9,7] q, float[2,3,9,7] k, float[2,3,9,7] v, {mask} m)"
        " => (float[2,3,9,7] y) { y = Attention<scale = 0.3>(q, k, v, m) }".replace("'", '"')
    )
    program = choose(load(model).graph, "attention")
    assert "attention.blocks" in [kernel.implementation.text for kernel in program.kernels]
    assert not any("Softmax" in str(kernel.fragment.op) for kernel in program.kernels)


def placeholders(*shapes: tuple[int, ...]) -> list[Node]:
    return [make("Placeholder", (), attributes(index=i, constant=False), float32(*shape)) for i, shape in enumerate(shapes)]


def refusal(y: Node) -> str:
    found = match(y)
    assert not isinstance(found, AttentionCall)
    return found


def test_what_is_no_attention_is_refused() -> None:
    q, k, v = placeholders((2, 6, 4), (2, 6, 4), (2, 6, 3))
    scores = apply("MatMul", q, transposed(k))
    p = apply("Softmax", scores, axis=2)
    assert isinstance(match(apply("MatMul", p, v)), AttentionCall)
    assert isinstance(match(apply("MatMul", apply("Mul", apply("Mul", p, p), p), v)), str)
    assert "along the keys" in refusal(apply("MatMul", apply("Softmax", scores, axis=1), v))
    assert "between the softmax" in refusal(apply("MatMul", apply("Relu", p), v))
    assert "no step" in refusal(apply("MatMul", apply("Softmax", apply("Exp", scores), axis=2), v))
    assert "no step" in refusal(apply("MatMul", apply("Softmax", apply("Add", scores, scores), axis=2), v))
    assert "no step" in refusal(apply("MatMul", apply("Softmax", apply("Add", scores, apply("Relu", scores)), axis=2), v))
    other = apply("Where", apply("IsNaN", scores), make("Placeholder", (), attributes(index=3, constant=True), float32()), p)
    assert "between the softmax" in refusal(apply("MatMul", other, v))
    assert "computes" in refusal(apply("MatMul", p, apply("Exp", v)))
