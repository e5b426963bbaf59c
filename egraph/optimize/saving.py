"""Write a result: the standard model, and the artefact of a model that is kept as it was given."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from egraph.errors import CheckFailed
from egraph.onnx import exporter
from egraph.optimize import original
from egraph.optimize.check_noise import open_onnxruntime
from egraph.tensor import Graph, Program
from lower.compile import compile_model


def export(program: Program | None, given: Path, target: Path, threads: int) -> Any:
    """Write the standard model of a program, else the ``given`` one; return it in onnxruntime, None where it is a copy, byte for byte."""
    if program is None:
        original.copy_model(given, target)
        if original.is_copy(given, target):
            return None
    else:
        exporter.save(program, target, rules={k.output: k.rules for k in program.kernels if k.rules})
    try:
        return open_onnxruntime(target, threads)
    except Exception as error:  # onnxruntime raises a class a status; every one means "not this model"
        raise CheckFailed(f"{target.name} does not load: {' '.join(str(error).split())}", fix="report this model") from error


def save_unchanged(graph: Graph, given: Path, artefact: Path, *, keep_subnormals: bool = False) -> None:
    """Write the artefact that hands the model as it was given to onnxruntime."""
    compile_model(graph, given.read_bytes(), artefact, keep_subnormals=keep_subnormals)
    for name in original.external_files(given):
        (artefact / "opaque" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(given.parent / name, artefact / "opaque" / name)
