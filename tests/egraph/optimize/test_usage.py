"""Invalid command lines: the error names the option, the place and the fix, at once."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.corpora.read import read_corpus
from egraph.errors import EinsatError, LowerError, ModelError, RuleError
from egraph.optimize import measuring
from egraph.optimize.arguments import parse, to_options
from egraph.optimize.check import find_feeds
from egraph.optimize.outcome import read_outcome
from egraph.optimize.output import Destination, check_report, staging
from egraph.rewrite.file import load_rules
from egraph.tensor import Graph, TensorType, make, placeholder
from egraph.tensor.ops import apply
from lower.compile import CompileOptions
from runtime.cores import default_threads, usable_cores
from runtime.measure import Timing, Worker
from runtime.profile import Database
from runtime.profile.__main__ import parser as profile_parser
from runtime.profile.__main__ import run as run_profile
from runtime.session import Session
from tests.pages import COMMANDS, ROOT
from tests.support.implementations import GENERATED
from tests.support.plans import matmul_relu, save
from verify.generate.productions import productions


def test_more_threads_than_cores_are_refused() -> None:
    """The threads would wait for each other at every kernel. For example, a run with 9999 of them did not finish in minutes."""
    cores = usable_cores()
    assert to_options(parse(["m.onnx", "--threads", str(cores)])).threads == cores
    with pytest.raises(ModelError, match=f"--threads 9999 is more than the {cores} processors(.|\n)*fix: give --threads {cores} or fewer"):
        to_options(parse(["m.onnx", "--threads", "9999"]))


def test_a_program_is_for_one_thread_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in onnxruntime: a second thread on a core shares its arithmetic units with the first."""
    monkeypatch.setattr("egraph.optimize.arguments.usable_cores", lambda: 16)
    monkeypatch.setattr("egraph.optimize.arguments.default_threads", lambda: 8)
    assert to_options(parse(["m.onnx"])).threads == 8 and to_options(parse(["m.onnx", "--threads", "16"])).threads == 16


def test_a_session_uses_no_more_threads_than_there_are_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "m.einsat", *matmul_relu())
    for told in ("", "9999"):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        for asked in (None, 9999):
            with Session(folder, threads=asked) as session:
                assert session.executable.threads == (usable_cores() if asked or told else default_threads())


def test_a_report_that_cannot_be_written_is_refused_before_the_search(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_report(tmp_path / "new" / "deep" / "report.html")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ModelError, match=r"file cannot be used: Not a directory(.|\n)*fix: write elsewhere with --report FILE"):
        check_report(tmp_path / "file" / "report.html")
    with pytest.raises(ModelError, match=r"is a folder(.|\n)*report\.html"):
        check_report(tmp_path)


@pytest.mark.parametrize(
    ("code", "free_bytes", "told"),
    [
        (errno.ENOSPC, {"output": 0, "temporary": 1}, r"no space is left in .*output(.|\n)*fix: free some .* elsewhere with -o FOLDER"),
        (errno.ENOSPC, {"output": 1, "temporary": 0}, r"no space is left for temporary files in .*temporary(.|\n)*TMPDIR"),
        (errno.EFBIG, {}, r"a file would become larger(.|\n)*fix: raise the limit: ulimit -f unlimited"),
    ],
)
def test_a_full_disk_is_named(code: int, free_bytes: dict[str, int], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the folder for temporary files is full, giving another output would not help."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free_bytes[Path(folder).name]))
    output = tmp_path / "output"

    def save() -> None:
        with staging(Destination(output / "m.opt.onnx", output / "m.einsat")) as folder:
            (folder / "half").touch()
            raise OSError(code, os.strerror(code))

    with pytest.raises(ModelError, match=told):
        save()
    assert not output.exists()


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 23.8 GiB"), RuntimeError("Failed to allocate memory for a buffer")])
def test_sizes_beyond_the_memory_are_named(error: Exception) -> None:
    def run(outputs: Any, feeds: Any) -> Any:
        raise error

    x = make("Input", (), (("name", "x"),), TensorType("float32", (4, 64)))
    with pytest.raises(ModelError, match=r"does not fit into memory at these sizes(.|\n)*at: x: 4x64\n  fix: .*--shape NAME:SIZES"):
        find_feeds(SimpleNamespace(run=run), Graph("large", (x,), (("y", x),), {}), 0)


def test_a_machine_that_lacks_a_library_fails_no_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the missing library were recorded as a kernel's failure, no kernel would be used later."""
    missing = Timing("failed", message="LibraryMissing: compiling dispatch.c failed\n  fix: set EINSAT_CACHE")
    monkeypatch.setattr(measuring, "compile_batch", lambda programs, folder, options, *tell: [tmp_path] * len(programs))
    monkeypatch.setattr(measuring, "measure", lambda worker, load, effort: missing)
    database = Database.in_memory()
    fragment = apply("Relu", placeholder(0, TensorType("float32", (4,))))
    measurer = measuring.Measurer(database, "here", CompileOptions(threads=1), Worker())
    with pytest.raises(LowerError, match=r"cannot be run on this machine: LibraryMissing(.|\n)*fix: set EINSAT_CACHE"):
        measurer.measure([measuring.Job(fragment, GENERATED, "relu")], lambda: 1.0, lambda text: None)
    assert list(database.records(None)) == []


def test_measurements_are_not_imported_into_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database")
    (tmp_path / "measured.jsonl").touch()
    arguments = profile_parser().parse_args(["--database", str(tmp_path / "text"), "import", str(tmp_path / "measured.jsonl")])
    with pytest.raises(ValueError, match=r"nothing was imported: .*text cannot be written; .* --database PATH before import"):
        run_profile(arguments)


def test_an_artefact_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^there is no such file or folder\n  at: .*none\.einsat\n  fix: check the path"):
        read_outcome(tmp_path / "none.einsat")


@pytest.mark.parametrize("option", ["-o", "--report", "--database", "--rules"])
def test_empty_paths_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unset variable must not write into the working folder."""
    with pytest.raises(SystemExit) as left:
        parse(["m.onnx", option, ""])
    assert left.value.code == 2 and "the path is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("RULES = ()\ndef (:\n", r"is not Python: (.|\n)*at: .*mine\.py:2\n  fix: correct the line"),
        ("x = 1\n\n1 / 0\n", r"raised ZeroDivisionError(.|\n)*at: .*mine\.py:3\n"),
        ("import no_such_module\nRULES = (no_such_module,)\n", r"imports no_such_module(.|\n)*at: .*mine\.py:1\n"),
        ("RULES = (1,)\n", r"has no tuple RULES of rules(.|\n)*at: .*mine\.py\n"),
    ],
)
def test_a_broken_rule_file_is_named_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(RuleError, match=told):
        load_rules(path)
    with pytest.raises(RuleError, match="is a folder"):
        load_rules(tmp_path)
    with pytest.raises(RuleError, match="does not exist"):
        load_rules(tmp_path / "none.py")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"rules": [1]}', "is of an unknown kind"),
        (b'{"rules": [{"lhs": "x", "status": "sound"}]}', "has an entry that cannot be read: KeyError"),
    ],
)
def test_a_file_that_is_no_corpus_is_refused(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "corpus.json"
    path.write_bytes(content)
    with pytest.raises(RuleError, match=rf"corpus.json {told}(.|\n)*fix: give TASO's"):
        read_corpus(path)


def test_no_operators_are_refused() -> None:
    with pytest.raises(EinsatError, match=r"--ops: no operator is named\n  fix: choose among matmul"):
        productions([])


@pytest.mark.parametrize("module", COMMANDS)
def test_help_answers_at_once(module: str) -> None:
    """--help imports nothing that takes longer than numpy."""
    code = (
        f"import sys, runpy; sys.argv = [{module!r}, '--help']\n"
        f"try: runpy.run_module({module!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in ('z3', 'onnx', 'onnxruntime', 'egglog', 'tvm', 'ortools', 'rich', 'verify.prove') if m in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and f"usage: python -m {module}" in done.stdout, done.stderr
