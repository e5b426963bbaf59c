"""The check of saved files: what it accepts, what it refuses, and its notes on outputs that prove little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from egraph.errors import CheckFailed, ModelError
from egraph.onnx import importer
from egraph.onnx.integer_ranges import integer_ranges
from egraph.optimize import check_noise
from egraph.optimize.blame import Blame, Parts
from egraph.optimize.check import OTHER_VALUES, CheckResult, Disagreement, Spread, check, compare, find_feeds, moved, open_original
from egraph.optimize.check_noise import MOST_FLOPS, Noise, Unoptimised, open_shaken, relative_error, run_in_float64
from egraph.optimize.options import Options
from egraph.optimize.reference import Accepted, Answers, Given, Reference, remembering
from egraph.policy import CheckPolicy
from egraph.tensor import Graph, Implementation, Kernel, TensorType, attributes, make
from egraph.tensor.ops import apply
from egraph.tolerance import Tolerance
from runtime.feeds import FeedSpec

SPEC = (FeedSpec("x", "float32", (4, 50)),)
TIGHT = Tolerance()
X = make("Input", (), attributes(name="x"), TensorType("float32", (4, 50)))
WRONG = Kernel(X, (), X, Implementation.parse("view"))


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), np.float32)


def scaled_softmax(scale: float, offset: float = 0.0) -> Any:
    """Return a model that computes softmax(scale * x + ramp), saturated if the ramp is steep."""
    ramp = offset * np.arange(50, dtype=np.float32)

    def run(feeds: Mapping[str, Any]) -> Sequence[Any]:
        return [softmax(scale * feeds["x"] + ramp)]

    return run


def run_check(model: Any, candidate: Any = None, *, count: int = 3) -> Any:
    return check(model, {"m": candidate or model}, ["y"], SPEC, tolerance=TIGHT, count=count, seed=0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_telling_output_needs_no_note(count: int) -> None:
    found = run_check(scaled_softmax(1.0), count=count)
    assert found.weak == () and found.inputs == count


@pytest.mark.parametrize("count", [1, 3])
def test_a_saturated_output_is_said_and_more_inputs_are_tried(count: int) -> None:
    found = run_check(scaled_softmax(1.0, offset=1000.0), count=count)
    assert found.inputs == count + len(OTHER_VALUES) and found.max_rel_err == 0.0
    assert len(found.weak) == 1 and "tells little about output 'y'" in found.weak[0] and "saturated" in found.weak[0]


def test_inputs_of_another_size_tell_more_and_find_what_others_do_not() -> None:
    """For a model that reads pixels from 0 to 255, the outputs on small inputs are all alike, also those of a wrong program."""
    def reader_of_pixels(scale: float) -> Any:
        return lambda feeds: scaled_softmax(scale)({"x": np.maximum(feeds["x"] - 8, 0)})

    with pytest.raises(Disagreement, match="bytes"):
        run_check(reader_of_pixels(0.02), reader_of_pixels(0.03))
    assert run_check(reader_of_pixels(0.02)).weak == ()


def test_other_inputs_are_left_out_where_the_model_is_not_finite_there() -> None:
    def overflows(feeds: Mapping[str, Any]) -> Sequence[Any]:
        with np.errstate(over="ignore", invalid="ignore"):
            return [np.float32(1) + 0 * np.exp(feeds["x"])]

    assert run_check(overflows).inputs == 4


def picky(*refused: int) -> Any:
    """Return a model that fails at these numbers of its calls, like one whose indices point beyond a table."""
    calls = iter(range(100))

    def run(feeds: Mapping[str, Any]) -> Sequence[Any]:
        if next(calls) in refused:
            raise RuntimeError("invalid index")
        outputs: Sequence[Any] = scaled_softmax(1.0)(feeds)
        return outputs

    return run


def compare_picky(*refused: int, candidate: Any = None) -> Any:
    return check(picky(*refused), {"m": candidate or scaled_softmax(1.0)}, ["y"], SPEC, tolerance=TIGHT, count=3, seed=0)


def test_random_inputs_that_the_original_refuses_are_left_out_and_said() -> None:
    checked = compare_picky(1, 2)
    assert checked.inputs == 3 and checked.refused == ("random inputs left out, as the original does not run on them: 2 (invalid index)",)
    assert compare_picky().refused == ()
    with pytest.raises(Disagreement):
        compare_picky(1, candidate=scaled_softmax(1.1))
    few = compare_picky(*range(1, 100))
    assert few.inputs == 1
    with pytest.raises(ModelError, match="cannot run the original model on random inputs: invalid index"):
        compare_picky(*range(100))


def test_how_much_moves() -> None:
    floats = np.linspace(0, 1, 10, dtype=np.float32)
    other = floats.copy()
    other[3:6] += 0.01
    assert moved(floats, other, TIGHT) == pytest.approx(0.3)
    assert moved(floats, floats * np.float32(1 + 1e-5), TIGHT) == 0.0
    assert moved(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), TIGHT) == 0.25
    assert moved([floats, floats], [floats, other], TIGHT) == pytest.approx(0.3)
    assert moved(np.array([np.inf, 1], np.float32), np.array([0, 1], np.float32), TIGHT) == 0.5
    assert moved(np.array([np.nan, 1], np.float32), np.array([np.nan, 1], np.float32), TIGHT) == 0.0
    assert moved(floats, floats[:5], TIGHT) == 1.0
    assert moved(floats[:0], floats[:0], TIGHT) == 1.0, "there is nothing to tell"


def test_one_input_that_changes_an_output_is_enough() -> None:
    spread, ramp = Spread(["y"], TIGHT), np.linspace(0, 1, 10, dtype=np.float32)
    for output in (ramp, ramp + 1, ramp):
        spread.add([output])
    assert spread.weak == ()
    still = Spread(["y"], TIGHT)
    for output in (ramp, ramp):
        still.add([output])
    assert still.weak == ("y",)


def test_an_index_into_two_tables_is_valid_for_both() -> None:
    index = make("Input", (), attributes(name="i"), TensorType("int64", (3,)))
    tables = [make("Input", (), attributes(name=f"t{size}"), TensorType("float32", (size, 2))) for size in (4, 9)]
    for order in (tables, tables[::-1]):
        assert integer_ranges([apply("Gather", table, index, axis=0) for table in order])[index] == (0, 3)


@pytest.mark.parametrize(
    ("want", "got", "told"),
    [
        ([1.0, 2.0], [1.0, 2.1], "largest error"),
        ([1.0, 2.0], [1.0, 2.0004], "largest error"),
        ([1.0, np.nan], [1.0, 2.0], "NaN"),
        ([1.0, np.inf], [1.0, -np.inf], "other sign"),
        ([1.0, np.inf], [1.0, np.nan], "NaN"),
        ([1.0], [1.0, 2.0], "must be"),
    ],
)
def test_wrong_outputs_fail_the_check(want: list[float], got: list[float], told: str) -> None:
    with pytest.raises(CheckFailed, match=told):
        compare(np.array(want, np.float32), np.array(got, np.float32), TIGHT, where="y")


def test_the_error_is_relative_to_the_largest_magnitude() -> None:
    want = np.array([100.0, 0.001, np.inf, np.nan], np.float32)
    assert compare(want, want + np.float32(0.001), TIGHT, where="y") == pytest.approx(1e-5, rel=0.05)
    with pytest.raises(CheckFailed):
        compare(np.array([1, 2]), np.array([1, 3]), TIGHT, where="y")
    with pytest.raises(CheckFailed):
        compare(np.array([1], np.float32), np.array([1], np.float64), TIGHT, where="y")


def test_an_error_in_any_part_of_a_large_output_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egraph.optimize.check.PART", 2)
    want = np.array([1.0, 2.0, 3.0, 4.0, 5.0], np.float32)
    for place in range(5):
        got = want.copy()
        got[place] += 0.01
        with pytest.raises(CheckFailed):
            compare(want, got, TIGHT, where="y")
    assert compare(want, want + np.float32(1e-4), TIGHT, where="y") == pytest.approx(2e-5, rel=0.01), "relative to all of it"


@pytest.mark.parametrize(
    ("noise", "error", "explains", "is_accepted"), [(1e-4, 2e-4, True, True), (1e-5, 2e-4, False, False), (1e-2, 2e-3, True, False)]
)
def test_rounding_explains_four_times_as_much_and_ten_tolerances_are_accepted_at_most(
    noise: float, error: float, explains: bool, is_accepted: bool
) -> None:
    def off_by(part: float) -> Any:
        return lambda feeds: [np.linspace(1, 2, 50, dtype=np.float32) * np.float32(1 + part)]

    found = Noise(off_by(noise), {}, 0).of(0, off_by(0.0)({})[0], off_by(error)({})[0], TIGHT)
    assert (found.explains, found.is_accepted) == (explains, is_accepted) and "rounding alone" in str(found)


def test_beside_zeros_the_error_is_its_own_size() -> None:
    """The error beside zeros is absolute, so it stays a number that JSON can represent."""
    zeros, tiny = np.zeros(3, np.float32), np.array([0, 5e-7, 0], np.float32)
    assert compare(zeros, tiny, TIGHT, where="y") == pytest.approx(5e-7)
    assert compare(tiny, zeros, TIGHT, where="y") == pytest.approx(5e-7), "a sigmoid far from its threshold"
    assert compare(tiny * 2e3, tiny * 2e3 + tiny / 50, TIGHT, where="y") == pytest.approx(1e-5, rel=0.1), "what is related to the output is"
    with pytest.raises(CheckFailed):
        compare(zeros, np.array([0, 2e-6, 0], np.float32), TIGHT, where="y")


def test_a_model_that_onnxruntime_refuses_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y"))
    node = helper.make_node("Relu", ["x"], ["y"], alpha=3.0)
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"cannot load the original model.*Unrecognized attribute: alpha") as told:
        open_original(tmp_path / "m.onnx", 1)
    assert told.value.where == str(tmp_path / "m.onnx") and "upgrade onnxruntime" in told.value.fix
    assert capfd.readouterr().err == ""  # the error is reported only once


@pytest.mark.parametrize(("op", "told"), [("RandomNormalLike", "draws random numbers"), ("Atan", "")])
def test_a_model_that_draws_random_numbers_is_refused(tmp_path: Path, op: str, told: str) -> None:
    """The outputs of such a model cannot be compared. Atan is also left to onnxruntime, but gives the same outputs each time."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y"))
    nodes = [helper.make_node(op, ["x"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "m.onnx")
    session, imported = open_original(tmp_path / "m.onnx", 1), importer.load(tmp_path / "m.onnx").graph
    if told:
        with pytest.raises(ModelError, match=told):
            find_feeds(session, imported, 0)
    else:
        assert [spec.name for spec in find_feeds(session, imported, 0)] == ["x"]


def amplifying(scale: float) -> Any:
    """Return a model that amplifies rounding by ``scale`` on normal inputs, and not on uniform ones, which are never negative."""

    def run(feeds: Mapping[str, Any], error: float = 0.0) -> list[np.ndarray]:
        x = feeds["x"]
        steep = np.sin(np.float32(scale) * x) if x.min() < 0 else x
        return [steep * np.float32(1 + error * (x.min() < 0))]

    return run


def check_amplifying(error: float, *, on_all: float = 0.0, vouch: Any = None, scale: float = 3e4, count: int = 2) -> Any:
    model = amplifying(scale)

    def candidate(feeds: Mapping[str, Any]) -> list[np.ndarray]:
        (value,) = model(feeds, error)
        return [value * np.float32(1 + on_all)]

    return check(
        model, {"m": candidate}, ["y"], SPEC, tolerance=TIGHT, count=count, seed=0, plain=model, vouch=vouch
    )  # fmt: skip


def test_an_ill_conditioned_input_is_replaced_and_said() -> None:
    """One bit of the inputs moves the output by 4e-3, so an error of 3e-3 proves nothing there, and uniform inputs decide."""
    found = check_amplifying(3e-3)
    assert found.inputs == 4 and len(found.amplified) == 2 and "another input takes its place" in found.amplified[0]
    assert "rounding alone" in found.amplified[0]


def test_a_wrong_program_does_not_pass_because_an_input_is_ill_conditioned() -> None:
    with pytest.raises(Disagreement, match="uniform"):
        check_amplifying(3e-3, on_all=3e-3)
    with pytest.raises(Disagreement, match="normal"):  # a kernel alone is wrong on this very input
        check_amplifying(3e-3, vouch=lambda feeds: Blame(((WRONG, "differs"),)))
    with pytest.raises(Disagreement, match="normal"):  # larger than rounding explains
        check_amplifying(0.1)
    with pytest.raises(Disagreement, match="inputs of mine"):  # the user's inputs are not replaced
        check(
            amplifying(3e4), {"m": lambda feeds: [value * np.float32(1.003) for value in amplifying(3e4)(feeds)]}, ["y"], SPEC,
            tolerance=TIGHT, count=1, seed=0, plain=amplifying(3e4), goes_on=lambda inputs: False,
            given=[("mine", {"x": np.full((4, 50), -1, np.float32)})],
        )  # fmt: skip


def test_where_every_input_is_ill_conditioned_every_part_has_to_agree() -> None:
    def steep(feeds: Mapping[str, Any], error: float = 0.0) -> list[np.ndarray]:
        return [np.sin(np.float32(3e4) * (feeds["x"] + 1)) * np.float32(1 + error)]

    def checked(parts: Parts, error: float = 3e-3) -> CheckResult:
        return check(
            steep, {"m": lambda feeds: steep(feeds, error)}, ["y"], SPEC, tolerance=TIGHT, count=2, seed=0, plain=steep,
            vouch=lambda feeds: Blame(parts=parts),
        )  # fmt: skip

    for parts in (Parts(), Parts(1, 1e-5), Parts(7, 1e-5, {"h": "off"})):
        with pytest.raises(Disagreement, match=f"random input {CheckPolicy.replaced}"):
            checked(parts)
    found = checked(Parts(7, 1e-5))
    assert found.inputs == 2 and len(found.amplified) == 2
    assert "each of 7 parts of it, computed from the same values, agrees within 1e-05" in found.amplified[0]
    with pytest.raises(Disagreement):  # larger than rounding explains
        checked(Parts(7, 1e-5), 0.1)


def test_what_rounding_before_bytes_explains_is_bounded_and_what_differs_is_named() -> None:
    """Moving inputs and weights by a last bit shows no step here. Moving numbers that become bytes shows one, up to a bound."""
    alike, apart, wrong = Parts(7, 1e-6), Parts(7, 1e-6, {"q": "2 whole numbers are off"}), ((WRONG, "off"),)

    def checked(blamed: Blame, error: float) -> CheckResult:
        return check(
            lambda feeds: [feeds["x"]], {"m": lambda feeds: [feeds["x"] * np.float32(1 + error)]}, ["y"], SPEC, tolerance=TIGHT, count=1,
            seed=0, plain=lambda feeds: [feeds["x"]], vouch=lambda feeds: blamed,
        )  # fmt: skip

    (note,) = checked(Blame(noise={"y": 3e-4}), 8e-4).amplified
    assert "of numbers that become bytes, moves the original by 0.0003 there" in note
    (note,) = checked(Blame(parts=alike, noise={"y": 0.1}), 0.1).amplified
    assert "each of 7 parts" in note
    refused = [
        (Blame(noise={"y": 1.9e-4}), 8e-4, "agree"),  # more than four times as much
        (Blame(noise={"other": 1.0}), 8e-4, "agree"),
        (Blame(noise={"y": 1.0}), 2e-3, "agree"),  # more than ten tolerances, and no parts agree
        (Blame(parts=alike), 0.1, "agree"),  # no effect of rounding is seen
        (Blame(parts=apart, noise={"y": 0.1}), 0.1, "q: 2 whole"),
        (Blame(wrong, parts=alike, noise={"y": 0.1}), 0.1, "view: off"),
    ]
    for blamed, error, named in refused:
        with pytest.raises(Disagreement, match=f"largest error.*{named}") as failed:
            checked(blamed, error)
        assert failed.value.alone is blamed


def test_weights_are_moved_by_their_last_bit(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [100]) for name in ("x", "y"))
    table, index = helper.make_tensor("w", TensorProto.FLOAT, [100], np.linspace(1, 2, 100)), helper.make_tensor("i", 7, [1], [3])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.FLOAT, [], [1.4999])),
        helper.make_node("Mul", ["x", "w"], ["m"]),
        helper.make_node("Gather", ["m", "i"], ["g"]),
        helper.make_node("Sub", ["m", "c"], ["d"]),
        helper.make_node("Add", ["d", "g"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [table, index])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    feeds = {"x": np.ones(100, np.float32)}
    exact = open_original(tmp_path / "m.onnx", 1).run(None, feeds)[0]
    moved = open_shaken(tmp_path / "m.onnx", 1, tmp_path, 0).run(None, feeds)[0]
    assert 1e-8 < relative_error(exact, moved) < 1e-6


@pytest.mark.parametrize("is_node", [True, False])
@pytest.mark.parametrize("operator", ["Resize", "Upsample"])
def test_scales_that_sizes_follow_from_are_not_moved(tmp_path: Path, operator: str, is_node: bool) -> None:
    """Scales from which sizes follow are not moved by a last bit.

    Regression: an OCR detector could not be optimized, because 96 channels times a number a last bit below one became 95.
    """
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y"))
    scales = helper.make_tensor("s", TensorProto.FLOAT, [4], [1, 1, 2, 2])
    weights = helper.make_tensor("w", TensorProto.FLOAT, [2, 96, 1, 1], np.linspace(1, 2, 192))
    inputs = ["x", "", "s"] if operator == "Resize" else ["x", "s"]
    nodes = [helper.make_node(operator, inputs, ["r"], mode="nearest"), helper.make_node("Conv", ["r", "w"], ["y"])]
    if is_node:
        nodes.insert(0, helper.make_node("Constant", [], ["s"], value=scales))
    graph = helper.make_graph(nodes, "g", [x], [y], [weights] if is_node else [weights, scales])
    opset = helper.make_opsetid("", 13 if operator == "Resize" else 9)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "m.onnx")
    feeds = {"x": np.ones((1, 96, 3, 3), np.float32)}
    exact = open_original(tmp_path / "m.onnx", 1).run(None, feeds)[0]
    results = [open_shaken(tmp_path / "m.onnx", 1, tmp_path, seed).run(None, feeds)[0] for seed in range(8)]
    assert {each.shape for each in results} == {exact.shape}
    assert 0.0 < max(relative_error(exact, each) for each in results) < 1e-6


def test_what_does_not_run_with_moved_numbers_tells_nothing_of_rounding() -> None:
    one, more = [np.ones(4, np.float32)], [np.full(4, 1.001, np.float32)]

    def fails(feeds: Mapping[str, Any]) -> Sequence[Any]:
        raise RuntimeError("Input channels C is not equal to kernel channels")

    for run_moved, noise in ((fails, 0.0), (lambda feeds: [np.ones(3, np.float32)], 0.0), (lambda feeds: more, 1e-3)):
        measured = Noise(lambda feeds: one, {}, 0, run_moved).of(0, one[0], more[0], TIGHT)
        assert measured.is_known and measured.noise == pytest.approx(noise, rel=1e-3) and measured.error == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("program", "original", "is_accepted"), [(0.0, 3e-4, True), (5e-5, 3e-4, True), (2e-4, 4e-4, False), (0.0, 2e-3, False)]
)
def test_a_program_near_the_model_in_float64_is_right_where_onnxruntime_is_not(
    program: float, original: float, is_accepted: bool
) -> None:
    """A program is compared with the model in float64, because onnxruntime itself may be inexact.

    For example, onnxruntime's STFT of 400 numbers is 4e-5 off the transform, and a product with the transform's matrix is 1e-6 off.
    """
    exact = np.linspace(1, 2, 200).reshape(4, 50)
    asked: list[int] = []

    def off_by(part: float) -> Any:
        return lambda feeds: [np.asarray(exact * (1 + part), np.float32)]

    def in_float64(feeds: Mapping[str, Any], position: int) -> np.ndarray:
        asked.append(position)
        return exact

    def checked(in_float64: Any) -> CheckResult:
        model = off_by(original)
        return check(model, {"m": off_by(program)}, ["y"], SPEC, tolerance=TIGHT, count=1, seed=0, plain=model, in_float64=in_float64)

    for unknown in (None, lambda feeds, position: None):
        with pytest.raises(Disagreement, match="rounding alone"):
            checked(unknown)
    if not is_accepted:
        with pytest.raises(Disagreement, match="rounding alone"):
            checked(in_float64)
        assert bool(asked) == (original < 1e-3), "ten tolerances are the most that anything explains"
        return
    result = checked(in_float64)
    assert result.max_rel_err == pytest.approx(original - program, rel=0.01) and len(asked) == result.inputs
    assert all("from the model in float64 the program is" in text for text in result.amplified) and len(result.amplified) == len(asked)
    assert result.amplified[0].endswith(f"off, onnxruntime {original:.2g}")


def test_an_output_in_float64_is_what_its_operators_mean() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,400] x, float[3,3] z) => (float[1,11,101,2] y, float[3,3] inverse) <int64 s = {20}, int64 n = {200}>
        { y = STFT(x, s, , n) inverse = Det(z) }""".replace("float[3,3] inverse", "float inverse"))
    graph = importer.load(model).graph
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 400), np.float32), "z": np.eye(3, dtype=np.float32)}
    frames = np.stack([feeds["x"][0, k * 20 : k * 20 + 200].astype(np.float64) for k in range(11)])
    spectrum = np.fft.rfft(frames)
    value = run_in_float64(graph, 60.0, feeds, 0)
    assert value is not None and value.dtype == np.float64
    np.testing.assert_allclose(value[0], np.stack([spectrum.real, spectrum.imag], -1), atol=1e-5)  # the matrix is in float32
    assert run_in_float64(graph, 60.0, feeds, 1) is None, "it is left to onnxruntime"


def test_what_takes_long_is_not_computed_in_float64() -> None:
    def product(rows: int) -> Any:
        shapes = {"x": (rows, 1000), "y": (1000, 2)}
        x, y = (make("Input", (), attributes(name=name), TensorType("float32", shape)) for name, shape in shapes.items())
        return Graph("g", (x, y), (("z", apply("MatMul", x, y)),), {})

    rows = int(MOST_FLOPS / 4000)
    feeds = {"x": np.broadcast_to(np.ones((1, 1000), np.float32), (4, 1000)), "y": np.ones((1000, 2), np.float32)}
    assert (value := run_in_float64(product(4), 60.0, feeds, 0)) is not None and (value == 1000).all()
    assert run_in_float64(product(rows + 1), 60.0, {}, 0) is None
    assert run_in_float64(product(4), 0.0, feeds, 0) is None, "its time is over at once"


@pytest.mark.parametrize("rate", ["int64 rate", "int64[1] rate"])
def test_a_number_that_the_model_asks_for_is_drawn_where_no_other_runs(tmp_path: Path, rate: str) -> None:
    """A number that the model compares an input with is drawn if the model fails at any other.

    For example, a voice detector takes 16,000 samples a second, and fails at any other number with inputs of that size.
    """
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x, {rate}, int64[2] i) => (float[2,3] y)
        <int64 high = {{16000}}, int64[1] one = {{1}}, int64[2] wrong = {{5, 2}}> {{
            n = Reshape(rate, one) n64 = Cast <to = 7> (n) e = Equal(high, n64) s = Squeeze(e)
            y = If (s) <then_branch = t () => (float[2,3] a) {{ a = Gather(x, i) }},
                        else_branch = f () => (float[2,3] b) {{ b = Reshape(x, wrong) }}>
        }}""")
    onnx.save(model, tmp_path / "m.onnx")
    graph, session = importer.load(model).graph, open_original(tmp_path / "m.onnx", 1)
    specs = {spec.name: (spec.low, spec.bound) for spec in find_feeds(session, graph, 0)}
    assert specs["rate"] == (16_000, 16_001) and specs["i"][1] <= 2


@pytest.mark.parametrize(("is_kept", "opened"), [(True, 1), (False, 2)])
@pytest.mark.parametrize(("seed", "in_memory_bytes"), [(None, 1 << 30), (3, 1 << 30), (3, 0)])
def test_a_model_that_is_run_to_see_rounding_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool, opened: int, seed: int | None, in_memory_bytes: int
) -> None:
    """The session keeps its weights after the file in which they were handed over is removed."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2000] x) => (float[2000] y) { y = Mul(x, w) }')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(2000, dtype=np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    opens: list[object] = []

    def counted(*arguments: Any, **values: Any) -> Any:
        opens.append(arguments)
        return open_session(*arguments, **values)

    open_session = check_noise.open_onnxruntime
    monkeypatch.setattr(check_noise, "open_onnxruntime", counted)
    monkeypatch.setattr(check_noise, "IN_MEMORY_BYTES", in_memory_bytes)
    run = Unoptimised(tmp_path / "m.onnx", 1, is_kept=is_kept, seed=seed)
    assert run.opening_seconds == 0.0 and not opens
    for value in (1.0, 2.0):
        np.testing.assert_allclose(run({"x": np.full(2000, value, np.float32)})[0], value * np.arange(2000), rtol=1e-6)
    assert len(opens) == opened and run.opening_seconds > 0


@pytest.mark.parametrize(("run_seconds", "checks", "counts"), [(0.0, 3, (2, 3)), (0.0, 1, (1, 1)), (9.0, 3, (1, 1))])
def test_programs_that_round_are_measured_on_all_inputs_of_the_check(
    tmp_path: Path, run_seconds: float, checks: int, counts: tuple[int, int]
) -> None:
    """Programs that round are measured on all inputs of the check, so that it refuses none of them; a slow model has time for one input."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Exp(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    graph, session = importer.load(onnx.load(tmp_path / "m.onnx")).graph, open_original(tmp_path / "m.onnx", 1)
    options, specs = Options(tmp_path / "m.onnx", checks=checks), (FeedSpec("x", "float32", (4,)),)
    reference = Reference(options, graph, Given(), Accepted(specs, run_seconds), session, Answers())
    samples = reference.checked_samples()
    assert (len(reference.samples()), len(samples)) == counts
    compared: list[bytes] = []

    def remembered(feeds: Mapping[str, Any]) -> list[np.ndarray]:
        compared.append(feeds["x"].tobytes())
        return [np.exp(feeds["x"])]

    reference.compare({"m": remembered}, lambda inputs: True, checks, lambda feeds: Blame(), is_first=False)
    assert compared[: len(samples)] == [feeds["x"].tobytes() for feeds, _ in samples]


@pytest.mark.parametrize("has_meaning", [True, False])
def test_a_spectrum_is_compared_with_the_model_in_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_meaning: bool) -> None:
    """The optimizer compares a spectrum with the model in float64. The logarithm of powers shows how inexact onnxruntime's STFT is."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[1,4000] x) => (float[1,23,201] y)
        <int64 step = {160}, int64 length = {400}, float[1] least = {1}>
        { s = STFT(x, step, , length) p = ReduceSumSquare <axes = [-1], keepdims = 0> (s) q = Add(p, least) y = Log(q) }""")
    onnx.save(model, tmp_path / "m.onnx")
    graph, session = importer.load(model).graph, open_original(tmp_path / "m.onnx", 1)

    @remembering
    def exact(feeds: Mapping[str, Any]) -> list[np.ndarray]:
        value = run_in_float64(graph, 60.0, feeds, 0)
        assert value is not None
        return [value.astype(np.float32)]

    specs = (FeedSpec("x", "float32", (1, 4000)),)
    if not has_meaning:
        monkeypatch.setattr("egraph.optimize.reference.run_in_float64", lambda *_: None)
    reference = Reference(Options(tmp_path / "m.onnx"), graph, Given(), Accepted(specs, 0.0), session, Answers())
    if not has_meaning:
        with pytest.raises(Disagreement, match="rounding alone"):
            reference.compare({"m": exact}, lambda inputs: True, 1, lambda feeds: Blame(), is_first=True)
        return
    result = reference.compare({"m": exact}, lambda inputs: True, 1, lambda feeds: Blame(), is_first=True)
    with monkeypatch.context() as patch:  # the next program is compared on the same inputs, for which the model is not run again
        patch.setattr("egraph.optimize.check_noise.open_onnxruntime", None)
        patch.setattr("egraph.optimize.check_noise.evaluate", None)
        assert reference.compare({"m": exact}, lambda inputs: True, 1, lambda feeds: Blame(), is_first=True) == result
    assert result.max_rel_err > TIGHT.relative and "from the model in float64 the program is" in result.amplified[0]
