"""Complete the artefact: manifest, readable program, report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from egraph.optimize.outcome import Outcome
from egraph.optimize.report import render
from egraph.optimize.stages import WEIGHTS, format_result
from egraph.tensor import Program
from lower.targets import Lowering

MANIFEST, PROGRAM_TEXT, REPORT, RULES = "manifest.json", "program.txt", "report.html", "rules"


def finish_artefact(
    folder: Path, outcome: Outcome, program: Program | None, lowering: Lowering, rule_files: Sequence[Path] = ()
) -> None:
    """Add what people and ``inspect`` read to what the runtime reads; the user's rule files as they are."""
    path = folder / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["run"] = outcome.to_manifest()
    path.write_text(json.dumps(manifest, sort_keys=True, indent=1) + "\n", encoding="utf-8")
    text = "the model as it was given, executed by onnxruntime\n"
    if program is not None:
        text = format_result((program,), WEIGHTS if (folder / WEIGHTS).exists() else "")
    (folder / PROGRAM_TEXT).write_text(text, encoding="utf-8")
    (folder / REPORT).write_text(render(outcome), encoding="utf-8")
    lowering.complete(folder)  # so that it runs where no compiler is
    for number, file in enumerate(rule_files):
        (folder / RULES).mkdir(exist_ok=True)
        shutil.copyfile(file, folder / RULES / f"{number}_{file.name}")
