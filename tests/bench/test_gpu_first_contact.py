"""The first contact's questions that need no GPU, asked of the recorded device; wrong outputs and broken artefacts are answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench import gpu_first_contact
from egraph.onnx import importer
from egraph.optimize.estimated import compile_options, estimated_program
from lower.compile import compile_program
from runtime import Session
from runtime.profile.jobs import Archive
from tests.runtime.test_devices import model
from tests.support.paths import ROOT

ALONE = """
import sys
allowed = ("numpy", "ml_dtypes", "onnxruntime", "cupy")
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("egraph", "lower", "verify", "onnx", "egglog", "tvm", "ortools", "z3", "cupy"):
            raise ImportError("blocked " + name)
sys.meta_path.insert(0, Block())
import runpy
runpy.run_module("bench.gpu_first_contact", run_name="__main__")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder as --prepare writes it, with one small network."""
    place = tmp_path / "small"
    target = "cuda:h100"
    program = estimated_program(importer.load(model()).graph, device=target)
    compile_program(program, place / "small.einsat", compile_options(1, target))
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8), dtype=np.float32)
    np.savez(place / gpu_first_contact.FEEDS, x=x)
    with Session(place / "small.einsat", on=target) as session:
        names = [each.name for each in session.get_outputs()]
        np.savez(place / gpu_first_contact.WANTED, **dict(zip(names, session.run(None, {"x": x}), strict=True)))
    return tmp_path


def answers(path: Path) -> dict[str, dict[str, object]]:
    return {line["question"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_what_needs_no_gpu_is_asked_of_the_recorded_device(folder: Path) -> None:
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "-o", str(folder / "out.jsonl")]) == 0
    found = answers(folder / "out.jsonl")
    assert list(found) == ["versions", "small: outputs"] and found["small: outputs"]["status"] == "ok"
    assert len(found["small: outputs"]["relative_errors"]) == 3  # type: ignore[arg-type]


def test_a_wrong_output_is_an_answer(folder: Path) -> None:
    with np.load(folder / "small" / gpu_first_contact.WANTED) as stored:
        wrong = {name: value + 1 for name, value in stored.items()}
    np.savez(folder / "small" / gpu_first_contact.WANTED, **wrong)
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "-o", str(folder / "out.jsonl")]) == 1
    assert answers(folder / "out.jsonl")["small: outputs"]["status"] == "failed"
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "--seconds", "-1", "-o", str(folder / "out.jsonl")]) == 0
    assert {line["status"] for line in answers(folder / "out.jsonl").values()} == {"skipped"}


def crash(*_: object) -> gpu_first_contact.Answer:
    os.kill(os.getpid(), signal.SIGTERM)
    return {}


def hang(*_: object) -> gpu_first_contact.Answer:
    time.sleep(600)
    return {}


@pytest.mark.parametrize(("fault", "code"), [(crash, -signal.SIGTERM), (hang, -signal.SIGKILL)])
def test_a_question_that_crashes_or_hangs_costs_its_own_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., gpu_first_contact.Answer], code: int
) -> None:
    monkeypatch.setattr(gpu_first_contact, "PATIENCE_SECONDS", 2.0)
    last = ("last", lambda: {"is": "asked"})
    asked = [("versions", dict), ("faulty", fault), last]
    monkeypatch.setattr(gpu_first_contact, "questions", lambda *_: asked)
    assert gpu_first_contact.main([str(folder), "--on", "cuda:h100", "-o", str(folder / "out.jsonl")]) == 1
    given = answers(folder / "out.jsonl")
    assert [line["status"] for line in given.values()] == ["ok", "failed", "ok"] and given["last"]["is"] == "asked"
    assert f"code {int(code)} " in str(given["faulty"]["why"])


def test_packages_that_travel_as_wheels_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "travelled-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("travelled_package.py", "VALUE = 7")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    gpu_first_contact.unpack_wheels(tmp_path)
    assert __import__("travelled_package").VALUE == 7
    assert os.environ["PYTHONPATH"].split(os.pathsep)[1:] == ["elsewhere"]


def test_on_a_bare_machine_without_a_gpu_every_question_has_an_answer(folder: Path) -> None:
    """Nothing but numpy and the runtime can be imported: what is missing is said, question by question."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder), "-o", str(folder / "out.jsonl")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    found = answers(folder / "out.jsonl")
    assert found["versions"]["status"] == "ok"
    others = [line for question, line in found.items() if question != "versions"]
    assert len(others) == 8 and all(line["status"] in ("failed", "skipped") for line in others)
    assert any("CuPy cannot be loaded" in str(line["why"]) for line in others)


def test_artefacts_are_prepared_through_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.models import MODELS, BenchModel

    monkeypatch.setitem(MODELS, "tiny", BenchModel("tiny", lambda batch: model()))
    downloaded: list[Path] = []
    monkeypatch.setattr(gpu_first_contact, "download_wheels", downloaded.append)
    gpu_first_contact.main([str(tmp_path), "tiny", "--prepare", "--target", "cuda:a100", "--budget", "15s"])
    files = {"tiny.einsat", gpu_first_contact.FEEDS, gpu_first_contact.WANTED, gpu_first_contact.JOBS}
    assert {path.name for path in (tmp_path / "tiny").iterdir()} == files and downloaded == [tmp_path / "wheels"]
    assert Archive.open(tmp_path / "tiny" / gpu_first_contact.JOBS).origin.architecture == "sm_80"
    assert gpu_first_contact.main([str(tmp_path), "--on", "cuda:a100", "-o", str(tmp_path / "out.jsonl")]) == 0
