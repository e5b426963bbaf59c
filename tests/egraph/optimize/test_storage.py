"""Values between kernels in bf16: which may be stored so, their cost, what stays the same, and how programs adopt them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from egraph.onnx.exporter import serialized
from egraph.optimize.blame import blame
from egraph.optimize.choice import program_digest
from egraph.optimize.kernels import compile_batch, in_float32, kernel_program, rounded
from egraph.optimize.options import Options
from egraph.optimize.pipeline import optimize
from egraph.optimize.progress import Progress
from egraph.optimize.storage import STORED, Group, Storage, extracted_digest, groups, with_rounded_weights
from egraph.tensor import Candidate, Graph, Implementation, Node, Program, TensorType, format_fragment, placeholder, walk
from egraph.tensor.ops import apply
from egraph.tensor.storage import (
    NARROW,
    WIDEN,
    fragment_with,
    in_one_type,
    narrow,
    stored,
    stored_values,
    widen,
    with_stored,
    without_stored,
)
from egraph.tensor.text import format_program, parse_fragment, parse_program
from egraph.tolerance import Tolerance
from lower.compile import CompileOptions, compile_program
from lower.cost.model import CostModel
from lower.cost.rounding import ErrorModel, stored_error
from lower.roofline import DeviceSpeed
from lower.targets import lowering
from runtime import Session
from runtime.errors import KernelError
from runtime.judge import WrongResult, judge
from runtime.plan import Plan
from runtime.profile import Database, Record
from tests.support.lowering import Model, choose, float32

RANDOM = np.random.default_rng(11)
OPTIONS = CompileOptions(threads=1, export_graph=serialized)
WAY = lowering()
BF16 = TensorType("bfloat16", (8, 32))
AWKWARD = [0.0, -0.0, 1.0, -1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 3.3e38, -3.4e38, 3.3961775e38, math.inf, -math.inf, math.nan]
AWKWARD += [1e-40, -1e-45, 1.1754944e-38, 65504.0, 1 / 3]
"""Numbers that conversions get wrong: ties of both parities, numbers that round up to infinity, NaN and subnormal numbers."""


def rounding(program: Program) -> Program:
    """Return the program with the library's products and convolutions in bf16."""
    products = ("onednn.matmul", "onednn.convolution")
    kernels = (replace(k, implementation=k.implementation.in_precision("bf16")) if k.implementation.name in products else k
               for k in program.kernels)  # fmt: skip
    return replace(program, kernels=tuple(replace(kernel, cost_us=10.0 * (not kernel.implementation.is_free)) for kernel in kernels))


def convolutions() -> Graph:
    """Return two convolutions, a view and two products; the first product's result is also added to the second's in float32."""
    b = Model()
    y: Node = apply("Relu", b.conv(b.input(1, 16, 6, 6), 16, 3, layout="NCHW"))
    y = apply("Reshape", apply("Relu", b.conv(y, 16, 3)), shape=(16, 36))
    y = apply("Relu", apply("MatMul", y, b.weight(36, 32)))
    return b.graph(apply("Add", apply("Sigmoid", apply("MatMul", y, b.weight(32, 32))), y))


def everything(program: Program) -> frozenset[Node]:
    return frozenset[Node]().union(*(group.values for group in groups(program, WAY)))


def run(program: Program, folder: Path, feeds: Mapping[str, Any], threads: int = 1) -> tuple[Any, Plan]:
    """Compile and run the program; skip the test if the library refuses a kernel that rounds."""
    plan = compile_program(program, folder, replace(OPTIONS, threads=threads))
    try:
        with Session(folder, threads=threads) as session:
            return session.run(None, dict(feeds)), plan
    except KernelError as error:
        pytest.skip(f"the library has no bf16 kernel on this processor: {error.what}")


def feeds_of(graph: Graph) -> dict[str, np.ndarray]:
    return {n.string("name"): RANDOM.standard_normal(n.type.sizes).astype(np.float32) for n in graph.inputs}


def test_storing_values_and_taking_that_back_gives_the_same_program() -> None:
    program = rounding(choose(convolutions(), "onednn"))
    values = everything(program)
    assert len(values) >= 3
    narrower = with_stored(program, values, STORED)
    assert stored_values(narrower) >= 2
    assert program_digest(narrower) != program_digest(program)
    back = without_stored(narrower)
    assert [(k.fragment, k.inputs, k.output) for k in back.kernels] == [(k.fragment, k.inputs, k.output) for k in program.kernels]
    assert back.graph.outputs == program.graph.outputs
    assert extracted_digest(narrower) == program_digest(program)
    assert without_stored(program) is program
    types = {node.type.dtype for node in walk(narrower.graph.roots)}
    assert types == {"float32", "bfloat16"}


def test_a_program_with_stored_values_has_a_text() -> None:
    program = rounding(choose(convolutions(), "onednn"))
    narrower = with_stored(program, everything(program), STORED)
    parsed = parse_program(format_program(narrower), narrower.graph.tensors)
    assert program_digest(parsed) == program_digest(narrower)
    for kernel in narrower.kernels:
        assert parse_fragment(format_fragment(kernel.fragment)) is kernel.fragment


def test_a_value_is_stored_where_its_kernels_can_write_and_read_it() -> None:
    """The convolutions' results are stored because all their readers round them; the first product's result is also read in float32."""
    program = rounding(choose(convolutions(), "onednn"))
    found = groups(program, WAY)
    products = [k.output for k in program.kernels if k.implementation.precision == "bf16"]
    free = frozenset[Node]().union(*(group.values for group in found if not group.error))
    assert set(products[:2]) <= free
    (dear,) = (group for group in found if group.error)
    assert dear.values == {products[2]}
    assert dear.error == stored_error("bf16", ["bf16", "float32"]) > 1e-3
    roots, views = set(program.graph.roots), [k for k in program.kernels if k.implementation.is_view]
    assert not roots & everything(program)
    assert all((view.output in free) == (view.inputs[0] in free) for view in views)
    assert groups(choose(convolutions(), "onednn"), WAY) == ()


def test_what_the_model_gives_out_is_not_stored_rounded() -> None:
    b = Model()
    y = apply("Relu", apply("MatMul", b.input(8, 32), b.weight(32, 32)))
    z = apply("MatMul", y, b.weight(32, 16))
    assert len(groups(rounding(choose(b.graph(z), "onednn")), WAY)) == 1
    for given in (y, apply("Reshape", y, shape=(32, 8))):
        assert groups(rounding(choose(b.graph(z, given), "onednn")), WAY) == ()


def test_what_every_reader_rounds_anyway_adds_no_error() -> None:
    """Rounding is idempotent, so storage adds no error for readers that round. For others, its error is that of random draws."""
    assert stored_error("bf16", ["bf16", "bf16"]) == 0
    drawn = 2 ** RANDOM.uniform(-4, 4, 20000)
    once = drawn.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert np.array_equal(once.astype(ml_dtypes.bfloat16).astype(np.float64), once)
    assert math.sqrt(np.mean((once / drawn - 1) ** 2)) == pytest.approx(stored_error("bf16", ["bf16", "float32"]), rel=0.1)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_outputs_keep_their_bits_and_the_arena_shrinks(tmp_path: Path, threads: int) -> None:
    """Storing a value that all readers round does not change any bit of the outputs."""
    graph = convolutions()
    program = rounding(choose(graph, "onednn"))
    free = frozenset[Node]().union(*(group.values for group in groups(program, WAY) if not group.error))
    feeds = feeds_of(graph)
    usual, plan = run(program, tmp_path / "usual", feeds, threads)
    narrower, smaller = run(with_stored(program, free, STORED), tmp_path / "narrower", feeds, threads)
    assert np.array_equal(usual[0], narrower[0])
    assert {b.dtype for b in smaller.buffers if b.area == "arena"} == {"float32", "bfloat16"}
    assert smaller.arena_bytes < plan.arena_bytes
    everywhere, _ = run(with_stored(program, everything(program), STORED), tmp_path / "everywhere", feeds, threads)
    assert 0 < np.abs(everywhere[0] - usual[0]).max() < 3e-2 * np.abs(usual[0]).max()


def generated(fragment: Node, folder: Path, feeds: Mapping[str, np.ndarray], threads: int = 1) -> np.ndarray:
    program = kernel_program(fragment, WAY.generated, seed=0)
    compile_program(program, folder, replace(OPTIONS, threads=threads))
    with Session(folder, threads=threads) as session:
        result: np.ndarray = session.run(None, dict(feeds))[0]
    return result


def test_generated_kernels_convert_as_the_library_does(tmp_path: Path) -> None:
    """Conversion rounds half to even, keeps NaN and makes too large numbers infinite; widening a bf16 number is exact."""
    numbers = np.resize(np.array(AWKWARD, np.float32), 8 * 37).reshape(8, 37)
    numbers[2:] = (2 ** RANDOM.uniform(-130, 127, (6, 37)) * RANDOM.choice([-1, 1], (6, 37))).astype(np.float32)
    x = placeholder(0, TensorType("float32", (8, 37)))
    found = generated(narrow(apply("Mul", x, apply("Expand", placeholder(1, float32(1, 1)), shape=(8, 37))), STORED),
                      tmp_path / "narrow", {"x0": numbers, "x1": np.ones((1, 1), np.float32)})  # fmt: skip
    with np.errstate(all="ignore"):
        expected = numbers.astype(ml_dtypes.bfloat16)
    is_nan = np.isnan(numbers)
    same = found.view(np.uint16) == expected.view(np.uint16)
    assert found.dtype == ml_dtypes.bfloat16
    normal = (np.abs(numbers) >= 1.1754944e-38) | (numbers == 0)
    assert same[~is_nan & normal].all() and np.isnan(found[is_nan].astype(np.float32)).all()
    every = np.arange(1 << 16, dtype=np.uint16)
    every = every[~np.isnan(every.view(ml_dtypes.bfloat16).astype(np.float32)) & ((every & 0x7F80) != 0)].view(ml_dtypes.bfloat16)
    wide = generated(apply("Neg", widen(placeholder(0, TensorType(STORED, every.shape)), "float32")), tmp_path / "widen", {"x0": every})
    assert wide.dtype == np.float32 and np.array_equal(wide, -every.astype(np.float32))


def fragments() -> dict[str, Node]:
    """Return one kernel for every kind of loop, over one operand of 8 x 48 x 40."""
    x = placeholder(0, TensorType("float32", (8, 48, 40)))
    scale, shift = (placeholder(i, float32(40), constant=True) for i in (1, 2))
    return {
        "elementwise": apply("Relu", apply("Add", x, scale)),
        "normalization": apply("LayerNormalization", x, scale, shift, axis=2, epsilon=1e-5),
        "softmax": apply("Softmax", x, axis=2),
        "transpose": apply("Exp", apply("Transpose", x, perm=(0, 2, 1))),
        "slice": apply("Neg", apply("Slice", x, starts=(0, 1, 0), ends=(8, 47, 40), steps=(1, 1, 2))),
        "sum": apply("ReduceSum", x, axes=(2,)),
        "columns": apply("ReduceMax", x, axes=(1,)),
        "padding": apply("Tanh", apply("Pad", x, before=(0, 1, 2), after=(0, 1, 2), mode="constant", value=0.0)),
        "gelu": apply("Gelu", x, approximate="none"),
    }


def test_generated_kernels_read_and_write_stored_values(tmp_path: Path) -> None:
    """A kernel computes the same from stored operands as from float32, and rounds its result if that is stored."""
    x = RANDOM.standard_normal((8, 48, 40)).astype(np.float32).astype(ml_dtypes.bfloat16)
    programs: dict[tuple[str, bool, bool], Program] = {}
    for name, usual in fragments().items():
        kernel = kernel_program(usual, WAY.generated, seed=0).kernels[0]
        for is_read, is_written in itertools.product((False, True), (False, True)):
            values = frozenset(({kernel.inputs[0]} if is_read else set()) | ({kernel.output} if is_written else set()))
            fragment = fragment_with(kernel, values, STORED)
            assert WAY.generator.supports(fragment) is None
            programs[name, is_read, is_written] = kernel_program(fragment, WAY.generated, seed=0)
    places = compile_batch(list(programs.values()), tmp_path, replace(OPTIONS, threads=2))
    found: dict[tuple[str, bool, bool], np.ndarray] = {}
    for (key, _), place in zip(programs.items(), places, strict=True):
        assert isinstance(place, Path), place
        with Session(place, threads=2) as session:
            (found[key],) = session.run(None, {"x0": x if key[1] else x.astype(np.float32)})
    for name, is_read, is_written in programs:
        got, expected = found[name, is_read, is_written], found[name, False, False]
        if is_written:
            assert got.dtype == ml_dtypes.bfloat16
            judge(got, expected)
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_kernel_that_cuts_off_bits_is_wrong_and_one_that_rounds_them_is_not() -> None:
    numbers = RANDOM.standard_normal(4096).astype(np.float32)
    judge(numbers.astype(ml_dtypes.bfloat16), numbers)
    cut = (numbers.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(ml_dtypes.bfloat16)
    with pytest.raises(WrongResult):
        judge(cut, numbers)
    with pytest.raises(WrongResult):
        judge(np.where(np.arange(4096) == 7, np.nan, numbers).astype(ml_dtypes.bfloat16), numbers)
    with pytest.raises(WrongResult, match="it must be"):
        judge(numbers.astype(np.float16), numbers)


def test_what_a_kernel_with_stored_operands_is_compared_with_is_in_float32() -> None:
    x = widen(placeholder(0, BF16), "float32")
    fragment = narrow(apply("Relu", apply("MatMul", x, placeholder(1, float32(32, 4), constant=True))), STORED)
    implementation = Implementation.parse("onednn.matmul@bf16", WAY.target)
    graph = rounded(in_float32(kernel_program(fragment, implementation, seed=0).graph), "bf16")
    assert graph.roots[0].op == "Relu" and {node.type.dtype for node in graph.inputs} == {"float32"}
    assert not {node.op for node in walk(graph.roots)} & {NARROW, WIDEN}
    assert stored(fragment).operands == {0} and stored(fragment).is_result
    moved = apply("Transpose", placeholder(0, BF16), perm=(1, 0))
    assert in_one_type((moved,), lambda leaf: "float32")[moved].type == float32(32, 8)
    assert stored(moved).fragment is moved


def test_kernels_of_float32_read_and_write_nothing_narrower() -> None:
    """Only kernels that round to bf16 read bf16, and they read no other narrow type."""
    x = apply("MatMul", widen(placeholder(0, BF16), "float32"), placeholder(1, float32(32, 4), constant=True))
    for implementation in ("onednn.matmul", "attention.attention", "opaque"):
        assert isinstance(WAY.reads(x, Implementation.parse(implementation, WAY.target)), str)
    half = apply("MatMul", widen(placeholder(0, TensorType("float16", (8, 32))), "float32"), placeholder(1, float32(32, 4), constant=True))
    rounding_one = Implementation.parse("onednn.matmul@bf16", WAY.target)
    assert isinstance(WAY.reads(half, rounding_one), str)
    rounds, keeps = frozenset({"bf16"}), frozenset({"float32"})
    assert WAY.reads(x, rounding_one) == {0: rounds, 1: rounds}
    residual = apply("Add", x, widen(placeholder(2, TensorType("bfloat16", (8, 4))), "float32"))
    assert WAY.reads(residual, rounding_one) == {0: rounds, 1: rounds, 2: keeps}
    assert "float16" in str(WAY.generator.supports(apply("Neg", widen(placeholder(0, TensorType("float16", (8, 32))), "float32"))))


def model_with(times_us: Mapping[tuple[str, str], float]) -> CostModel:
    database = Database.in_memory()
    for key, time_us in times_us.items():
        database.put(Record("d", *key, "ok", (time_us,)))
    return CostModel(database, "d", DeviceSpeed(), target=replace(WAY.target, precisions=("bf16",)))


def test_values_are_stored_by_measured_times_alone() -> None:
    """Without measured times no value is stored; a slow writer outweighs one reader but not two; estimates decide nothing."""
    b = Model()
    y = apply("Relu", apply("MatMul", b.input(8, 32), b.weight(32, 32)))
    graph = b.graph(apply("MatMul", y, b.weight(32, 16)), apply("MatMul", y, b.weight(32, 24)))
    program = rounding(choose(graph, "onednn"))
    storage = Storage(WAY)
    assert storage.applied(program, model_with({})) is program
    candidates = storage.candidates([program], model_with({}))
    assert len(candidates) == 3
    keys = {stored(one.fragment).is_result: model_with({}).key(one) for one in candidates}
    times = {model_with({}).key(one): 8.0 for one in candidates}
    faster = storage.applied(program, model_with(times))
    assert stored_values(faster) == 1 and faster.cost_us == pytest.approx(program.cost_us - 6.0)
    assert program_digest(faster) not in storage.adds_error
    assert not storage.candidates([program], model_with(times))
    assert stored_values(storage.applied(program, model_with({**times, keys[True]: 13.0}))) == 1
    assert storage.applied(program, model_with({**times, keys[True]: 15.0})) is program
    some = dict(list(times.items())[:2])
    assert storage.applied(program, model_with(some)) is program


def test_storage_that_adds_error_is_given_up_where_a_program_was_too_far_off() -> None:
    program = rounding(choose(convolutions(), "onednn"))
    times = {model_with({}).key(one): 1.0 for one in Storage(WAY).candidates([program], model_with({}))}
    storage = Storage(WAY)
    dear = storage.applied(program, model_with(times))
    dear_ones = storage.adds_error
    assert program_digest(dear) in dear_ones
    storage.is_exact = True
    exact = storage.applied(program, model_with(times))
    assert 0 < stored_values(exact) < stored_values(dear)
    assert program_digest(exact) not in storage.adds_error
    for errors in (ErrorModel(Tolerance(1e-4)), ErrorModel(Tolerance(1e-2), scale=0.5)):
        assert program_digest(Storage(WAY).applied(program, replace(model_with(times), errors=errors))) == program_digest(exact)
    assert program_digest(Storage(WAY).applied(program, replace(model_with(times), errors=ErrorModel(Tolerance(1e-2))))) in dear_ones


def test_kernels_that_store_values_are_not_to_blame_for_it(tmp_path: Path) -> None:
    graph = convolutions()
    program = rounding(choose(graph, "onednn"))
    narrower = with_stored(program, everything(program), STORED)
    feeds = feeds_of(graph)
    run(narrower, tmp_path / "narrower", feeds)
    assert not blame(graph, narrower, feeds, OPTIONS, Tolerance(1e-3)).kernels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("egraph.optimize.blame.rounded", lambda graph, precision: graph)
        assert blame(graph, narrower, feeds, OPTIONS, Tolerance(1e-3)).kernels


def layers(path: Path, count: int = 4) -> Path:
    weights = [numpy_helper.from_array((RANDOM.standard_normal((64, 64)) / 8).astype(np.float32), f"w{i}") for i in range(count)]
    nodes, value = [], "x"
    for i in range(count):
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [value := f"y{i}"]))
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (32, 64)) for name in ("x", value)]
    graph = helper.make_graph(nodes, "layers", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_the_command_stores_what_is_rounded_anyway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If such kernels cost less, the report lists the stored values, the plan's buffers shrink and the standard model stays in float32."""
    usual = CostModel.cost_us

    def cost_us(model: CostModel, one: Candidate) -> float:
        record = model.record(one)
        if one.implementation.precision != "float32" and record is not None and record.status == "failed":
            pytest.skip(f"the library has no bf16 kernel on this processor: {record.message}")
        edges = sum(node.op in (NARROW, WIDEN) for node in walk((one.fragment,)))
        if not one.implementation.is_library:
            return usual(model, one)
        return 50.0 if one.implementation.precision == "float32" else 5.0 - edges

    monkeypatch.setattr(CostModel, "cost_us", cost_us)
    monkeypatch.setattr("egraph.optimize.finalists.fastest", lambda preferred, raced, policy: "program 1")  # independent of the machine
    model = layers(tmp_path / "layers.onnx")
    options = Options(
        model, threads=1, budget_seconds=25, precision="auto", tolerance=Tolerance(3e-2), derivations=False, database=tmp_path / "profiles",
    )  # fmt: skip
    outcome = optimize(options, Progress(-1, 25.0))
    assert outcome.max_rel_err <= 3e-2
    plan = json.loads((tmp_path / "layers.einsat" / "plan.json").read_text())
    assert outcome.shipped == "program 1" and outcome.precisions["chosen"].rounding == 4
    assert outcome.to_json()["precision"]["stored"] == 3
    assert "results that are stored rounded: 3" in outcome.precision_text
    assert sum(row.shape.startswith("bfloat16") for row in outcome.kernels) == 3
    assert sum(buffer["dtype"] == "bfloat16" for buffer in plan["buffers"] if buffer["area"] == "arena") >= 1
    assert "bfloat16" in (tmp_path / "layers.einsat" / "program.txt").read_text()
    saved = onnx.load(tmp_path / "layers.opt.onnx")
    assert not [node for node in saved.graph.node if node.op_type == "Cast"]
    assert groups(choose(convolutions(), "tvm"), WAY) == ()
    again = optimize(options, Progress(-1, 25.0))
    assert again.kernels == outcome.kernels


def test_groups_are_what_moves_together() -> None:
    """A transpose between two products moves its values in bf16 from end to end."""
    b = Model()
    y = apply("Transpose", apply("MatMul", b.input(8, 32), b.weight(32, 16)), perm=(1, 0))
    program = rounding(choose(b.graph(apply("MatMul", apply("Relu", y), b.weight(8, 16))), "tvm"))
    made = tuple(
        replace(kernel, implementation=Implementation.parse("onednn.matmul@bf16", WAY.target))
        if any(node.op == "MatMul" for node in walk((kernel.fragment,)))
        else kernel
        for kernel in program.kernels
    )
    found = groups(replace(program, kernels=made), WAY)
    for group in found:
        assert isinstance(group, Group)
        for kernel in made:
            if kernel.implementation.is_generated and kernel.output in group.values and kernel.inputs[0] in group.values:
                fragment = fragment_with(kernel, group.values, STORED)
                assert {node.type.dtype for node in walk((fragment,))} == {"bfloat16"}


def test_the_library_normalises_in_float32_what_it_reads_and_writes_in_bf16(tmp_path: Path) -> None:
    x, (scale, shift) = placeholder(0, float32(6, 40)), (placeholder(i, float32(40), constant=True) for i in (1, 2))
    how = Implementation.parse("onednn.layer_normalization", WAY.target)
    usual = apply("LayerNormalization", x, scale, shift, axis=1, epsilon=1e-5)
    given = RANDOM.standard_normal((6, 40)).astype(np.float32).astype(ml_dtypes.bfloat16)
    program = kernel_program(usual, how, seed=0)
    (expected,), _ = run(program, tmp_path / "usual", {"x0": given.astype(np.float32)})
    kernel = program.kernels[0]
    fragment = fragment_with(kernel, frozenset({kernel.inputs[0], kernel.output}), STORED)
    assert isinstance(WAY.reads(fragment, how), dict)
    (found,), _ = run(kernel_program(fragment, how, seed=0), tmp_path / "stored", {"x0": given})
    judge(found, expected)


def test_weights_lie_rounded_where_all_their_kernels_round_them(tmp_path: Path) -> None:
    """Rounded weights halve the file and keep every bit of the outputs; a weight that a sum also reads stays in float32."""
    b = Model()
    weight, shared = b.weight(48, 48), b.weight(48, 48)
    y = apply("Relu", apply("MatMul", b.input(48, 48), weight))
    graph = b.graph(apply("Tanh", apply("Neg", apply("Add", apply("MatMul", y, shared), shared))))
    program = rounding(choose(graph, "onednn"))
    compiled = with_rounded_weights(program, WAY)
    rounded_ones = [node for kernel in compiled.kernels for node in kernel.inputs if node.op == "Constant" and node.type.dtype == STORED]
    assert [node.string("digest") for node in rounded_ones] == [f"{weight.string('digest')}.bfloat16"]
    feeds = feeds_of(graph)
    usual, _ = run(program, tmp_path / "usual", feeds)
    found, _ = run(compiled, tmp_path / "compiled", feeds)
    assert np.array_equal(usual[0], found[0])
    sizes = [(tmp_path / name / "weights.safetensors").stat().st_size for name in ("usual", "compiled")]
    assert 2 * 48 * 48 - 64 < sizes[0] - sizes[1] < 2 * 48 * 48 + 64
    exact = choose(graph, "onednn")
    assert with_rounded_weights(exact, WAY) is exact
