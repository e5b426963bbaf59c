"""The house has one way through it: imports follow the order of docs/architecture.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EGRAPH = ("errors", "ir", "expr", "ops", "derive", "rule", "rules", "encode", "saturate", "extract", "optimize")
"""Stages in order; a module may import only from its own stage and from those before it."""
STAGE = {
    "garbage": "errors",
    "tolerance": "errors",
    "rule_operators": "rule",
    "importer": "encode",
    "onnx_import": "encode",
    "exporter": "encode",
    "onnx_export": "encode",
    "onnx_fold": "encode",
    "onnx_types": "encode",
    "engine": "encode",
    "partition": "saturate",
    "cost": "extract",
    "finalists": "optimize",
    "check": "optimize",
    "report": "optimize",
    "inspect": "optimize",
    "backend": "optimize",
    "uniform": "encode",
    "constant_values": "encode",
    "eclasses": "saturate",
    "applications": "saturate",
    "merging": "saturate",
    "deriving": "saturate",
    "freeze": "saturate",
}
PACKAGES = {
    "verify": (
        *("egraph.errors", "egraph.garbage", "egraph.ir", "egraph.expr", "egraph.ops"),
        *("egraph.rule", "egraph.rule_terms", "egraph.rule_refusals", "egraph.rule_operators", "egraph.rule_file", "egraph.rules"),
        "verify",
    ),
    "lower": ("egraph.errors", "egraph.ir", "egraph.expr", "egraph.ops", "runtime.plan", "runtime.native", "lower"),
    "runtime": ("runtime",),
}
ALSO = {
    "verify/generate/derivation.py": ("egraph.saturate",),
    "verify/model": ("egraph.importer", "egraph.check", "egraph.tolerance", "egraph.optimize.original", "runtime"),
    "verify/bisect": ("egraph", "lower.candidates", "runtime"),
}
"""What may import more: generated rules are dropped when a saturation shows them; two commands stand above the optimiser,
whose results they judge, and nothing imports them."""


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Return every module that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def stage(module: str) -> int | None:
    """Return the position of ``egraph.<part>`` in the order, None for other modules."""
    parts = module.split(".")
    if parts[0] != "egraph" or len(parts) < 2:
        return None
    name = next((STAGE[p] for p in (parts[1], *_stems(parts[1])) if p in STAGE), None) or next(
        (s for s in (parts[1], *_stems(parts[1])) if s in EGRAPH), None
    )
    return None if name is None else EGRAPH.index(name)


def _stems(name: str) -> list[str]:
    words = name.split("_")
    return ["_".join(words[:n]) for n in range(len(words) - 1, 0, -1)]


@pytest.mark.parametrize("path", modules("egraph"), ids=lambda p: str(p.relative_to(ROOT)))
def test_egraph_imports_go_one_way(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    own = stage(module)
    if own is None:
        assert module in ("egraph", "egraph.__init__"), f"{module} has no stage: name it in tests/test_architecture.py"
        return
    for imported in imports(path):
        other = stage(imported)
        assert other is None or other <= own, f"{module} imports {imported}, which stands behind it"
        if imported.split(".")[0] in ("lower", "runtime", "verify"):
            allowed = own == EGRAPH.index("optimize") or imported.startswith("runtime.profile")
            assert allowed, f"{module} imports {imported}: only optimize sees every stage"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_the_design_allows(package: str) -> None:
    ours = ("egraph", "verify", "lower", "runtime", "bench", "tests")
    for path in modules(package):
        for imported in imports(path):
            if imported.split(".")[0] in ours:
                place = str(path.relative_to(ROOT))
                allowed = (*PACKAGES[package], *(more for start, extra in ALSO.items() if place.startswith(start) for more in extra))
                assert any(imported == a or imported.startswith(a + ".") for a in allowed) or imported in ("egraph", "runtime"), (
                    f"{path.relative_to(ROOT)} imports {imported}"
                )


def test_nothing_imports_the_commands_above_the_optimiser() -> None:
    for package in ("egraph", "verify", "lower", "runtime"):
        for path in modules(package):
            place = str(path.relative_to(ROOT))
            if not place.startswith(("verify/model/", "verify/bisect/")):
                assert not [name for name in imports(path) if f"{name}.".startswith(("verify.model.", "verify.bisect."))], place


def test_modules_stay_readable() -> None:
    """A module that grows past 400 lines hides a second idea."""
    long = {
        str(p.relative_to(ROOT)): n
        for pkg in ("egraph", "verify", "lower", "runtime", "bench")
        for p in modules(pkg)
        if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long


def test_only_one_module_imports_egglog() -> None:
    assert [str(p.relative_to(ROOT)) for p in modules("egraph") if any(i.split(".")[0] == "egglog" for i in imports(p))] == [
        "egraph/engine.py"
    ]


def test_the_command_line_answers_at_once() -> None:
    """--help imports nothing heavy."""
    code = (
        "import sys; sys.argv = ['egraph.optimize', '--help']\n"
        "import runpy\n"
        "try: runpy.run_module('egraph.optimize', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in ('numpy', 'onnx', 'onnxruntime', 'egglog', 'tvm', 'ortools', 'networkx') if m in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
