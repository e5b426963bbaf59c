"""The program that a search led to, stored beside the profile database: reading returns what was written, or nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from egraph.onnx import importer
from egraph.optimize.artefact import MANIFEST
from egraph.optimize.gate import sources_digest
from egraph.optimize.options import Options
from egraph.optimize.outcome import Outcome
from egraph.optimize.records import Memo, memo_path, read_memo, write_memo
from egraph.optimize.search import plain_program
from egraph.tensor import Graph, Program
from lower.cost.model import CostModel
from lower.roofline import DeviceSpeed
from runtime.profile import Database
from tests.support.commands import build_model, command, files_below

MODEL = (
    '<ir_version: 8, opset_import: ["": 18]> g (int64[3,4] ids, float[3,4] x) => (float[3,2] y, int64[3,2] places, float[3,4] z) '
    "<int64[1] k = {2}, float[4] w = {1, 2, 3, 4}> "
    "{ real = Cast<to = 1>(ids) top, places = TopK(real, k) y = Relu(top) low = Clip(x) scaled = Mul(low, w) z = LeakyRelu(scaled) }"
)


def program() -> tuple[Graph, Program]:
    graph = importer.load(parser.parse_model(MODEL)).graph
    return graph, plain_program(graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0)


def outcome(folder: Path) -> Outcome:
    """Return the outcome of a run on a small model."""
    model = build_model(folder / "m.onnx")
    done = command(
        model, "-o", folder / "out", "--threads", 1, "--budget", "20s", "--finalists", 1, "--database", folder / "p.sqlite", "-q"
    )
    assert done.returncode == 0, done.stderr
    return Outcome.from_manifest(json.loads((folder / "out/m.einsat" / MANIFEST).read_text(encoding="utf-8"))["run"])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    folder = tmp_path_factory.mktemp("memo")
    return folder, outcome(folder)


def test_a_memo_is_read_back(found: tuple[Path, Outcome], tmp_path: Path) -> None:
    """The nodes and therefore the kernels are the same; this includes opaque nodes, whose attributes are bytes."""
    graph, small = program()
    memo = Memo(found[1], small, "search 1", "abc", (("onnxruntime", "1"), ("unoptimized", "2")))
    write_memo(tmp_path / "new" / "memo.json", memo)
    again = read_memo(tmp_path / "new" / "memo.json", graph)
    assert again is not None and again.program is not None
    assert again.program.kernels == small.kernels and again.program.graph.outputs == small.graph.outputs
    assert (again.program.graph.origins, again.program.graph.names) == (small.graph.origins, small.graph.names)
    assert replace(again, program=None) == replace(memo, program=None)
    write_memo(tmp_path / "memo.json", replace(memo, program=None))
    unchanged = read_memo(tmp_path / "memo.json", graph)
    assert unchanged is not None and unchanged.program is None


def test_what_cannot_be_used_is_no_memo(found: tuple[Path, Outcome], tmp_path: Path) -> None:
    graph, small = program()
    path = tmp_path / "memo.json"
    assert read_memo(path, graph) is None
    for text in ("", "{}", "[1]", '{"program": {"nodes": [["Relu", [7], [], "float32", [1]]]}, "outcome": {}, "contenders": []}'):
        path.write_text(text)
        assert read_memo(path, graph) is None
    write_memo(path, Memo(found[1], small, "", "", ()))
    assert read_memo(path, graph) is not None
    other = replace(graph, tensors={"another": np.zeros(4, np.float32)})
    assert read_memo(path, other) is None, "its weights are not this model's"
    write_memo(path / "below a file" / "memo.json", Memo(found[1], small, "", "", ()))  # a file that cannot be written is no error


def test_another_command_has_another_memo() -> None:
    options = Options(Path("m.onnx"))
    path = memo_path("1", "here", options)
    assert path is not None and path == memo_path("1", "here", replace(options, budget_seconds=1.0, checks=9, frozen=True))
    others = [replace(options, **change) for change in ({"threads": 2}, {"skip_rules": ("relu_twice",)}, {"model": Path("n.onnx")})]
    assert path not in [memo_path("2", "here", options), memo_path("1", "there", options), *(memo_path("1", "here", o) for o in others)]
    assert memo_path("1", "here", replace(options, rule_files=(Path("mine.py"),))) is None


def test_a_memo_of_other_sources_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sources that decide which program a search leads to count: Python, C, stored data and templates."""
    names = (
        "verify/prove.py", "runtime/devices/cpu/native/dispatch.c", "lower/targets/cpu/kernel.h", "egraph/rules/certificates.json",
        "egraph/optimize/report.html.j2",
    )  # fmt: skip
    files = [tmp_path / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("egraph.optimize.gate.ROOT", tmp_path)
    paths = []
    for changed in (None, *files):
        for file in files:
            file.write_text("changed" if file == changed else "as it was")
        sources_digest.cache_clear()
        paths.append(memo_path("1", "here", Options(Path("m.onnx"))))
    sources_digest.cache_clear()
    assert None not in paths and len(set(paths)) == 1 + len(files)


def test_the_same_command_again_compiles_and_checks_only(found: tuple[Path, Outcome], tmp_path: Path) -> None:
    """The same command runs with the memo, without it, and with another database that has no records."""
    folder, _ = found
    arguments = (folder / "m.onnx", "--threads", 1, "--budget", "20s", "--finalists", 1)
    again = command(*arguments, "--database", folder / "p.sqlite", "-o", tmp_path / "again", "--check", 4)
    assert again.returncode == 0 and "] compile the program" in again.stderr and "] saturate" not in again.stderr
    assert "on 4 random inputs" in again.stderr
    database, cache = folder / "p.sqlite", str(tmp_path / "cache")
    searched = command(*arguments, "--database", database, "-o", tmp_path / "out", is_forked=False, XDG_CACHE_HOME=cache)
    assert searched.returncode == 0 and "] saturate" in searched.stderr and "] measure" not in searched.stderr
    assert files_below(tmp_path / "out") == files_below(folder / "out")
    shutil.rmtree(tmp_path / "again")
    frozen = command(*arguments, "--database", tmp_path / "none.sqlite", "-o", tmp_path / "again", "--frozen")
    assert frozen.returncode == 2 and "no end-to-end time of" in frozen.stderr
