"""Write the artefact: the standard model, an unchanged model, the manifest, the readable program and the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from egraph.errors import CheckFailed
from egraph.onnx import exporter
from egraph.onnx.exact_bytes import separate_file
from egraph.optimize import original
from egraph.optimize.check_noise import open_onnxruntime
from egraph.optimize.outcome import Outcome
from egraph.optimize.report import render
from egraph.optimize.stages import WEIGHTS, format_result
from egraph.optimize.storage import with_rounded_weights
from egraph.tensor import Graph, Program
from egraph.tensor.storage import without_stored
from lower.compile import compile_model
from lower.targets import Lowering


def export(program: Program | None, original_file: Path, target: Path, threads: int) -> Any:
    """Write the standard model of a program, or else the original; return its onnxruntime session, or None if it is an exact copy."""
    if program is None:
        original.copy_model(original_file, target)
        if original.is_copy(original_file, target):
            return None
    else:
        program = without_stored(program)
        exporter.save(program, target, rules={k.output: k.rules for k in program.kernels if k.rules})
    try:
        return open_onnxruntime(target, threads)
    except Exception as error:  # onnxruntime raises a class a status; every one means "not this model"
        raise CheckFailed(f"{target.name} does not load: {' '.join(str(error).split())}", fix="report this model") from error


def save_unchanged(graph: Graph, original_file: Path, artefact: Path, *, keep_subnormals: bool = False) -> None:
    """Write the artefact that runs the unchanged model in onnxruntime."""
    compile_model(graph, separate_file(original_file.read_bytes()), artefact, keep_subnormals=keep_subnormals)
    for name in original.external_files(original_file):
        (artefact / "opaque" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original_file.parent / name, artefact / "opaque" / name)


MANIFEST, PROGRAM_TEXT, REPORT, RULES = "manifest.json", "program.txt", "report.html", "rules"


def finish_artefact(
    folder: Path, outcome: Outcome, program: Program | None, lowering: Lowering, rule_files: Sequence[Path] = ()
) -> None:
    """Add the files that people and ``inspect`` read to those of the runtime, with copies of the user's rule files."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["run"] = outcome.to_manifest()
    path.write_text(json.dumps(manifest, sort_keys=True, indent=1) + "\n", encoding="utf-8")
    text = "the model as it was given, executed by onnxruntime\n"
    if program is not None:
        text = format_result((with_rounded_weights(program, lowering),), WEIGHTS if (folder / WEIGHTS).exists() else "")
    (folder / PROGRAM_TEXT).write_text(text, encoding="utf-8")
    (folder / REPORT).write_text(render(outcome), encoding="utf-8")
    lowering.complete(folder)  # so that it runs without a compiler
    for number, file in enumerate(rule_files):
        (folder / RULES).mkdir(exist_ok=True)
        shutil.copyfile(file, folder / RULES / f"{number}_{file.name}")
