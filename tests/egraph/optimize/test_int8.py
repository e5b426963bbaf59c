"""--precision int8, from the user's inputs to a program in bytes within the tolerance, or in float32 if bytes are too inexact."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from egraph.errors import ModelError
from egraph.onnx.exporter import serialized
from egraph.optimize.arguments import parse, to_options
from egraph.optimize.blame import blame
from egraph.optimize.byte_ranges import Ranges
from egraph.optimize.kernels import in_bytes as kernels_in_bytes
from egraph.optimize.kernels import kernel_program
from egraph.optimize.measuring import Measurer, job_of
from egraph.optimize.options import Options
from egraph.optimize.outcome import Outcome
from egraph.optimize.pipeline import optimize
from egraph.optimize.progress import Progress
from egraph.optimize.race import Race
from egraph.optimize.simulation import Simulation, products, rounding_kernels
from egraph.optimize.sizes import optimize_sizes
from egraph.optimize.trial import ORIGINAL, PLAIN
from egraph.policy import RacePolicy
from egraph.tensor import Candidate, Node, Program, TensorType, placeholder
from egraph.tensor.ops import apply
from egraph.tolerance import Tolerance
from lower.calls.tiles import Matcher
from lower.compile import CompileOptions
from lower.cost.model import CostModel
from lower.cost.rounding import MEASURED_IN, UNIT_ROUNDOFF
from lower.roofline import DeviceSpeed
from lower.targets import lowering
from lower.targets.cpu.onednn import TILES
from lower.targets.cpu.onednn.match import implementations, match
from runtime import Session
from runtime.measure import Worker
from runtime.profile import Database
from tests.lower.test_quantised import in_bytes
from tests.support.lowering import Model, choose, float32
from tests.support.processor import needs_bytes

OPTIONS = CompileOptions(threads=1, export_graph=serialized)


def layers(path: Path, *, outlier: float = 1.0, kind: str = "products", size_of_data: float = 1.0) -> tuple[Path, Path]:
    """Write three layers and inputs for them; one number that the second layer reads is ``outlier`` times as large as the others."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    tensors: dict[str, np.ndarray] = {}
    last = "x"
    for layer in range(3):
        shape = (64, 64, 3, 3) if kind == "convolutions" else (256, 256)
        drawn = random.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
        if layer == 0:
            drawn[..., 0] *= outlier
        if layer == 1:
            drawn[0] /= outlier
        tensors[f"w{layer}"] = drawn.astype(np.float32)
        if kind == "convolutions":
            nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"a{layer}"], pads=[1, 1, 1, 1]))
        else:
            tensors[f"b{layer}"] = random.standard_normal(256).astype(np.float32) * 0.1
            nodes.append(helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [f"a{layer}"]))
        nodes.append(helper.make_node("Relu", [f"a{layer}"], [f"r{layer}"]))
        last = f"r{layer}"
    size = [1, 64, 20, 20] if kind == "convolutions" else [96, 256]
    ports = [helper.make_tensor_value_info(name, 1, size) for name in ("x", last)]
    weights = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "layers", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path / "layers.onnx")
    np.savez(path / "data.npz", x=(size_of_data * random.standard_normal(size)).astype(np.float32))
    return path / "layers.onnx", path / "data.npz"


@pytest.fixture
def bytes_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make kernels in bytes cost a fiftieth of others and win races, whatever this machine measures."""
    usual = CostModel.cost_us

    def fastest(preferred: Sequence[str], raced: Race, policy: RacePolicy) -> str:
        timed = (name for name in preferred if name not in (ORIGINAL, PLAIN) and raced.timings[name].samples_us)
        return next(timed, ORIGINAL)

    def cost_us(model: CostModel, one: Candidate) -> float:
        record = model.record(one)
        assert one.implementation.precision != "int8" or record is None or record.status == "ok", record
        return usual(model, one) if not one.implementation.is_library else 1.0 if one.implementation.precision == "int8" else 50.0

    monkeypatch.setattr(CostModel, "cost_us", cost_us)
    monkeypatch.setattr("egraph.optimize.finalists.fastest", fastest)


def optimized(folder: Path, model: Path, data: Path, tolerance: float) -> Outcome:
    options = Options(
        model, threads=1, budget_seconds=25, precision="int8", tolerance=Tolerance(tolerance), derivations=False, inputs=(data,),
        database=folder / "profiles",
    )  # fmt: skip
    return optimize(options, Progress(-1, 25.0))


@needs_bytes
@pytest.mark.usefixtures("bytes_are_cheap")
@pytest.mark.parametrize("kind", ["products", "convolutions"])
def test_a_model_is_computed_in_bytes_within_the_tolerance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    model, data = layers(tmp_path, kind=kind)
    outcome = optimized(tmp_path, model, data, 5e-2)
    assert outcome.precisions["chosen"].rounding == 3
    assert 1e-3 < outcome.max_rel_err <= 5e-2
    assert outcome.precision_text.startswith("kernels that round their operands: 3 in int8")
    stated = outcome.to_json()["precision"]
    assert stated["asked"] == "int8" and stated["kernels"]["int8"] == 3
    plan = json.loads((tmp_path / "layers.einsat" / "plan.json").read_text())
    names = [step["name"] for step in plan["steps"]]
    assert sum(name.endswith("+Saturate") for name in names) == (3 if kind == "convolutions" else 2), "kernels write bytes"
    assert names.count("Quantize") == (kind == "products"), "of the input alone, where nothing else computes it"
    stored = {buffer["dtype"] for buffer in plan["buffers"] if buffer["area"] == "weight" and math.prod(buffer["shape"]) > 1000}
    assert stored == {"int8"}
    again = optimized(tmp_path, model, data, 5e-2)
    assert again.max_rel_err == outcome.max_rel_err and again.precisions == outcome.precisions
    assert "int8" not in {row.precision for row in optimized(tmp_path, model, data, 1e-5).kernels}
    monkeypatch.setattr("egraph.optimize.pipeline.read_memo", lambda *arguments: None)
    assert optimized(tmp_path, model, data, 5e-2).precisions["chosen"].rounding == 3, "of a race that was read"


@needs_bytes
@pytest.mark.usefixtures("bytes_are_cheap")
def test_programs_in_bytes_are_compared_within_their_ranges(tmp_path: Path) -> None:
    """Random inputs are a thousand times as large as the user's: they would saturate and prove nothing about the program."""
    model, data = layers(tmp_path, size_of_data=1e-3)
    outcome = optimized(tmp_path, model, data, 5e-2)
    assert outcome.precisions["chosen"].rounding == 3 and outcome.max_rel_err <= 5e-2
    assert any("on your inputs alone" in note for note in outcome.notes)
    with Session(tmp_path / "layers.einsat", threads=1) as session:
        small, large = (session.run(None, {"x": np.load(data)["x"] * size})[0] for size in (1, 1e3))
    assert np.max(np.abs(large)) < 10 * np.max(np.abs(small)), "what is beyond the range saturates"


@needs_bytes
@pytest.mark.usefixtures("bytes_are_cheap")
def test_the_kernel_that_bytes_do_not_suit_returns_to_float32(tmp_path: Path) -> None:
    """A number a thousand times as large as its neighbours leaves no digits for them, so only that product is computed in float32."""
    model, data = layers(tmp_path, outlier=1e3)
    outcome = optimized(tmp_path, model, data, 5e-2)
    assert outcome.precisions["rounded"].rounding == 3 and outcome.precisions["rounded"].error > 5e-2
    assert outcome.precisions["chosen"].rounding == 2 and outcome.max_rel_err <= 5e-2
    first, *between, last = [row.precision for row in outcome.kernels]
    assert first == last == "int8" and set(between) == {"float32"}, "what follows the product may be a kernel of its own"


@needs_bytes
@pytest.mark.usefixtures("bytes_are_cheap")
def test_a_tolerance_that_no_bytes_meet_is_met_in_float32(tmp_path: Path) -> None:
    model, data = layers(tmp_path)
    outcome = optimized(tmp_path, model, data, 1e-5)
    assert "int8" not in {row.precision for row in outcome.kernels} and outcome.max_rel_err <= 1e-5


def test_nothing_is_quantised_without_data(tmp_path: Path) -> None:
    model, data = layers(tmp_path)
    options = to_options(parse([str(model), "--precision", "int8"]))
    with pytest.raises(ModelError, match="without inputs of yours") as caught:
        optimize(options, Progress(-1, 5.0))
    assert "--inputs" in caught.value.fix and not list(tmp_path.glob("*.einsat"))
    several = to_options(parse([str(model), "--precision", "int8", "--inputs", str(data), "--shape", "x:1/96,256"]))
    with pytest.raises(ModelError, match="of one size"):
        optimize_sizes(several, Progress(-1, 5.0))
    assert to_options(parse([str(model), "--precision", "int8", "--inputs", str(data)])).tolerance.relative == 1e-2


def test_a_processor_without_units_for_bytes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kernels than the library's multiply bytes, and the report names the missing instructions."""
    monkeypatch.setattr(sys.modules[match.__module__], "multiplies_bytes", lambda: False)
    monkeypatch.setitem(TILES.keywords, "matcher", Matcher(implementations, match))  # without cached matches
    model, data = layers(tmp_path)
    outcome = optimized(tmp_path, model, data, 5e-2)
    (note,) = (text for text in outcome.notes if text.startswith("int8 is computed by bytes alone"))
    assert "processor has none of" in note and "avx512_vnni" in note
    assert not any(row.precision == "int8" and "onednn" in row.implementation for row in outcome.kernels)
    assert outcome.max_rel_err < 5e-2


@needs_bytes
def test_ranges_are_those_of_all_inputs() -> None:
    b = Model()
    hidden = apply("MatMul", b.input(8, 16), b.weight(16, 16))
    graph = b.graph(apply("MatMul", apply("Relu", hidden), b.weight(16, 16)))
    program = in_bytes(graph, (-1.0, 1.0))
    random = np.random.default_rng(3)
    feeds = [{"x0": random.standard_normal((8, 16)).astype(np.float32) * size} for size in (1.0, 3.0)]
    found = Ranges(feeds, 1).applied(program)
    x = np.stack([each["x0"] for each in feeds])
    ranges = [kernel.source_range for kernel in found.kernels]
    assert ranges[0] == pytest.approx((x.min(), x.max()), rel=1e-6)
    assert ranges[1] == pytest.approx((0.0, np.maximum(x @ graph.tensors["w0"], 0).max()), rel=1e-5)
    feeds[0]["x0"][0, 0] = np.nan
    assert [kernel.implementation.precision for kernel in Ranges(feeds, 1).applied(program).kernels] == ["float32", "float32"]
    assert Ranges(feeds, 1).applied(choose(graph, "onednn")) == choose(graph, "onednn")


@needs_bytes
def test_contributions_of_bytes_are_measured_in_bytes() -> None:
    """The product whose operand has an outlier moves the outputs most, although rounding to bf16 would not show that."""
    b = Model()
    x, y = b.input(32, 64), b.input(32, 64)
    left, right = apply("MatMul", x, b.weight(64, 64)), apply("MatMul", y, b.weight(64, 64))
    graph = b.graph(apply("Add", left, right))
    random = np.random.default_rng(4)
    feeds = {name: random.standard_normal((32, 64)).astype(np.float32) for name in ("x0", "x1")}
    feeds["x1"][0, 0] = 300.0
    program = Ranges([feeds], 1).applied(in_bytes(graph, (-1.0, 1.0)))
    assert len(rounding_kernels(program)) == 2
    feeds["x1"][0, 0] = 1.0
    found = Simulation(program, [feeds], 1).contributions()
    share = UNIT_ROUNDOFF[MEASURED_IN] / UNIT_ROUNDOFF["int8"]
    assert found[right] > 20 * found[left] > 0
    assert 2e-3 < found[left] / share < 5e-2
    assert {node for kernel in program.kernels for node in products(kernel)} == {left, right}


def kernel(rows: int = 24) -> Node:
    leaves = [placeholder(0, float32(rows, 32)), placeholder(1, TensorType("float32", (32, 48)), constant=True)]
    return apply("Relu", apply("Add", apply("MatMul", *leaves), placeholder(2, TensorType("float32", (48,)), constant=True)))


def twice(program: Program) -> Program:
    """Return the program with the results of kernels in bytes multiplied by two."""
    program = kernels_in_bytes(program)
    (root,) = program.graph.roots
    return replace(program, graph=replace(program.graph, outputs=(("y", apply("Add", root, root)),)))


@needs_bytes
@pytest.mark.parametrize("is_right", [True, False])
def test_kernels_in_bytes_are_compared_with_what_they_mean(monkeypatch: pytest.MonkeyPatch, is_right: bool) -> None:
    """A kernel that is timed computes what onnxruntime computes with the same bytes; one that is off by more is recorded as wrong."""
    if not is_right:
        monkeypatch.setattr("egraph.optimize.measuring.in_bytes", twice)
    how = lowering().implementation("onednn.matmul@int8")
    assert kernel_program(kernel(), how, seed=0).kernels[0].source_range == (-4.0, 4.0)
    database = Database.in_memory()
    model = CostModel(database, "here", DeviceSpeed(), target=lowering().target)
    with Worker() as worker:
        measurer = Measurer(database, "here", OPTIONS, worker)
        measurer.measure([job_of(model, Candidate(kernel(), (), (), how))], lambda: 100.0, lambda text: None)
    record = database.get("here", *model.key(Candidate(kernel(), (), (), how)), "")
    assert record is not None and record.status == ("ok" if is_right else "wrong")


@needs_bytes
def test_kernels_in_bytes_are_not_to_blame_for_rounding() -> None:
    b = Model()
    graph = b.graph(apply("MatMul", apply("Relu", apply("MatMul", b.input(8, 16), b.weight(16, 16))), b.weight(16, 16)))
    feeds = {"x0": np.random.default_rng(3).standard_normal((8, 16)).astype(np.float32)}
    program = Ranges([feeds], 1).applied(in_bytes(graph, (-1.0, 1.0)))
    assert not blame(graph, program, feeds, OPTIONS, Tolerance()).kernels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("egraph.optimize.blame.in_bytes", lambda program: program)
        assert blame(graph, program, feeds, OPTIONS, Tolerance()).kernels
