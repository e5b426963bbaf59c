"""Run a check in a process of its own if its result depends on what the process did before, such as the instances that Z3 draws.

The process is a fork of one that has imported the prover but proved nothing; its hashes have the seed zero.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.forked import run_forked

TIMEOUT_SECONDS = 250.0

def in_a_fresh_process(check: Callable[..., None], *arguments: str | Path) -> None:
    """Call a module's function with texts in a fresh process; fail if it fails."""
    code = f"import sys; from {check.__module__} import {check.__name__} as check; check(*sys.argv[1:])"
    done = run_forked([*map(str, arguments)], os.environ, TIMEOUT_SECONDS, code)
    assert done.returncode == 0, done.stderr
