"""Write the generated pages of docs/: ``python -m tests.pages`` (or ``make docs``)."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.corpora.proof_table import document as proofs
from egraph.policy import Policy, tunings
from egraph.rules.__main__ import document as rules
from tests.support.laws import table as law_table

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "egraph.optimize": "Optimise a model.",
    "egraph.inspect": "Look into an artefact.",
    "runtime.run": "Run an artefact.",
    "runtime.profile": "Look after the profile database.",
    "verify": "Prove the rules of a file.",
    "verify.generate": "Find rules.",
    "verify.model": "Compare two models.",
    "verify.bisect": "Find what makes an optimised model wrong.",
}
PACKAGES = {
    "egraph": "from a model to the chosen program",
    "egraph/tensor": "the language: types, nodes, graphs",
    "egraph/tensor/expr": "the expression language",
    "egraph/tensor/ops": "the operator table",
    "egraph/tensor/text": "graphs, programs and e-graphs as text",
    "egraph/derive": "derived programs",
    "egraph/derive/bilinear": "fast convolutions and products",
    "egraph/derive/rules": "rules on expressions",
    "egraph/derive/matching": "operators in expressions",
    "egraph/partial": "partial equivalence",
    "egraph/onnx": "ONNX models",
    "egraph/onnx/importer": "ONNX in",
    "egraph/onnx/exporter": "ONNX out",
    "egraph/rewrite": "the rule language",
    "egraph/rules": "the rules",
    "egraph/extract": "the choice of kernels",
    "egraph/engine": "the e-graph and its saturation",
    "egraph/optimize": "the main job",
    "egraph/inspect": "looking into an artefact",
    "verify": "proving rules",
    "verify/normal": "normal forms",
    "verify/generate": "finding rules",
    "verify/model": "comparing models",
    "verify/bisect": "finding what is wrong",
    "lower": "kernels, memory, artefacts",
    "lower/cost": "what kernels cost",
    "lower/candidates": "kernels laid over the e-graph",
    "lower/eoperator": "what generated kernels compute",
    "lower/attention": "attention on any target",
    "lower/calls": "fragments as calls of a library",
    "lower/targets": "what code is for",
    "lower/targets/reference": "operators by their meanings",
    "lower/targets/cuda": "kernels and libraries of NVIDIA's GPUs",
    "lower/targets/cuda/generator": "CUDA text",
    "lower/targets/cpu": "the CPU's libraries and generator",
    "lower/targets/cpu/onednn": "the vendor library",
    "lower/targets/cpu/attention": "attention in blocks of rows",
    "lower/targets/cpu/recurrence": "folds along time",
    "lower/targets/cpu/blocks": "products by weights of few bits",
    "lower/targets/cpu/bytes": "products and convolutions of bytes",
    "lower/targets/cpu/products": "products of numbers by packed matrices",
    "lower/targets/cpu/depthwise": "depthwise convolutions",
    "lower/targets/cpu/generator": "generated kernels",
    "runtime": "running programs",
    "runtime/devices": "what runs a plan",
    "runtime/devices/reference": "operators by their meanings",
    "runtime/devices/cuda": "CUDA, and a stand-in without a GPU",
    "runtime/devices/cpu": "this machine's processor",
    "runtime/devices/cpu/onednn": "the vendor library",
    "runtime/devices/cpu/native": "the part in C",
    "runtime/profile": "measured times",
}


def help_text(module: str) -> str:
    """Return what ``--help`` prints, 100 columns wide."""
    environment = {**os.environ, "COLUMNS": "100"}
    command = [sys.executable, "-m", module, "--help"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def command_line() -> str:
    """Return docs/command-line.md."""
    parts = [f"## python -m {module}\n\n{what}\n\n```\n{help_text(module).rstrip()}\n```\n" for module, what in COMMANDS.items()]
    return "\n".join(["# Command line\n\nMade by `make docs`; a test holds it up to date.\n", *parts])


def summary(path: Path) -> str:
    """Return the first sentence of a file: of its docstring, or of its opening comment."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        text = text.lstrip("/* ").split("*/")[0]
    first = text.split("\n\n")[0].replace("\n * ", " ").replace("\n", " ")
    head = first.split(". ")[0].strip().rstrip(".:")
    return head.replace("|", "\\|").replace("``", "`")


def modules() -> str:
    """Return docs/modules.md."""
    lines = ["# Modules", "", "Every module in one line, in the folders of the house. Made by `make docs`; a test holds it up to date."]
    for package, what in PACKAGES.items():
        files = [path for path in sorted((ROOT / package).iterdir()) if path.suffix in (".py", ".c", ".h")]
        lines += ["", f"## {package}: {what}", "", "| module | |", "|---|---|"]
        lines += [f"| `{path.name}` | {summary(path)} |" for path in files if summary(path)]
    return "\n".join(lines) + "\n"


def laws() -> str:
    """Return docs/laws.md."""
    return f"""# Laws of the normal form

Every law by which the prover rewrites values, made by `make docs` from `tests/support/laws.py`. `tests/verify/test_normal_laws.py` tests
each row as its last column says, shows that the normal form applies it and records what it asks for, and fails where a function of
`verify/normal` that rewrites has no row. Laws of quotients, remainders and conditions over indices stand in
`egraph/tensor/expr/laws.py`, each proved by Z3.

*Records*: the fact that the law notes, where it does not hold for all operands: a rule whose proof used it has to be of a rounding
class that allows it ([proofs.md](proofs.md#rounding-classes)). `positive(x)` and `zero(x)` are 1 where x > 0, x == 0, else 0.

{law_table()}"""


def policy() -> str:
    """Return docs/policy.md."""
    lines = ["""# Policy

How the stages are tuned. Made by `make docs`; a test holds it up to date.

Change a field with `--policy extract.share=0.1`, as often as you like; the artefact's manifest keeps all of them. What a change does to
models, `python -m bench.policy --field extract.share --values 0.02,0.1 --models resnet18` says.
"""]
    for stage in dataclasses.fields(Policy):
        rows = [tuning for tuning in tunings(Policy()) if tuning.stage == stage.name]
        summary = (type(getattr(Policy(), stage.name)).__doc__ or "").strip()
        lines += [f"## {stage.name}", "", summary, "", "| field | default | unit | values | reason |", "|---|---|---|---|---|"]
        lines += [f"| `{each.name}` | {each.text} | {each.unit} | {each.range} | {each.reason} |" for each in rows]
        lines.append("")
    return "\n".join(lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/rules.md": rules, "docs/proofs.md": proofs, "docs/command-line.md": command_line, "docs/modules.md": modules,
    "docs/policy.md": policy,
    "docs/laws.md": laws,
}  # fmt: skip


if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).write_text(page(), encoding="utf-8")
