"""Say on what and by which command something was measured; nothing that names a place on the machine."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path


def about(command: str) -> dict[str, str]:
    """Return the command, the date, the processor and the versions that matter to proofs."""
    return {
        "command": command, "date": time.strftime("%Y-%m-%d"), "machine": _processor(),
        "python": platform.python_version(), "z3": version("z3-solver"), "numpy": version("numpy"),
    }  # fmt: skip


def sentence(machine: Mapping[str, str]) -> str:
    """Return what ``about`` returned as a sentence."""
    return (
        f"By `{machine['command']}` on {machine['date']} ({machine['machine']}, Python {machine['python']}, "
        f"Z3 {machine['z3']}, numpy {machine['numpy']})."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
