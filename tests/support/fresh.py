"""Run a check in a process of its own, for what depends on what a process did before: the instances that Z3 draws."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.paths import ROOT


def in_a_fresh_process(check: Callable[..., None], *arguments: str | Path) -> None:
    """Call a module's function with texts there; fail as it fails."""
    code = f"import sys; from {check.__module__} import {check.__name__} as check; check(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
