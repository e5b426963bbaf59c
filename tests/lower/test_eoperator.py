"""Compare generated kernels with the float64 reference: every operator, chains, awkward sizes, strides, threads, caching."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import lower.targets.cpu.generator.library as library_module
from egraph.errors import LowerError
from egraph.optimize.estimated import estimated_program
from egraph.tensor import Graph, Node, TensorType, attributes, format_fragment, make, placeholders
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.dtypes import INTEGERS
from egraph.tensor.ops.reference import evaluate
from egraph.tensor.text import parse_fragment
from lower.targets.cpu.generator import KernelRequest, Library, compile_library, may_overwrite, supports
from tests.support.fragments import leaf
from tests.support.kernels import Loaded, chains, check, feeds, samples

APPROXIMATIONS = (("Exp", -90.0, 88.5), ("Log", 1e-38, 1e30), ("Tanh", -12.0, 12.0), ("Erf", -5.0, 5.0), ("Sigmoid", -90.0, 30.0))
WAVES = (("Sin", 1e-30, 3e38), ("Cos", 1e-30, 3e38))
SOFTMAX = [apply("Softmax", leaf(0, rows, length), axis=1) for rows, length in ((11, 100), (7, 1029), (3, 2051), (2, 4099), (5, 31))]
"""Rows in fours and those left over, of which there are two; too long for more than two at once, or one; with every remainder."""
STRIDED = KernelRequest(apply("Relu", leaf(0, 3, 5, 6)), output_strides=(90, 18, 1), input_strides=((60, 12, 2),))
LONG = (apply("ReduceSum", leaf(0, 2, 90300), axes=(1,)), apply("ReduceSum", leaf(0, 90300, 3), axes=(0,)))
LONG_EXTREMA = (
    apply("ReduceMax", leaf(0, 2, 90300), axes=(1,)), apply("ReduceMax", leaf(0, 900, 3), axes=(0,)),
    apply("ReduceMin", leaf(0, 900, 3), axes=(0,)),
)  # fmt: skip
WHOLE = [apply("Cast", leaf(0, 5, 37, dtype=dtype), to="float32") for dtype in sorted(INTEGERS)]
KEPT = apply("Reshape", apply("Cast", leaf(0, 3, 70, dtype="int64"), to="float32"), shape=(3, 1, 1, 70))
MASK = apply("Mul", apply("Sub", leaf(1, 1), KEPT), leaf(2, 1))
IN_PLACE = apply("Add", apply("Relu", leaf(0, 7, 37)), leaf(1, 1, 37))

X, Y = leaf(0, 23, 77), leaf(1, 23, 77)
SOFT = apply("Softmax", X, axis=1)
POOL: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (1, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
WITH_NAN: tuple[Node, ...] = (
    apply("Max", X, Y), apply("Min", X, Y), apply("Max", X, leaf(1, 1, 77)), apply("Relu", X), apply("Clip", X, min=-0.5, max=0.5),
    apply("LeakyRelu", X, alpha=0.1), apply("PRelu", X, leaf(1, 77)), apply("Abs", X), apply("Sign", X), apply("IsNaN", X),
    apply("HardSigmoid", X, alpha=0.2, beta=0.5), apply("Pow", X, leaf(1, 1)), apply("Sqrt", X), apply("Log", X),
    *(apply(op, X, axes=axes) for op in ("ReduceMax", "ReduceMin", "ReduceSum") for axes in ((0,), (1,), (0, 1))),
    apply("MaxPool", leaf(0, 2, 5, 12, 33), layout="NCHW", **POOL), apply("MaxPool", leaf(0, 2, 12, 13, 16), layout="NHWC", **POOL),
    *(apply("Where", condition, X, Y) for condition in (
        apply("Less", X, Y), apply("Not", apply("Less", X, Y)), apply("Not", apply("GreaterOrEqual", X, Y)),
        apply("Not", apply("Equal", X, X)), apply("IsNaN", X), apply("Not", apply("IsNaN", X)),
    )),
    apply("Where", apply("IsNaN", SOFT), leaf(1, 1), SOFT), apply("Not", apply("Equal", X, X)),
    *(apply(op, X) for op in ("Tanh", "Erf", "Sigmoid", "Sin", "Cos", "Neg", "Round", "Floor", "HardSwish", "Softplus", "Softsign")),
    *(apply("Gelu", X, approximate=form) for form in ("none", "tanh")), apply("Elu", X, alpha=0.5), apply("Celu", X, alpha=0.5),
    apply("Selu", X, alpha=1.67, gamma=1.05), apply("ThresholdedRelu", X, alpha=0.3), apply("Mish", X),
)  # fmt: skip
"""What onnxruntime and numpy say of operands that are no numbers is said by generated kernels too."""

ZEROS = [-0.0, 0.0, -1.5, 1.5, -math.inf, math.inf]
SIGNED_ZEROS = (
    (apply("Sin", leaf(0, 6)), [[-0.0, 0.0, math.sin(-1.5), math.sin(1.5), math.nan, math.nan]]),
    (apply("Sign", leaf(0, 6)), [[0.0, 0.0, -1.0, 1.0, -1.0, 1.0]]),
    (apply("Pow", leaf(0, 6), leaf(1, 4, 1)), [
        [-0.0, 0.0, -3.375, 3.375, -math.inf, math.inf], [-math.inf, math.inf, -1 / 1.5, 1 / 1.5, -0.0, 0.0],
        [math.inf, math.inf, 1.5**-2, 1.5**-2, 0.0, 0.0], [0.0, 0.0, math.nan, 1.5**0.5, math.inf, math.inf],
    ]),
    (apply("Gelu", leaf(0, 6), approximate="tanh"), [[-0.0, 0.0, -0.10042842, 1.3995716, math.nan, math.inf]]),
)  # fmt: skip
EXPONENTS = np.array([[3.0], [-1.0], [-2.0], [0.5]], np.float32)

LOOKED_UP = tuple(
    (fragment, dtype)
    for dtype in ("int32", "int64")
    for fragment in (
        apply("Gather", leaf(0, 7, 33), leaf(1, 5, dtype=dtype), axis=0),
        apply("GatherElements", leaf(0, 7, 33), leaf(1, 3, 50, dtype=dtype), axis=1),
        apply("GatherND", leaf(0, 2, 7, 9, 33), leaf(1, 2, 5, 2, dtype=dtype), batch_dims=1),
    )
)
"""Reads at places that are computed."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Compile all single-threaded kernels of the tests at once, because starting the compiler takes most of the time."""
    folder = tmp_path_factory.mktemp("kernels")
    fragments = [f for f in [*samples(list(OPS), 1), *chains()] if supports(f) is None]
    own: list[Node | KernelRequest] = [apply(op, leaf(0, 4001)) for op, _, _ in APPROXIMATIONS + WAVES]
    own += [*LONG, *LONG_EXTREMA, *WITH_NAN, *SOFTMAX, *WHOLE, *(each for each, _ in (*SIGNED_ZEROS, *LOOKED_UP)), MASK, STRIDED, IN_PLACE]
    return compile_library([*fragments, *own], folder / "kernels.so", threads=1, cache=folder)


def test_every_operator_and_chains_agree_with_the_reference(library: Library) -> None:
    assert not library.failures
    loaded = Loaded(library.path)
    fragments = [key for key in library if isinstance(key, Node)]
    assert {f.op for f in fragments} == {name for name, spec in OPS.items() if spec.category != "recurrence"}
    for fragment in fragments:
        check(loaded, library[fragment], fragment)


def test_large_kernels_run_in_parallel_for_any_number_of_tasks(tmp_path: Path) -> None:
    fragments = [
        apply("Exp", leaf(0, 300_007)),
        apply("Transpose", apply("Relu", leaf(0, 2, 67, 40, 41)), perm=(0, 2, 3, 1)),
        apply("Transpose", leaf(0, 1, 60, 71, 37), perm=(0, 3, 1, 2)),  # too few blocks of channels to share among threads
        apply("Softmax", leaf(0, 301, 701), axis=1),
        apply("ReduceMean", leaf(0, 1, 120, 71, 37), axes=(1, 2)),  # too few results, so the terms are shared among threads
        apply("ReduceMax", leaf(0, 640, 711), axes=(0, 1)),
        apply("Sub", leaf(0, 90, 71, 41), apply("ReduceSum", leaf(0, 90, 71, 41), axes=(0, 1))),
        apply("ReduceMean", leaf(0, 35, 61, 256), axes=(0, 1)),  # an odd number of terms
    ]
    library = compile_library(fragments, tmp_path / "kernels.so", threads=2, cache=tmp_path)
    for tasks in (1, 2, 3):
        loaded = Loaded(library.path, tasks)
        for fragment in fragments:
            before = loaded.launches
            check(loaded, library[fragment], fragment)
            assert loaded.launches > before


def test_strides_write_into_a_part_of_a_larger_tensor(library: Library) -> None:
    source = np.random.default_rng(0).standard_normal((3, 5, 6, 2)).astype(np.float32)
    target = np.full((3, 5, 18), 7, np.float32)
    Loaded(library.path).run(library[STRIDED], [source, target])
    np.testing.assert_array_equal(target[:, :, :6], np.maximum(source[..., 0], 0))
    assert (target[:, :, 6:] == 7).all()


@pytest.mark.parametrize("position", range(len(LOOKED_UP)))
def test_a_place_beyond_the_data_reads_some_element_of_it(position: int, library: Library) -> None:
    fragment, dtype = LOOKED_UP[position]
    random, limits = np.random.default_rng(2), np.iinfo(dtype)
    data, places = (operand.type.sizes for operand in fragment.inputs)
    source = random.standard_normal(data).astype(np.float32)
    chosen = random.choice([limits.min, limits.max, -1_000_000_007, 1_000_000_007, 7, -8], places).astype(dtype)
    result = np.zeros(fragment.type.sizes, np.float32)
    Loaded(library.path).run(library[fragment], [source, chosen, result])
    assert np.isin(result, source).all()


def test_integers_become_the_nearest_numbers_whatever_their_size(library: Library) -> None:
    """Integers that also occur in indices are held in 31 bits there. As numbers, all their bits count."""
    random, loaded = np.random.default_rng(3), Loaded(library.path)
    check(loaded, library[MASK], MASK)
    for fragment in WHOLE:
        limits = np.iinfo(fragment.inputs[0].type.dtype)
        values = random.integers(limits.min, limits.max, (5, 37), dtype=limits.dtype, endpoint=True)
        values[0, :2] = limits.min, limits.max
        found = np.empty((5, 37), np.float32)
        loaded.run(library[fragment], [values, found])
        np.testing.assert_array_equal(found, values.astype(np.float32))


def test_overwriting_an_input_is_allowed_only_where_each_element_is_read_in_its_place(library: Library) -> None:
    x = leaf(0, 7, 37)
    assert may_overwrite(IN_PLACE) == {0}
    assert may_overwrite(apply("Transpose", leaf(0, 7, 7), perm=(1, 0))) == frozenset()
    assert may_overwrite(apply("Add", x, apply("Slice", x, starts=(6, 0), ends=(-1, 37), steps=(-1, 1)))) == frozenset()
    assert may_overwrite(apply("Softmax", x, axis=1)) == frozenset()
    first, second = feeds(IN_PLACE)
    expected = np.maximum(first, 0) + second
    Loaded(library.path).run(library[IN_PLACE], [first, second, first])
    np.testing.assert_allclose(first, expected, rtol=1e-6)


@pytest.mark.parametrize(("op", "low", "high"), APPROXIMATIONS + WAVES)
def test_approximations_hold_over_their_range(op: str, low: float, high: float, library: Library) -> None:
    fragment = apply(op, leaf(0, 4001))
    values = np.geomspace(low, high, 4001) if low > 0 else np.linspace(low, high, 4001)
    x = values.astype(np.float32)
    out = np.empty_like(x)
    Loaded(library.path).run(library[fragment], [x, out])
    expected = evaluate((fragment,), {placeholders(fragment)[0]: x})[0]
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=2e-7 if op in ("Erf", "Tanh", "Log", "Sin", "Cos") else 2e-38)


@pytest.mark.parametrize("fragment", LONG)
def test_long_sums_do_not_round_as_often_as_they_have_terms(fragment: Node, library: Library) -> None:
    operand, = placeholders(fragment)
    x = np.full(operand.type.sizes, 1000.3, np.float32)  # equal terms round the same way each time
    out = np.empty(fragment.type.sizes, np.float32)
    Loaded(library.path).run(library[fragment], [x, out])
    np.testing.assert_allclose(out, x.sum(axis=0 if out.shape[0] == 1 else 1, keepdims=True, dtype=np.float64), rtol=3e-6)


def test_exp_is_off_by_less_than_a_unit_in_the_last_place(library: Library) -> None:
    fragment = apply("Exp", leaf(0, 4001))
    loaded = Loaded(library.path)
    worst = 0.0
    for low, high in ((-86.98, -60.0), (-1.0, 1.0), (-40.0, 40.0), (80.0, 88.72)):
        x = np.linspace(low, high, 4001).astype(np.float32)
        out = np.empty_like(x)
        loaded.run(library[fragment], [x, out])
        expected = np.exp(x.astype(np.float64))
        worst = max(worst, float((np.abs(out - expected) / np.spacing(expected.astype(np.float32))).max()))
    assert worst < 0.9


def special(fragment: Node) -> np.ndarray:
    """Return an operand whose rows contain, in turn, ordinary numbers, NaN, infinities, only minus infinity, and huge numbers."""
    x = np.random.default_rng(3).standard_normal(fragment.type.sizes).astype(np.float32)
    x.flat[[1, 5]] = np.inf, -np.inf
    rows = x.reshape(-1, x.shape[-1])
    for row, values in zip(rows[1:], ([np.nan], [-np.inf], [np.inf], [-np.inf] * x.shape[-1], [3e38, -3e38], [-1e30]), strict=False):
        row[: len(values)] = values
    return x


@pytest.mark.parametrize("fragment", [apply("Exp", leaf(0, 4001)), *SOFTMAX], ids=lambda f: str(f.type))
def test_exp_and_softmax_of_infinities_and_nan_are_those_of_onnxruntime(fragment: Node, library: Library) -> None:
    x = special(fragment)
    kind = onnx.TensorProto.FLOAT
    node = onnx.helper.make_node(fragment.op, ["x"], ["y"], **({"axis": 1} if fragment.op == "Softmax" else {}))
    values = [onnx.helper.make_tensor_value_info(name, kind, fragment.type.sizes) for name in ("x", "y")]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    expected = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    out = np.empty_like(x)
    Loaded(library.path).run(library[fragment], [x, out])
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=2e-38)


@pytest.mark.parametrize("fragment", WITH_NAN, ids=str)
def test_what_is_no_number_stays_none(fragment: Node, library: Library) -> None:
    random, arrays = np.random.default_rng(5), []
    for operand in placeholders(fragment):
        x = random.standard_normal(operand.type.sizes).astype(np.float32)
        for value, chance in ((np.nan, 0.02), (np.inf, 0.05), (-np.inf, 0.05), (-0.0, 0.1), (0.0, 0.1), (1e-42, 0.05), (-3e38, 0.05)):
            x[random.random(x.shape) < chance] = value
        arrays.append(x)
    arrays[0].reshape(-1, arrays[0].shape[-1])[1] = -np.inf
    out = np.empty(fragment.type.sizes, fragment.type.dtype)
    Loaded(library.path).run(library[fragment], [*arrays, out])
    with np.errstate(all="ignore"):
        expected = np.asarray(evaluate((fragment,), dict(zip(placeholders(fragment), arrays, strict=True)))[0]).astype(np.float32)
    np.testing.assert_allclose(out.astype(np.float32), expected, rtol=2e-5, atol=1e-6, err_msg=str(fragment))


@pytest.mark.parametrize(("fragment", "rows"), SIGNED_ZEROS, ids=["sin", "sign", "pow", "gelu"])
def test_zeros_and_infinities_have_the_signs_that_ieee_gives_them(fragment: Node, rows: list[list[float]], library: Library) -> None:
    out, expected = np.empty(fragment.type.sizes, np.float32), np.array(rows, np.float32).reshape(fragment.type.sizes)
    arrays = [np.array(ZEROS, np.float32), EXPONENTS][: len(placeholders(fragment))]
    Loaded(library.path).run(library[fragment], [*arrays, out])
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    kept = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(out[kept]), np.signbit(expected[kept]))


def test_a_tanh_that_saturates_leaves_nothing_to_multiply(library: Library) -> None:
    """1 + tanh(x) must be exactly 0 for large negative x, because any remainder would be multiplied by x."""
    x = np.full((23, 77), -1e30, np.float32)
    for fragment in (apply("Gelu", X, approximate="tanh"), apply("Gelu", X, approximate="none")):
        out = np.empty_like(x)
        Loaded(library.path).run(library[fragment], [x, out])
        assert not out.any()


def test_a_warm_cache_compiles_nothing_and_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fragments = [apply("Relu", leaf(0, 5, 7)), apply("Neg", leaf(0, 5, 7))]
    cold = compile_library(fragments, tmp_path / "a.so", threads=1, cache=tmp_path / "cache")
    again = compile_library(fragments, tmp_path / "b.so", threads=1, cache=tmp_path / "other")
    monkeypatch.setattr(library_module, "_batch", lambda *_: pytest.fail("compiled"))
    warm = compile_library(fragments, tmp_path / "c.so", threads=1, cache=tmp_path / "cache")
    assert (cold.compiled, again.compiled, warm.compiled) == (2, 2, 0)
    assert dict(cold.symbols) == dict(again.symbols) == dict(warm.symbols)
    assert cold.path.read_bytes() == again.path.read_bytes() == warm.path.read_bytes()


def test_one_failure_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = apply("Relu", leaf(0, 5))
    foreign = make("Opaque", (leaf(0, 5),), (), TensorType("float32", (5,)))
    double = apply("Exp", leaf(0, 5, dtype="float64"))
    assert "Opaque" in str(supports(foreign)) and "float32" in str(supports(double))
    refused = compile_library([foreign, good, double], tmp_path / "a.so", threads=1, cache=tmp_path)
    assert set(refused) == {good} and set(refused.failures) == {foreign, double}
    monkeypatch.setattr(library_module, "supports", lambda _: None)  # so that only the compiling process rejects them
    failed = compile_library([foreign, good, double], tmp_path / "b.so", threads=1, cache=tmp_path)
    assert set(failed) == {good} and set(failed.failures) == {foreign, double}
    with pytest.raises(LowerError, match="Opaque"):
        failed[foreign]


def test_a_compiler_that_dies_or_hangs_costs_one_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fragments = [apply("Relu", leaf(0, k)) for k in (3, 5, 7)]
    calls: list[int] = []

    def batch(work: list[KernelRequest], *_: object) -> tuple[int, str]:
        calls.append(len(work))
        return (1, "the compiler died") if len(calls) == 1 else (len(work), "")

    monkeypatch.setattr(library_module, "_batch", batch)
    monkeypatch.setattr(library_module, "_link", lambda *_: None)
    result: Library = compile_library(fragments, tmp_path / "a.so", threads=1, cache=tmp_path)
    assert set(result.failures) == {fragments[1]} and set(result) == {fragments[0], fragments[2]} and calls == [3, 1]


def test_fragments_survive_the_way_to_the_compiling_process() -> None:
    for fragment in chains():
        assert parse_fragment(format_fragment(fragment)) is fragment


def test_what_is_compared_with_its_largest_element_is_stored() -> None:
    """If elements were computed once for the maximum and again for the comparison with it, no element might equal the maximum."""
    x = make("Input", (), attributes(name="x"), TensorType("float32", (5, 7)))
    place = apply("ArgMax", apply("Exp", x), axis=1, select_last_index=0)
    assert supports(apply("ArgMax", leaf(0, 5, 7), axis=1, select_last_index=0)) is None
    reason = supports(apply("ArgMax", apply("Exp", leaf(0, 5, 7)), axis=1, select_last_index=0))
    assert reason is not None and "computed twice" in reason
    program = estimated_program(Graph("g", (x,), (("y", place),), {}), [])
    assert [kernel.fragment.op for kernel in program.kernels] == ["Exp", "ArgMax"]


def test_generated_code_is_stable(golden: Callable[[str, str], None]) -> None:
    from lower.targets.cpu.generator.generate import generate

    fragment = apply("Transpose", apply("Relu", apply("Add", leaf(0, 1, 6, 5, 7), leaf(1, 6, 1, 1))), perm=(0, 2, 3, 1))
    golden("eoperator_bias_relu_transpose.tir", generate(KernelRequest(fragment), threads=1).script() + "\n")


def channels_first(index: int, *shape: int) -> Node:
    return apply("Transpose", leaf(index, *shape), perm=(0, 3, 1, 2))


SEVERAL_TRANSPOSED = (
    apply("MaxPool", channels_first(0, 1, 21, 23, 37), kernel_shape=(3, 2), strides=(2, 1), pads=(0, 0, 0, 0),
          dilations=(1, 1), layout="NCHW"),
    apply("Add", apply("Mul", channels_first(0, 2, 9, 5, 21), channels_first(1, 2, 9, 5, 21)), channels_first(2, 2, 9, 5, 21)),
    apply("Sub", apply("Add", channels_first(0, 1, 13, 11, 18), channels_first(1, 1, 13, 11, 18)),
          apply("Exp", apply("Add", channels_first(2, 1, 13, 11, 18), leaf(3, 1, 18, 13, 11)))),
    apply("Relu", apply("Add", apply("Sub", channels_first(0, 1, 6, 6, 40), channels_first(1, 1, 6, 6, 40)), leaf(2, 1, 40, 1, 1))),
)  # fmt: skip
"""Of an operand in the result's own order, and of a bias by channels, the last two."""


def test_what_is_computed_of_several_transposed_tensors_is_transposed_once(tmp_path: Path) -> None:
    from lower.targets.cpu.generator.generate import generate

    library = compile_library(SEVERAL_TRANSPOSED, tmp_path / "kernels.so", threads=2, cache=tmp_path)
    for fragment in SEVERAL_TRANSPOSED:
        check(Loaded(library.path, 2), library[fragment], fragment)

    def shuffles(fragment: Node) -> int:
        return str(generate(KernelRequest(fragment), threads=1).script()).count("Shuffle")

    first, second, third = (channels_first(index, 1, 16, 16, 16) for index in range(3))
    assert shuffles(apply("Add", first, second)) == shuffles(first) > 0
    assert shuffles(apply("Add", first, leaf(1, 1, 16, 16, 16))) == shuffles(first), "one operand is transposed, not the result and another"
    three = apply("Add", apply("Add", first, second), third)
    assert shuffles(apply("Add", three, leaf(3, 1, 16, 16, 16))) == 2 * shuffles(first), "the result, and the operand in its order"
    every_second = apply("Slice", leaf(3, 1, 16, 32, 32), starts=(0, 0, 0, 0), ends=(1, 16, 32, 32), steps=(1, 1, 2, 2))
    assert shuffles(apply("Add", three, every_second)) > 3 * shuffles(first), "what lies apart both ways is gathered in neither"
