"""Describe the machine and the commit of a measurement, without the names of folders."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import processor

ROOT = Path(__file__).parent.parent
MEASURED = ("bench", "egraph", "lower", "runtime", "verify")
VERSIONS = ("apache-tvm", "egglog", "numpy", "onednn-cpu-gomp", "onnx", "onnxruntime", "openvino", "ortools", "torch")
OF_THE_RUN = ("command", "date")
"""Entries that may differ between rows of one table."""


def environment(threads: int, command: Sequence[str]) -> dict[str, Any]:
    """Return the processor with its units, versions, threads and the command."""
    versions = {}
    for package in VERSIONS:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.date.today().isoformat(), "command": " ".join(command), "cpu": processor(), "cores": os.cpu_count(),
        "threads": threads, "python": platform.python_version(), "versions": versions,
    }  # fmt: skip


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the differences that keep rows of two environments out of one table."""
    names = sorted((set(first) | set(second)) - set(OF_THE_RUN))
    return [f"{name}: {first.get(name)} and {second.get(name)}" for name in names if first.get(name) != second.get(name)]


def commit() -> str:
    """Return the commit that is measured, marked if files differ from it; empty outside a repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        revision = git("rev-parse", "--short=10", "HEAD")
        changed = revision and git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED, ":!bench/results")
        return revision + (" with changes" if changed else "")
    except OSError:
        return ""
