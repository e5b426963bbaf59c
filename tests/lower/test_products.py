"""Test products by constant matrices that are packed at load: their sums, their epilogues, and the layouts that they read and write."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from egraph.onnx.exporter import serialized
from egraph.optimize.kernels import kernel_program
from egraph.tensor import Implementation, Node, TensorType, make, placeholder, rewrite, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from egraph.tensor.storage import narrow, widen
from lower.calls.call import LibraryCall
from lower.compile import CompileOptions, compile_program
from lower.cost.rounding import largest_error
from lower.targets import lowering
from lower.targets.cpu import products, tiles
from lower.targets.cpu.products.match import MATMUL, match, operand_precisions
from lower.views import Window
from runtime import Session
from runtime.devices.cpu.native.build import build
from runtime.devices.cpu.packing import KIND, PackedConstants
from runtime.devices.cpu.program import CpuProgram
from runtime.errors import KernelError
from runtime.executable import Executable
from tests.support.lowering import SEED, Model, check, choose, float32

SLOW = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
FUNCTIONS: dict[str, dict[str, Any]] = {
    "Relu": {}, "LeakyRelu": {"alpha": 0.1}, "Clip": {"min": -0.5, "max": 0.75}, "Sigmoid": {}, "HardSwish": {}, "Tanh": {}, "Neg": {},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5}, "Gelu": {"approximate": "none"}, "Round": {},
}  # fmt: skip
ROUNDED, SPLIT = f"{MATMUL}@bf16", f"{MATMUL}@bf16x3"
PROCESSORS: dict[str, tuple[str, ...]] = {"this one": (), "without tiles": ("-U__linux__",), "without vectors": ("-U__x86_64__",)}
"""Flags with which products.c has code for processors that lack some of this one's instructions."""
ENDS = ("nothing", "bias", "bias and function", "residual", "column of rows", "bias, residual and function")


def ended(model: Model, y: Node, end: str) -> Node:
    """Return the epilogue ``end`` applied to the sums ``y``."""
    sizes = y.type.sizes
    if "bias" in end:
        y = apply("Add", y, model.weight(sizes[-1]))
    if "residual" in end:
        y = apply("Sub", y, model.input(*sizes))
    if end == "column of rows":
        y = apply("Mul", y, model.input(*sizes[:-1], 1))
    return apply("Relu", y) if "function" in end else y


def compare(model: Model, y: Node, folder: Path, threads: int) -> None:
    """Check that one call computes ``y``, and compare it with the reference."""
    program = choose(model.graph(y), MATMUL)
    assert [kernel.implementation.text for kernel in program.kernels if not kernel.implementation.is_free] == [MATMUL]
    check(model.graph(y), program, folder, threads)


@SLOW
@given(
    rows=st.sampled_from([(1,), (6,), (7,), (53,), (2, 5), (3, 1, 30), (5, 40)]), size=st.sampled_from([1, 2, 37, 96, 700]),
    columns=st.sampled_from([1, 9, 16, 50, 64, 128]), each=st.booleans(), end=st.sampled_from(ENDS),
    threads=st.sampled_from([1, 2]),
)  # fmt: skip
def test_products_agree_with_the_reference(
    tmp_path: Path, rows: tuple[int, ...], size: int, columns: int, each: bool, end: str, threads: int
) -> None:
    """Test products by one matrix, and by a matrix for each index of the leading axes."""
    model = Model()
    x, w = model.input(*rows, size), model.weight(*(rows[:-1] if each else ()), size, columns)
    compare(model, ended(model, apply("MatMul", x, w), end), tmp_path, threads)


@SLOW
@given(
    images=st.sampled_from([1, 2]), side=st.sampled_from([1, 4, 15, 40]), channels=st.sampled_from([3, 16, 40]),
    outputs=st.sampled_from([5, 32, 72]), stride=st.sampled_from([1, 2]), end=st.sampled_from(["nothing", "bias, residual and function"]),
    threads=st.sampled_from([1, 2]),
)  # fmt: skip
def test_convolutions_of_single_positions_are_products(
    tmp_path: Path, images: int, side: int, channels: int, outputs: int, stride: int, end: str, threads: int
) -> None:
    model = Model()
    y = apply(
        "Conv", model.input(images, side, side, channels), model.weight(outputs, channels, 1, 1), strides=(stride, stride), pads=(0,) * 4,
        dilations=(1, 1), group=1, layout="NHWC",
    )  # fmt: skip
    compare(model, ended(model, y, end), tmp_path, threads)


def test_rows_are_read_and_written_where_they_lie(tmp_path: Path) -> None:
    """With interleaved heads, rows of the input and of the result have no common stride."""
    model = Model()
    heads = apply("Transpose", model.input(2, 5, 3, 16), perm=(0, 2, 1, 3))
    y = apply("Tanh", apply("Add", apply("MatMul", heads, model.weight(16, 32)), model.weight(32)))
    compare(model, apply("Transpose", y, perm=(0, 2, 1, 3)), tmp_path, 2)


@pytest.mark.parametrize("reversed_axes", [(0,), (1,), (2,), (0, 1), (1, 2)])
def test_rows_are_read_backwards(tmp_path: Path, reversed_axes: tuple[int, ...]) -> None:
    """Regression: an inner axis of negative stride was not recognised as the innermost; all rows but the first were wrong."""
    model = Model()
    x = model.input(3, 5, 4, 8)
    bounds = [(size - 1, -1, -1) if axis in reversed_axes else (0, size, 1) for axis, size in enumerate(x.type.sizes)]
    starts, ends, steps = zip(*bounds, strict=True)
    backwards = apply("Slice", x, starts=starts, ends=ends, steps=steps)
    compare(model, ended(model, apply("MatMul", backwards, model.weight(8, 20)), "bias and function"), tmp_path, 2)


@pytest.mark.parametrize("columns", [512, 1024, 1000])
def test_steps_are_right_wherever_they_are_applied(tmp_path: Path, columns: int) -> None:
    """Steps are applied in the result, in a buffer beside it if its rows share cache lines, or in one beside it if a panel is not full."""
    model = Model()
    y = ended(model, apply("MatMul", model.input(70, 24), model.weight(24, columns)), "bias, residual and function")
    compare(model, apply("Mul", y, model.input(70, columns)), tmp_path, 2)


@pytest.mark.parametrize("name", [*FUNCTIONS, "Swish", "Gelu by tanh"])
def test_functions_of_sums_are_close_and_keep_what_is_no_number(tmp_path: Path, name: str) -> None:
    """The sums are one input column times one, so each function sees exactly the input. NaN and infinities must be kept."""
    model = Model()
    sums = apply("MatMul", model.input(200, 1), model.weight(1, 16))
    model.tensors["w0"] = np.ones((1, 16), np.float32)
    if name == "Swish":
        y = apply("Mul", sums, apply("Sigmoid", sums))
    else:
        y = apply("Gelu", sums, approximate="tanh") if name == "Gelu by tanh" else apply(name, sums, **FUNCTIONS[name])
    graph = model.graph(y)
    program = choose(graph, MATMUL)
    assert [kernel.implementation.text for kernel in program.kernels] == [MATMUL]
    compile_program(program, tmp_path, CompileOptions(threads=1, export_graph=serialized))
    x = np.concatenate([np.linspace(-12, 12, 190), [np.nan, np.inf, -np.inf, 0.0, 1e-30, -1e-30, 3e5, -3e5, 88.5, -88.5]])
    x = x.astype(np.float32)[:, None]
    constants = {node: graph.tensors[node.string("digest")] for node in walk(graph.roots) if node.op == "Constant"}
    with np.errstate(all="ignore"):
        (expected,) = evaluate(graph.roots, {graph.inputs[0]: x, **constants})
    with Session(tmp_path, threads=1) as session:
        (actual,) = session.run(None, {"x0": x})
    np.testing.assert_allclose(actual, expected, rtol=4e-6, atol=4e-7)


def fragment(*, rows: int = 7, size: int = 12, columns: int = 20, constant: bool = True) -> Node:
    return apply("MatMul", placeholder(0, float32(rows, size)), placeholder(1, float32(size, columns), constant=constant))


def test_results_are_written_with_gaps_between_rows_and_not_between_columns() -> None:
    call = match(fragment(), MATMUL, destination=Window(5, (7, 20), (61, 1)))
    assert isinstance(call, LibraryCall) and call.destination.strides == (61, 1)
    assert "side by side" in str(match(fragment(), MATMUL, destination=Window(0, (7, 20), (1, 7))))


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (fragment(constant=False), "no constant"),
        (fragment(size=1 << 15), "one after the other"),
        (apply("Erf", fragment()), "not an epilogue"),
        (apply("Exp", fragment()), "not computed after products"),
        (apply("MatMul", placeholder(0, float32(2, 3, 4)), placeholder(1, float32(1, 4, 5), constant=True)), "other leading axes"),
        (apply("MatMul", apply("Transpose", placeholder(0, float32(4, 3)), perm=(1, 0)), placeholder(1, float32(4, 5), constant=True)),
         "side by side"),
    ],
    ids=("variable", "long", "function", "step", "leading", "transposed"),
)  # fmt: skip
def test_what_the_kernel_does_not_compute_is_refused(one: Node, reason: str) -> None:
    said = match(one, MATMUL)
    assert isinstance(said, str) and reason in said, said
    assert "float32, bf16 and bf16x3" in str(match(fragment(), f"{MATMUL}@fp16"))


def in_bfloat16(array: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def stored_kernel(y: Node, stored: frozenset[str], operands: Mapping[str, Node]) -> Node:
    """Return a fragment in which the ``stored`` operands are stored in bfloat16, and the result too if ``y`` is among the names."""

    def change(old: Node, below: tuple[Node, ...]) -> Node:
        name = next((name for name, operand in operands.items() if operand is old), "")
        if name not in stored:
            return make(old.op, below, old.attributes, old.type)
        narrower = TensorType("bfloat16", old.type.shape)
        return widen(placeholder(old.integer("index"), narrower, constant=bool(old.attribute("constant"))), "float32")

    new = rewrite((y,), change)[y]
    return narrow(new, "bfloat16") if "y" in stored else new


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enable products of split operands on every machine: they are correct on every processor, but offered only where they are fast."""
    monkeypatch.setattr(tiles, "x86_flags", lambda: frozenset({tiles.TILE_FEATURE}))


def run_rounded(
    y: Node, folder: Path, values: Mapping[int, np.ndarray], *, threads: int, processor: str, implementation: str = ROUNDED
) -> np.ndarray:
    """Run a fragment with the code for the given processor."""
    program = kernel_program(y, Implementation.parse(implementation, lowering("cpu").target), seed=0)
    plan = compile_program(program, folder, CompileOptions(threads=threads, export_graph=serialized))
    weights = {buffer.key: values[1] for buffer in plan.buffers if buffer.area == "weight" and buffer.shape == values[1].shape}
    assert len({buffer.key for buffer in plan.buffers if buffer.area == "weight"}) == len(weights) == 1
    source = Path(products.__file__).with_name("products.c")
    library = build(source, PROCESSORS[processor])
    executable = Executable(plan, weights, threads=threads, libraries=lambda file: library)
    result: np.ndarray = executable.run({port.name: values[at] for port, at in zip(plan.inputs, sorted({*values} - {1}), strict=True)})[
        plan.outputs[0].name
    ]
    executable.close()
    return result


@SLOW
@given(
    rows=st.sampled_from([(1,), (6,), (53,), (3, 1, 30), (200,)]), size=st.sampled_from([1, 2, 37, 96, 701]),
    columns=st.sampled_from([1, 9, 16, 50, 130]), each=st.booleans(), threads=st.sampled_from([1, 2]),
    processor=st.sampled_from(list(PROCESSORS)), stored=st.frozensets(st.sampled_from(["x", "w", "r", "y"])),
)  # fmt: skip
@example(rows=(300,), size=2200, columns=130, each=False, threads=1, processor="this one", stored=frozenset({"x"}))
def test_products_of_rounded_operands(
    tmp_path: Path, rows: tuple[int, ...], size: int, columns: int, each: bool, threads: int, processor: str, stored: frozenset[str]
) -> None:
    """relu(bf16(x) bf16(w) + r), summed in float32, for x, w, r and the result stored in bfloat16 or float32."""
    random = np.random.default_rng(SEED)
    shapes = {"x": (*rows, size), "w": (*(rows[:-1] if each else ()), size, columns), "r": (*rows, columns)}
    leaves = {name: placeholder(at, float32(*shape), constant=name == "w") for at, (name, shape) in enumerate(shapes.items())}
    y = apply("Relu", apply("Add", apply("MatMul", leaves["x"], leaves["w"]), leaves["r"]))
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    given = {name: array.astype(ml_dtypes.bfloat16) if name in stored else array for name, array in arrays.items()}
    got = run_rounded(
        stored_kernel(y, stored, leaves), tmp_path, dict(enumerate(given.values())), threads=threads, processor=processor,
    )  # fmt: skip
    x, w = (in_bfloat16(arrays[name]).astype(np.float64) for name in "xw")
    expected = np.maximum(x @ w + given["r"].astype(np.float64), 0)
    assert got.dtype == (ml_dtypes.bfloat16 if "y" in stored else np.float32)
    bound = 2.0**-8 * np.abs(expected) if "y" in stored else 0.0
    assert np.all(np.abs(got.astype(np.float64) - expected) <= bound + 2e-6 * size**0.5 * max(1.0, np.abs(expected).max()))


@SLOW
@given(
    rows=st.sampled_from([(1,), (16,), (33,), (3, 1, 30), (200,)]), size=st.sampled_from([1, 2, 37, 96, 701, 2200]),
    columns=st.sampled_from([1, 16, 50, 130]), each=st.booleans(), threads=st.sampled_from([1, 2]),
    processor=st.sampled_from(list(PROCESSORS)),
)  # fmt: skip
@example(rows=(200,), size=2200, columns=130, each=False, threads=1, processor="this one")
@example(rows=(2, 230), size=2200, columns=50, each=True, threads=1, processor="this one")
def test_products_of_split_operands(
    tmp_path: Path, splits: None, rows: tuple[int, ...], size: int, columns: int, each: bool, threads: int, processor: str
) -> None:
    """relu(x w + r), with an error of at most 2^-15 of the summands plus the usual float32 rounding.

    In the examples, the rows of long columns do not fit into the second-level cache together.
    """
    random = np.random.default_rng(SEED)
    shapes = {"x": (*rows, size), "w": (*(rows[:-1] if each else ()), size, columns), "r": (*rows, columns)}
    leaves = {name: placeholder(at, float32(*shape), constant=name == "w") for at, (name, shape) in enumerate(shapes.items())}
    y = apply("Relu", apply("Add", apply("MatMul", leaves["x"], leaves["w"]), leaves["r"]))
    x, w, r = (random.standard_normal(shape).astype(np.float32) for shape in shapes.values())
    given = {0: x, 1: w, 2: r}
    got = run_rounded(y, tmp_path, given, threads=threads, processor=processor, implementation=SPLIT)
    expected = np.maximum(x.astype(np.float64) @ w.astype(np.float64) + r, 0)
    bound = largest_error("bf16x3", size) * (np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)) + 1e-6 * np.abs(expected)
    assert np.all(np.abs(got - expected) <= bound)
    assert np.abs(got - expected).max() <= 2e-5 * max(1.0, np.abs(expected).max()), "usual errors are far below the largest"


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("side", ["x", "w"])
def test_what_is_split_keeps_its_value(tmp_path: Path, splits: None, side: str, processor: str) -> None:
    """Each number keeps its value up to 2^-16.

    The other operand is one. Rows also hold infinities and NaN, which stay; weights are finite.
    """
    infinite = [np.inf, -np.inf, np.nan] if side == "x" else []
    numbers = np.array([1 + 2**-9, 1 + 2**-16, -3.1415927, 1e30, -1e-30, 0.0, *infinite], np.float32)
    rows, columns = (len(numbers), 1) if side == "x" else (1, len(numbers))
    x = numbers[:, None] if side == "x" else np.ones((1, 1), np.float32)
    w = numbers[None] if side == "w" else np.ones((1, 1), np.float32)
    y = apply("MatMul", placeholder(0, float32(rows, 1)), placeholder(1, float32(1, columns), constant=True))
    got = run_rounded(y, tmp_path, {0: x, 1: w}, threads=1, processor=processor, implementation=SPLIT).ravel()
    np.testing.assert_allclose(got, numbers, rtol=2**-16, atol=1e-37)
    if processor == "without tiles" and side == "x":
        np.testing.assert_array_equal(got, numbers)


def test_split_operands_are_offered_where_they_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, is_offered in ((frozenset({"avx512_bf16"}), False), (frozenset({"amx_bf16"}), True)):
        monkeypatch.setattr(tiles, "x86_flags", lambda flags=flags: flags)
        call = match(fragment(), SPLIT)
        assert isinstance(call, LibraryCall) is is_offered and (is_offered or "no amx_bf16" in str(call))
    assert operand_precisions(fragment(), SPLIT) == dict.fromkeys((0, 1), frozenset({"bf16x3"}))
    assert "read and write no bfloat16" in str(match(narrow(fragment(), "bfloat16"), SPLIT))


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("side", ["x", "w"])
def test_operands_are_rounded_to_the_nearest(tmp_path: Path, side: str, processor: str) -> None:
    """Ties go to the even number; infinities and NaN stay. The other operand is one, so each result is a rounded number."""
    bits = [0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7FFFFF, 0xBF808000, 0x7F800000, 0xFF800000, 0x7F800001, 0x3]
    numbers = np.array(bits, np.uint32).view(np.float32)
    rows, columns = (len(numbers), 1) if side == "x" else (1, len(numbers))
    x = numbers[:, None] if side == "x" else np.ones((1, 1), np.float32)
    w = numbers[None] if side == "w" else np.ones((1, 1), np.float32)
    y = apply("MatMul", placeholder(0, float32(rows, 1)), placeholder(1, float32(1, columns), constant=True))
    got = run_rounded(y, tmp_path, {0: x, 1: w}, threads=1, processor=processor)
    expected = in_bfloat16(numbers).ravel()
    np.testing.assert_array_equal(got.ravel()[:-1], expected[:-1])
    assert abs(got.ravel()[-1]) < 1e-37


def test_only_operands_of_products_are_rounded() -> None:
    y = apply("Add", fragment(), placeholder(2, float32(7, 20)))
    exact, rounded = frozenset({"float32"}), frozenset({"bf16"})
    assert operand_precisions(y, ROUNDED) == {0: rounded, 1: rounded, 2: exact}
    assert operand_precisions(y, MATMUL) == {0: exact, 1: exact, 2: exact}
    halves = narrow(y, "bfloat16")
    assert "read and write no bfloat16" in str(match(halves, MATMUL)) and isinstance(match(halves, ROUNDED), LibraryCall)


def test_a_packed_copy_of_rounded_weights_takes_half_the_memory(splits: None) -> None:
    """The exception is padding: columns are filled up to whole tiles."""
    elements = {}
    for name in (MATMUL, ROUNDED, SPLIT):
        call = match(fragment(size=60, columns=20), name)
        assert isinstance(call, LibraryCall)
        elements[name] = call.parameters["pack"]["elements"]
    assert elements == {MATMUL: 60 * 32, ROUNDED: 32 * 32, SPLIT: 64 * 32}


def test_programs_of_the_same_weights_share_their_packed_copies(tmp_path: Path) -> None:
    """Plans for several input sizes pack a constant once. The packed copy is freed with the last program that uses it."""
    model = Model()
    graph = model.graph(apply("MatMul", model.input(3, 8), model.weight(8, 20)))
    plan = compile_program(choose(graph, MATMUL), tmp_path, CompileOptions(threads=1, export_graph=serialized))
    (key,) = {buffer.key for buffer in plan.buffers if buffer.area == "weight"}
    w = graph.tensors["w0"]

    def opened(weights: np.ndarray) -> tuple[Executable, np.ndarray]:
        executable = Executable(plan, {key: weights}, threads=1, libraries=lambda file: tmp_path / file)
        assert isinstance(executable.loaded, CpuProgram)
        (copy,) = executable.loaded.contexts[KIND].constants
        return executable, copy

    (first, one), (second, same), (other, different) = opened(w), opened(w), opened(w.copy())
    assert same is one and different is not one
    panels = one.view(np.float32).reshape(2, 8, 16)
    np.testing.assert_array_equal(np.concatenate(panels, axis=1)[:, :20], w)
    assert not panels[1, :, 4:].any()
    copies = weakref.ref(one)
    first.close()
    del one, same, panels
    x = np.ones((3, 8), np.float32)
    np.testing.assert_allclose(second.run({"x0": x})["y0"], x @ w, rtol=1e-5, atol=1e-6)
    assert copies() is not None
    second.close()
    assert copies() is None
    other.close()


def test_a_constant_is_packed_once() -> None:
    source, packed = np.zeros(4, np.float32), list[np.ndarray]()
    first, second = PackedConstants(), PackedConstants()
    key = (1, "float32", (2, 2), (2, 1), "a.so", "pack")
    arrays = [constants.add(key, source, 64, packed.append) for constants in (first, first, second)]
    assert len(packed) == 1 and all(array is packed[0] for array in arrays)


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"operand": 0}, "only a constant can be packed"), ({"elements": 128}, "products_pack failed with status 3")],
    ids=("an input", "too small a copy"),
)
def test_a_plan_that_packs_wrongly_is_refused(tmp_path: Path, changed: dict[str, int], message: str) -> None:
    model = Model()
    graph = model.graph(apply("MatMul", model.input(3, 8), model.weight(8, 20)))
    plan = compile_program(choose(graph, MATMUL), tmp_path, CompileOptions(threads=1, export_graph=serialized))
    (step,) = plan.steps
    wrong = replace(plan, steps=(replace(step, spec={**step.spec, "pack": {**step.spec["pack"], **changed}}),))
    (key,) = {buffer.key for buffer in plan.buffers if buffer.area == "weight"}
    with pytest.raises(KernelError, match=message):
        Executable(wrong, {key: graph.tensors["w0"]}, threads=1, libraries=lambda file: tmp_path / file)
