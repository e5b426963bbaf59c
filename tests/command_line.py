"""Write docs/command-line.md from the parsers: ``python -m tests.command_line > docs/command-line.md``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {
    "egraph.optimize": "Optimise a model.",
    "egraph.inspect": "Look into an artefact.",
    "runtime.run": "Run an artefact.",
    "runtime.profile": "Look after the profile database.",
    "verify": "Test the rules of a file.",
}
HEAD = """# Command line

Made by `python -m tests.command_line > docs/command-line.md`; a test holds it up to date.
"""


def help_text(module: str) -> str:
    """Return what ``--help`` prints, 100 columns wide."""
    environment = {**os.environ, "COLUMNS": "100"}
    command = [sys.executable, "-m", module, "--help"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def document() -> str:
    """Return docs/command-line.md."""
    parts = [f"## python -m {module}\n\n{what}\n\n```\n{help_text(module).rstrip()}\n```\n" for module, what in COMMANDS.items()]
    return "\n".join([HEAD, *parts])


if __name__ == "__main__":
    sys.stdout.write(document())
