"""The benchmark's rows and pages are right, it continues after failures, and its models distinguish inputs."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from bench import engines as bench_engines
from bench import run as bench_run
from bench.builder import Builder
from bench.command import BadArguments, parse
from bench.engines import WITHOUT_DERIVATIONS, largest_value_bytes, outputs_file
from bench.environment import differences, environment
from bench.inputs import feeds_for
from bench.interleave import EngineFailed, EngineProcess, _reason, interleave
from bench.machine import processor
from bench.models import MODELS, BenchModel
from bench.products import large_product_gigaflops_s, product_flops
from bench.row import (
    EXACT_VALUES,
    Request,
    compare_outputs,
    exact_bytes,
    exact_outputs,
    measure_row,
    noise_of,
    rounding_errors,
    without_places,
)
from bench.spread import spread
from bench.table import COLUMNS, asked, line, means, near, products_share, table
from bench.unit_scale import unit_scale
from bench.watched import Turn, Watched, by_turns, nearest
from egraph.optimize.check import LITTLE, moved
from egraph.tolerance import Tolerance
from tests.support.commands import build_model, model_of_bytes, module_command
from tests.support.paths import ROOT

ROW: dict[str, Any] = {
    "model": "m", "batch": 1, "weights": "random", "commit": "c0ffee", "seconds": 3.0,
    "median_us": {"einsat": 1000.0, "onnxruntime": 2000.0, "openvino": 1500.0},
    "failed": {"tvm": "stopped: no such operator"}, "max_rel_err": {"einsat": 1e-6, "openvino": 2e-6},
    "optimize_seconds": {"cold": 30.0, "warm": 12.0}, "warm_is_the_same": True,
    "optimize": {"status": "faster", "max_rel_err": 1e-6, "kernels": {"opaque": 2}, "check_notes": ["tells little"]},
}  # fmt: skip
FAILED: dict[str, Any] = {"model": "n", "batch": 16, "weights": "trained", "commit": "c0ffee", "error": "it\nbroke", "seconds": 1.0}


def tiny(batch: int) -> onnx.ModelProto:
    b = Builder("tiny")
    return b.model(b.relu(b.linear(b.input("x", (batch, 8)), 8, 8)))


TINY = BenchModel("tiny", tiny)
REQUEST = Request(("einsat", "onnxruntime", "no_such_engine"), 1, 0.2, 120.0, extra=("--budget", "2s"))


@pytest.fixture(scope="module")
def measured(stand_in: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", stand_in)
        return measure_row(TINY, 2, REQUEST)


def test_a_row_says_what_was_measured(measured: dict[str, Any]) -> None:
    assert "error" not in measured, measured
    assert set(measured["median_us"]) == {"einsat", "onnxruntime"}
    assert measured["failed"] == {"no_such_engine": "stopped: KeyError: 'no_such_engine'"}
    assert set(measured["optimize_seconds"]) == {"cold", "warm"} and measured["warm_is_the_same"] in (True, False)
    assert measured["optimize"]["model"] == "tiny.onnx" and "files" not in measured["optimize"]
    assert measured["optimize"]["inputs"] == {"given": 1, "random": 0}
    assert measured["products_us"] >= 0
    assert 0 <= measured["max_rel_err"]["einsat"] < 1e-4 and measured["commit"]
    assert bench_run.is_whole(measured, ["einsat", "onnxruntime"]) and not bench_run.is_whole(measured, ["openvino"])


def test_an_engine_s_last_words_are_awaited(tmp_path: Path) -> None:
    """An engine may close its answers before it writes the text of its error."""
    late = "import os, sys, time; os.close(1); time.sleep(0.5); sys.stderr.write('ValueError: late')"
    engine = EngineProcess("late", tmp_path, tmp_path, 1)
    with (tmp_path / "late.log").open("w+") as engine.errors:
        engine.process = subprocess.Popen([sys.executable, "-c", late], stdout=subprocess.PIPE, stderr=engine.errors, text=True)
        with engine.process, pytest.raises(EngineFailed, match="stopped: ValueError: late"):
            engine._answer(60.0)


def test_rows_name_no_places(measured: dict[str, Any]) -> None:
    text = json.dumps(measured)
    assert "/tmp" not in text and str(ROOT) not in text and str(Path.home()) not in text
    assert without_places({"a": ["/x/y/z", 1]}, {"/x/y": "."}) == {"a": ["./z", 1]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"extra": ("--budget", "soon")}, "is not a time"),
        ({"limit_seconds": 0.2, "extra": ("--budget", "60s")}, "no result in 1 s (--limit)"),
    ],
)
def test_what_fails_or_takes_too_long_becomes_a_row(change: dict[str, Any], told: str) -> None:
    row = measure_row(TINY, 1, replace(REQUEST, **change))
    assert told in row["error"] and row["model"] == "tiny"
    assert "failed: " in line(row)


def test_a_model_that_cannot_be_made_becomes_a_row() -> None:
    def missing(batch: int) -> onnx.ModelProto:
        raise FileNotFoundError("package is not installed")

    assert measure_row(BenchModel("none", missing), 1, REQUEST)["error"] == "FileNotFoundError: package is not installed"


def test_a_model_that_rounds_to_bytes_moves_with_the_last_bit_of_its_inputs(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((256, 320)).astype(np.float32)
    np.savez(tmp_path / "feeds.npz", x=x)
    assert noise_of(model_of_bytes(tmp_path), tmp_path / "feeds.npz", 1) > 1e-3
    np.savez(tmp_path / "feeds.npz", x=x[:5, :12])
    assert noise_of(build_model(tmp_path / "m.onnx"), tmp_path / "feeds.npz", 1) < 1e-5


def test_last_bits_of_weights_are_noise_too(tmp_path: Path) -> None:
    """The noise includes last bits of weights: halves of odd integers lie between two bytes, and integers have no last bit to move."""
    text = """<ir_version: 9, opset_import: ["": 21]> halves (int64[99] x) => (float[99] y)
    <float half = {0.5}, float s = {1}, uint8 z = {0}> {
    f = Cast<to = 1>(x) h = Mul(f, half) q = QuantizeLinear(h, s, z) y = DequantizeLinear(q, s, z) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    np.savez(tmp_path / "feeds.npz", x=np.arange(1, 199, 2))
    assert 0 < noise_of(tmp_path / "m.onnx", tmp_path / "feeds.npz", 1) <= 0.011


def test_engines_that_compute_something_else_are_told_apart(tmp_path: Path) -> None:
    y = np.linspace(0, 1, 8, dtype=np.float32)
    left = {"onnxruntime": [y], "near": [y + 1e-5], "far": [y * 2], "other": [y[:4]], "fewer": [], "nan": [y * np.nan]}
    for engine, outputs in left.items():
        np.savez(outputs_file(tmp_path, engine), allow_pickle=True, **{f"output{i}": value for i, value in enumerate(outputs)})
    errors, wrong = compare_outputs(tmp_path, list(left))
    assert errors["near"] == pytest.approx(1e-5, rel=0.1) and sorted(wrong) == ["far", "fewer", "nan", "other"]
    assert "differ from onnxruntime's by 1" in wrong["far"] and "shapes" in wrong["fewer"]
    for engine, second in (("onnxruntime", y), ("near", y + 1e-5), ("far", y * 2)):
        np.savez(outputs_file(tmp_path, engine), allow_pickle=True, output0=y, output1=second)
    assert list(compare_outputs(tmp_path, ["onnxruntime", "near", "far"])[1]) == ["far"], "the worst output counts"


def test_rounding_is_measured_against_64_bit_floats(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    b = Builder("scales")
    x = b.input("x", (1, 2, 4, 4))
    resized = b.node("Resize", b.relu(b.conv(x, 2, 3, 3)), "", b.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    model = b.model(b.node("Cast", b.node("Sigmoid", resized), to=onnx.TensorProto.FLOAT))
    feeds = feeds_for(model, {})
    import onnxruntime

    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    exact = exact_outputs(model, feeds)
    assert exact is not None and exact[0].dtype == np.float64 and exact[0].shape == found.shape
    for engine, outputs in {"onnxruntime": [found], "off": [found + np.float32(1e-3)], "fewer": []}.items():
        np.savez(outputs_file(tmp_path, engine), allow_pickle=True, **{f"output{i}": value for i, value in enumerate(outputs)})
    errors = rounding_errors(tmp_path, ["onnxruntime", "off", "fewer"], exact)
    assert 0 < errors["onnxruntime"] < 1e-6 < 5e-4 < errors["off"] < 5e-3 and "fewer" not in errors
    assert exact_outputs(b.model(b.node("Hardmax", x)), feeds) is None
    row = {**ROW, "rounding_error": errors}
    assert "64-bit" not in line(row)
    assert "error against 64-bit floats: onnxruntime" in line({**row, "optimize": {**ROW["optimize"], "max_rel_err": 5e-3}})


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_images_are_resized_as_onnxruntime_resizes_them(mode: str) -> None:
    pytest.importorskip("torch")
    import onnxruntime

    b = Builder("sizes")
    sizes = b.constant(np.array([1, 2, 8, 12] if mode == "nearest" else [1, 2, 7, 3]))
    model = b.model(b.node("Resize", b.input("x", (1, 2, 4, 4)), "", "", sizes, mode=mode))
    feeds = feeds_for(model, {})
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    exact = exact_outputs(model, feeds)
    assert exact is not None
    np.testing.assert_allclose(exact[0], expected, atol=1e-5)
    cubic = b.model(b.node("Resize", "x", "", "", sizes, mode="cubic"))
    assert exact_outputs(cubic, feeds) is None


def test_the_page_shows_every_row() -> None:
    page = table([ROW, FAILED], environment(2, ["python -m bench.run"]))
    shown = next(text for text in page.splitlines() if text.startswith("| m |"))
    assert "| 1.000 | 2.000 | openvino 1.500 | 2.00 | 1.50 |  |  |  |  |  |  | 1.0e-06 | 30 | 12 | c0ffee |" in shown
    assert shown.endswith("| 2 parts run in onnxruntime; tells little |")
    assert "failed: broke" in page and "* m, batch 1, tvm: stopped: no such operator" in page
    assert "* over onnxruntime: 2.000 on 1 rows" in page and "* over the best peer of each: 1.500 on 1 rows" in page
    header, *rows = [text for text in page.splitlines() if text.startswith("|") and not text.startswith("|---")]
    assert len(rows) == 2 and {text.count("|") for text in rows} == {header.count("|")}


def test_the_best_program_of_a_model_that_is_kept_is_shown() -> None:
    finalist = {"name": "program 1", "shipped": False, "predicted_us": 900.0, "measured_us": 1234.0, "message": ""}
    others = [{**finalist, "name": "program 2", "predicted_us": 950.0}, {**finalist, "name": "unoptimized", "predicted_us": 800.0}]

    def kept(**changed: object) -> str:
        return line({**ROW, "optimize": {**ROW["optimize"], "status": "unchanged", "finalists": [{**finalist, **changed}, *others]}})

    assert "the best program was predicted to take 0.900 ms: it took 1.234 ms in the race" in kept()
    assert "the best program was predicted to take 0.900 ms: no time" in kept(measured_us=None, message="no time")
    assert "best program" not in line({**ROW, "optimize": {**ROW["optimize"], "finalists": others}})


def test_what_derivations_add_is_shown_and_is_no_peer() -> None:
    row = {**ROW, "median_us": {**ROW["median_us"], WITHOUT_DERIVATIONS: 1200.0}}
    won = [{"name": "winograd F(4x4)", "uses": 3, "operators": ["Conv"]}]
    row["optimize"] = {**ROW["optimize"], "predicted_us": 900.0, "latency_us": {"optimized": 1000.0}, "derivations": won}
    row["predicted_us"] = {"einsat": 900.0, WITHOUT_DERIVATIONS: 1170.0}
    assert "| openvino 1.500 | 2.00 | 1.50 |  |  |  | 1.20 | 1.30 | 0.90 |" in line(row)
    assert "derived: winograd F(4x4) (3 kernels)" in line(row)
    for offered, said in (({"programs": 5, "is_compared": True}, True), ({"programs": 5, "is_compared": False}, False), (None, False)):
        lost = {**row["optimize"], "derivations": [], **({"derived_programs": offered} if offered else {})}
        assert ("5 derived programs were compared, the fastest found has none of them" in line({**row, "optimize": lost})) == said
    told = means([row])
    assert f"* over {WITHOUT_DERIVATIONS}: 1.200 on 1 rows" in told and told[-1].startswith("* over the best peer of each: 1.500")


@pytest.mark.parametrize(("products_us", "asked_gain"), [(600.0, 1.25), (1050.0, 1.25), (1200.0, 0.85 / 0.8), (1450.0, 1.0)])
def test_a_model_that_products_bound_is_asked_for_their_rate(products_us: float, asked_gain: float) -> None:
    row = {**ROW, "products_us": products_us}
    assert products_share(row) == products_us / 1500 and asked(row) == pytest.approx(asked_gain)
    assert f"| 1.50 |  | {products_us / 1500:.2f} | {asked_gain:.2f} |" in line(row)
    slow = {**row, "median_us": {**ROW["median_us"], "einsat": 1600.0}}
    assert means([row, slow, ROW])[-1] == f"* asked of the 2 rows with counted products: {asked_gain:.3f}, reached by 1 of them"


def test_products_are_counted_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(tiny(4), path)
    assert product_flops(path, {"x": (4, 8)}) == 2 * 4 * 8 * 8  # not the sum with the bias
    assert product_flops(path, {"x": (8, 8)}) == 2 * 8 * 8 * 8
    assert 0.05 < large_product_gigaflops_s(1, tmp_path) < 1e5


@pytest.mark.usefixtures("forked_python")
def test_our_own_optimiser_without_derivations_is_an_engine() -> None:
    row = measure_row(TINY, 1, replace(REQUEST, engines=("einsat", WITHOUT_DERIVATIONS), warm=False))
    assert set(row["median_us"]) == {"einsat", WITHOUT_DERIVATIONS} == set(row["optimize_seconds"]) - {"cold"} | {"einsat"}
    assert set(row["predicted_us"]) == {"einsat", WITHOUT_DERIVATIONS}
    assert row["optimize"]["inputs"] == {"given": 3, "random": 0}


def test_resume_keeps_rows_of_the_same_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []

    def measure(entry: BenchModel, batch: int, request: Request) -> dict[str, Any]:
        done.append((entry.name, batch))
        return {**ROW, "model": entry.name, "batch": batch, **({"error": "broke"} if len(done) == 1 else {})}

    monkeypatch.setattr(bench_run, "measure_row", measure)
    monkeypatch.setitem(bench_run.LISTS, "own", {"tiny": replace(TINY, batches=(1, 16))})

    def bench(*arguments: str) -> int:
        return bench_run.run(parse(bench_run.build_parser(), ["--results", str(tmp_path), *arguments]))

    engines = ("--engines", "onnxruntime,openvino")
    assert bench("--models", "tiny", *engines) == 0 and done == [("tiny", 1), ("tiny", 16)]
    assert bench("--models", "tiny", *engines, "--resume") == 0 and done[2:] == [("tiny", 1)]
    assert bench("--models", "tiny", *engines, "--resume") == 0 and len(done) == 3
    assert bench("--models", "tiny", *engines, "--engines", "tiny=torch_compile", "--resume") == 0 and len(done) == 5
    stored = json.loads((tmp_path / "cpu.json").read_text())
    assert [(row["model"], row["batch"]) for row in stored["rows"]] == [("tiny", 1), ("tiny", 16)]
    assert str(tmp_path) not in (tmp_path / "cpu.json").read_text() + (tmp_path / "cpu.md").read_text()
    with pytest.raises(BadArguments, match=r"threads: 2 and 1.*--name"):
        bench("--models", "tiny", "--resume", "--threads", "1")


def test_arguments_are_checked() -> None:
    found = bench_run.engines_by_model(["onnxruntime,openvino", "resnet18=tvm"])
    assert found == {"": ("einsat", "onnxruntime", "openvino"), "resnet18": ("einsat", "tvm")}
    for texts in (["resnet=tvm"], ["tvn"]):
        with pytest.raises(BadArguments, match="there is no"):
            bench_run.engines_by_model(texts)
    with pytest.raises(BadArguments, match="database"):
        bench_run.run(parse(bench_run.build_parser(), ["--", "--database", "x"]))


def test_environments_differ_by_what_changes_times() -> None:
    one = environment(2, ["a"])
    assert not differences(one, {**one, "date": "another", "command": "b"})
    assert differences(one, {**one, "cpu": "another"}) == [f"cpu: {one['cpu']} and another"]


def test_processors_of_one_name_are_told_apart_by_their_units() -> None:
    def lines(flags: str) -> list[str]:
        core = ["model name\t: AMD EPYC", f"flags\t\t: fpu sse4_2 {flags}"]
        return ["processor\t: 0", *core, "", "processor\t: 1", *core]

    assert processor(lines("avx2")) == "AMD EPYC (avx2)"
    assert processor(lines("avx2 avx512f avx512_bf16")) == "AMD EPYC (avx2, avx512f, avx512_bf16)"
    assert processor(["model name\t: old"]) == "old" and processor() == environment(1, ["a"])["cpu"]


def test_an_interrupt_keeps_rows_and_ends_the_optimizer(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "bench.run", "--models", "fsrcnn,gcn_block", "--batch", "1", "--engines", "onnxruntime",
        "--results", str(tmp_path), "--", "--budget", "soon",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while not (tmp_path / "cpu.json").exists() and process.poll() is None:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)  # like Ctrl-C, which a shell's background jobs ignore
    _, told = process.communicate(timeout=60)
    rows = json.loads((tmp_path / "cpu.json").read_text())["rows"]
    assert [row["model"] for row in rows][:1] == ["fsrcnn"] and "is not a time" in rows[0]["error"]
    assert process.returncode == 130 and "--resume adds the others" in told
    assert not list(tmp_path.glob("*.partial"))


def test_the_reason_of_a_failure_is_its_error() -> None:
    assert _reason(["a", "KeyError: 'x'", "warning: the end", ""]) == "KeyError: 'x'"
    assert _reason(["a", "b"]) == "b" and _reason([]) == "without a message"


@pytest.mark.parametrize("name", ["shufflenet", "dcgan", "fsrcnn"])
def test_models_with_random_weights_tell_inputs_apart(name: str) -> None:
    """Regression: with weights scaled only by their fan-in, ShuffleNet's output was a one and zeros for every input."""
    import onnxruntime

    session = onnxruntime.InferenceSession(MODELS[name].make(1).SerializeToString())
    model_input = session.get_inputs()[0]
    outputs = [
        session.run(None, {model_input.name: np.random.default_rng(seed).standard_normal(model_input.shape, dtype=np.float32)})[0]
        for seed in (1, 2)
    ]
    assert moved(outputs[0], outputs[1], Tolerance()) > 50 * LITTLE
    assert np.std(outputs[0]) > 0.05 * np.max(np.abs(outputs[0]))


def test_unit_scale_gives_every_layer_unit_results() -> None:
    b = Builder("deep")
    y = b.input("x", (1, 8, 16, 16))
    for _ in range(30):
        y = b.relu(b.conv(y, 8, 8, 3))
    model = b.model(b.batch_norm(y, 8))
    for tensor in model.graph.initializer:
        if len(tensor.dims) == 4:  # far from any sensible scale
            tensor.raw_data = (3 * np.frombuffer(tensor.raw_data, np.float32)).tobytes()
    import onnxruntime

    feeds = feeds_for(model, {})
    before, after = (onnxruntime.InferenceSession(m.SerializeToString()).run(None, feeds)[0] for m in (model, unit_scale(model, feeds)))
    assert np.std(before) > 1e10 and 0.3 < np.std(after) < 3
    again = unit_scale(model, feeds)
    assert again.SerializeToString() == unit_scale(model, feeds).SerializeToString()


def test_the_spread_of_outputs_is_shown() -> None:
    (told,) = spread(TINY)
    assert told.startswith("tiny ") and "of       8" in told and "changed 100.0%" not in told  # relu clips half of it to zero


def test_the_largest_value_is_found(tmp_path: Path) -> None:
    onnx.save(tiny(5), tmp_path / "m.onnx")
    assert largest_value_bytes(tmp_path / "m.onnx") == 4 * 5 * 8


class SlowEngine:
    """An engine whose every run takes ``run_ns`` nanoseconds."""

    def __init__(self, run_ns: int, fails_after: int = 10**9) -> None:
        self.warm_up_ns, self.fails_after = run_ns, fails_after
        self.asked: list[int] = []

    def time_ns(self, runs: int, seconds: float) -> list[int]:
        self.asked.append(runs)
        if len(self.asked) > self.fails_after:
            raise EngineFailed("stopped")
        return [self.warm_up_ns] * runs


def test_engines_that_take_seconds_are_timed_as_often_as_there_is_time() -> None:
    engines = {"slow": SlowEngine(5_000_000_000), "quick": SlowEngine(500_000_000)}
    times, failed = interleave(cast(Any, engines), seconds=8.0)
    assert not failed and engines["slow"].asked == [1] * 3 and len(times["slow"]) == 3, "its warm-up was long enough to tell"
    assert engines["quick"].asked == [2] * 13 and len(times["quick"]) == 12
    engines = {"slow": SlowEngine(2_000_000_000)}
    assert len(interleave(cast(Any, engines), seconds=8.0)[0]["slow"]) == 10
    assert len(interleave(cast(Any, {"slow": SlowEngine(30_000_000_000)}), seconds=8.0)[0]["slow"]) == 1
    engines = {"quick": SlowEngine(1_000_000)}
    assert len(interleave(cast(Any, engines), seconds=0.012, rounds=3)[0]["quick"]) == 9
    assert engines["quick"].asked == [2, 4, 4, 4]


def test_an_engine_that_takes_seconds_is_warmed_up_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def engine(model: Path, feeds: Any, threads: int) -> Any:
        def run() -> list[np.ndarray]:
            runs.append(threads)
            return [np.zeros(1)]

        return run

    np.savez(tmp_path / "feeds.npz", x=np.zeros(1))
    monkeypatch.setitem(cast(Any, bench_engines.ENGINES), "slow", engine)
    monkeypatch.setattr(bench_engines, "LONG_RUN_NS", 1)
    monkeypatch.setattr("sys.stdin", io.StringIO("3\n"))
    told = io.StringIO()
    monkeypatch.setattr("sys.stdout", told)
    bench_engines.serve("slow", tmp_path / "m.onnx", tmp_path / "feeds.npz", 1, 0.0)
    assert len(runs) == 2 + 3 and [len(json.loads(line)) for line in told.getvalue().splitlines()] == [1, 3]


def test_an_engine_for_which_no_time_is_left_is_named() -> None:
    engines = {"slow": SlowEngine(5_000_000_000), "broken": SlowEngine(5_000_000_000, fails_after=0)}
    times, failed = interleave(cast(Any, engines), seconds=8.0)
    assert list(times) == ["slow"] and failed == {"broken": "stopped"}
    times, failed = interleave(cast(Any, {"slow": engines["slow"]}), seconds=8.0, deadline=time.monotonic() - 1.0)
    assert not times and failed == {"slow": "there was no time left to time it"}


def test_few_repeats_are_told() -> None:
    assert "few repeats" not in line(ROW)
    assert "few repeats: onnxruntime 1" in line(ROW | {"runs": {"einsat": 24, "onnxruntime": 1}})


@pytest.mark.usefixtures("forked_python")
def test_what_is_too_large_for_the_memory_is_not_evaluated_in_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(tiny(4), tmp_path / "m.onnx")
    assert exact_bytes(tmp_path / "m.onnx") == EXACT_VALUES * largest_value_bytes(tmp_path / "m.onnx") > 0
    monkeypatch.setattr("bench.row.available_bytes", lambda: 0)
    row = measure_row(TINY, 2, replace(REQUEST, engines=("einsat",), warm=False))
    assert "error" not in row and "rounding_error" not in row


def test_turns_are_told_apart_by_how_near_the_cores_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.watched.PAUSE_SECONDS", 0.0)
    looks = iter([4.0, 4.2, 4.1, 15.0, 14.0, 15.0, 5.0, 4.0])
    engine = SlowEngine(1000)
    watched = Watched(engine, lambda: next(looks))
    for run_ns in (1000, 2000, 3000, 5000):
        engine.warm_up_ns = run_ns
        assert watched.time_ns(3, 1.0) == [run_ns] * 3
    found = nearest({"einsat": watched})
    assert found == {"line_ns": 4.2, "median_us": {"einsat": 3.0}, "turns": {"einsat": [2, 4]}}
    told = near(ROW | {"near": found, "optimize": {"predicted_us": 2.7}})
    assert told == "in 2 of 4 turns lines passed between cores quickly (4.2 ns): 0.003 ms, predicted 0.90"
    assert told in line(ROW | {"near": found, "optimize": {**cast(Any, ROW["optimize"]), "predicted_us": 2.7}})


def test_turns_in_which_both_threads_ran_on_one_core_are_not_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.watched.PAUSE_SECONDS", 0.0)
    looks = iter([4.0, 4.1, 15.0, 1.2, 1.1, 4.0])
    watched = Watched(SlowEngine(1000), lambda: next(looks))
    for _ in range(3):
        watched.time_ns(3, 1.0)
    assert [turn.line_ns for turn in watched.turns] == [4.1, 1.2, 1.1]
    assert nearest({"einsat": watched}) == {"line_ns": 4.1, "median_us": {"einsat": 1.0}, "turns": {"einsat": [1, 3]}}


def test_a_machine_that_is_slow_for_some_turns_moves_the_ratio_by_turns_little() -> None:
    slow = (1, 1, 2, 2, 1, 3, 1)

    def turns(time_ns: int, factors: Sequence[int] = slow) -> Watched:
        return Watched(SlowEngine(0), lambda: None, [Turn(None, (time_ns * factor, 50 * time_ns, time_ns * factor)) for factor in factors])

    watched = {"einsat": turns(1000), "onnxruntime": turns(1500), "torch": turns(1200, slow[::-1]), "late": turns(9000, slow[:3])}
    ratios = by_turns(watched, "einsat")
    assert ratios.keys() == {"onnxruntime", "torch"} and ratios["onnxruntime"] == pytest.approx(1.5)
    assert by_turns({"onnxruntime": watched["onnxruntime"]}, "einsat") == {} and nearest(watched) == {}
    rows = [ROW | {"by_turns": {"onnxruntime": 1.5, "openvino": 1.2, WITHOUT_DERIVATIONS: 1.1}}, ROW]
    assert line(rows[0]).split(" | ")[COLUMNS.index("by turns")] == "1.20" and line(ROW).split(" | ")[COLUMNS.index("by turns")] == ""
    assert "* over the best peer of each, turn by turn: 1.200 on 1 rows" in means(rows)


def test_where_nothing_passes_between_cores_nothing_is_told() -> None:
    watched = Watched(SlowEngine(1000), lambda: None)
    assert watched.time_ns(1, 1.0) == [1000] and nearest({"einsat": watched}) == {}
    assert near(ROW | {"near": {}}) == near(ROW) == ""


@pytest.mark.parametrize("module", ["candidates", "derivations", "eoperators", "models", "run", "spread"])
def test_what_is_not_there_is_told_in_a_line(module: str) -> None:
    arguments = {"run": ["--models", "nosuch"], "models": ["nosuch", "nowhere.onnx"]}.get(module, ["nosuch"])
    done = module_command(f"bench.{module}", *arguments)
    assert done.returncode == 2
    assert "error: " in done.stderr and "nosuch" in done.stderr and "Traceback" not in done.stderr
