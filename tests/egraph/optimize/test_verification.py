"""A kernel whose result is wrong is found when it is first measured, and never used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from egraph.optimize.estimated import compile_options
from egraph.optimize.kernels import compile_batch, feed_specs, kernel_program, leaf_values, reference_graph
from egraph.optimize.measuring import Job, Measurer, write_reference
from egraph.optimize.outcome import summary
from egraph.optimize.search_phases import refused
from egraph.tensor import OPAQUE, Candidate, Node, TensorType, format_fragment, placeholder
from egraph.tensor.ops import apply
from lower.calls.call import LibraryCall
from lower.cost.model import CostModel
from lower.roofline import DeviceSpeed
from lower.targets import lowering
from lower.targets.cpu.onednn.match import match
from runtime import Session
from runtime.feeds import PERIOD, FeedSpec, random_feeds
from runtime.judge import ONLY_REFERENCE, REFERENCE_MODEL, ROUNDS_INSIDE, WrongResult, judge
from runtime.measure import Effort, Load, Worker
from runtime.profile import Database, Record
from tests.support.fragments import leaf
from tests.support.implementations import GENERATED, PRODUCT


def dense(activation: str) -> Node:
    return apply(activation, apply("MatMul", leaf(0, 6, 16), leaf(1, 16, 24, constant=True)))


def test_a_wrong_kernel_is_told_from_a_right_one(tmp_path: Path) -> None:
    """The wrong kernel is the plan of one fragment beside the reference of another."""
    programs = [kernel_program(dense(op), PRODUCT, seed=0) for op in ("Relu", "Tanh")]
    options = compile_options(1)
    places = compile_batch(programs, tmp_path, options)
    assert options.export_graph is not None
    with Worker() as worker:
        for reference in programs:
            for program, place in zip(programs, places, strict=True):
                assert isinstance(place, Path)
                (place / REFERENCE_MODEL).write_bytes(options.export_graph(reference_graph(reference.graph)))
                timing = worker.load(Load("kernel", str(place), feed_specs(program), threads=1))
                assert timing.status == ("ok" if reference is program else "wrong"), timing.message


def test_measuring_files_a_verified_time(tmp_path: Path) -> None:
    database = Database.in_memory()
    with Worker() as worker:
        measurer = Measurer(database, "cpu", compile_options(1), worker, effort=Effort(seconds=0.001))
        jobs = [Job(dense("Sigmoid"), one, one.text) for one in (PRODUCT, GENERATED)]
        measurer.measure(jobs, lambda: 1.0, lambda text: None)
    assert [record.status for record in database.records()] == ["ok", "ok"]


def attention() -> Node:
    """Scores are unscaled sums over 64 numbers, so only few probabilities matter."""
    q, k, v = leaf(0, 4, 128, 64), leaf(1, 4, 64, 128), leaf(2, 4, 128, 64)
    return apply("MatMul", apply("Softmax", apply("MatMul", q, k), axis=2), v)


@pytest.mark.parametrize(
    ("fragment", "implementation", "rounds_inside"),
    [
        (attention(), "attention.blocks@bf16", True),
        (attention(), "attention.blocks", False),
        (dense("Relu"), "products.matmul@bf16", False),
    ],
)
def test_what_rounds_inside_is_said_beside_its_reference(tmp_path: Path, fragment: Node, implementation: str, rounds_inside: bool) -> None:
    chosen = lowering("cpu").implementation(implementation)
    write_reference(kernel_program(fragment, chosen, seed=0), chosen, tmp_path, compile_options(1))
    assert (tmp_path / REFERENCE_MODEL).exists() and (tmp_path / ROUNDS_INSIDE).exists() is rounds_inside


def test_attention_that_rounds_probabilities_is_right() -> None:
    """Some probabilities are rounded in the other direction."""
    fragment = attention()
    database = Database.in_memory()
    with Worker() as worker:
        measurer = Measurer(database, "cpu", compile_options(1), worker, effort=Effort(seconds=0.001))
        jobs = [Job(fragment, one, one.text) for one in map(lowering("cpu").implementation, ("attention.blocks@bf16", "attention.blocks"))]
        measurer.measure(jobs, lambda: 1.0, lambda text: None)
    assert [record.status for record in database.records()] == ["ok", "ok"], [record.message for record in database.records()]


def test_an_opaque_kernel_with_weights_is_measured() -> None:
    """The kernel's weights are in its own model, where the reference cannot read them."""
    database = Database.in_memory()
    fragment = apply("MatMul", leaf(0, 4, 8), leaf(1, 8, 6, constant=True))
    with Worker() as worker:
        measurer = Measurer(database, "cpu", compile_options(1), worker, effort=Effort(seconds=0.001))
        measurer.measure([Job(fragment, OPAQUE, "product")], lambda: 1.0, lambda text: None)
    (record,) = database.records()
    assert record.status == "ok", record.message


def test_wrong_kernels_have_no_price() -> None:
    database = Database.in_memory()
    one, other = (Candidate(dense("Relu"), (), (), name) for name in (PRODUCT, GENERATED))
    model = CostModel(database, "cpu", DeviceSpeed())
    assert len(model.price({0: (one, other)})[0]) == 2
    model.file(Record("cpu", format_fragment(one.fragment), one.implementation.text, "wrong", (), "the largest error is 3"))
    assert [left.implementation for left in model.price({0: (one, other)})[0]] == [GENERATED]
    model.file(Record("cpu", format_fragment(other.fragment), other.implementation.text, "failed", (), f"RuntimeError: {ONLY_REFERENCE}"))
    rows = refused(model, {0: (one, other)})
    assert [row.kind for row in rows] == ["wrong", "slow"]
    assert summary(rows) == "kernels refused: 1 wrong, 1 slow reference implementations"


def test_operands_of_roots_and_quotients_are_drawn_away_from_zero() -> None:
    a, b = leaf(0, 4), leaf(1, 4)
    assert leaf_values(apply("Div", a, b)) == {a: "normal", b: "positive"}
    assert leaf_values(apply("Div", a, apply("Sqrt", apply("Mul", b, b)))) == {a: "normal", b: "normal"}
    assert leaf_values(apply("Pow", apply("Sub", a, a), b)) == {a: "positive", b: "whole"}


def test_judging_results() -> None:
    want = np.array([1.0, -100.0, np.nan], np.float32)
    judge(np.array([1.005, -100.0, 7.0], np.float32), want)
    with pytest.raises(WrongResult, match="1 of 3 elements"):
        judge(np.array([1.02, -100.0, 7.0], np.float32), want)
    with pytest.raises(WrongResult, match="inf"):
        judge(np.array([np.nan, -100.0, np.nan], np.float32), want)
    with pytest.raises(WrongResult, match="1 of 4 elements"):
        judge(np.array([0, 1, 2, 3]), np.array([0, 1, 2, 4]))
    with pytest.raises(WrongResult, match="must be float32"):
        judge(want.astype(np.float64), want)
    finite = want[:2]
    judge(np.array([1.005, -100.0], np.float32), finite)
    for wrong in (1.02, np.nan, np.inf, -np.inf):
        with pytest.raises(WrongResult, match="1 of 2 elements"):
            judge(np.array([wrong, -100.0], np.float32), finite)
    with pytest.raises(WrongResult):
        judge(np.full(2, 3e38, np.float32), -np.full(2, 3e38, np.float32))
    judge(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))


def test_few_elements_may_be_off_by_one_rounding_where_a_kernel_rounds_inside() -> None:
    want = np.full(100, 100.0, np.float32)
    for count, error, is_right in ((5, 0.7, True), (6, 0.7, False), (1, 0.8, False), (100, 0.009, True), (1, np.nan, False)):
        result = want.copy()
        result[:count] += np.float32(error)
        if is_right:
            judge(result, want, rounds_inside=True)
        else:
            with pytest.raises(WrongResult, match=f"{count} of 100 elements"):
                judge(result, want, rounds_inside=True)
    with pytest.raises(WrongResult, match="5 of 100 elements"):
        judge(want + np.where(np.arange(100) < 5, np.float32(0.7), np.float32(0)), want)


def test_large_operands_are_drawn_in_part_and_repeated() -> None:
    large, small = FeedSpec("x", "float32", (3, PERIOD)), FeedSpec("y", "int64", (5, 7), 9)
    drawn, repeated = random_feeds([large, small], 0), random_feeds([large, small], 0, repeated=True)
    np.testing.assert_array_equal(drawn["y"], repeated["y"])
    assert repeated["x"].shape == (3, PERIOD) and repeated["x"].dtype == np.float32
    np.testing.assert_array_equal(repeated["x"][0], repeated["x"][1])
    assert not np.array_equal(drawn["x"][0], drawn["x"][1])


@pytest.mark.parametrize(
    ("inputs", "outputs", "stride", "fits"),
    [(512, 64, 2, False), (512, 64, 1, True), (64, 64, 2, True), (512, 16, 2, True), (512, 17, 2, False), (128, 99, 2, True)],
)
def test_a_deconvolution_that_sums_in_parts_has_no_epilogue(inputs: int, outputs: int, stride: int, fits: bool) -> None:
    """oneDNN would apply the epilogue to every partial sum; without an epilogue the same call is right."""
    x, w = leaf(0, 1, inputs, 4, 4), leaf(1, inputs, outputs, 4, 4, constant=True)
    bare = apply(
        "ConvTranspose", x, w,
        strides=(stride, stride), pads=(1, 1, 1, 1), dilations=(1, 1), group=1, output_padding=(0, 0), layout="NCHW",
    )  # fmt: skip
    assert isinstance(match(bare, "onednn.deconvolution"), LibraryCall)
    for whole in (apply("Relu", bare), apply("Add", bare, leaf(2, 1, outputs, 1, 1, constant=True))):
        found = match(whole, "onednn.deconvolution")
        assert isinstance(found, LibraryCall) if fits else "sums in parts" in str(found)


def test_indices_out_of_range_read_nothing_outside(tmp_path: Path) -> None:
    """Indices that ONNX forbids wrap around, so that no kernel reads beyond its operand."""
    fragment = apply("Gather", leaf(0, 8, 3), placeholder(1, TensorType("int64", (6,))), axis=0)
    program = kernel_program(fragment, GENERATED, seed=0)
    (place,) = compile_batch([program], tmp_path, compile_options(1))
    assert isinstance(place, Path)
    data, chosen = np.arange(24, dtype=np.float32).reshape(8, 3), np.array([0, -1, 8, 10**9, -(10**9), 2**40])
    with Session(place, threads=1) as session:
        found = session.run(None, {"x0": data, "x1": chosen})[0]
    np.testing.assert_array_equal(found, data[chosen % 8])


def test_how_long_generated_kernels_took_to_compile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINSAT_CACHE", str(tmp_path / "cache"))
    programs = [kernel_program(apply(op, leaf(0, 6, 16)), GENERATED, seed=0) for op in ("Exp", "Tanh")]
    told: list[tuple[float, float]] = []
    compile_batch(programs, tmp_path, compile_options(1), lambda kernels, seconds: told.append((kernels, seconds)))
    ((kernels, seconds),) = told
    assert kernels == 2 and seconds > 0.0
