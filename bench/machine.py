"""Describe the machine and the command of a measurement, without the names of folders."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from lower.targets.cpu.generator.library import processor as described

UNITS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "bf16", "i8mm", "sve")
"""Instructions that decide how fast a processor multiplies, as Linux names them."""


def about(command: str) -> dict[str, str]:
    """Return the command, the date, the processor and the versions that matter to proofs."""
    return {
        "command": command, "date": time.strftime("%Y-%m-%d"), "machine": processor(),
        "python": platform.python_version(), "z3": version("z3-solver"), "numpy": version("numpy"),
    }  # fmt: skip


def sentence(machine: Mapping[str, str]) -> str:
    """Return what ``about`` returned as a sentence."""
    return (
        f"By `{machine['command']}` on {machine['date']} ({machine['machine']}, Python {machine['python']}, "
        f"Z3 {machine['z3']}, numpy {machine['numpy']})."
    )


def processor(lines: Sequence[str] = ()) -> str:
    """Return the processor's name and which of ``UNITS`` it has, from lines of /proc/cpuinfo: many processors share one name."""
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines or described())}
    flags = values.get("flags", values.get("Features", "")).split()
    units = ", ".join(unit for unit in UNITS if unit in flags)
    name = values.get("model name", platform.machine())
    return f"{name} ({units})" if units else name
