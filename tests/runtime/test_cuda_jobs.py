"""Kernels for a GPU on another machine are exported as archives, and their times imported; the recorded device replaces the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from egraph.optimize.job_export import ROUNDING_TOLERANCE
from egraph.tensor import Implementation
from lower.cost.rounding import UNIT_ROUNDOFF
from runtime.devices.cuda import program
from runtime.devices.cuda.cudnn import EnginePlan
from runtime.devices.cuda.program import WARM_UP_REPLAYS, CudaProgram
from runtime.devices.cuda.recorded import RecordedDriver
from runtime.judge import SMALL, SUMMED, TOLERANCE, Expected, Judged, WrongResult
from runtime.measure import Effort, Load, Timing, Worker
from runtime.profile import Database, Record
from runtime.profile import jobs as profile_jobs
from runtime.profile.jobs import Archive, Measured, measure_archive
from runtime.profile.tables import PLAN_MARK
from tests.runtime.test_cuda_recorded import X, chain, opened
from tests.runtime.test_devices import model
from tests.support.commands import command
from tests.support.recorded_worker import CRASHES, FAST, FAVOURITE, HANGS, KEY, SLOW, SPOILS, WRONG, Clocked

QUICK = Effort(seconds=0.001)
COMMAND = (sys.executable, "-m", "tests.support.recorded_worker")
PATIENCE_SECONDS = 30.0
HANGING = EnginePlan(HANGS, {"SET": 1}, 1 << HANGS).text


def optimised(folder: Path, made: onnx.ModelProto, *arguments: object) -> subprocess.CompletedProcess[str]:
    onnx.save(made, folder / "m.onnx")
    done = command(folder / "m.onnx", "--target", "cuda:h100", "--budget", "30s", "--threads", 1, *arguments)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the jobs that a search for a GPU on another machine exports."""
    folder = tmp_path_factory.mktemp("cuda-jobs")
    done = optimised(folder, model(), "--database", folder / "p.sqlite", "--export-jobs", folder / "jobs.zip", "--json")
    assert json.loads(done.stdout)["failed"] == 0
    return folder / "jobs.zip"


class Impatient(Worker):
    """Worker that waits for a process to start, however long, and then only one second for the plan that hangs."""

    def load(self, load: Load) -> Timing:
        if load.plan != HANGING:
            return super().load(load)
        self.start(load.threads)
        self.settle(0.0)  # until it answers
        usual_seconds, self.time_out_seconds = self.time_out_seconds, 1.0
        try:
            return super().load(load)
        finally:
            self.time_out_seconds = usual_seconds


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_jobs, "device", lambda name: Clocked())


def measured(archive: Path, output: Path, database: Database | None = None, **options: object) -> Measured:
    worker = Impatient(command=COMMAND, time_out_seconds=PATIENCE_SECONDS)
    return measure_archive(
        archive, database or Database.in_memory(), output=output, effort=QUICK, worker=worker, **options  # type: ignore[arg-type]
    )


def test_an_archive_carries_what_measures_it_and_no_weights(archive: Path) -> None:
    opened_archive = Archive.open(archive)
    assert (opened_archive.origin.device, opened_archive.origin.architecture) == ("cuda", "sm_90")
    names = set().union(*(job.files for job in opened_archive.jobs))
    assert names <= {"plan.json", "kernels.json", "drawn.json", "expected.npz"} and "drawn.json" in names
    assert all("expected.npz" in job.files for job in opened_archive.jobs)
    assert {job.library for job in opened_archive.jobs} >= {"", "cudnn"}
    with zipfile.ZipFile(archive) as zipped:
        carried = [name for name in zipped.namelist() if name.startswith("runtime/")]
    assert {"runtime/worker.py", "runtime/profile/__main__.py", "runtime/devices/cuda/cupy_driver.py"} <= set(carried)
    assert not any("__pycache__" in name or name.endswith(".so") for name in carried)


def test_on_a_machine_without_a_gpu_the_archive_says_so(archive: Path, tmp_path: Path) -> None:
    """The archive uses the package that it contains: another ``runtime`` in the same folder is not imported."""
    (tmp_path / "runtime.py").write_text("raise SystemExit('the wrong one')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    measuring = [sys.executable, str(archive), "-o", str(tmp_path / "records.jsonl")]
    done = subprocess.run(measuring, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "CuPy" in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.usefixtures("gpu")
def test_every_plan_is_timed_and_a_faulty_one_costs_itself_alone(archive: Path, tmp_path: Path) -> None:
    """A crash, a hang, a wrong result and an error of the GPU are recorded as such. The fastest correct plan is named."""
    output = tmp_path / "records.jsonl"
    jobs = Archive.open(archive).jobs
    first = next(number for number, job in enumerate(jobs) if job.library == "cudnn")
    generated = next(number for number, job in enumerate(jobs) if not job.library)
    done = measured(archive, output, only={first, generated})
    by_name = {record.implementation: record for record in done.records}
    library, plain = jobs[first].implementation, jobs[generated].implementation
    texts = {engine: EnginePlan(engine, {"SET": 1}, 1 << engine).text for engine in (CRASHES, HANGS, WRONG, SPOILS, SLOW, FAST, FAVOURITE)}
    status = {engine: by_name[f"{library}{PLAN_MARK}{text}"].status for engine, text in texts.items()}
    assert status == {CRASHES: "failed", HANGS: "hung", WRONG: "wrong", SPOILS: "failed", SLOW: "ok", FAST: "ok", FAVOURITE: "ok"}
    assert "SIGSEGV" in by_name[f"{library}{PLAN_MARK}{texts[CRASHES]}"].message
    assert "illegal memory access" in by_name[f"{library}{PLAN_MARK}{texts[SPOILS]}"].message
    fastest = by_name[f"{library}{PLAN_MARK}"]
    assert (fastest.message, fastest.median_us) == (texts[FAST], 1e3 * FAST)
    assert by_name[library].median_us == 1e3 * FAVOURITE and by_name[plain].status == "ok"
    assert {record.device for record in done.records} == {KEY} and done.remaining == 0
    lines = output.read_text().splitlines()
    assert measured(archive, output, only={first, generated}).remaining == 0 and output.read_text().splitlines() == lines


@pytest.mark.usefixtures("gpu")
def test_weights_that_a_kernel_reads_in_another_order_are_drawn_as_they_were(tmp_path: Path) -> None:
    weights = onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((40, 48, 3, 3), dtype=np.float32), "w")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, size, 6, 6)) for name, size in (("x", 48), ("y", 40)))
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=(1, 1, 1, 1))
    graph = onnx.helper.make_graph([node], "convolution", [x], [y], [weights])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    optimised(tmp_path, made, "--database", tmp_path / "p.sqlite", "--export-jobs", tmp_path / "jobs.zip")
    opened_archive, reordered = Archive.open(tmp_path / "jobs.zip"), set()
    for number, job in enumerate(opened_archive.jobs):
        opened_archive.unpack(job, tmp_path / str(number))
        drawn = tmp_path / str(number) / "drawn.json"
        if not job.library and drawn.exists() and json.loads(drawn.read_text())["stored"]:
            reordered.add(number)
    assert reordered
    done = measured(tmp_path / "jobs.zip", tmp_path / "records.jsonl", only=reordered)
    assert {record.status for record in done.records} == {"ok"} and not done.lacking, done


@pytest.mark.usefixtures("gpu")
def test_measuring_ends_in_time_and_goes_on(archive: Path, tmp_path: Path) -> None:
    output, jobs = tmp_path / "records.jsonl", Archive.open(archive).jobs
    assert measured(archive, output, seconds=0.0).remaining == len(jobs) and output.read_text() == ""
    number = next(number for number, job in enumerate(jobs) if job.library == "cudnn")
    known = Record(KEY, jobs[number].fragment, jobs[number].implementation, "ok", (5.0,))
    output.write_text(known.to_line() + "\n")
    done = measured(archive, output, seconds=0.0, only={number})
    assert done.records == (known,) and done.remaining == 1, "its plans remain"


def test_times_that_come_back_decide(archive: Path, tmp_path: Path) -> None:
    """The program uses the plan with the fastest measured time. The report counts new records and marks times as estimates."""
    records = tmp_path / "records.jsonl"
    plan = EnginePlan(FAST, {"SET": 1}, 1 << FAST)
    with records.open("w") as file:
        for job in Archive.open(archive).jobs:
            time_us = 2.0 if job.library == "cudnn" else 3.0
            rows = [Record(KEY, job.fragment, job.implementation, "ok", (time_us,), generator=job.generator)]
            if job.library == "cudnn":
                for name, message in ((plan.text, ""), ("", plan.text)):
                    rows.append(Record(KEY, job.fragment, f"{job.implementation}{PLAN_MARK}{name}", "ok", (0.1,), message))
            file.writelines(row.to_line() + "\n" for row in rows)
    done = optimised(tmp_path, model(), "--database", tmp_path / "p.sqlite", "--import-profiles", records, "--check", 1)
    assert "are new of this device" in done.stderr and " 0 are new" not in done.stderr
    assert "estimated from kernels that were timed on cuda:h100" in done.stdout and "speed" not in done.stdout
    steps = json.loads((tmp_path / "m.einsat" / "plan.json").read_text())["steps"]
    convolutions = [step["spec"] for step in steps if step["kind"] == "cudnn"]
    assert convolutions and all(EnginePlan(s["engine"], s["knobs"], s["workspace_bytes"]) == plan for s in convolutions)
    assert Counter(step["kind"] for step in steps)["cuda"]


def test_a_program_is_timed_on_copies_of_its_memory_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = opened(chain(), tmp_path)
    np.testing.assert_array_equal(executable.run({"x": X})["y"], 8 * X)
    monkeypatch.setattr(RecordedDriver, "elapsed_us", lambda self, start, end: float(sum(end.clock) - sum(start.clock)))
    monkeypatch.setattr(program, "MOST_COPIES", 4)
    loaded = executable.loaded
    assert isinstance(loaded, CudaProgram) and isinstance(loaded.driver, RecordedDriver)
    before = loaded.driver.launches
    assert executable.run_native(4, evict=True) == [3000] * 4, "three steps a run, whatever the copies"
    assert loaded.driver.launches - before == 3 + 3 * 4 * (WARM_UP_REPLAYS + 4)
    arenas = [memory for memory in loaded.driver._memories if memory.label in ("arena", "another arena")]
    assert len(arenas) == 4
    for arena in arenas[1:]:
        np.testing.assert_array_equal(arena.data.view(np.float32)[: X.size], 2 * X)
    np.testing.assert_array_equal(executable.run({"x": 2 * X})["y"], 16 * X)


def test_one_wrong_element_stands_out_of_a_summary(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    exact, operands = generator.standard_normal((500, 401)), {"x": X}
    Expected.of([Judged.whole(exact)], operands, 1e-4).write(tmp_path)
    expected = Expected.read(tmp_path)
    assert expected is not None and expected.summaries[0].size == -(-exact.size // SUMMED)
    noisy = (exact * (1 + 1e-6 * generator.standard_normal(exact.shape))).astype(np.float32)
    expected.judge([noisy], operands)
    for position in (0, 77, exact.size - 1):
        wrong = noisy.copy()
        wrong.reshape(-1)[position] += 1e-3
        with pytest.raises(WrongResult, match=f"1 of {expected.summaries[0].size} sums of {SUMMED}"):
            expected.judge([wrong], operands)
    with pytest.raises(WrongResult, match="1 of"):
        expected.judge([np.where(np.arange(401) == 7, np.where(np.arange(500)[:, None] == 3, np.nan, noisy), noisy)], operands)
    with pytest.raises(WrongResult, match="elements, it must have"):
        expected.judge([noisy[:9]], operands)
    rounded_otherwise = X.copy()
    rounded_otherwise[-1] = np.nextafter(X[-1], np.float32(0))
    expected.judge([noisy], {"x": rounded_otherwise})
    for others in ({"x": 2 * X}, {"x": -X}, {"y": X}, {"x": X[::-1]}):
        with pytest.raises(Exception, match="draws other operands"):
            expected.judge([noisy], others)
    small = Expected.of([Judged.whole(np.array([1.0, np.nan, 2.0]))], operands, 1e-4)
    small.judge([np.array([1.0, 5.0, 2.0], np.float32)], operands)
    with pytest.raises(WrongResult):
        small.judge([np.array([1.0, 5.0, 2.1], np.float32)], operands)
    assert small.sizes == (1,) and Expected.of([Judged.whole(exact.reshape(-1)[:SMALL])], operands, 1e-4).sizes == (1,)


def test_a_summary_of_a_large_result_is_small_and_still_finds_a_wrong_element(tmp_path: Path) -> None:
    """The summary sums many elements, in some stretches of a large result only, so its size does not grow with the result."""
    generator = np.random.default_rng(0)
    exact, operands = generator.standard_normal((1000, 3000)), {"x": X}
    stretches = (range(1_000_000), range(2_500_000, 3_000_000))
    flat = exact.reshape(-1)
    judged = Judged(exact.size, stretches, lambda: (flat[each.start : each.stop] for each in stretches))
    Expected.of([judged], operands, 1e-4).write(tmp_path)
    expected = Expected.read(tmp_path)
    assert expected is not None and expected.summaries[0].size <= SMALL and expected.stretches == (stretches,)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5 * SMALL
    noisy = (exact * (1 + 1e-6 * generator.standard_normal(exact.shape))).astype(np.float32)
    expected.judge([noisy], operands)
    for position, is_judged in ((0, True), (999_999, True), (1_000_000, False), (2_999_999, True)):
        wrong = noisy.copy()
        wrong.reshape(-1)[position] += 1e-2
        if is_judged:
            with pytest.raises(WrongResult, match="1 of"):
                expected.judge([wrong], operands)
        else:
            expected.judge([wrong], operands)


def product(size: int) -> onnx.ModelProto:
    """Return y = (x w) w: two products by a matrix of random numbers."""
    weights = (np.random.default_rng(0).standard_normal((size, size)) / size**0.5).astype(np.float32)
    nodes = [onnx.helper.make_node("MatMul", [before, "w"], [after]) for before, after in (("x", "t"), ("t", "y"))]
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (size, size)) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], [onnx.numpy_helper.from_array(weights, "w")])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def test_a_search_without_time_still_asks_for_the_kernels_that_it_chose(tmp_path: Path) -> None:
    done = optimised(
        tmp_path, model(), "--budget", "0.01s", "--database", tmp_path / "p.sqlite", "--export-jobs", tmp_path / "jobs.zip", "--json"
    )
    assert json.loads(done.stdout)["kernels"] == len(Archive.open(tmp_path / "jobs.zip").jobs) > 1


def test_an_archive_does_not_grow_with_the_sizes_of_tensors(tmp_path: Path) -> None:
    """An archive holds neither weights nor results: each kernel adds its code and a summary to the package that measures it."""
    taken = {}
    for size in (64, 768):
        path = tmp_path / f"{size}.zip"
        optimised(tmp_path, product(size), "--database", tmp_path / f"{size}.sqlite", "--export-jobs", path)
        with zipfile.ZipFile(path) as zipped:
            files = [entry.compress_size for entry in zipped.infolist() if entry.filename.startswith("files/")]
        taken[size] = max(files)
    assert taken[768] < 5 * SMALL < 4 * 768 * 768 / 100, taken


@pytest.mark.parametrize(
    ("precision", "tolerance", "offered"), [("auto", "1e-2", {"tf32", "bf16"}), ("auto", "1e-5", set()), ("fp16", "1e-2", {"fp16"})]
)
def test_products_round_as_far_as_the_tolerance_allows(tmp_path: Path, precision: str, tolerance: str, offered: set[str]) -> None:
    """Precisions are chosen by estimates and checked on the recorded device, which rounds like tensor cores.

    A product whose error exceeds the tolerance returns to float32.
    """
    arguments = ("--precision", precision, "--tolerance", tolerance, "--database", tmp_path / "p.sqlite", "--check", 1, "--json")
    done = optimised(tmp_path, product(128), *arguments)
    counts = json.loads(done.stdout)["precision"]["kernels"]
    precisions = {precision for precision, count in counts.items() if count}
    assert precisions <= offered | {"float32"} and bool(precisions & offered) == bool(offered), done.stderr
    assert json.loads(done.stdout)["max_rel_err"] <= float(tolerance)


def test_what_rounds_by_chance_is_right_and_what_is_wrong_is_not() -> None:
    """None of 80,000 sums of products of rounded operands is rejected, but two exchanged elements are detected."""
    tolerance = TOLERANCE + ROUNDING_TOLERANCE * UNIT_ROUNDOFF["fp16"]
    for seed in range(20):
        random = np.random.default_rng(seed)
        left, right = random.standard_normal((256, 64)), random.standard_normal((64, 1024))
        expected = Expected.of([Judged.whole(left @ right)], {}, tolerance)
        result = (left.astype(np.float16).astype(np.float64) @ right.astype(np.float16).astype(np.float64)).astype(np.float32)
        expected.judge([result], {})
        result[7, 8], result[70, 80] = result[70, 80], result[7, 8]
        with pytest.raises(WrongResult, match="sums of 64 elements are wrong"):
            expected.judge([result], {})


def test_plans_have_texts() -> None:
    plan = EnginePlan(41, {"TILE_SIZE": 4, "SPLIT_K": 2}, 65536)
    assert plan.text == "41+65536:SPLIT_K=2,TILE_SIZE=4" and EnginePlan.parse(plan.text) == plan
    assert EnginePlan.parse(EnginePlan(3, {}, 0).text) == EnginePlan(3, {}, 0)
    named = Implementation.parse("cudnn.convolution@tf32").with_plan(plan.text)
    assert (named.precision, named.plan, named.library, named.kind) == ("tf32", plan.text, "cudnn", "library")
    assert Implementation.parse(named.text) == named and named.with_plan("").text == "cudnn.convolution@tf32"
    assert named.in_precision("float32").text == "cudnn.convolution"
