"""Complete the artefact: manifest, readable program, report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from egraph.optimize.outcome import Outcome
from egraph.optimize.report import render
from egraph.tensor import Node, Program, format_fragment
from runtime.native.build import copy_into

MANIFEST, PROGRAM_TEXT, REPORT, RULES = "manifest.json", "program.txt", "report.html", "rules"


def finish_artefact(folder: Path, outcome: Outcome, program: Program | None, rule_files: Sequence[Path] = ()) -> None:
    """Add what people and ``inspect`` read to what the runtime reads; the user's rule files as they are."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["run"] = outcome.to_manifest()
    path.write_text(json.dumps(manifest, sort_keys=True, indent=1) + "\n", encoding="utf-8")
    text = program_text(program) if program else "the model as it was given, executed by onnxruntime\n"
    (folder / PROGRAM_TEXT).write_text(text, encoding="utf-8")
    (folder / REPORT).write_text(render(outcome), encoding="utf-8")
    copy_into(folder)  # so that it runs where no compiler is
    for number, file in enumerate(rule_files):
        (folder / RULES).mkdir(exist_ok=True)
        shutil.copyfile(file, folder / RULES / f"{number}_{file.name}")


def program_text(program: Program) -> str:
    """Return one line a kernel: ``v3 = onednn.matmul  MatMul(%0:..., $1:...)  (v1, weight)``."""
    names: dict[Node, str] = {node: node.string("name") for node in program.graph.inputs}
    lines: list[str] = []
    for kernel in program.kernels:
        operands = ", ".join(names.get(node) or f"weight {node.type}" for node in kernel.inputs)
        names.setdefault(kernel.output, f"v{len(names) - len(program.graph.inputs)}")
        lines.append(f"{names[kernel.output]} = {kernel.implementation}  {format_fragment(kernel.fragment)}  ({operands})")
    lines += [f"output {name} = {names.get(node) or f'weight {node.type}'}" for name, node in program.graph.outputs]
    return "\n".join(lines) + "\n"
