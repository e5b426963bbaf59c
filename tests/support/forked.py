"""Run commands as forks of one process that has imported everything, because an import takes longer than many commands.

All forks have the hash seed of that process. A test of repeated runs starts a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from tests.support import child_server
from tests.support.paths import ROOT

IMPORTED = (
    "egraph.optimize.command", "egraph.optimize.arguments", "egraph.extract.solver", "egraph.inspect.command", "verify.prove",
    "lower.targets.cpu.lowering", "runtime.devices.cpu.device", "rich.table",
)  # fmt: skip
"""Modules that most commands import, without libraries that start threads."""


def prepare() -> None:
    """Do once what every fork would do for itself: import modules, and hash the dependencies of the shipped rules' proofs."""
    from egraph.optimize.admission import admitted
    from egraph.rules import RULES

    for name in IMPORTED:
        import_module(name)
    admitted(RULES)


def run_forked(
    arguments: Sequence[str], environment: Mapping[str, str], timeout: float, script: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `python -m egraph.optimize`, or a script that does, with these arguments to its end."""
    what = ("-c", script) if script else ("-m", "egraph.optimize")
    command = [sys.executable, *child_server.command_of(child_server.PLACES["python"]), *what, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=timeout)
