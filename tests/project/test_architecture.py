"""Imports go one way: packages import each other only along a short list of edges without cycles."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TOPS = ("egraph", "verify", "lower", "runtime")
LANGUAGE = ("egraph.tensor", "egraph.rewrite", "egraph.rules")
EDGES: dict[str, tuple[str, ...]] = {
    "egraph.tensor": (),
    "egraph.rewrite": ("egraph.tensor",),
    "egraph.rules": ("egraph.tensor", "egraph.rewrite"),
    "egraph.derive": ("egraph.tensor",),
    "egraph.partial": ("egraph.tensor", "egraph.derive"),
    "egraph.onnx": ("egraph.tensor",),
    "egraph.engine": ("egraph.tensor", "egraph.rewrite", "egraph.derive"),
    "egraph.extract": ("egraph.tensor",),
    "verify": (*LANGUAGE, "egraph.partial", "runtime.garbage_collection"),
    "verify.__main__": (*LANGUAGE, "verify", "runtime.runner", "runtime.errors"),
    "verify.generate": (*LANGUAGE, "verify", "egraph.engine"),
    "runtime": (),
    "runtime.devices.cpu": ("runtime",),
    "runtime.devices.reference": ("runtime", "egraph.tensor"),
    "runtime.devices.cuda": ("runtime", "egraph.tensor"),
    "runtime.profile.__main__": ("runtime", "runtime.devices.cpu"),
    "lower": ("egraph.tensor", "runtime.plan"),
    "lower.cost": ("egraph.tensor", "lower.filling", "lower.roofline", "lower.targets", "lower.views", "runtime.profile"),
    "lower.targets.cpu": (
        "egraph.tensor", "lower", "runtime.cache", "runtime.child", "runtime.cores", "runtime.processor", "runtime.devices.cpu.native",
    ),
    "lower.targets.reference": ("egraph.tensor", "lower"),
    "lower.targets.cuda": ("egraph.tensor", "lower", "runtime.plan", "runtime.devices.cuda"),
    "egraph.optimize": (
        *(*LANGUAGE, "egraph.derive", "egraph.partial", "egraph.onnx", "egraph.engine", "egraph.extract"),
        *("verify", "lower", "lower.cost", "runtime"),
    ),
    "egraph.inspect": (*LANGUAGE, "egraph.derive", "egraph.onnx", "egraph.engine", "egraph.optimize", "runtime"),
    "verify.model": (*LANGUAGE, "verify", "egraph.onnx", "egraph.optimize", "runtime"),
    "verify.bisect": (*LANGUAGE, "egraph.onnx", "egraph.engine", "egraph.extract", "egraph.optimize", "lower", "runtime"),
}
"""Packages that a package may import; a module belongs to the package with the longest matching name. Imports for types and
imports inside functions count. Only the driver imports every stage; commands that judge its results may import the driver. No
module names a device or target other than its own: both are found by their names (``runtime.devices``, ``lower.targets``)."""
LEAVES = frozenset({"egraph", "egraph.errors", "egraph.policy", "egraph.tolerance"})
"""Modules that every package may import; they import only each other, so that ``--help`` answers immediately."""
RULE_API = ("egraph.rule", "egraph.rule_operators")
"""Modules that users' rule files import, under the names in those files; they are part of ``egraph.rewrite``."""


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


OURS = frozenset(module_name(path) for top in TOPS for path in modules(top))


def imports(path: Path) -> set[str]:
    """Return every module that a file imports, anywhere in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {name if (name := f"{node.module}.{alias.name}") in OURS else node.module for alias in node.names}
    return names


def package(module: str) -> str:
    """Return the package of EDGES that a module belongs to; '' for a leaf and for other projects' modules."""
    if module in RULE_API:
        return "egraph.rewrite"
    return max((name for name in EDGES if f"{module}.".startswith(f"{name}.")), key=len, default="")


@pytest.mark.parametrize("path", [path for top in TOPS for path in modules(top)], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_edges(path: Path) -> None:
    own = package(module_name(path))
    allowed = (own, *EDGES.get(own, ()))
    for imported in imports(path) & OURS - LEAVES:
        here = package(imported)
        fits = here in allowed or any(f"{imported}.".startswith(f"{name}.") and package(name) == here for name in allowed if name)
        assert fits, f"{path.relative_to(ROOT)}: {own or 'a leaf'} may not import {imported}"


def test_the_edges_have_no_cycle() -> None:
    order = list(TopologicalSorter({name: [package(each) or each for each in EDGES[name]] for name in EDGES}).static_order())
    assert order.index("egraph.tensor") < order.index("egraph.engine") < order.index("egraph.optimize") < order.index("egraph.inspect")


def test_every_module_has_a_package() -> None:
    assert {name for name in OURS if not package(name)} == LEAVES


def test_only_one_module_imports_egglog() -> None:
    assert [str(p.relative_to(ROOT)) for p in modules("egraph") if any(i.split(".")[0] == "egglog" for i in imports(p))] == [
        "egraph/engine/egglog.py"
    ]


def test_the_command_line_answers_at_once() -> None:
    """--help answers immediately because it imports nothing heavy."""
    code = (
        "import sys; sys.argv = ['egraph.optimize', '--help']\n"
        "import runpy\n"
        "try: runpy.run_module('egraph.optimize', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in ('numpy', 'onnx', 'onnxruntime', 'egglog', 'tvm', 'ortools') if m in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
