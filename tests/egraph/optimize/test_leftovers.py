"""The next run removes the leftovers of a killed run, but not those of a living run, another user or another machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from egraph.optimize.output import destination, staging
from runtime import leftovers
from runtime.leftovers import OWNER, own_temporary_files, owned_folder, remove_abandoned
from tests.support.commands import build_model, command
from tests.support.paths import ROOT

HOLDER = """
import sys
from pathlib import Path
from runtime.leftovers import owned_folder
with owned_folder(Path(sys.argv[1]), ".m.", ".partial") as folder:
    (folder / "work").mkdir()
    (folder / "work" / "half").write_text("half")
    print(folder, flush=True)
    sys.stdin.read()
"""


def _holder(parent: Path, script: str = HOLDER) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that holds a folder, and return both."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _abandoned(parent: Path) -> Path:
    process, folder = _holder(parent)
    _kill(process)
    assert (folder / "work" / "half").exists() and (folder / OWNER).exists()
    return folder


def test_a_folder_lasts_as_long_as_its_process(tmp_path: Path) -> None:
    process, folder = _holder(tmp_path)
    assert remove_abandoned(tmp_path, ".*.partial") == [] and (folder / "work" / "half").exists()
    with owned_folder(tmp_path, ".m.", ".partial") as here:
        assert remove_abandoned(tmp_path, ".*.partial") == [] and here.exists(), "nor one's own"
    assert not here.exists()
    _kill(process)
    assert remove_abandoned(tmp_path, ".*.partial") == [folder]
    assert not list(tmp_path.iterdir())


def test_a_child_that_goes_on_does_not_keep_the_folder_of_its_parent(tmp_path: Path) -> None:
    """Processes for measuring and compiling inherit no lock."""
    child = "    import subprocess; subprocess.Popen(['sleep', '10'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)"
    process, folder = _holder(tmp_path, HOLDER.replace("    print(", f"{child}\n    print("))
    _kill(process)
    assert remove_abandoned(tmp_path, ".*.partial") == [folder]


def test_folders_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _abandoned(tmp_path)
    owner = json.loads((folder / OWNER).read_text())
    elsewhere = {"node": "elsewhere", "id": "2", "boot": "3"}
    for other in (elsewhere, {**elsewhere, "node": owner["node"]}, {}, {"boot": "", "id": "", "node": owner["node"]}):
        (folder / OWNER).write_text(json.dumps(other))
        assert remove_abandoned(tmp_path, ".*.partial") == [] and folder.exists(), other
    (folder / OWNER).write_text(json.dumps(owner))
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    assert remove_abandoned(tmp_path, ".*.partial") == []
    monkeypatch.undo()
    (tmp_path / ".link.partial").symlink_to(folder, target_is_directory=True)
    (tmp_path / ".mine.partial").mkdir()
    (tmp_path / ".broken.partial").mkdir()
    (tmp_path / ".broken.partial" / OWNER).write_text("{")
    (tmp_path / ".file.partial").write_text("a file")
    assert remove_abandoned(tmp_path, ".*.partial") == [folder]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".broken.partial", ".file.partial", ".link.partial", ".mine.partial"]


def test_a_machine_that_was_started_again_removes_what_it_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _abandoned(tmp_path)
    before = json.loads((folder / OWNER).read_text())
    monkeypatch.setattr(leftovers, "machine", lambda: {**before, "id": "known", "boot": "another"})
    assert remove_abandoned(tmp_path, ".*.partial") == [], "it has no name to be known by"
    (folder / OWNER).write_text(json.dumps({**before, "id": "known"}))
    assert remove_abandoned(tmp_path, ".*.partial") == [folder]


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leftovers beside another model's output and temporary files are removed, too. On a disk without locks, a run goes on all the same."""
    abandoned = _abandoned(tmp_path)
    with staging(destination(tmp_path / "other.onnx", None)) as stage:
        assert not abandoned.exists() and list(tmp_path.iterdir()) == [stage]
    assert not list(tmp_path.iterdir())

    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with staging(destination(tmp_path / "m.onnx", None)) as stage:
        assert not list(stage.iterdir()) and remove_abandoned(tmp_path, ".*.partial") == []


def test_temporary_files_lie_in_one_folder_that_goes_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TMPDIR", raising=False)
    with own_temporary_files():
        handle, name = tempfile.mkstemp()
        os.close(handle)
        assert Path(name).parent.parent == tmp_path and os.environ["TMPDIR"] == str(Path(name).parent)
    assert tempfile.gettempdir() == str(tmp_path) and "TMPDIR" not in os.environ and not list(tmp_path.iterdir())


def test_a_command_that_is_killed_leaves_nothing_for_longer_than_until_the_next(tmp_path: Path) -> None:
    model, out, temporary = build_model(tmp_path / "m.onnx"), tmp_path / "out", tmp_path / "temporary"
    temporary.mkdir()
    arguments = (model, "-o", out, "--threads", 1, "--budget", "6s", "--finalists", 1, "--database", tmp_path / "p.sqlite", "-q")
    process = subprocess.Popen(
        [sys.executable, "-m", "egraph.optimize", *map(str, arguments)], cwd=ROOT, env={**os.environ, "TMPDIR": str(temporary)}
    )
    end = time.monotonic() + 60.0
    while not (list(out.glob(".m.*.partial/work/*")) and list(temporary.glob("einsat-*/*"))) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(out.glob(".*.partial")) and list(temporary.glob("einsat-*")), "it was killed before it ended"
    done = command(*arguments, TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    assert not list(out.glob(".*")) and not list(temporary.glob("einsat-*"))
