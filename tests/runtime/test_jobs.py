"""Kernels to measure are exported as archives and their times returned as lines; killed measuring resumes where it stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import parser

from egraph.optimize.estimated import compile_options
from egraph.optimize.kernels import compile_batch, feed_specs, kernel_program
from egraph.optimize.measuring import write_reference
from egraph.tensor import Node
from egraph.tensor.ops import apply
from lower.compile import CompileOptions
from lower.targets import lowering
from runtime.devices import HOST, device
from runtime.measure import FROM_MEMORY, Effort
from runtime.profile import Database, Record
from runtime.profile.jobs import Archive, ArchiveWriter, Job, Origin, measure_archive, merge
from runtime.profile.tables import read_line
from runtime.profile.versions import from_memory
from tests.support.commands import SAME_PRICES, module_command
from tests.support.fragments import leaf
from tests.support.implementations import PRODUCT
from tests.support.paths import ROOT

QUICK = Effort(seconds=0.001)
DEVICE = device(HOST).key(1)
OPERATORS = ("Relu", "Tanh", "Sigmoid")


def product(op: str) -> Node:
    return apply(op, apply("MatMul", leaf(0, 4, 8), leaf(1, 8, 6, constant=True)))


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return module_command(str(arguments[0]), *arguments[1:])


def write(archive: Path, folder: Path, operators: Sequence[str] = OPERATORS, processor: str = "", generator: str = "") -> tuple[Job, ...]:
    """Write an archive with one library product per operator."""
    options: CompileOptions = compile_options(1)
    programs = [kernel_program(product(op), PRODUCT, seed=0) for op in operators]
    with ArchiveWriter(archive, Origin(HOST, processor or device(HOST).architecture, 1)) as writer:
        for op, program, place in zip(operators, programs, compile_batch(programs, folder, options), strict=True):
            assert isinstance(place, Path)
            write_reference(program, PRODUCT, place, options)
            lowering().complete(place)
            if op == "Sigmoid":
                (place / "plan.json").write_text("damaged")
            writer.add(place, Job(op, "onednn.matmul", generator, "kernel", feed_specs(program)))
    return Archive.open(archive).jobs


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    write(folder / "jobs.zip", folder / "kernels")
    return folder / "jobs.zip"


def test_a_bad_kernel_is_recorded_and_the_rest_is_measured(archive: Path, tmp_path: Path) -> None:
    database, output = Database.in_memory(), tmp_path / "records.jsonl"
    done = measure_archive(archive, database, output=output, effort=QUICK)
    assert [(r.device, r.fragment, r.status, bool(r.samples_us)) for r in done.records] == [
        (DEVICE, "Relu", "ok", True), (DEVICE, "Tanh", "ok", True), (DEVICE, "Sigmoid", "failed", False)
    ]  # fmt: skip
    assert (done.remaining, done.foreign) == (0, 0)
    assert tuple(read_line(line) for line in output.read_text().splitlines()) == done.records
    assert sorted(database.records(), key=lambda r: r.fragment) == sorted(done.records, key=lambda r: r.fragment)


def test_files_are_stored_once(archive: Path) -> None:
    with zipfile.ZipFile(archive) as zipped:
        names = zipped.namelist()
    jobs = Archive.open(archive).jobs
    assert len({job.files["dispatch.so"] for job in jobs}) == 1 and "openmp.so" in jobs[0].files
    assert len(names) == len(set(names)) == 1 + len({digest for job in jobs for digest in job.files.values()})


def test_archives_are_merged_with_each_kernel_once(archive: Path, tmp_path: Path) -> None:
    """The first archive's jobs come first, and the measuring package is copied. To stay within a size, further archives are begun."""
    other, merged = tmp_path / "other.zip", tmp_path / "merged.zip"
    write(other, tmp_path / "others", ("Tanh", "Relu"))
    done = command("runtime.profile", "merge", archive, other, "-o", merged)
    assert done.returncode == 0 and "3 kernels, 2 repeated" in done.stdout, done.stderr
    opened = Archive.open(merged)
    assert [job.fragment for job in opened.jobs] == ["Relu", "Tanh", "Sigmoid"]
    names = [name for name in opened.zipped.namelist() if name.startswith("files/")]
    assert len(names) == len(set(names)) and {"__main__.py", "runtime/worker.py"} <= set(opened.zipped.namelist())
    assert [record.status for record in measure_archive(merged, Database.in_memory(), effort=QUICK).records[:2]] == ["ok", "ok"]
    with ArchiveWriter(tmp_path / "empty.zip", opened.origin) as writer:
        writer.add_runtime()
        alone_bytes = writer.size_bytes + writer.further_bytes(opened, opened.jobs[0])
    parts = merge([archive, other], tmp_path / "parts.zip", alone_bytes).paths
    assert [path.name for path in parts] == ["parts.zip", "parts-2.zip", "parts-3.zip"]
    assert all(path.stat().st_size <= alone_bytes for path in parts)
    assert {job.fragment for path in parts for job in Archive.open(path).jobs} == set(OPERATORS)
    with pytest.raises(ValueError, match="allow more"):
        merge([archive], tmp_path / "none.zip", 1000)
    assert not (tmp_path / "none.zip").exists()


def test_archives_of_several_processors_are_not_merged(archive: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.zip"
    write(other, tmp_path / "others", ("Relu",), processor="another")
    done = command("runtime.profile", "merge", archive, other, "-o", tmp_path / "merged.zip")
    assert done.returncode == 2 and "another" in done.stderr and not (tmp_path / "merged.zip").exists()


def test_measuring_ends_in_time_and_goes_on_later(archive: Path, tmp_path: Path) -> None:
    output = tmp_path / "records.jsonl"
    assert measure_archive(archive, Database.in_memory(), output=output, seconds=0.0).remaining == 3
    assert output.read_text() == ""
    known = Record(DEVICE, "Tanh", "onednn.matmul", "ok", (123.0,))
    output.write_text(known.to_line() + "\n")
    done = measure_archive(archive, Database.in_memory(), output=output, effort=QUICK)
    assert done.records[1] == known and done.remaining == 0
    assert len(output.read_text().splitlines()) == 3


def test_what_the_database_knows_is_written_not_measured(archive: Path, tmp_path: Path) -> None:
    database, output = Database.in_memory(), tmp_path / "records.jsonl"
    known = [Record(DEVICE, op, "onednn.matmul", "ok", (5.0,)) for op in OPERATORS]
    for record in known:
        database.put(record)
    assert measure_archive(archive, database, output=output, seconds=0.0).records == tuple(known)
    assert [read_line(line) for line in output.read_text().splitlines()] == known


def test_killed_measuring_is_resumed(archive: Path, tmp_path: Path) -> None:
    """Each kernel is measured once. A line that the killed process wrote only in part is cut off."""
    output = tmp_path / "records.jsonl"
    arguments = ["-m", "runtime.profile", "--database", str(tmp_path / "a.sqlite"), "measure", str(archive), "-o", str(output)]
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.kill()
    assert first.startswith("1/3: ")
    before = output.read_text().splitlines()[:1]
    with output.open("a") as file:
        file.write('{"format": "einsat-pro')
    # another database, so that only the file of records shows which kernels are done
    again = ("runtime.profile", "--database", tmp_path / "b.sqlite", "measure", archive, "-o", output)
    done = command(*again)
    assert done.stdout == "3 kernels measured, without a time: 1 failed\n", done.stderr
    lines = output.read_text().splitlines()
    assert lines[:1] == before and len({read_line(line).key for line in lines}) == len(lines) == 3
    assert command(*again, "-q").stdout == done.stdout and output.read_text().splitlines() == lines


def test_a_file_of_something_else_is_not_appended_to(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes\n")
    with pytest.raises(ValueError, match=r"notes.txt, line 1, is no record"):
        measure_archive(archive, Database.in_memory(), output=tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "notes\n"


def test_code_for_another_processor_is_left_out(tmp_path: Path) -> None:
    """Only generated code is skipped. A library's kernels adapt to the processor that they run on."""
    for generator, foreign in (("1234", 1), ("", 0)):
        write(tmp_path / "jobs.zip", tmp_path / f"kernels{generator}", ("Relu",), "another processor", generator)
        done = measure_archive(tmp_path / "jobs.zip", Database.in_memory(), effort=QUICK)
        assert (done.foreign, len(done.records)) == (foreign, 1 - foreign)


def test_times_with_weights_from_memory_are_filed_apart() -> None:
    job = Job("Relu", "onednn.matmul", "", "kernel", ())
    assert job.key("cpu") == ("cpu", "Relu", "onednn.matmul", "")
    assert replace(job, engine=FROM_MEMORY).key("cpu")[0] == from_memory("cpu")


def test_an_interrupted_archive_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), ArchiveWriter(tmp_path / "jobs.zip", Origin(HOST, "a processor", 1)):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"files": {"../../plan.json": "12"}}, "outside"), ({"files": {"/plan.json": "12"}}, "outside"),
        ({"engine": "rm"}, "no engine"), ({"feeds": 3}, "not iterable"),
    ],
)  # fmt: skip
def test_a_damaged_archive_is_refused(tmp_path: Path, change: dict[str, object], told: str) -> None:
    job = {"fragment": "f", "implementation": "i", "generator": "", "engine": "kernel", "feeds": [], "files": {}}
    origin = {"format": "einsat-jobs-3", "device": "cpu", "architecture": "p", "threads": 1}
    with zipfile.ZipFile(tmp_path / "jobs.zip", "w") as zipped:
        zipped.writestr("jobs.jsonl", "\n".join(map(json.dumps, (origin, {**job, **change}))))
    with pytest.raises(ValueError, match=f"not a job archive .*{told}"):
        measure_archive(tmp_path / "jobs.zip", Database.in_memory())


WEIGHTS = ", ".join(str(k % 7 - 3) for k in range(128))
MODEL = f"""
<ir_version: 8, opset_import: ["": 17]>
g (float[4,16] x) => (float[4,8] y)
<float[16,8] w = {{{WEIGHTS}}}>
{{
  p = MatMul(x, w)
  s = Sigmoid(p)
  y = Mul(p, s)
}}
"""


def test_a_search_needs_no_measuring_where_its_jobs_were_measured(tmp_path: Path) -> None:
    """Export, measure in another process with another database, and import, until no job is left; then optimise."""
    model, records = tmp_path / "m.onnx", tmp_path / "records.jsonl"
    onnx.save(parser.parse_model(MODEL), model)
    search = (model, "--threads", 1, "--budget", "60s", *SAME_PRICES)
    counts: list[int] = []
    for number in range(6):
        archive = tmp_path / f"jobs{number}.zip"
        imported = ("--import-profiles", records) if number else ()
        database = ("--database", tmp_path / f"search{number}.sqlite")
        exported = command("egraph.optimize", *search, *database, "--export-jobs", archive, "--json", *imported)
        assert exported.returncode == 0, exported.stderr
        counts.append(json.loads(exported.stdout)["kernels"])
        if not counts[-1]:
            break
        measured = command("runtime.profile", "--database", tmp_path / "worker.sqlite", "measure", archive, "-o", records, "-q")
        assert measured.returncode == 0 and "remain" not in measured.stdout, measured.stderr
    assert counts[0] > 5 and counts[-1] == 0, counts
    fresh = ("--database", tmp_path / "fresh.sqlite")
    done = command("egraph.optimize", *search, *fresh, "--import-profiles", records, "--json", "-o", tmp_path / "out", "-v")
    assert done.returncode == 0, done.stderr
    assert "to measure, 0 so far" in done.stderr and "to measure, 1 so far" not in done.stderr and "kernels measured" not in done.stderr
    lines = records.read_text().splitlines()
    assert f"{len(lines)} are new of this device" in done.stderr
    arguments = ("egraph.optimize", *search, *fresh, "--import-profiles", records, "-o", tmp_path / "out")
    assert "the search of an earlier run is used" in command(*arguments).stderr
    record = read_line(lines[-1])
    assert isinstance(record, Record)
    records.write_text(replace(record, samples_us=(7e6,)).to_line() + "\n")
    searched = command(*arguments)
    assert "1 are new of this device" in searched.stderr and "the search of an earlier run" not in searched.stderr


def test_records_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(MODEL), tmp_path / "m.onnx")
    files = ("--import-profiles", tmp_path / "none.jsonl", "--export-jobs", tmp_path / "j.zip")
    done = command("egraph.optimize", tmp_path / "m.onnx", *files)
    assert done.returncode == 2 and "--import-profiles" in done.stderr and "runtime.profile measure" in done.stderr
    assert not os.path.exists(tmp_path / "j.zip")
