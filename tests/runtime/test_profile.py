"""Test that the profile database loses nothing and trusts nothing, and that the measuring worker survives its kernels."""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import sqlite3
import statistics
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from runtime.child import Child
from runtime.devices.cpu import caches
from runtime.devices.cpu.device import device_key
from runtime.feeds import FeedSpec, Values, random_array, random_feeds
from runtime.measure import Effort, Load, Worker, measure
from runtime.profile import Database, Record
from runtime.worker import sample, undisturbed
from tests.support.paths import ROOT

RELU = Record("cpu", "Relu(%0:float32[8])", "tvm", "ok", (3.0, 1.0, 2.0, 2.0))


def test_a_record_survives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "profile.sqlite"
    database = Database.open(path)
    database.put(RELU)  # never closed: a crash must lose nothing
    again = Database.open(path).get("cpu", RELU.fragment, "tvm")
    assert again == RELU
    assert again is not None and again.median_us == 2.0
    assert Database.open(path).get("cpu", RELU.fragment, "other") is None


def test_what_another_process_writes_is_found(tmp_path: Path) -> None:
    database, other = Database.open(tmp_path / "p.sqlite"), Database.open(tmp_path / "p.sqlite")
    assert database.get("cpu", RELU.fragment, "tvm") is None
    other.put(RELU)
    assert database.get("cpu", RELU.fragment, "tvm") == RELU


def test_whether_a_kernel_has_times_is_known_without_the_hash_of_its_code(tmp_path: Path) -> None:
    """Test the file (before and after another process writes), a database in memory, a scratch database, and a file that fails."""
    generated = replace(RELU, generator="1234")
    database, other = Database.open(tmp_path / "p.sqlite"), Database.open(tmp_path / "p.sqlite")
    assert not database.has_times("cpu", RELU.fragment, "tvm")
    other.put(generated)
    for each in (database, other, database.scratch(), Database.open(tmp_path / "p.sqlite")):
        assert each.has_times("cpu", RELU.fragment, "tvm")
        assert not each.has_times("cpu", RELU.fragment, "other") and not each.has_times("gpu", RELU.fragment, "tvm")
    memory = Database.in_memory()
    assert not memory.has_times("cpu", RELU.fragment, "tvm")
    memory.put(generated)
    assert memory.has_times("cpu", RELU.fragment, "tvm") and memory.scratch().has_times("cpu", RELU.fragment, "tvm")
    assert database._connection is not None
    database._connection.close()
    assert database.has_times("cpu", "any", "tvm"), "reading it says what is wrong"


def test_what_is_not_there_is_not_read(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "p.sqlite")
    database.put(RELU)
    statements: list[str] = []
    assert database._connection is not None
    database._connection.set_trace_callback(statements.append)
    for number in range(20):
        assert database.get("cpu", f"another {number}", "tvm") is None
    assert sum("kernel_times" in text for text in statements) == 1
    assert Database.open(tmp_path / "p.sqlite").get("cpu", RELU.fragment, "tvm") == RELU


def test_a_newer_measurement_replaces_the_older(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "p.sqlite")
    database.put(RELU)
    database.put(Record("cpu", RELU.fragment, "tvm", "hung", (), "no answer"))
    (record,) = Database.open(tmp_path / "p.sqlite").records()
    assert (record.status, record.median_us, record.message) == ("hung", None, "no answer")


def _put_many(path: Path, start: int) -> None:
    database = Database.open(path)
    for i in range(start, start + 30):
        database.put(Record("cpu", f"f{i}", "tvm", "ok", (float(i),)))


def test_processes_share_a_database(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_put_many, args=(path, start)) for start in (0, 30)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    assert len(list(Database.open(path).records("cpu"))) == 60


def test_export_and_import_are_inverse(tmp_path: Path) -> None:
    lines = [RELU.to_line(), Record("cpu", "f", "onednn.matmul", "failed", (), "no such primitive").to_line()]
    database = Database.open(tmp_path / "p.sqlite")
    assert database.import_lines(lines) == (2, 0)
    assert sorted(record.to_line() for record in database.records()) == sorted(lines)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1]",
        json.dumps({"format": "einsat-profile-1", **dict.fromkeys(("device", "fragment", "implementation", "message"), "")}),
        RELU.to_line().replace('"kernel_times"', '"searches"'),
        RELU.to_line()[:-9],
        RELU.to_line().replace('"ok"', '"fine"'),
        RELU.to_line().replace("[3.0, 1.0, 2.0, 2.0]", "[-3.0]"),
        RELU.to_line().replace("[3.0, 1.0, 2.0, 2.0]", "[]"),
        RELU.to_line().replace('"cpu"', "7"),
    ],
)
def test_a_bad_line_is_skipped_with_a_warning(line: str) -> None:
    warnings: list[str] = []
    database = Database(None, writable=False, place="memory", warn=warnings.append)
    assert database.import_lines([line, RELU.to_line()]) == (1, 1)
    assert len(warnings) == 1 and "line 1" in warnings[0]


def test_a_corrupt_file_is_replaced_by_memory_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    before = path.read_bytes()
    warnings: list[str] = []
    database = Database.open(path, warn=warnings.append)
    database.put(RELU)
    assert database.get("cpu", RELU.fragment, "tvm") == RELU
    assert any("cannot be used" in text and "--database" in text for text in warnings)
    assert path.read_bytes() == before


def test_a_database_that_nothing_refers_to_is_closed(tmp_path: Path) -> None:
    """But not while another one reads by the same connection."""
    with closing(Database.open(tmp_path / "p.sqlite")) as first:
        first.put(RELU)
    database = Database.open(tmp_path / "p.sqlite")
    connection, scratch = database._connection, database.scratch()
    assert connection is not None
    del database
    gc.collect()
    assert scratch.get("cpu", RELU.fragment, "tvm") == RELU
    del scratch
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_a_file_of_another_version_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.execute("CREATE TABLE other (x)")
    connection.commit()
    connection.close()
    warnings: list[str] = []
    database = Database.open(path, warn=warnings.append)
    database.put(RELU)
    assert "version is 99" in warnings[0]
    assert not database.writable


def test_a_missing_read_only_database_is_said(tmp_path: Path) -> None:
    warnings: list[str] = []
    assert list(Database.open(tmp_path / "none.sqlite", read_only=True, warn=warnings.append).records()) == []
    assert "does not exist" in warnings[0] and not (tmp_path / "none.sqlite").exists()


@pytest.mark.usefixtures("forked_python")
def test_the_command_line_lists_exports_and_imports(tmp_path: Path) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "runtime.profile", "--database", str(tmp_path / "p.sqlite"), *arguments],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    (tmp_path / "in.jsonl").write_text(RELU.to_line() + "\nbroken\n")
    assert command("import", str(tmp_path / "in.jsonl")).stdout == "1 measurements added, 1 skipped\n"
    assert "2.0 us" in command("list").stdout
    assert command("export", "-").stdout == RELU.to_line() + "\n"
    (tmp_path / "bad.zip").write_text("no zip")
    refused = command("measure", str(tmp_path / "bad.zip"))
    assert refused.returncode == 2 and "not a job archive" in refused.stderr


def test_the_device_key_names_what_times_depend_on() -> None:
    assert device_key(3).endswith("threads=3 evicted") and "onnxruntime" in device_key(3)
    assert device_key(1) != device_key(2)


def test_weights_stay_in_a_cache_of_twice_their_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(caches, "CACHES", tmp_path)
    (tmp_path / "index3").mkdir()
    size = tmp_path / "index3" / "size"
    for text, stays in (("32768K\n", True), ("31M\n", False), ("odd\n", False)):
        size.write_text(text)
        caches.cache_bytes.cache_clear()
        assert caches.stay_in_cache(16 << 20) is stays
    caches.cache_bytes.cache_clear()


@pytest.mark.parametrize(("own_cache", "filler_bytes"), [("512K", 1 << 20), ("2M", 4 << 20), ("12M", 4 << 20), ("", 4 << 20)])
def test_twice_a_cores_own_cache_is_read_to_evict_what_is_in_it(
    own_cache: str, filler_bytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(caches, "CACHES", tmp_path)
    (tmp_path / "index2").mkdir()
    if own_cache:
        (tmp_path / "index2" / "size").write_text(own_cache)
    caches.cache_bytes.cache_clear()
    assert caches.filler_bytes() == filler_bytes
    caches.cache_bytes.cache_clear()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool", "string"])
def test_random_values_vary_and_have_their_type(dtype: str) -> None:
    values = random_array(dtype, (40,), np.random.default_rng(0), bound=5)
    assert values.dtype.name == ("object" if dtype == "string" else dtype)
    assert len(set(values.tolist())) > 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "bool", "string"])
@pytest.mark.parametrize("values", get_args(Values))
def test_a_number_of_no_axes_is_drawn_as_an_array(dtype: str, values: Values) -> None:
    assert isinstance(random_array(dtype, (), np.random.default_rng(0), values=values), np.ndarray)


def test_feeds_of_one_input_do_not_depend_on_the_others() -> None:
    a, b = FeedSpec("a", "float32", (4,)), FeedSpec("b", "int64", (9,), bound=3)
    assert np.array_equal(random_feeds([a, b], 1)["b"], random_feeds([b], 1)["b"])
    assert set(random_feeds([b], 1)["b"].tolist()) <= {0, 1, 2}


def test_sampling_stops_when_times_are_steady() -> None:
    assert len(sample(lambda n: [1000] * n, seconds=60, least=5, most=1000, error=0.01)) < 100
    noisy = iter(range(10_000, 15_000, 10))
    assert len(sample(lambda n: [next(noisy) for _ in range(n)], seconds=60, least=5, most=500, error=0.001)) == 500
    assert len(sample(lambda n: [1000] * n, seconds=0.0, least=5, most=500, error=0.01)) < 8  # a slow one is not run more than asked


@pytest.mark.parametrize(("width", "least", "most"), [(0.02, 10, 20), (0.2, 80, 320), (0.4, 320, 1280)])
def test_sampling_stops_when_the_median_is_certain_however_widely_runs_differ(width: float, least: int, most: int) -> None:
    """For run times uniform over a width w, the standard error is 0.93 * (w / 2) / sqrt(n): 1 % of the median if n = (46.5 w)^2."""
    drawn = np.random.default_rng(0)
    samples_us = sample(
        lambda n: (1e5 * drawn.uniform(1 - width / 2, 1 + width / 2, n)).astype(int).tolist(), seconds=60, least=5, most=5000, error=0.01
    )
    assert least <= len(samples_us) <= most
    assert statistics.median(samples_us) == pytest.approx(100, rel=0.03)


def test_runs_that_others_disturb_are_left_out_and_take_more_time() -> None:
    times_ns = itertools.cycle([10_000, 10_100, 500_000, 510_000, 10_050])
    found = sample(lambda n: [next(times_ns) for _ in range(n)], seconds=0.05, least=5, most=200, error=0.01)
    assert max(found) < 11 and len(found) > 100
    assert undisturbed([10.0, 500.0, 10.0]) == [10.0, 500.0, 10.0]  # too few to tell


@pytest.fixture
def model(tmp_path: Path) -> Path:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def _load(model: Path) -> Load:
    return Load("onnxruntime", str(model), (FeedSpec("x", "float32", (8,)),), threads=1)


def test_a_failing_kernel_is_a_result_and_the_worker_goes_on(model: Path) -> None:
    with Worker() as worker:
        failed = measure(worker, Load("onnxruntime", str(model.with_name("none.onnx")), (), threads=1))
        assert failed.status == "failed" and "none.onnx" in failed.message
        timing = measure(worker, _load(model), Effort(seconds=0.01))
        assert timing.status == "ok" and 0 < timing.median_us < 1e5


HURT = """
import os, signal, time
import runtime.worker as worker
def hurt(path, threads, draw):
    {action}
worker.ENGINES["einsat"] = hurt
"""


@pytest.mark.parametrize(
    ("action", "status", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "failed", "SIGSEGV"),
        ("time.sleep(60)", "hung", "killed"),
        ("os._exit(7)", "failed", "exit code 7"),
    ],
)
def test_a_crashing_or_hanging_kernel_costs_only_the_worker(
    tmp_path: Path, model: Path, action: str, status: str, told: str
) -> None:
    """The worker is restarted for the next measurement."""
    script = tmp_path / "hurt_worker.py"
    script.write_text(HURT.format(action=action) + "worker.main()\n")
    with Worker(time_out_seconds=2.0, command=(sys.executable, str(script)), environment={"PYTHONPATH": str(ROOT)}) as worker:
        assert worker.load(_load(model)).status == "ok"
        hurt = worker.load(Load("einsat", "x", (), threads=1))
        assert hurt.status == status and told in hurt.message
        assert measure(worker, _load(model), Effort(seconds=0.01)).status == "ok"


COUNTED = """
import itertools
import runtime.worker as worker
runs = itertools.count(1)
worker.ENGINES["einsat"] = lambda path, threads, draw: lambda count: [1000 * next(runs)] * count
type(worker.device(worker.HOST)).is_disturbed = lambda self, threads: threads != 2
worker.main()
"""


EVEN = """
import runtime.worker as worker
worker.ENGINES["einsat"] = lambda path, threads, draw: lambda count: [1000 + 100 * (k % 2) for k in range(count)]
worker.main()
"""
EFFORTS = Effort(seconds=60.0), Effort(seconds=60.0, error=0.0)


def test_what_is_asked_of_the_cores_is_asked_for_the_threads_of_what_is_timed(tmp_path: Path) -> None:
    script = tmp_path / "counted_worker.py"
    script.write_text(COUNTED)
    with Worker(command=(sys.executable, str(script)), environment={"PYTHONPATH": str(ROOT)}) as worker:
        timing = measure(worker, Load("einsat", "x", (), threads=2), Effort(seconds=0.0, least=1, most=1))
    assert timing.samples_us == (2.0,)  # not once more, as where threads share a core


def test_a_worker_ends_when_the_median_is_as_certain_as_it_is_told(tmp_path: Path) -> None:
    script = tmp_path / "even_worker.py"
    script.write_text(EVEN)
    with Worker(command=(sys.executable, str(script)), environment={"PYTHONPATH": str(ROOT)}) as worker:
        counts = [len(measure(worker, Load("einsat", "x", (), threads=2), effort).samples_us) for effort in EFFORTS]
    assert counts == [40, 2000]


def test_what_was_asked_before_an_interrupt_is_not_read_as_the_next_answer(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with Worker() as worker:
        assert worker.load(_load(model)).status == "ok"
        with monkeypatch.context() as patch:
            patch.setattr(Child, "line", interrupted)
            with pytest.raises(KeyboardInterrupt):
                worker.load(Load("onnxruntime", str(model.with_name("none.onnx")), (), threads=1))
        assert worker.load(_load(model)).status == "ok"


def test_closing_ends_a_busy_worker(model: Path) -> None:
    worker = Worker()
    worker.load(_load(model))
    assert worker._child is not None
    process = worker._child.process
    worker.close()
    assert process.poll() is not None
