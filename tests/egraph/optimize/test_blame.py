"""A program that fails the check: the cause is found and excluded, and another program is shipped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egraph.errors import CheckFailed
from egraph.onnx import importer
from egraph.optimize import measuring, saving
from egraph.optimize.blame import (
    Blame,
    Parts,
    _alone,
    _is_flushed,
    _is_rounding,
    _is_single_steps,
    _part_error,
    blame,
    compare_parts,
    kernel_values,
    noise_before_bytes,
)
from egraph.optimize.check import CheckResult, Disagreement, check
from egraph.optimize.check_noise import relative_error, shaken
from egraph.optimize.estimated import compile_options, estimated_program
from egraph.optimize.options import Options
from egraph.optimize.pipeline import optimize
from egraph.optimize.progress import Progress
from egraph.optimize.repair import Repair
from egraph.optimize.run import Run
from egraph.optimize.search import plain_program
from egraph.optimize.trial import Entry
from egraph.tensor import Graph, Kernel, Program, TensorType, attributes, make, walk
from egraph.tensor.ops import apply
from egraph.tolerance import Tolerance
from lower.calls import epilogue
from lower.cost.model import CostModel
from lower.roofline import DeviceSpeed
from lower.targets.cpu import epilogue as epilogue_in_c
from runtime import Session
from runtime.errors import KernelError
from runtime.feeds import FeedSpec
from runtime.profile import Database
from tests.support.commands import build_model, first_program, model_of_bytes


def program_and_feeds(folder: Path) -> tuple[importer.ImportResult, Program, dict[str, np.ndarray]]:
    imported = importer.load(build_model(folder / "m.onnx"))
    program = plain_program(imported.graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0)
    return imported, program, {"x": np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32)}


def test_a_right_program_is_not_blamed(tmp_path: Path) -> None:
    imported, program, feeds = program_and_feeds(tmp_path)
    blamed = blame(imported.graph, program, feeds, compile_options(1), Tolerance())
    assert str(blamed) == "every kernel alone and every value by itself agree" and blamed.parts.agree


def test_a_rule_that_changes_a_value_is_blamed(tmp_path: Path) -> None:
    """A rule is blamed if it changes a value: here tanh replaces the model's relu, and its kernel names a rule."""
    imported, _, feeds = program_and_feeds(tmp_path)
    other = importer.load(build_model(tmp_path / "n.onnx", activations=("Tanh", "Tanh")))
    wrong = plain_program(other.graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0)

    def marked(kernel: Kernel) -> Kernel:
        return replace(kernel, rules=("relu_is_tanh",)) if wrong.graph.names.get(kernel.output) == "c" else kernel

    found = blame(imported.graph, replace(wrong, kernels=tuple(map(marked, wrong.kernels))), feeds, compile_options(1), Tolerance())
    assert found.rules == ("relu_is_tanh",) and found.source_nodes == ("relu",) and not found.kernels


def test_a_kernel_that_does_not_run_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> Session:
        raise KernelError("the library says not implemented")

    imported, program, feeds = program_and_feeds(tmp_path)
    monkeypatch.setattr("egraph.optimize.blame.Session", refused)
    blamed = blame(imported.graph, program, feeds, compile_options(1), Tolerance())
    assert blamed.kernels and all(reason == "the library says not implemented" for _, reason in blamed.kernels)


def inject_wrong_relu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the library compute a Relu after a product wrongly, without measurements noticing, and make extraction prefer it."""
    monkeypatch.delitem(epilogue_in_c.ELTWISE, "linear")  # so that only one library has such a kernel
    cost_us = CostModel.cost_us
    cheap = ("Relu(MatMul", "Tanh(MatMul")
    monkeypatch.setattr(CostModel, "cost_us", lambda self, one: cost_us(self, one) / (1e6 if self.key(one)[0].startswith(cheap) else 1))
    monkeypatch.setitem(epilogue.ELTWISE, "Relu", lambda a: ("linear", 1.0, 0.25))
    unverified = measuring.Measurer._timing
    monkeypatch.setattr(
        measuring.Measurer,
        "_timing",
        lambda self, *arguments: unverified(replace(self, options=replace(self.options, export_graph=None)), *arguments),
    )
    monkeypatch.setattr("egraph.optimize.trial.winner", first_program)


def test_a_wrong_kernel_is_found_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_wrong_relu(monkeypatch)
    model = build_model(tmp_path / "m.onnx")
    options = Options(model, tmp_path / "out", budget_seconds=90.0, finalists=1, database=tmp_path / "p.sqlite", verbosity=-1)
    outcome = optimize(options, Progress(-1, 90.0))
    assert outcome.max_rel_err < 1e-5 and outcome.status == "faster"
    assert len(outcome.check_notes) == 1 and "onednn.matmul" in outcome.check_notes[0] and "relu" in outcome.check_notes[0]
    assert [row.kind for row in outcome.refused].count("wrong") >= 1
    database = Database.open(tmp_path / "p.sqlite")
    assert any(record.status == "wrong" and "Relu" in record.fragment for record in database.records())
    database.close()


def test_rounding_that_the_model_amplifies_is_told_from_errors() -> None:
    """y = sin(1000 x) multiplies a last bit of x by a thousand."""
    specs = (FeedSpec("x", "float32", (64,)),)

    def amplify(feeds: Mapping[str, Any], error: float = 0.0) -> list[np.ndarray]:
        return [np.sin(np.float32(1e3) * feeds["x"]) * np.float32(1 + error)]

    def run(error: float, *, plain: bool) -> list[str]:
        checked = check(
            amplify, {"f": lambda feeds: amplify(feeds, error)}, ["y"], specs,
            tolerance=Tolerance(1e-4, 0.0), count=1, seed=0, plain=amplify if plain else None,
        )  # fmt: skip
        return list(checked.amplified)

    assert run(0.0, plain=True) == []
    assert len(run(5e-4, plain=True)) == 1
    with pytest.raises(Disagreement):
        run(5e-4, plain=False)
    with pytest.raises(CheckFailed, match="largest error"):
        run(5e-2, plain=True)
    moved = shaken({"x": np.ones(100, np.float32), "i": np.arange(3)}, 0)
    assert 0 < relative_error(np.ones(100), moved["x"]) < 2e-7 and moved["i"].tolist() == [0, 1, 2]


def test_without_time_to_replace_it_a_wrong_program_gives_way_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_wrong_relu(monkeypatch)
    monkeypatch.setattr(Repair, "seconds", 1e9)
    monkeypatch.setattr(Repair, "tested", lambda self, entry: None)  # otherwise it would not be timed
    model = build_model(tmp_path / "m.onnx")
    options = Options(model, tmp_path / "out", budget_seconds=60.0, finalists=1, database=tmp_path / "p.sqlite", verbosity=-1)
    outcome = optimize(options, Progress(-1, 60.0))
    assert outcome.max_rel_err < 1e-5 and outcome.shipped == "unoptimized"
    assert len(outcome.check_notes) == 1 and "no time to replace what is to blame: --budget 120s" in outcome.check_notes[0]


def test_without_time_to_check_another_program_the_model_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is kept if there is no time to check another program.

    Regression: two programs of a detector failed one after the other, in 15 s beyond a budget of 30.
    """
    inject_wrong_relu(monkeypatch)
    monkeypatch.setattr(Repair, "tested", lambda self, entry: None)  # otherwise it would not be timed
    checks: list[Entry | None] = []

    def save_and_check(run: Run, best: Entry | None, **more: Any) -> CheckResult:
        checks.append(best)
        try:
            return saving.save_and_check(run, best, **more)
        finally:
            run.progress.started = time.monotonic() - 1e3

    monkeypatch.setattr("egraph.optimize.pipeline.save_and_check", save_and_check)
    model = build_model(tmp_path / "m.onnx")
    options = Options(model, tmp_path / "out", budget_seconds=60.0, finalists=1, database=tmp_path / "p.sqlite", verbosity=-1)
    outcome = optimize(options, Progress(-1, 60.0))
    assert outcome.status == "unchanged" and [best is not None for best in checks] == [True, False]
    assert len(outcome.check_notes) == 1 and "no time to replace what is to blame" in outcome.check_notes[0]


def test_what_zeros_for_subnormal_operands_change_is_no_kernels_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is not wrong because it takes subnormal operands for zero.

    Regression: a detector's program was discarded for a product of 4e-37 that was 0 in it.
    """
    tiny, zero, large = (np.full(6, value, np.float32) for value in (4e-37, 0.0, 1.0))
    assert _is_flushed(tiny, zero) and _is_flushed(zero, tiny) and not _is_flushed(large, zero) and not _is_flushed(tiny, large)
    assert not _is_flushed(tiny.astype(np.float64), zero)
    x = make("Input", (), attributes(name="x"), TensorType("float32", (1, 64)))
    weight = make("Constant", (), attributes(digest="w"), TensorType("float32", (64, 6)))
    graph = Graph("small", (x,), (("y", apply("MatMul", x, weight)),), {"w": np.full((64, 6), 4.0, np.float32)})
    program = plain_program(graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0)
    feeds = {"x": np.full((1, 64), 1e-39, np.float32)}
    for keep_subnormals in (False, True):
        options = replace(compile_options(1), keep_subnormals=keep_subnormals)
        assert not blame(graph, program, feeds, options, Tolerance()).kernels
    run = Session.run
    monkeypatch.setattr(Session, "run", lambda self, *arguments: [0.0 * each for each in run(self, *arguments)])
    assert blame(graph, program, feeds, options, Tolerance()).kernels, "where they are kept, 0 is wrong"


def test_a_wrong_program_that_nothing_explains_gives_way_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inject_wrong_relu(monkeypatch)
    monkeypatch.setattr(Repair, "tested", lambda self, entry: None)  # otherwise it would not be timed
    monkeypatch.setattr("egraph.optimize.repair.blame", lambda *_: Blame())
    model = build_model(tmp_path / "m.onnx")
    options = Options(model, tmp_path / "out", budget_seconds=60.0, finalists=1, database=tmp_path / "p.sqlite", verbosity=-1)
    outcome = optimize(options, Progress(-1, 60.0))
    assert outcome.max_rel_err < 1e-5 and outcome.shipped == "unoptimized"
    assert len(outcome.check_notes) == 1 and "nothing was found that could be left out" in outcome.check_notes[0]


def test_the_next_program_of_a_race_that_was_read_is_compiled_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command again compiles only the winner. If that proves wrong now, another program is written."""
    model = build_model(tmp_path / "m.onnx")
    options = Options(model, tmp_path / "out", budget_seconds=60.0, finalists=1, database=tmp_path / "p.sqlite", verbosity=-1)
    monkeypatch.setattr("egraph.optimize.trial.winner", first_program)
    assert optimize(options, Progress(-1, 60.0)).shipped == "program 1"
    unpatched = saving.check

    def check_of(run: Run, session: Session, saved: Any, best: Entry | None, *, is_repeated: bool) -> CheckResult:
        if best is not None and best.contender.name == "program 1":
            raise Disagreement(CheckFailed("it is wrong now"), run.reference.raced_feeds)
        return unpatched(run, session, saved, best, is_repeated=is_repeated)

    monkeypatch.setattr(saving, "check", check_of)
    monkeypatch.setattr("egraph.optimize.repair.blame", lambda *_: Blame())
    outcome = optimize(options, Progress(-1, 60.0))
    assert outcome.max_rel_err < 1e-5 and outcome.shipped == "unoptimized"


def test_a_kernel_that_its_operands_make_inaccurate_is_not_wrong(tmp_path: Path) -> None:
    """A float32 difference of nearly equal values is as inexact as its operands' last bits, so the kernel is not blamed."""
    x, z = (make("Input", (), attributes(name=name), TensorType("float32", (5, 12))) for name in "xz")
    graph = Graph("g", (x, z), (("y", apply("Softplus", apply("Sub", apply("Exp", x), apply("Exp", z)))),), {})
    program = plain_program(graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0)
    difference = next(kernel for kernel in program.kernels if kernel.fragment.op == "Sub")
    alone = _alone(program.graph, difference)

    def is_rounding(gap: float, found: float) -> bool:
        feeds = {"x0": np.full((5, 12), 1e6, np.float32), "x1": np.full((5, 12), 1e6 - gap, np.float32)}
        return _is_rounding(alone, feeds, feeds["x0"] - feeds["x1"], np.full((5, 12), found, np.float32), 1)

    assert is_rounding(1.0, 1.05) and not is_rounding(1.0, 3.0) and not is_rounding(1000.0, 1010.0)


def test_parts_of_a_program_are_compared_from_the_values_that_it_has(tmp_path: Path) -> None:
    """Each part is computed from the program's own values: a step in the other direction is no error of its readers, a wrong value is."""
    graph = importer.load(model_of_bytes(tmp_path)).graph
    program = plain_program(graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0)
    generator = np.random.default_rng(0)
    x, step = (generator.standard_normal((256, 320)).astype(np.float32) for _ in range(2))
    (entry,), (output,) = graph.inputs, graph.roots
    exact = kernel_values(program, {"x": x}, 1)
    moved = kernel_values(program, {"x": x + np.float32(1e-5) * step}, 1) | {entry: x}
    names = {name: node for node, name in program.graph.names.items() if node in moved}

    def compared(**changed: np.ndarray) -> Parts:
        return compare_parts(graph, program, moved | {names[name]: value for name, value in changed.items()}, 1, Tolerance())

    right = compared()
    assert relative_error(exact[output], moved[output]) > 1e-3, "some values went to the next step"
    assert right.agree and right.count >= 24 and right.worst_error < 1e-4
    many = moved[names["q1"]].copy()
    many[::2] ^= 1
    turned = compared(q1=many)
    assert "40960 of 81920 whole numbers are off, by up to 1 (accepted: 82 by up to 1)" in turned.wrong["q1"]
    assert "q1: 40960" in str(turned)
    scaled = compared(d7=moved[names["d7"]] * np.float32(1.001))
    assert [*scaled.wrong] == ["d7"] and "an error of 0.001 (accepted: 0.0001" in scaled.wrong["d7"]
    assert "1 of " in str(Blame(parts=scaled)) and str(scaled) in str(Blame(parts=scaled)), "what vouches for no program says why"


def test_bytes_that_a_program_has_in_another_layout_and_inside_of_kernels_are_compared(tmp_path: Path) -> None:
    """The model's bytes have channels first; the program's never do, because it has no transposes around them."""
    x = make("Input", (), attributes(name="x"), TensorType("float32", (2, 3, 5, 4)))
    tensors: dict[str, np.ndarray] = {"s": np.array(0.25, np.float32), "z": np.array(3, np.uint8)}
    scale, zero = (make("Constant", (), attributes(digest=name), TensorType(each.dtype.name, ())) for name, each in tensors.items())
    first = apply("Quantize", apply("Transpose", x, perm=(0, 3, 1, 2)), scale, zero)
    second = apply("Quantize", apply("Relu", apply("Dequantize", first, scale, zero)), scale, zero)
    output = apply("Transpose", apply("Tanh", apply("Dequantize", second, scale, zero)), perm=(0, 2, 3, 1))
    graph = Graph("g", (x,), (("y", output),), tensors, names={first: "first", second: "second"})
    program = estimated_program(graph)
    assert all(node.op != "Transpose" for node in walk(program.graph.roots))
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype(np.float32)}
    values = kernel_values(program, feeds, 1)
    right = compare_parts(graph, program, values, 1, Tolerance())
    assert right.agree and right.count == 3
    named = {name: node for node, name in program.graph.names.items() if node in values}
    turned = values | {named["second"]: values[named["second"]] ^ 1}
    assert {*compare_parts(graph, program, turned, 1, Tolerance()).wrong} == {"second", "Transpose"}


def test_a_kernel_may_be_off_by_single_steps_of_the_bytes_on_its_way(tmp_path: Path) -> None:
    """In y = 3 * dequantize(quantize(x)), one step moves y by 0.75; one place in a thousand and one more may be a step off."""
    x = make("Input", (), attributes(name="x0"), TensorType("float32", (50, 40)))
    values: dict[str, np.ndarray] = {"s": np.array(0.25, np.float32), "z": np.array(3, np.uint8), "t": np.array(3.0, np.float32)}
    scale, zero, three = (make("Constant", (), attributes(digest=name), TensorType(value.dtype.name, ())) for name, value in values.items())
    root = apply("Mul", apply("Dequantize", apply("Quantize", x, scale, zero), scale, zero), three)
    graph = Graph("g", (x,), (("y", root),), values)
    feeds = {"x0": np.full((50, 40), 2.0, np.float32)}
    want = np.full((50, 40), 6.0, np.float32)

    def excused(places: int, by: float, of: Graph = graph) -> bool:
        got = want.copy()
        got.reshape(-1)[:places] += np.float32(by)
        return _is_single_steps(Program(of, (), 0.0), feeds, want, got, 1)

    assert excused(3, 0.75) and excused(3, -0.75) and excused(1, 0.3)
    assert not excused(4, 0.75), "more than one place of a thousand, and one more"
    assert not excused(1, 0.8) and not excused(1, -1.5), "more than a step"
    summed = replace(graph, outputs=(("y", apply("Add", x, apply("ReduceSum", root, axes=(0, 1)))),))
    plain = replace(graph, outputs=(("y", apply("Mul", x, three)),))
    assert not excused(1, 0.75, summed), "a sum takes the steps of all"
    assert not excused(1, 0.75, plain), "nothing is rounded to bytes"


@pytest.mark.parametrize(("at", "is_moved"), [(0.625, True), (0.63, False)])
def test_numbers_between_two_bytes_move_outputs_that_no_last_bit_of_an_input_does(tmp_path: Path, at: float, is_moved: bool) -> None:
    """With steps of 0.25, 0.625 lies between two bytes and 0.63 does not. A saturated function hides all changes of the input."""
    x = make("Input", (), attributes(name="x"), TensorType("float32", (40, 40)))
    values: dict[str, np.ndarray] = {"s": np.array(0.25, np.float32), "z": np.array(0, np.uint8), "o": np.array(at - 1.0, np.float32)}
    scale, zero, offset = (make("Constant", (), attributes(digest=name), TensorType(each.dtype.name, ())) for name, each in values.items())
    root = apply("Dequantize", apply("Quantize", apply("Add", apply("Tanh", x), offset), scale, zero), scale, zero)
    graph = Graph("g", (x,), (("y", root),), values)
    noise = noise_before_bytes(graph, {"x": np.full((40, 40), 50.0, np.float32)}, 1)["y"]
    assert noise == pytest.approx(0.5 if is_moved else 0.0, abs=1e-6)
    plain = replace(graph, outputs=(("y", apply("Add", apply("Tanh", x), offset)),))
    assert noise_before_bytes(plain, {"x": np.zeros((40, 40), np.float32)}, 1) == {}


def test_rounding_excuses_a_part_up_to_a_bound() -> None:
    """A part may be off by four times the effect of its operands' last bits, and by a hundredth at most; bytes by one step, seldom."""
    want = np.ones(1000, np.float32)

    def agrees(got: np.ndarray, noise: float) -> bool:
        return not _part_error(want.astype(got.dtype), got, [want * np.float32(1 + noise)], Tolerance())[1]

    assert agrees(want * np.float32(1.003), 1e-3) and agrees(want * np.float32(1.00005), 0.0)
    assert not agrees(want * np.float32(1.005), 1e-3), "more than four times as much"
    assert not agrees(want * np.float32(1.02), 1e-1), "more than a hundredth, however large the noise is"
    steps = np.ones(1000, np.uint8)
    steps[:2] += 1
    assert agrees(steps, 0.0) and not agrees(steps.astype(np.int32), 0.0)
    steps[2] += 1
    assert not agrees(steps, 0.0), "three of a thousand"
    steps[:3] = 1, 1, 3
    assert not agrees(steps, 0.0), "two steps"
    coarser = np.ones(1000, np.uint8)
    coarser[7] = 3
    ones = np.ones_like(coarser)
    assert not _part_error(ones, steps, [coarser], Tolerance())[1], "as far as moving the numbers below showed"
    steps[0] = 4
    assert "off, by up to 3 (accepted: 4 by up to 2)" in _part_error(ones, steps, [coarser], Tolerance())[1]
    for places, moved_places, agree in ((8, 2, True), (9, 2, False), (10, 500, True), (11, 500, False)):
        got, moved = ones.copy(), ones.copy()
        got[:places], moved[:moved_places] = 2, 2
        assert (not _part_error(ones, got, [moved], Tolerance())[1]) == agree, "four times as many as moved, and a hundredth at most"


def test_a_model_that_rounds_to_bytes_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last bit of an input moves the outputs by far more than the tolerance, but each part of the program agrees."""
    monkeypatch.setattr("egraph.optimize.trial.winner", first_program)
    options = Options(
        model_of_bytes(tmp_path), tmp_path / "out", budget_seconds=20.0, finalists=1, database=tmp_path / "p.sqlite", verbosity=-1
    )
    outcome = optimize(options, Progress(-1, 60.0))
    assert outcome.shipped == "program 1"
    assert any("parts of it, computed from the same values" in note for note in outcome.check_notes)
