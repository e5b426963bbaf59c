"""Stages as files: each can be run alone on the output of the one before, with the same result; others are reported."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from egraph.errors import ModelError
from egraph.inspect.command import text as inspected
from egraph.optimize.arguments import parse, to_options
from egraph.optimize.artefact import PROGRAM_TEXT
from egraph.optimize.folding import Folder
from egraph.optimize.options import Options
from egraph.optimize.progress import Progress
from egraph.optimize.stages import STAGES, Saturated, dumped, format_result, parse_result, read, run_alone
from egraph.tensor import Graph, Program, walk
from egraph.tensor.ops.reference import evaluate
from egraph.tensor.text import TextError, format_graph, parse_graph
from lower.compile import compile_program
from runtime import Session
from tests.support.commands import build_model


def run(options: Options, source: Path, target: Path) -> str:
    progress = Progress(-1, options.budget_seconds, 0.0)
    try:
        return run_alone(replace(options, model=source), target, progress).read_text(encoding="utf-8")
    finally:
        progress.close()


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(build_model(tmp_path / "m.onnx"), budget_seconds=50.0, finalists=2, database=tmp_path / "p.sqlite")


def without_weights(text: str) -> str:
    return re.sub("^weights .*\\n", "", text)


def test_stages_run_alone_make_what_they_make_together(options: Options, tmp_path: Path) -> None:
    source, texts = options.model, []
    for number, stage in enumerate(STAGES):
        target = tmp_path / str(number) / f"{stage}.txt"
        texts.append(run(options, source, target))
        source = target
        result, weights = read(target)
        named = f"weights {f'../0/{STAGES[0]}.safetensors' if number else 'imported.safetensors'!r}\n"
        assert texts[-1] == ("" if stage == "plan" else named) + format_result(result)
        assert (weights is None) == (stage == "plan")
    together = run(options, options.model, tmp_path / "at once" / "m.selected.txt")
    assert without_weights(together) == without_weights(texts[2])
    assert texts[3] == run(options, tmp_path / "at once" / "m.selected.txt", tmp_path / "plan.txt")


def values_of(graph: Graph, x: np.ndarray) -> np.ndarray:
    leaves = {node: graph.tensors[node.string("digest")] for node in walk(graph.roots) if node.op == "Constant"}
    return evaluate(graph.roots, leaves | {graph.inputs[0]: x})[0]


def test_what_is_read_computes_the_same(options: Options, tmp_path: Path) -> None:
    """Graphs and programs are read with the data of their constants, and a compiled artefact by its readable program."""
    run(options, options.model, tmp_path / "imported.txt")
    run(options, tmp_path / "imported.txt", tmp_path / "selected.txt")
    graph, _ = read(tmp_path / "imported.txt")
    programs, _ = read(tmp_path / "selected.txt")
    assert isinstance(graph, Graph) and isinstance(programs, tuple)
    x = np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32)
    expected = values_of(graph, x)
    for program in programs:
        np.testing.assert_allclose(values_of(program.graph, x), expected, atol=1e-5)
    folded = Folder(programs[0].graph).fold(programs[0])
    folder = tmp_path / "m.einsat"
    plan = compile_program(folded, folder)
    (folder / PROGRAM_TEXT).write_text(format_result((folded,), "weights.safetensors"))
    assert inspected(folder) == (folder / PROGRAM_TEXT).read_text() + format_result(plan)
    (folder / PROGRAM_TEXT).rename(folder / "program.selected.txt")
    (again,) = read(folder / "program.selected.txt")[0]  # type: ignore[misc]
    assert isinstance(again, Program) and again.kernels == folded.kernels
    with Session(folder) as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=1e-5)
    np.testing.assert_allclose(values_of(again.graph, x), expected, atol=1e-5)


def test_a_model_is_shown_as_text(options: Options) -> None:
    text = inspected(options.model)
    assert format_graph(parse_graph(text)) == text and "MatMul(%0, %1) : float32[5,7] origins=('left',) name='a'" in text


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("imported.txt", "chosen.txt", "--to chosen.txt does not say which stage to run"),
        ("imported.txt", "selected.json", "--to selected.json does not say which stage to run"),
        ("imported.txt", "imported.txt", "'imported' does not follow from it"),
        ("selected.txt", "saturated.txt", "holds the stage 'selected': 'saturated' does not follow from it"),
        ("missing.txt", "selected.txt", "the text of a stage cannot be read"),
        ("bare.txt", "saturated.txt", "has no data"),
        ("lost.txt", "saturated.txt", "put it back, or write the text again"),
    ],
)
def test_a_stage_that_cannot_start_there_says_why(options: Options, tmp_path: Path, source: str, target: str, told: str) -> None:
    text = run(options, options.model, tmp_path / "imported.txt")
    run(options, tmp_path / "imported.txt", tmp_path / "selected.txt")
    (tmp_path / "bare.txt").write_text(without_weights(text))
    (tmp_path / "lost.txt").write_text(text.replace("imported.safetensors", "none.safetensors"))
    with pytest.raises(ModelError, match=told):
        run(options, tmp_path / source, tmp_path / "out" / target)
    assert not (tmp_path / "out" / target).exists()


def test_a_text_of_no_stage_is_refused() -> None:
    for text in ("", "weights 'a'", "weights 'a' nothing", "graph 'g' { } program 'p' { }", "egraph { }"):
        with pytest.raises(TextError):
            parse_result(text, lambda name: {})
    empty = parse_result("graph 'g' { } egraph roots=() { }", lambda name: {})
    assert isinstance(empty, Saturated) and empty.by_rules is None


def test_nothing_is_dumped_without_a_folder(tmp_path: Path) -> None:
    graph = Graph("g", (), (), {})
    assert dumped(None, graph) is graph
    assert not list(tmp_path.iterdir())
    dumped(tmp_path / "new", graph)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["imported.txt"], "no constants, no file for them"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--from", "a.txt"],
        ["--from", "a.txt", "m.onnx", "--to", "plan.txt"],
        ["--from", "m.onnx", "--to", "plan.txt"],
        ["m.onnx", "--to", "plan.txt", "--json"],
        ["m.onnx", "--to", "plan.txt", "-o", "out"],
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str]) -> None:
    with pytest.raises(ModelError, match=r"--from|--to"):
        to_options(parse(arguments))
